//! Matrices of linear layers, some of which are in low precision and widened for each product, or multiplied by codes of activations.

use super::operand::{Operand, expect_launched};
use super::products::matrix;
use flow_core::cube::{self, CubeTensor};
use flow_core::{LowPrecision, LowPrecisionCompute, LowPrecisionFormat, RawTensor};
use flow_kernels_cube::Element;
use flow_kernels_cube::low_precision::{CodeFormat, LowPrecision as InLowPrecision};
use flow_matmul_cube::fp8::Quantised;
use flow_matmul_cube::tensors::{Matrix, Scales};

/// A matrix `[out, in]` as backward keeps it.
#[derive(Debug)]
pub(super) enum StoredMatrix {
    /// Numbers in the type that products take.
    Numbers(Operand),
    /// Codes and scales.
    LowPrecision(Words),
}

/// A matrix `[out, in]` in low precision.
#[derive(Debug)]
pub(super) struct Words {
    of: InLowPrecision,
    words: CubeTensor,
    /// The type that products take.
    element: Element,
    compute: LowPrecisionCompute,
}

impl StoredMatrix {
    /// The matrix `plain`, for products of type `element`.
    ///
    /// # Panics
    /// If it is on another device: kernels are chosen by device, so this is a bug.
    pub fn read(plain: &RawTensor, low_precision: Option<LowPrecision>, element: Element) -> Self {
        let Some(LowPrecision {
            format,
            compute,
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
        Self::LowPrecision(Words {
            of,
            words: words.clone(),
            element,
            compute,
        })
    }

    /// Output and input channels.
    pub fn rows_and_columns(&self) -> (usize, usize) {
        match self {
            Self::Numbers(numbers) => numbers.rows_and_columns(),
            Self::LowPrecision(Words { of, .. }) => (of.rows, of.columns),
        }
    }

    /// The numbers, in memory of their own if the matrix is in low precision.
    pub fn widened(&self) -> Operand {
        match self {
            Self::Numbers(numbers) => numbers.clone(),
            Self::LowPrecision(words) => words.widened(),
        }
    }

    /// Whether forward multiplies the matrix's codes with those of activations.
    pub fn multiplies_codes(&self) -> bool {
        matches!(self, Self::LowPrecision(words) if words.compute == LowPrecisionCompute::Fp8)
    }

    /// Codes and scales, if forward multiplies them with those of activations.
    pub fn quantised(&self) -> Option<Quantised> {
        match self {
            Self::LowPrecision(words) if self.multiplies_codes() => Some(words.quantised()),
            _ => None,
        }
    }
}

impl Words {
    fn widened(&self) -> Operand {
        let (of, words) = (self.of, &self.words);
        let numbers = Operand::empty_beside(words, &[of.rows, of.columns], self.element);
        let widened = of.widen(&words.client, &words.handle, &numbers.buffer());
        expect_launched("widen", widened);
        numbers
    }

    /// Where codes and scales lie: four codes in a word, and a scale in a word behind all of them.
    fn quantised(&self) -> Quantised {
        let of = self.of;
        let handle = || self.words.handle.clone();
        Quantised {
            codes: Matrix {
                handle: handle(),
                rows: of.rows,
                columns: of.columns,
                stride: 4 * of.row_words(),
            },
            scales: Scales {
                handle: handle(),
                start: of.rows * of.row_words(),
            },
        }
    }
}

/// The rows of `x` as a product of codes takes them.
pub(super) fn quantised(x: &Operand) -> Quantised {
    let quantised = Quantised::new(x.client(), &matrix(x), x.element());
    quantised.unwrap_or_else(|declined| panic!("operation `quantise`: {declined}"))
}
