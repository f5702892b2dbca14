//! Weights in 16 bits on the processor: halves of an f32, and rounding at random.

use flow_core::cpu::{CpuTensor, from_vec};
use flow_core::rng::{Purpose, Stream};
use flow_core::split_f32::{self, SplitF32};
use flow_core::{RawTensor, Rounding};

/// The halves of an f32 tensor.
pub(crate) fn split(value: &RawTensor) -> SplitF32 {
    let value = CpuTensor::read(value);
    let pairs = value.values().iter().map(|value| split_f32::split(*value).into());
    let (uppers, lowers): (Vec<u16>, Vec<u16>) = pairs.unzip();
    SplitF32 {
        upper: split_f32::from_bits(uppers, value.shape()),
        lower: split_f32::from_bits(lowers, value.shape()),
    }
}

/// The f32 tensor of two halves.
pub(crate) fn join(upper: &RawTensor, lower: &RawTensor) -> RawTensor {
    let pairs = split_f32::bits(upper).into_iter().zip(split_f32::bits(lower));
    let values = pairs
        .map(|(upper, lower)| split_f32::join([upper, lower]))
        .collect();
    from_vec(values, &flow_core::tensors::shape(upper))
}

/// An f32 tensor in bf16, each value rounded up with the probability that makes its expectation the value: the upper 16 bits
/// of its bits and of a random number of 16 bits, added. The numbers are those of a stream, from number `first` on.
pub(crate) fn rounded(value: &RawTensor, rounding: Rounding, (stream, first): (u32, usize)) -> RawTensor {
    let value = CpuTensor::read(value);
    let draws = Stream::new(rounding.seed, Purpose::Rounding).at(u64::from(stream), rounding.step);
    let mut draws = draws.from_number(first as u64);
    let up_or_down = |value: &f32| {
        let noise = draws.next_u32() >> 16;
        split_f32::rounded(*value, noise)
    };
    let bits = value.values().iter().map(up_or_down).collect();
    split_f32::from_bits(bits, value.shape())
}
