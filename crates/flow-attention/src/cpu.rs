//! Exact attention on the host, one task per batch row and head.
//!
//! Forward keeps, per query, the logarithm of the sum of exponentials; backward computes the probabilities again from
//! it, so no `S×S` tensor outlives a tile (Dao 2023, arXiv:2307.08691, section 3.1). A task sees one head of one sample
//! only, so its bits do not depend on the batch or on the number of threads.

mod backward;
mod forward;
mod heads;
mod softmax;
mod tiles;

use backward::{Saved, backward};
use burn::backend::DispatchTensor;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::exec::Stash;
use flow_core::{AttentionBackend, AttentionShape, op};
use forward::forward;
use heads::Sizes;
use std::sync::Arc;

/// f32 attention on the host, forward and backward.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuAttention;

impl AttentionBackend for CpuAttention {
    fn name(&self) -> &str {
        "cpu"
    }

    fn supports(&self, shape: &AttentionShape) -> Result<(), String> {
        if shape.keys == 0 {
            return Err("attention over no keys has no value".into());
        }
        if shape.head_dim == 0 {
            return Err("a head needs at least one channel".into());
        }
        Ok(())
    }

    // A task sees one head of one sample.
    fn is_row_independent(&self) -> bool {
        true
    }

    fn attention(
        &self,
        stash: &dyn Stash,
        q: &DispatchTensor,
        k: &DispatchTensor,
        v: &DispatchTensor,
        shape: &AttentionShape,
    ) -> DispatchTensor {
        let shape = *shape;
        op::apply("attention", &[q, k, v], |inputs, _| {
            let [q, k, v] = [0, 1, 2].map(|index| CpuTensor::read(&inputs[index]));
            let kept = stash.through("attention", &mut || {
                let (o, lse) = forward(&shape, q.values(), k.values(), v.values());
                vec![
                    from_vec(o, &shape.query_shape()),
                    from_vec(lse, &[shape.batch, shape.heads, shape.queries]),
                ]
            });
            let [output, lse] = kept
                .try_into()
                .expect("attention keeps its output and the log-sum-exp");
            let lse = CpuTensor::read(&lse);
            let backward: op::Backward = Arc::new(move |incoming| {
                let gradient = CpuTensor::read(incoming.gradient());
                let saved = Saved {
                    q: q.values(),
                    k: k.values(),
                    v: v.values(),
                    lse: lse.values(),
                };
                backward(&shape, &saved, gradient.values(), incoming.wanted)
            });
            (output, backward)
        })
    }
}
