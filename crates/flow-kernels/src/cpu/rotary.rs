//! Rotary position embedding of interleaved pairs (Su et al. 2021, arXiv:2104.09864).

use crate::host::{math::vectorised, threads};
use burn::backend::DispatchTensor;
use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::{RawTensor, autograd};
use std::sync::Arc;

/// Rotates pairs `(2i, 2i+1)` of `x [B, S, H, D]` by `cos`, `sin` of `[S, D/2]`. Backward rotates the other way and
/// keeps the tables only.
pub(crate) fn rotary(x: &DispatchTensor, cos: &RawTensor, sin: &RawTensor) -> DispatchTensor {
    let (cos, sin) = (CpuTensor::read(cos), CpuTensor::read(sin));
    autograd::apply("rotary", &[x], |inputs, _| {
        let x = CpuTensor::read(&inputs[0]);
        let y = rotate(&x, cos.values(), sin.values(), 1.0);
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let gradient = CpuTensor::read(incoming.gradient());
            vec![Some(rotate(&gradient, cos.values(), sin.values(), -1.0))]
        });
        (y, backward)
    })
}

fn rotate(x: &CpuTensor, cos: &[f32], sin: &[f32], direction: f32) -> RawTensor {
    let [_, tokens, heads, width] = *x.shape() else {
        panic!("rotary of {:?}, four axes expected", x.shape())
    };
    let half = width / 2;
    let token_width = heads * width;
    let per_piece = threads::rows_per_piece(token_width);
    let y = threads::build_zeros(x.values().len(), per_piece * token_width, |index, y| {
        let start = index * per_piece;
        let x = &x.values()[start * token_width..][..y.len()];
        vectorised(
            #[inline(always)]
            || {
                for (row, (x, y)) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).enumerate() {
                    let token = (start + row / heads) % tokens;
                    let (cos, sin) = (&cos[token * half..][..half], &sin[token * half..][..half]);
                    let ((x, _), (y, _)) = (x.as_chunks::<2>(), y.as_chunks_mut::<2>());
                    for ((x, y), (cos, sin)) in x.iter().zip(y).zip(cos.iter().zip(sin)) {
                        let sin = direction * sin;
                        *y = [x[0] * cos - x[1] * sin, x[0] * sin + x[1] * cos];
                    }
                }
            },
        );
    });
    from_vec(y, x.shape())
}
