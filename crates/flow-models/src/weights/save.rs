//! Saving weights: the same values give the same bytes, and a file is there whole or not at all.

use super::StoredDtype;
use crate::ModelError;
use flow_core::Weights;
use flow_diffusers::safetensors::{self, WriteError};
use std::collections::BTreeMap;
use std::path::Path;

/// Writes all of `weights` to the safetensors file `path`, in precision `dtype` (rounded to nearest, ties to even).
///
/// `metadata` is free text; `format` is set to `pt`, which loaders in Python ask for, unless it is given.
///
/// # Errors
/// [`ModelError::Io`]; [`ModelError::OutOfRange`]. A file that was there before is unharmed then.
pub fn save(
    weights: &Weights,
    path: &Path,
    dtype: StoredDtype,
    metadata: &BTreeMap<String, String>,
) -> Result<(), ModelError> {
    let specs = weights.layout().specs().iter().enumerate();
    let tensors = specs.map(|(index, spec)| (spec.name.clone(), spec.shape.clone(), index));
    save_tensors(
        tensors.collect(),
        &|index| weights.host(index),
        path,
        dtype,
        metadata,
    )
}

/// Writes tensors, given as name, shape and a key under which `values` finds the values.
///
/// # Errors
/// As [`save`].
pub fn save_tensors(
    tensors: Vec<(String, Vec<usize>, usize)>,
    values: &dyn Fn(usize) -> Vec<f32>,
    path: &Path,
    dtype: StoredDtype,
    metadata: &BTreeMap<String, String>,
) -> Result<(), ModelError> {
    safetensors::write(tensors, values, path, dtype, metadata).map_err(|error| match error {
        WriteError::Io { path, source } => ModelError::Io {
            action: "write",
            path,
            source,
        },
        WriteError::OutOfRange {
            name,
            value,
            dtype,
            limit,
        } => ModelError::OutOfRange {
            name,
            value,
            dtype,
            limit,
        },
    })
}
