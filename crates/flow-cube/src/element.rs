//! Types of the elements of tensors.

use crate::wgmma::OperandType;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use half::{bf16, f16};

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// Single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
}

impl Element {
    /// Name, as in Rust.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// Bytes of one.
    pub fn bytes(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }

    /// As an operand type of tensor cores; f32 is none, since it is never rounded to TF32.
    pub fn operand_type(self) -> Option<OperandType> {
        match self {
            Self::F32 => None,
            Self::F16 => Some(OperandType::F16),
            Self::Bf16 => Some(OperandType::Bf16),
        }
    }

    /// For CubeCL.
    pub fn native(self) -> ElemType {
        match self {
            Self::F32 => f32::elem_type_native(),
            Self::F16 => f16::elem_type_native(),
            Self::Bf16 => bf16::elem_type_native(),
        }
    }

    /// Largest relative error of rounding to nearest, `2^-(significand bits)`.
    pub fn unit_roundoff(self) -> f64 {
        match self {
            Self::F32 => 2f64.powi(-24),
            Self::F16 => 2f64.powi(-11),
            Self::Bf16 => 2f64.powi(-8),
        }
    }

    /// `values`, rounded to f32 and then to nearest, as a device holds them. (`half` drops 32 bits of an f64 before it
    /// rounds, so that numbers just beside the middle of two others may go the wrong way.)
    pub fn encode(self, values: &[f64]) -> Vec<u8> {
        match self {
            Self::F32 => values.iter().flat_map(|x| (*x as f32).to_ne_bytes()).collect(),
            Self::F16 => values
                .iter()
                .flat_map(|x| f16::from_f32(*x as f32).to_ne_bytes())
                .collect(),
            Self::Bf16 => values
                .iter()
                .flat_map(|x| bf16::from_f32(*x as f32).to_ne_bytes())
                .collect(),
        }
    }

    /// What a device holds, exactly.
    pub fn decode(self, bytes: &[u8]) -> Vec<f64> {
        let pairs = || bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
        match self {
            Self::F32 => bytes
                .chunks_exact(4)
                .map(|b| f64::from(f32::from_ne_bytes([b[0], b[1], b[2], b[3]])))
                .collect(),
            Self::F16 => pairs().map(|b| f16::from_ne_bytes(b).to_f64()).collect(),
            Self::Bf16 => pairs().map(|b| bf16::from_ne_bytes(b).to_f64()).collect(),
        }
    }
}
