//! Matrices of linear layers, some of which are in low precision and widened for each product, or multiplied by codes of activations and of
//! gradients.

use super::operand::{Operand, expect_launched};
use super::products::matrix;
use flow_core::cube::{self, CubeTensor};
use flow_core::tensors::is_float;
use flow_core::{LowPrecision, LowPrecisionCompute, LowPrecisionFormat, RawTensor};
use flow_kernels_cube::Element;
use flow_kernels_cube::low_precision::{CodeFormat, LowPrecision as InLowPrecision};
use flow_matmul_cube::fp8::Quantised;
use flow_matmul_cube::problem::{Accumulation, Storage};
use flow_matmul_cube::tensors::{Matrix, Scales};

/// A matrix `[out, in]` as backward keeps it.
#[derive(Debug)]
pub(super) enum StoredMatrix {
    /// Numbers in the type that products take.
    Numbers(Operand),
    /// Such numbers, which forward rounds to codes, and backward if it multiplies codes as well.
    Rounded(LowPrecisionCompute, Operand),
    /// Codes and scales.
    LowPrecision(Words),
}

/// A matrix `[out, in]` in low precision.
#[derive(Debug)]
pub(super) struct Words {
    form: LowPrecision,
    words: CubeTensor,
    /// The type that products take.
    element: Element,
}

/// The first two factors of a product, numbers or codes.
#[derive(Debug)]
pub(super) struct Pair {
    pub factors: [Matrix; 2],
    scales: [Option<Scales>; 2],
    pub storage: Storage,
}

impl StoredMatrix {
    /// The matrix `plain`, for products of type `element`.
    ///
    /// # Panics
    /// If it is on another device: kernels are chosen by device, so this is a bug.
    pub fn read(plain: &RawTensor, low_precision: Option<LowPrecision>, element: Element) -> Self {
        let Some(form) = low_precision else {
            return Self::Numbers(Operand::read_as(plain, element));
        };
        if is_float(plain) {
            return Self::Rounded(form.compute, Operand::read_as(plain, element));
        }
        let words = cube::read_ints(plain).expect("words are integers on the device of the layer's input");
        Self::LowPrecision(Words {
            form,
            words: words.clone(),
            element,
        })
    }

    /// Output and input channels.
    pub fn rows_and_columns(&self) -> (usize, usize) {
        match self {
            Self::Numbers(numbers) | Self::Rounded(_, numbers) => numbers.rows_and_columns(),
            Self::LowPrecision(Words { form, .. }) => (form.rows, form.columns),
        }
    }

    /// The numbers, in memory of their own if the matrix is in low precision.
    pub fn widened(&self) -> Operand {
        match self {
            Self::Numbers(numbers) | Self::Rounded(_, numbers) => numbers.clone(),
            Self::LowPrecision(words) => words.widened(),
        }
    }

    /// Whether forward multiplies the matrix's codes with those of activations.
    pub fn multiplies_codes(&self) -> bool {
        match self {
            Self::Numbers(_) => false,
            Self::Rounded(..) => true,
            Self::LowPrecision(words) => words.form.compute.quantises_activations(),
        }
    }

    /// Codes and scales, if forward multiplies them with those of activations.
    pub fn quantised(&self) -> Option<Quantised> {
        match self {
            Self::LowPrecision(words) if self.multiplies_codes() => Some(words.quantised(0, words.form)),
            Self::Rounded(_, numbers) => Some(quantised(numbers)),
            _ => None,
        }
    }

    /// Codes and scales of the transposed copy, `[in, out]`, if backward multiplies them with those of gradients; of numbers made now.
    pub fn transposed(&self) -> Option<Quantised> {
        match self {
            Self::Numbers(_) => None,
            // Of the numbers themselves, not of what forward rounded them to.
            Self::Rounded(compute, numbers) => {
                compute.quantises_gradients().then(|| quantised_columns(numbers))
            }
            Self::LowPrecision(words) => {
                let (start, form) = words.form.transposed()?;
                Some(words.quantised(start, form))
            }
        }
    }
}

impl Words {
    fn widened(&self) -> Operand {
        let (of, words) = (stored(self.form), &self.words);
        let numbers = Operand::empty_beside(words, &[of.rows, of.columns], self.element);
        let widened = of.widen(&words.client, &words.handle, &numbers.buffer());
        expect_launched("widen", widened);
        numbers
    }

    /// Where codes and scales of a copy in this form lie that begins at word `start`: four codes in a word, and a scale in a word behind
    /// all of them.
    fn quantised(&self, start: usize, form: LowPrecision) -> Quantised {
        let of = stored(form);
        let handle = || self.words.handle.clone();
        Quantised {
            codes: Matrix {
                handle: handle().offset_start(4 * start as u64),
                rows: of.rows,
                columns: of.columns,
                stride: 4 * of.row_words(),
            },
            scales: Scales {
                handle: handle(),
                start: start + of.rows * of.row_words(),
            },
        }
    }
}

impl Pair {
    /// Numbers of one type.
    pub fn of_numbers(a: &Operand, b: &Operand) -> Self {
        Self {
            factors: [matrix(a), matrix(b)],
            scales: [None, None],
            storage: Storage::Plain,
        }
    }

    /// Codes, of which rows are multiplied with rows.
    pub fn of_codes(a: &Quantised, b: &Quantised) -> Self {
        Self {
            factors: [a.codes.clone(), b.codes.clone()],
            scales: [Some(a.scales.clone()), Some(b.scales.clone())],
            storage: Storage::E4m3(Accumulation::Promoted),
        }
    }

    /// The scales of the rows of codes.
    pub fn scales(&self) -> [Option<&Scales>; 2] {
        self.scales.each_ref().map(Option::as_ref)
    }
}

/// The form as kernels take it.
fn stored(form: LowPrecision) -> InLowPrecision {
    InLowPrecision {
        format: match form.format {
            LowPrecisionFormat::Fp8 => CodeFormat::E4m3,
            LowPrecisionFormat::Int8 => CodeFormat::Int8,
            LowPrecisionFormat::Nf4 => CodeFormat::Nf4,
        },
        rows: form.rows,
        columns: form.columns,
    }
}

/// The rows of `x` as a product of codes takes them.
pub(super) fn quantised(x: &Operand) -> Quantised {
    let quantised = Quantised::new(x.client(), &matrix(x), x.element());
    quantised.unwrap_or_else(|declined| panic!("operation `quantise`: {declined}"))
}

/// The columns of `x` as a product of codes takes rows.
fn quantised_columns(x: &Operand) -> Quantised {
    let quantised = Quantised::of_columns(x.client(), &matrix(x), x.element());
    quantised.unwrap_or_else(|declined| panic!("operation `quantise_columns`: {declined}"))
}
