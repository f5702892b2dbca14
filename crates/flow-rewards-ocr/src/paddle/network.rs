//! The interface to `rten`: an ONNX file with one input and one output of f32, run by one thread at a time.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rten::{Model, ModelOptions, RunOptions, ThreadPool, Value};

/// Threads that networks run on, one for each call under way.
///
/// Each is a pool of one thread: how `rten` divides work among threads may decide the order of a sum, and a score must not depend on
/// the processor's number of cores.
#[derive(Debug, Default)]
pub(super) struct Threads {
    idle: Mutex<Vec<Arc<ThreadPool>>>,
}

impl Threads {
    /// Lends a thread to `work`. There are as many as there were calls at once.
    pub fn lend<T>(&self, work: impl FnOnce(&Arc<ThreadPool>) -> T) -> T {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = idle().pop();
        let thread = thread.unwrap_or_else(|| Arc::new(ThreadPool::with_num_threads(1)));
        let result = work(&thread);
        idle().push(thread);
        result
    }
}

/// A network.
pub(super) struct Network {
    model: Model,
}

impl Network {
    /// Reads an ONNX file.
    ///
    /// # Errors
    /// If it is none, has an operator that `rten` does not know, or not one input and one output.
    pub fn new(onnx: Vec<u8>) -> Result<Self, String> {
        if onnx.starts_with(b"version https://git-lfs") {
            return Err(
                "it is a pointer of Git LFS, and the file itself was not fetched: run `git lfs pull` in its folder".to_owned(),
            );
        }
        let mut options = ModelOptions::with_all_ops();
        options.prepack_weights(true);
        let model = options
            .load(onnx)
            .map_err(|error| format!("it cannot be read as an ONNX file: {error}"))?;
        let (inputs, outputs) = (model.input_ids().len(), model.output_ids().len());
        if (inputs, outputs) != (1, 1) {
            return Err(format!(
                "it has {inputs} inputs and {outputs} outputs, and a network of PP-OCR has one of each"
            ));
        }
        Ok(Self { model })
    }

    /// The text under a name in the file's metadata.
    pub fn metadata(&self, name: &str) -> Option<&str> {
        self.model.metadata().get(name)
    }

    /// Shape and values of the output for an input of values in this shape.
    ///
    /// # Errors
    /// If the network does not take that shape, or its output has another number of dimensions than `N`.
    pub fn run<const N: usize>(
        &self,
        shape: [usize; 4],
        values: Vec<f32>,
        thread: &Arc<ThreadPool>,
    ) -> Result<([usize; N], Vec<f32>), String> {
        let in_words =
            |error: &dyn fmt::Display| format!("the network failed on an input of {shape:?}: {error}");
        let input = Value::from_shape(shape, values).map_err(|error| in_words(&error))?;
        let options = RunOptions::default().with_thread_pool(Some(thread.clone()));
        let output = self
            .model
            .run_one(input.into(), Some(options))
            .map_err(|error| in_words(&error))?;
        output.into_shape_vec().map_err(|error| in_words(&error))
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network")
            .field("parameters", &self.model.total_params())
            .finish_non_exhaustive()
    }
}
