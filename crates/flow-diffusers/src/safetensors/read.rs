//! The bytes of one safetensors file.

use flow_registry::repeated_key;
use safetensors::tensor::SafeTensorError;
use safetensors::{Dtype, SafeTensors};
use serde_json::Deserializer;
use std::collections::BTreeMap;

/// What a file begins with that Git LFS put in the place of a large one.
pub(crate) const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// One tensor of a file.
#[derive(Clone, Debug)]
pub struct StoredTensor<'a> {
    /// Its name.
    pub name: String,
    /// Its precision, any that the format knows.
    pub dtype: Dtype,
    /// Its shape, outermost axis first.
    pub shape: Vec<usize>,
    /// Its values, row-major and little-endian.
    pub bytes: &'a [u8],
}

impl StoredTensor<'_> {
    /// The values, or nothing if the precision is none of [`StoredDtype`](super::StoredDtype).
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        super::StoredDtype::of(self.dtype).map(|dtype| dtype.decode(self.bytes))
    }

    /// The one value of a tensor that holds one number of any usual precision.
    pub fn scalar(&self) -> Option<f64> {
        let value = match (self.dtype, self.bytes) {
            (Dtype::F64, bytes) => f64::from_le_bytes(bytes.try_into().ok()?),
            (Dtype::I64, bytes) => i64::from_le_bytes(bytes.try_into().ok()?) as f64,
            (Dtype::I32, bytes) => f64::from(i32::from_le_bytes(bytes.try_into().ok()?)),
            _ => match self.to_f32()?.as_slice() {
                [value] => f64::from(*value),
                _ => return None,
            },
        };
        Some(value)
    }

    /// The index along each axis of the value at `position`.
    pub fn place(&self, position: usize) -> Vec<usize> {
        let mut rest = position;
        let mut place: Vec<usize> = self
            .shape
            .iter()
            .rev()
            .map(|length| {
                let index = rest % length;
                rest /= length;
                index
            })
            .collect();
        place.reverse();
        place
    }
}

/// The contents of a file.
#[derive(Clone, Debug)]
pub struct Parsed<'a> {
    /// The tensors, sorted by name.
    pub tensors: Vec<StoredTensor<'a>>,
    /// Free text that the writer left.
    pub metadata: BTreeMap<String, String>,
}

/// Reads a safetensors file from memory. Never panics, whatever `bytes` holds.
///
/// # Errors
/// What is wrong with the bytes, in words.
pub fn parse(bytes: &[u8]) -> Result<Parsed<'_>, String> {
    if bytes.starts_with(LFS_POINTER) {
        return Err(
            "it is a pointer of Git LFS, a few lines that stand for the weights: run `git lfs pull` in its folder, or fetch the \
             file again with a program that follows such pointers (`hf download`)"
                .into(),
        );
    }
    if let Some(what) = other_format(bytes) {
        return Err(what.into());
    }
    let (header_bytes, header) = SafeTensors::read_metadata(bytes).map_err(|error| explain(&error, bytes))?;
    let json = bytes.get(8..8 + header_bytes).unwrap_or_default();
    let repeated = repeated_key(&mut Deserializer::from_slice(json))
        .map_err(|error| format!("its header is no JSON: {error}"))?;
    if let Some(twice) = repeated {
        return Err(format!("its header names the tensor `{twice}` twice"));
    }
    let file = SafeTensors::deserialize(bytes).map_err(|error| explain(&error, bytes))?;
    let mut tensors: Vec<_> = file
        .tensors()
        .into_iter()
        .map(|(name, view)| StoredTensor {
            name,
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            bytes: view.data(),
        })
        .collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let metadata = header.metadata().clone().unwrap_or_default();
    Ok(Parsed {
        tensors,
        metadata: metadata.into_iter().collect(),
    })
}

/// What a file is that people take for safetensors, told by how it begins.
fn other_format(bytes: &[u8]) -> Option<&'static str> {
    let begins = |with: &[u8]| {
        bytes
            .get(..with.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(with))
    };
    if bytes.starts_with(b"PK\x03\x04") {
        Some(
            "it is a file of `torch.save` (a ZIP with pickles, which are programs and are not run): load it in Python and save it \
             with `safetensors.torch.save_file`",
        )
    } else if bytes.starts_with(b"GGUF") {
        Some(
            "it is a file of llama.cpp (GGUF), whose weights are rounded to few bits: fetch the model as safetensors",
        )
    } else if begins(b"<!doctype") || begins(b"<html") {
        Some(
            "it is a web page, most likely the one that a server sent in the place of the file: fetch it again, logged in if it is gated",
        )
    } else {
        None
    }
}

fn explain(error: &SafeTensorError, bytes: &[u8]) -> String {
    let size = bytes.len();
    match error {
        SafeTensorError::HeaderTooSmall => {
            format!("it has {size} bytes, fewer than the 8 that every safetensors file starts with")
        }
        SafeTensorError::HeaderTooLarge if declared(bytes).is_some_and(|length| length <= size) => format!(
            "its header has {} bytes, and readers of safetensors take at most 100,000,000; a header of that size is mostly \
             metadata, so write the file again with less of it",
            declared(bytes).unwrap_or_default()
        ),
        SafeTensorError::HeaderTooLarge | SafeTensorError::InvalidHeaderLength => format!(
            "its first 8 bytes give the length of the header as more than the file of {size} bytes can hold; \
             it is truncated, or no safetensors file"
        ),
        SafeTensorError::MetadataIncompleteBuffer => format!(
            "its header describes another amount of data than the file of {size} bytes holds; it is truncated or \
             damaged, so fetch or write it again"
        ),
        error => format!("its header is damaged: {error}"),
    }
}

/// The length of the header that a file's first bytes give.
fn declared(bytes: &[u8]) -> Option<usize> {
    let length = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    usize::try_from(length).ok()
}
