//! Attention of one head over more channels than a kernel holds, by two products and a softmax between them.

use super::products::Products;
use super::unit::element;
use flow_core::cube::{self, CubeTensor};
use flow_core::tensors::RawTensor;
use flow_kernels_cube::softmax::softmax;
use flow_kernels_cube::{Buffer, Element};
use flow_matmul_cube::problem::{Layout, Matmul, Refusal};
use flow_matmul_cube::tensors::{Matrix, Operands};

/// Scores that are held at a time.
const SCORES: usize = 1 << 26;

/// Rows of a matrix without gaps.
fn rows(of: &CubeTensor, first: usize, count: usize, columns: usize) -> Matrix {
    let before = (first * columns * of.dtype.size()) as u64;
    Matrix::contiguous(of.handle.clone().offset_start(before), [count, columns])
}

impl Products {
    /// `softmax(q k^T / sqrt(C)) v` of `[B, S, C]`: scores in f32, a strip of queries at a time, their shares in the type of `v`.
    ///
    /// # Errors
    /// [`Refusal`] if the device has no kernels for it; nothing was computed then.
    pub fn attention(&self, [q, k, v]: [&RawTensor; 3]) -> Result<RawTensor, Refusal> {
        let read = |tensor: &RawTensor| cube::read(tensor).map(|tensor| cube::contiguous(tensor.clone()));
        let (Some(q), Some(k), Some(v)) = (read(q), read(k), read(v)) else {
            return Err(Refusal::because("plain tensors of a CubeCL device"));
        };
        let element = element(q.dtype).ok_or_else(|| Refusal::because("tensor cores take bf16 and f16"))?;
        let [batch, tokens, channels] = *q.meta.shape().to_vec().as_slice() else {
            return Err(Refusal::because("three axes"));
        };
        if !tokens.is_multiple_of(8) || !channels.is_multiple_of(8) {
            return Err(Refusal::because("tokens and channels in eights"));
        }
        let strip = (SCORES / tokens).clamp(8, tokens) / 8 * 8;
        let out = cube::empty_like(&q, &[batch, tokens, channels], q.dtype);
        let scores = cube::empty_like(&q, &[strip, tokens], burn::tensor::DType::F32);
        let shares = cube::empty_like(&q, &[strip, tokens], q.dtype);
        for sample in 0..batch {
            for first in (0..tokens).step_by(strip) {
                let count = strip.min(tokens - first);
                let at = sample * tokens + first;
                let to = Matrix::contiguous(scores.handle.clone(), [count, tokens]);
                let (a, b) = (
                    rows(&q, at, count, channels),
                    rows(&k, sample * tokens, tokens, channels),
                );
                let call = Matmul {
                    output: Element::F32,
                    ..Matmul::plain(Layout::Nt, [count, tokens, channels], element)
                };
                self.run(&q, call, &Operands::new(&a, &b, &to))?;
                let of = |tensor: &CubeTensor, element| Buffer {
                    handle: tensor.handle.clone(),
                    length: count * tokens,
                    element,
                };
                let factor = 1.0 / (channels as f32).sqrt();
                softmax(
                    &q.client,
                    &of(&scores, Element::F32),
                    &of(&shares, element),
                    tokens,
                    factor,
                )
                .expect("sizes are those of the tensors");
                let a = Matrix::contiguous(shares.handle.clone(), [count, tokens]);
                let (b, to) = (
                    rows(&v, sample * tokens, tokens, channels),
                    rows(&out, at, count, channels),
                );
                let call = Matmul::plain(Layout::Nn, [count, channels, tokens], element);
                self.run(&q, call, &Operands::new(&a, &b, &to))?;
            }
        }
        Ok(cube::wrap(out))
    }
}
