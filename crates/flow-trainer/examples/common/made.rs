//! Random weights: drawn value by value; or, of models that are too large to be written and read, stretches of one table of normal
//! values, scaled, so that a peer makes the same on its device. `bench/step_peer.py` has the same constants.

use super::inputs::normal;
use burn::backend::{Dispatch, ops::FloatTensorOps};
use burn::tensor::{DType, FloatDType, Tensor, TensorData, bf16};
use flow_core::device::ComputeDevice;
use flow_core::error::CoreError;
use flow_core::rng::Purpose;
use flow_core::{ParamLayout, ParamSpec, RawTensor, Weights};
use flow_models::Architecture;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Values of the table: a prime, so that no width of a layer divides it and no two rows of a matrix are alike.
const TABLE: usize = 1_048_583;
/// How far apart in the table neighbouring weights begin.
const STRIDE: usize = 7919;
/// Standard deviation of vectors; those that scale a norm are around 1.
const VECTOR: f32 = 0.02;
/// Standard deviation of matrices, times the root of their columns.
const MATRIX: f64 = 0.5;
/// Values that a thread makes at a time.
const RUN: usize = 1 << 18;

/// Standard deviation of what is added to every weight that is drawn.
const PERTURBATION: f32 = 0.02;

/// The table.
pub fn table() -> Vec<f32> {
    normal(TABLE, 3)
}

/// Values for all of `layout`: on a device that computes in bf16 those that are not `trained` in bf16, and in no other type, so that
/// they fit where the model fits.
///
/// # Errors
/// None that a layout of a model has.
pub fn weights(
    layout: &Arc<ParamLayout>,
    trained: &[bool],
    device: &ComputeDevice,
) -> Result<Weights, CoreError> {
    let table = table();
    let is_narrow = device.compute_dtype() == Some(FloatDType::BF16);
    let value = |index: usize, spec: &ParamSpec| -> Result<RawTensor, CoreError> {
        if trained[index] || !is_narrow {
            return Ok(device.plain(values(&table, index, spec, |value| value), &spec.shape));
        }
        let values = values(&table, index, spec, bf16::from_f32);
        let row = TensorData::new(values, [spec.shape.iter().product::<usize>()]);
        let row = Tensor::<1>::from_data(row, (device.burn(), DType::BF16));
        Ok(Dispatch::float_reshape(
            row.into_dispatch(),
            spec.shape.clone().into(),
        ))
    };
    let lasting = |index: usize, spec: &ParamSpec| device.with_persistent_allocation(|| value(index, spec));
    let weights = Weights::from_values(layout.clone(), device, lasting)?;
    device.release_unused();
    Ok(weights)
}

/// Values of the weight at `index`, each as `round` makes it of an f32.
fn values<T: Copy + Default + Send>(
    table: &[f32],
    index: usize,
    spec: &ParamSpec,
    round: impl Fn(f32) -> T + Sync,
) -> Vec<T> {
    let (around, scale) = match spec.shape[..] {
        [_] if spec.name.ends_with(".weight") => (1.0, VECTOR),
        [_] => (0.0, VECTOR),
        _ => (0.0, (MATRIX / (spec.shape[1] as f64).sqrt()) as f32),
    };
    let first = index * STRIDE % table.len();
    let mut values = vec![T::default(); spec.shape.iter().product()];
    let runs = values.par_chunks_mut(RUN).enumerate();
    runs.for_each(|(run, values)| {
        let from = (first + run * RUN) % table.len();
        let table = table[from..].iter().chain(table.iter().cycle());
        for (value, drawn) in values.iter_mut().zip(table) {
            *value = round(drawn * scale + around);
        }
    });
    values
}

/// Initial values of every weight, and a little noise: a fresh model predicts 0 everywhere, which would check nothing.
pub fn drawn(model: &dyn Architecture, layout: &ParamLayout) -> Vec<(usize, Vec<f32>)> {
    let buffers: BTreeMap<usize, Vec<f32>> = model.buffers().into_iter().collect();
    let weights = layout.specs().par_iter().enumerate();
    weights
        .map(|(index, spec)| {
            let initial = || spec.init.values(&spec.name, &spec.shape, 0, Purpose::Weights);
            let mut values = buffers.get(&index).cloned().unwrap_or_else(initial);
            let noise = normal(values.len(), 100 + index as u64);
            values
                .iter_mut()
                .zip(noise)
                .for_each(|(value, noise)| *value += PERTURBATION * noise);
            (index, values)
        })
        .collect()
}
