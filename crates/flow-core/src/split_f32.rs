//! An f32 in two halves of 16 bits: a bf16 that models compute with, and what it lacks.
//!
//! The upper half is the nearest bf16, of two equally near ones the one farther from zero; the lower half holds the lower 16
//! bits, which say whether the upper one was rounded away from zero. Together they are the f32, bit for bit (of a NaN some NaN),
//! in 4 bytes, where an f32 with a copy in bf16 takes 6.

use crate::tensors::RawTensor;
use burn::backend::{BackendTensor, DispatchTensorKind};
use burn::backend::{Dispatch, TensorMetadata, flex::FlexTensor, ops::FloatTensorOps};
use burn::tensor::{Tensor, TensorData};
use half::bf16;

/// The halves of a tensor, each of its shape, in a type of 16 bits.
#[derive(Clone, Debug)]
pub struct SplitF32 {
    /// The nearest bf16.
    pub upper: RawTensor,
    /// What it lacks: bits, not numbers, though their type is bf16. Nothing but kernels may look at them.
    pub lower: RawTensor,
}

/// The halves of a value's bits.
pub fn split(value: f32) -> [u16; 2] {
    [rounded(value, 0x8000), value.to_bits() as u16]
}

/// The bits of a bf16: `value` rounded away from zero where what a bf16 lacks of it and `share` of 2^16 make a whole. Carried so
/// far, the largest NaN would become minus zero: a NaN stays one, of the same sign.
pub fn rounded(value: f32, share: u32) -> u16 {
    let bits = value.to_bits();
    match value.is_nan() {
        true => (bits >> 16) as u16 | 0x40,
        false => (bits.wrapping_add(share) >> 16) as u16,
    }
}

/// The value of two halves.
pub fn join([upper, lower]: [u16; 2]) -> f32 {
    // The lower half has a sign.
    let lower = i32::from(lower as i16) as u32;
    f32::from_bits((u32::from(upper) << 16).wrapping_add(lower))
}

/// The bits of a plain tensor of a 16-bit type on any device, on the host.
pub fn bits(tensor: &RawTensor) -> Vec<u16> {
    let count = tensor.shape().num_elements();
    let flat: Tensor<1> = Tensor::from_dispatch(Dispatch::float_reshape(tensor.clone(), [count].into()));
    let data = flat.into_data();
    let pairs = data.bytes().chunks_exact(2);
    pairs
        .take(count)
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
        .collect()
}

/// A CPU tensor in bf16 of these bits.
///
/// # Panics
/// If their number is not the product of `shape`.
pub fn from_bits(bits: Vec<u16>, shape: &[usize]) -> RawTensor {
    let values: Vec<bf16> = bits.into_iter().map(bf16::from_bits).collect();
    let tensor = FlexTensor::from_data(TensorData::new(values, shape.to_vec()));
    RawTensor {
        kind: DispatchTensorKind::Flex(BackendTensor::Float(tensor)),
        autodiff: Default::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::{bf16, join, rounded, split};

    #[test]
    fn halves_join_to_the_value_they_were_made_of() {
        let mut bits = 0u32;
        loop {
            let value = f32::from_bits(bits);
            assert!(
                value.is_nan() || join(split(value)).to_bits() == bits,
                "{bits:08x}"
            );
            // Odd and prime to 2^32: passes by every pattern of the lower half.
            match bits.checked_add(9_973) {
                Some(next) => bits = next,
                None => break,
            }
        }
        for bits in [
            0x3F80_8000,
            0xBF81_8000,
            0x3F80_7FFF,
            0x0000_8000,
            0x7F7F_FFFF,
            0xFF7F_8000,
        ] {
            assert_eq!(join(split(f32::from_bits(bits))).to_bits(), bits);
        }
    }

    #[test]
    fn a_nan_is_one_in_its_upper_half_and_together() {
        // What NVIDIA's and x86's arithmetic gives, and the smallest and the largest.
        for bits in [0x7FFF_FFFF, 0xFFC0_0000, 0x7F80_0001, 0xFFFF_FFFF, 0x7FBF_8000] {
            let halves = split(f32::from_bits(bits));
            assert!(bf16::from_bits(halves[0]).is_nan(), "{bits:08x}");
            assert!(join(halves).is_nan(), "{bits:08x}");
            let up = bf16::from_bits(rounded(f32::from_bits(bits), 0xFFFF));
            assert!(
                up.is_nan() && up.is_sign_negative() == (bits >> 31 == 1),
                "{bits:08x}"
            );
        }
    }

    #[test]
    fn the_upper_half_is_the_nearest_and_of_two_the_one_farther_from_zero() {
        for (bits, upper) in [
            (0x3F80_7FFF, 0x3F80),
            (0x3F80_8000, 0x3F81),
            (0x3F81_8000, 0x3F82),
            (0xBF80_8000, 0xBF81),
            (0x3F80_8001, 0x3F81),
        ] {
            assert_eq!(split(f32::from_bits(bits))[0], upper, "{bits:08x}");
        }
    }
}
