//! Noise by its address, drawn on the host.

use flow_core::device::ComputeDevice;
use flow_core::{Noise, RawTensor};
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

/// Draws `noise` on the host, each row on whichever thread of the calling pool has time, and brings it to `device`: `[B, N]`,
/// f32. What [`SamplerOps::noise`](flow_core::ops::SamplerOps::noise) of every device must equal, bit for bit.
pub fn draw_noise(noise: &Noise<'_>, device: &ComputeDevice) -> RawTensor {
    let mut values = vec![0.0f32; noise.samples.len() * noise.values];
    let rows = values
        .par_chunks_exact_mut(noise.values.max(1))
        .zip(noise.samples);
    rows.for_each(|(row, sample)| noise.stream.at(*sample, noise.step).fill_normal(row));
    device.plain(values, &[noise.samples.len(), noise.values])
}
