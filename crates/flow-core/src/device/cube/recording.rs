//! Recordings on CubeCL's runtimes: CUDA graphs on NVIDIA's GPUs, lists of dispatches on `wgpu`.

use crate::device::graph::{NotRecorded, Recorded, Recorder};
use crate::tensors::{RawTensor, buffer, is_float, shape};
use burn::backend::{
    Dispatch, TensorMetadata,
    ops::{FloatTensorOps, IntTensorOps},
};
use burn::tensor::Slice;
use cubecl::client::Graph;
use cubecl::prelude::Client;
use cubecl::server::Handle;
use cubecl::{MemoryPoolKind, MemoryPoolReport, MemoryScope};
use std::fmt;
use std::thread::ThreadId;

/// Records computations on the device of their inputs.
#[derive(Clone, Copy, Debug)]
pub struct CubeRecorder;

/// Pieces of memory put aside for a recording, at least.
const FEWEST_ROOMS: u64 = 12;

/// Memory that keeps its address, and the shape of what is written to it.
#[derive(Clone, Debug)]
struct Place {
    flat: Option<RawTensor>,
    shape: Vec<usize>,
}

impl Place {
    /// Room for a tensor like `tensor`. Without gaps: rows of more axes would be padded on a GPU.
    fn like(tensor: &RawTensor) -> Self {
        let length = [tensor.shape().num_elements()];
        let (device, dtype) = (tensor.device(), tensor.dtype());
        let flat = if is_float(tensor) {
            Dispatch::float_empty(length.into(), &device, dtype.into())
        } else {
            Dispatch::int_empty(length.into(), &device, dtype.into())
        };
        Self {
            flat: Some(flat),
            shape: shape(tensor),
        }
    }

    /// What it holds.
    fn view(&self) -> RawTensor {
        let flat = self
            .flat
            .clone()
            .expect("only `write` takes it out, and puts it back");
        let shape = self.shape.clone().into();
        if is_float(&flat) {
            Dispatch::float_reshape(flat, shape)
        } else {
            Dispatch::int_reshape(flat, shape)
        }
    }

    /// Writes `tensor`'s values.
    fn write(&mut self, tensor: &RawTensor) -> Result<(), NotRecorded> {
        if shape(tensor) != self.shape {
            return Err(NotRecorded(format!(
                "it was recorded for a tensor {:?} and got {:?}",
                self.shape,
                shape(tensor)
            )));
        }
        let flat = self.flat.take().expect("nothing else takes it out");
        let length = flat.shape().num_elements();
        let (before, all) = (buffer(&flat), [Slice::from(0..length)]);
        let written = if is_float(tensor) {
            let values = Dispatch::float_reshape(tensor.clone(), [length].into());
            Dispatch::float_slice_assign(flat, &all, values)
        } else {
            let values = Dispatch::int_reshape(tensor.clone(), [length].into());
            Dispatch::int_slice_assign(flat, &all, values)
        };
        let moved = buffer(&written) != before;
        self.flat = Some(written);
        if moved {
            return Err(NotRecorded(
                "something holds an input of the recording, so it cannot be written to in place".into(),
            ));
        }
        Ok(())
    }
}

fn client(tensor: &RawTensor) -> Result<Client, NotRecorded> {
    let found = super::read(tensor).or_else(|| super::read_ints(tensor));
    let found = found.ok_or_else(|| NotRecorded("its first input is on no device that has graphs".into()))?;
    Ok(found.client.clone())
}

fn refused(what: &str, error: impl fmt::Display) -> NotRecorded {
    // CubeCL writes headings for backtraces that nobody asked for.
    let error = error.to_string();
    let lines: Vec<&str> = error
        .lines()
        .filter(|line| !line.to_lowercase().contains("backtrace"))
        .collect();
    NotRecorded(format!("the device refused to {what}: {}", lines.join("\n")))
}

/// Waits until all that was asked of the device is done.
fn waited_for(client: &Client) -> Result<(), NotRecorded> {
    let done = cubecl::future::block_on(client.sync());
    done.map_err(|error| refused("warm up", error))
}

/// Takes memory that nobody needs, until it is dropped: a quarter more than the pool has for tensors of the stream, in pieces
/// as large as the largest of them, each of which fills a page.
fn spare_rooms(client: &Client) -> Vec<Handle> {
    let report = client.memory_report(MemoryScope::CurrentStream);
    let mut pools = report.streams.iter().flat_map(|stream| &stream.pools.dynamic);
    let grows = |pool: &&MemoryPoolReport| matches!(pool.kind, MemoryPoolKind::Adaptive { .. });
    let Some(pool) = pools.find(grows).filter(|pool| pool.largest_alloc > 0) else {
        return Vec::new();
    };
    let rooms = FEWEST_ROOMS + pool.pages / 4;
    (0..rooms)
        .map(|_| client.empty(pool.largest_alloc as usize))
        .collect()
}

impl Recorder for CubeRecorder {
    fn record(
        &self,
        inputs: &[RawTensor],
        warm_up: &mut dyn FnMut(&[RawTensor]),
        compute: &mut dyn FnMut(&[RawTensor]) -> Vec<RawTensor>,
    ) -> Result<Box<dyn Recorded>, NotRecorded> {
        let first = inputs.first();
        let client = client(first.ok_or_else(|| NotRecorded("it has no input".into()))?)?;
        let mut places: Vec<Place> = inputs.iter().map(Place::like).collect();
        for (place, input) in places.iter_mut().zip(inputs) {
            place.write(input)?;
        }
        let views = |places: &[Place]| places.iter().map(Place::view).collect::<Vec<_>>();
        let prepared = client.graph_prepare();
        prepared.map_err(|error| refused("prepare a recording", error))?;
        // How much memory is in use at once depends on how far this thread runs ahead of the one that launches. The first run
        // compiles and takes most of it; the second takes the rest, with more than it needs put aside for the recorded one.
        warm_up(&views(&places));
        waited_for(&client)?;
        let spare = spare_rooms(&client);
        warm_up(&views(&places));
        drop(spare);
        let begun = client.start_capture();
        begun.map_err(|error| refused("begin a recording", error))?;
        let outputs = compute(&views(&places));
        let graph = client
            .stop_capture()
            .map_err(|error| refused("end a recording", error))?;
        Ok(Box::new(CubeRecording {
            graph,
            thread: std::thread::current().id(),
            inputs: places,
            outputs,
        }))
    }

    fn copied(&self, tensor: &RawTensor) -> RawTensor {
        let mut place = Place::like(tensor);
        place
            .write(tensor)
            .expect("a new place of the tensor's shape takes it");
        place.view()
    }

    fn is_held(&self, tensor: &RawTensor) -> bool {
        super::read(tensor).is_none_or(|tensor| !tensor.can_mut())
    }

    fn is_readable(&self, tensors: &[RawTensor]) -> bool {
        let Some(client) = tensors.first().and_then(|first| client(first).ok()) else {
            return true;
        };
        let floats = tensors
            .iter()
            .filter_map(super::read)
            .map(|tensor| &tensor.handle);
        let ints = tensors
            .iter()
            .filter_map(super::read_ints)
            .map(|tensor| &tensor.handle);
        let done = cubecl::future::block_on(client.sync_buffers(floats.chain(ints)));
        done.is_ok()
    }

    fn release(&self, like: &RawTensor) {
        // Memory that is not given back now is given back later.
        let _ = client(like).map(|client| client.memory_cleanup());
    }
}

/// A recording, and the memory of its inputs and outputs.
struct CubeRecording {
    graph: Graph,
    thread: ThreadId,
    inputs: Vec<Place>,
    outputs: Vec<RawTensor>,
}

impl fmt::Debug for CubeRecording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CubeRecording")
            .field("inputs", &self.inputs.len())
            .field("outputs", &self.outputs.len())
            .finish_non_exhaustive()
    }
}

impl Recorded for CubeRecording {
    fn replay(&mut self, inputs: &[RawTensor]) -> Result<&[RawTensor], NotRecorded> {
        if std::thread::current().id() != self.thread {
            return Err(NotRecorded(
                "it belongs to the thread that recorded it, and another one asked".into(),
            ));
        }
        if inputs.len() != self.inputs.len() {
            return Err(NotRecorded(format!(
                "it was recorded with {} inputs and got {}",
                self.inputs.len(),
                inputs.len()
            )));
        }
        for (place, input) in self.inputs.iter_mut().zip(inputs) {
            place.write(input)?;
        }
        // SAFETY: the recording keeps the memory of its inputs and outputs; CubeCL keeps every page that the kernels between
        // touched. Weights are the caller's, who compares their addresses. This thread's stream orders writes and reads.
        unsafe { self.graph.replay() }.map_err(|error| refused("replay", error))?;
        Ok(&self.outputs)
    }

    fn outputs(&self) -> &[RawTensor] {
        &self.outputs
    }
}
