//! Noise by its address: what is drawn, wherever it is drawn.

use crate::device::ComputeDevice;
use crate::rng::Stream;
use crate::tensors::Plain;
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

/// Standard normal values `[B, N]`, f32: row `b` holds the first `N` of `stream` at sample `samples[b]` and `step`.
#[derive(Clone, Copy, Debug)]
pub struct Noise<'a> {
    /// Seed and purpose.
    pub stream: Stream,
    /// Samples, `[B]`.
    pub samples: &'a [u64],
    /// The step, below 2^24.
    pub step: u32,
    /// `N`.
    pub values: usize,
}

impl Noise<'_> {
    /// Draws it on the host, each row on whichever thread of the calling pool has time, and brings it to `device`. What
    /// [`Kernels::noise`](super::Kernels::noise) must equal, bit for bit.
    pub fn drawn_by_host(&self, device: &ComputeDevice) -> Plain {
        let mut noise = vec![0.0f32; self.samples.len() * self.values];
        let rows = noise.par_chunks_exact_mut(self.values.max(1)).zip(self.samples);
        rows.for_each(|(row, sample)| self.stream.at(*sample, self.step).fill_normal(row));
        device.plain(noise, &[self.samples.len(), self.values])
    }
}
