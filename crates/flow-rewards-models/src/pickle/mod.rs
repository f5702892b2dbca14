//! Weights that `torch.save` wrote, read without running anything.
//!
//! Such a file is a zip whose entries are not compressed: `NAME/data.pkl`, a pickle that says what tensors there are, and `NAME/data/KEY`,
//! their values. A pickle is a program that may call whatever Python has. Here a machine with no calls at all reads it: four names
//! that PyTorch writes have a meaning ([`machine`]), and a file with any other is refused.
//!
//! Source: CPython, `Lib/pickletools.py`; PyTorch, `torch/serialization.py` and `torch/_weights_only_unpickler.py`.

mod entries;
mod machine;
mod tensors;

use flow_models::weights::{FileMap, StoredTensor};
use flow_registry::Refusal;
use std::path::Path;
use tensors::TensorPlace;

/// What to do with a file that is refused.
const MEND: &str = "convert it once, in Python: `safetensors.torch.save_file(torch.load(FILE, weights_only=True), \"FILE.safetensors\")`";

/// A file of `torch.save`.
#[derive(Debug)]
pub struct PickledWeights {
    file: FileMap,
    tensors: Vec<TensorPlace>,
}

impl PickledWeights {
    /// Whether `path` begins as such a file does: as a zip.
    pub fn is_one(file: &FileMap) -> bool {
        file.bytes.starts_with(b"PK\x03\x04")
    }

    /// Reads which tensors are in `file`: those of its dictionary, or of the dictionary `state_dict` in it.
    ///
    /// # Errors
    /// What is wrong with the file, and how to mend it.
    pub fn read(file: FileMap) -> Result<Self, Refusal> {
        let wrong = |problem: String| Refusal::new(format!("`{}`: {problem}", file.path.display()), MEND);
        let tensors = entries::of_zip(&file.bytes).and_then(|entries| tensors::places(&file.bytes, &entries));
        match tensors {
            Ok(tensors) => Ok(Self { tensors, file }),
            Err(problem) => Err(wrong(problem)),
        }
    }

    /// Its tensors.
    pub fn tensors(&self) -> impl Iterator<Item = StoredTensor<'_>> {
        self.tensors.iter().map(|place| StoredTensor {
            name: place.name.clone(),
            dtype: place.dtype,
            shape: place.shape.clone(),
            bytes: &self.file.bytes[place.bytes.clone()],
        })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.file.path
    }
}
