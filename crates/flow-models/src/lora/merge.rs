//! Folding adapters into the weights they adapt.

use crate::ModelError;
use flow_core::device::ComputeDevice;
use flow_core::{ParamKind, ParamLayout, Weights};
use std::sync::Arc;

/// Weights of `base`, a layout without adapters, that compute what `weights` compute with theirs: each adapted `W`
/// becomes `W + s·B·A`, summed in f64 and rounded once.
///
/// # Errors
/// [`ModelError::Core`] if `base` is not `weights`' layout without its adapters.
pub fn merge(
    weights: &Weights,
    base: &Arc<ParamLayout>,
    device: &ComputeDevice,
) -> Result<Weights, ModelError> {
    let layout = weights.layout();
    let mut merged = Weights::zeros(base.clone(), device);
    for (index, spec) in layout.specs().iter().enumerate() {
        if spec.kind != ParamKind::Adapter {
            merged.set_host(base.position(&spec.name)?, weights.host(index))?;
        }
    }
    for (weight, adapter) in layout.adapters() {
        let spec = &layout.specs()[weight.index()];
        let (rank, input) = {
            let shape = &layout.specs()[adapter.down.index()].shape;
            (shape[0], shape[1])
        };
        let mut values = weights.host(weight.index());
        let down = weights.host(adapter.down.index());
        let up = weights.host(adapter.up.index());
        let mut delta = vec![0f64; input];
        for (row, up) in values.chunks_mut(input).zip(up.chunks(rank)) {
            delta.fill(0.0);
            for (up, down) in up.iter().zip(down.chunks(input)) {
                for (delta, down) in delta.iter_mut().zip(down) {
                    *delta += f64::from(*up) * f64::from(*down);
                }
            }
            for (value, delta) in row.iter_mut().zip(&delta) {
                *value = (f64::from(*value) + f64::from(adapter.scale) * delta) as f32;
            }
        }
        merged.set_host(base.position(&spec.name)?, values)?;
    }
    Ok(merged)
}
