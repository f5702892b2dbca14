//! Types of the elements of matrices.

use cubecl::ir::ElemType;
use cubecl::prelude::*;
use flow_cube::wgmma::Factor;

/// Element type of a matrix.
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

    /// As a factor of tensor cores; f32 is none, since it is never rounded to TF32.
    pub fn factor(self) -> Option<Factor> {
        match self {
            Self::F32 => None,
            Self::F16 => Some(Factor::F16),
            Self::Bf16 => Some(Factor::Bf16),
        }
    }
}

/// CubeCL's name of a type.
pub(crate) fn element(of: Element) -> ElemType {
    match of {
        Element::F32 => f32::elem_type_native(),
        Element::F16 => half::f16::elem_type_native(),
        Element::Bf16 => half::bf16::elem_type_native(),
    }
}
