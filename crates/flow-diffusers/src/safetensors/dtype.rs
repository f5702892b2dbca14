//! Precisions of stored weights.

use crate::first_position;
use half::{bf16, f16};
use safetensors::Dtype;

/// Precision of weights in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StoredDtype {
    /// 32 bits, exact.
    #[default]
    F32,
    /// 16 bits with the exponent of f32.
    Bf16,
    /// IEEE half precision.
    F16,
}

impl StoredDtype {
    /// The dtype of a file's tensor, if it is one of these.
    pub fn of(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Self::F32),
            Dtype::BF16 => Some(Self::Bf16),
            Dtype::F16 => Some(Self::F16),
            _ => None,
        }
    }

    /// Its name in a safetensors header.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::Bf16 => "BF16",
            Self::F16 => "F16",
        }
    }

    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// The largest finite value.
    pub fn limit(self) -> f32 {
        match self {
            Self::F32 => f32::MAX,
            Self::Bf16 => bf16::MAX.to_f32(),
            Self::F16 => f16::MAX.to_f32(),
        }
    }

    /// Little-endian `bytes` as f32; every value of each precision is exact in f32.
    pub fn decode(self, bytes: &[u8]) -> Vec<f32> {
        let halves = || bytes.as_chunks::<2>().0.iter().copied().map(u16::from_le_bytes);
        match self {
            Self::F32 => {
                let words = bytes.as_chunks::<4>().0.iter();
                words.copied().map(f32::from_le_bytes).collect()
            }
            Self::Bf16 => halves().map(|bits| bf16::from_bits(bits).to_f32()).collect(),
            Self::F16 => halves().map(|bits| f16::from_bits(bits).to_f32()).collect(),
        }
    }

    /// Position of the first value of `bytes` that is infinite or not a number, and how many there are.
    pub fn not_finite(self, bytes: &[u8]) -> Option<(usize, usize)> {
        fn find<const N: usize>(
            values: &[[u8; N]],
            is_not_finite: impl Fn(&[u8; N]) -> bool,
        ) -> Option<(usize, usize)> {
            let first = first_position(values, &is_not_finite)?;
            Some((
                first,
                values[first..]
                    .iter()
                    .filter(|value| is_not_finite(value))
                    .count(),
            ))
        }
        let halves = bytes.as_chunks::<2>().0;
        // All bits of the exponent are ones.
        match self {
            Self::F32 => find(bytes.as_chunks::<4>().0, |it| {
                u32::from_le_bytes(*it) & 0x7f80_0000 == 0x7f80_0000
            }),
            Self::Bf16 => find(halves, |it| u16::from_le_bytes(*it) & 0x7f80 == 0x7f80),
            Self::F16 => find(halves, |it| u16::from_le_bytes(*it) & 0x7c00 == 0x7c00),
        }
    }

    /// `values` as little-endian bytes, rounded to nearest, ties to even.
    ///
    /// # Errors
    /// The first finite value that would become infinite.
    pub fn encode(self, values: &[f32]) -> Result<Vec<u8>, f32> {
        let mut bytes = Vec::with_capacity(values.len() * self.bytes());
        for &value in values {
            let still_finite = match self {
                Self::F32 => {
                    bytes.extend(value.to_le_bytes());
                    true
                }
                Self::Bf16 => {
                    let rounded = bf16::from_f32(value);
                    bytes.extend(rounded.to_le_bytes());
                    rounded.is_finite()
                }
                Self::F16 => {
                    let rounded = f16::from_f32(value);
                    bytes.extend(rounded.to_le_bytes());
                    rounded.is_finite()
                }
            };
            if value.is_finite() && !still_finite {
                return Err(value);
            }
        }
        Ok(bytes)
    }
}
