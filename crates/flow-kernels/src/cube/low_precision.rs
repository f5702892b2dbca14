//! Matrices of linear layers, some of which are in low precision and widened for each product.

use super::operand::{Operand, expect_launched};
use flow_core::cube::{self, CubeTensor};
use flow_core::{LowPrecision, LowPrecisionFormat, RawTensor};
use flow_kernels_cube::Element;
use flow_kernels_cube::low_precision::{CodeFormat, LowPrecision as InLowPrecision};

/// A matrix `[out, in]` as backward keeps it.
#[derive(Debug)]
pub(super) enum StoredMatrix {
    /// Numbers in the type that products take.
    Numbers(Operand),
    /// Words, and the type that products take.
    LowPrecision(InLowPrecision, CubeTensor, Element),
}

impl StoredMatrix {
    /// The matrix `plain`, for products of type `element`.
    ///
    /// # Panics
    /// If it is on another device: kernels are chosen by device, so this is a bug.
    pub fn read(plain: &RawTensor, low_precision: Option<LowPrecision>, element: Element) -> Self {
        let Some(LowPrecision {
            format,
            rows,
            columns,
        }) = low_precision
        else {
            return Self::Numbers(Operand::read_as(plain, element));
        };
        let words = cube::read_ints(plain).expect("words are integers on the device of the layer's input");
        let of = InLowPrecision {
            format: match format {
                LowPrecisionFormat::Fp8 => CodeFormat::E4m3,
                LowPrecisionFormat::Int8 => CodeFormat::Int8,
                LowPrecisionFormat::Nf4 => CodeFormat::Nf4,
            },
            rows,
            columns,
        };
        Self::LowPrecision(of, words.clone(), element)
    }

    /// Output and input channels.
    pub fn rows_and_columns(&self) -> (usize, usize) {
        match self {
            Self::Numbers(numbers) => numbers.rows_and_columns(),
            Self::LowPrecision(of, ..) => (of.rows, of.columns),
        }
    }

    /// The numbers, in memory of their own if the matrix is in low precision.
    pub fn widened(&self) -> Operand {
        match self {
            Self::Numbers(numbers) => numbers.clone(),
            Self::LowPrecision(of, words, element) => {
                let numbers = Operand::empty_beside(words, &[of.rows, of.columns], *element);
                let widened = of.widen(&words.client, &words.handle, &numbers.buffer());
                expect_launched("widen", widened);
                numbers
            }
        }
    }
}
