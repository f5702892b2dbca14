//! Layer norm with weight and bias (Ba et al. 2016, arXiv:1607.06450), computed as a modulation that all samples share.

use crate::cpu::modulated_layer_norm::{NormLayout, Saved, backward};
use crate::host::threads;
use burn::backend::DispatchTensor;
use flow_core::autograd;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::ops::NormChunks;
use std::sync::Arc;

/// `layer_norm(x_BSD) · weight_D + bias_D`.
pub(crate) fn layer_norm(
    x: &DispatchTensor,
    weight: &DispatchTensor,
    bias: &DispatchTensor,
    epsilon: f32,
) -> DispatchTensor {
    autograd::apply("layer_norm", &[x, weight, bias], |inputs, _| {
        let [x, weight, bias] = [0, 1, 2].map(|index: usize| CpuTensor::read(&inputs[index]));
        let batch = x.shape()[0];
        let shared = [bias.values(), weight.values()].concat().repeat(batch);
        let modulation = CpuTensor::read(&from_vec(shared, &[batch, 2, weight.values().len()]));
        let norm = NormChunks {
            shift: 0,
            scale: 1,
            epsilon,
        };
        let layout = NormLayout::new(&x, &modulation, norm).with_whole_factors();
        let (y, statistics) = layout.forward(x.values(), modulation.values());
        let output = from_vec(y, x.shape());
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let gradient = CpuTensor::read(incoming.gradient());
            let saved = Saved {
                layout,
                x: x.values(),
                modulation: modulation.values(),
                statistics: &statistics,
                gradient: gradient.values(),
            };
            let (dx, shared) = backward(&saved, incoming.wanted[1] || incoming.wanted[2]);
            // Sample after sample, each the sum over its tokens in order.
            let columns = layout.columns();
            let shared = shared.map(|samples| threads::sum_rows(&samples, 2 * columns));
            let part = |index: usize| {
                let shared = shared.as_ref()?;
                Some(from_vec(
                    shared[index * columns..][..columns].to_vec(),
                    &[columns],
                ))
            };
            vec![Some(from_vec(dx, x.shape())), part(1), part(0)]
        });
        (output, backward)
    })
}
