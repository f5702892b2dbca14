//! Matrices of linear layers, some of which are in low precision and widened for each product, or multiplied by codes of activations.

use super::operand::{Operand, expect_launched};
use super::products::{Products, matrix};
use flow_core::cube::{self, CubeTensor};
use flow_core::{LowPrecision, LowPrecisionCompute, LowPrecisionFormat, RawTensor};
use flow_kernels_cube::Element;
use flow_kernels_cube::low_precision::activations::{ScaledSums, quantise};
use flow_kernels_cube::low_precision::{CodeFormat, LowPrecision as InLowPrecision};
use flow_matmul_cube::problem::{Layout, Matmul};
use flow_matmul_cube::tensors::{Matrix, Operands};

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

    /// The matrix, if forward multiplies its codes with those of activations.
    pub fn as_codes(&self) -> Option<&Words> {
        match self {
            Self::LowPrecision(words) if words.compute == LowPrecisionCompute::Fp8 => Some(words),
            _ => None,
        }
    }
}

impl Words {
    fn room(&self) -> Operand {
        Operand::empty_beside(&self.words, &[self.of.rows, self.of.columns], self.element)
    }

    fn widened(&self) -> Operand {
        let (words, numbers) = (&self.words, self.room());
        let widened = self.of.widen(&words.client, &words.handle, &numbers.buffer());
        expect_launched("widen", widened);
        numbers
    }

    /// The values of the codes without scales.
    fn codes(&self) -> Operand {
        let (words, codes) = (&self.words, self.room());
        let decoded = self.of.codes(&words.client, &words.handle, &codes.buffer());
        expect_launched("codes", decoded);
        codes
    }

    /// `x Wᵀ + bias + T Uᵀ`, of the codes of `x`'s rows and of the matrix, scaled by both, in the type of `x`, which the sum is rounded to
    /// once. `low_rank` is `T [rows, rank]` and `U [out, rank]` with their rank.
    ///
    /// Any device computes this: the numbers of e4m3 are numbers of the type that products take.
    pub fn sums(
        &self,
        x: &Operand,
        bias: Option<&Operand>,
        low_rank: Option<([&Matrix; 2], usize)>,
        products: &Products,
    ) -> Operand {
        let (rows, inputs) = x.rows_and_columns();
        let outputs = self.of.rows;
        let mut shape = x.shape();
        *shape.last_mut().expect("a linear layer's input has an axis") = outputs;
        let output = x.empty(&shape, x.element());
        if rows == 0 {
            return output;
        }
        let product = |a: &Matrix, b: &Matrix, summands: usize| {
            let call = Matmul {
                output: Element::F32,
                ..Matmul::plain(Layout::Nt, [rows, outputs, summands], x.element())
            };
            let product = x.empty(&[rows, outputs], Element::F32);
            products.run(x, call, &Operands::new(a, b, &matrix(&product)));
            product
        };
        let (values, scales) = (x.empty_like(), x.empty(&[rows], Element::F32));
        let quantised = quantise(
            x.client(),
            &x.buffer(),
            inputs,
            &values.buffer(),
            &scales.buffer(),
        );
        expect_launched("quantise", quantised);
        let sums = product(&matrix(&values), &matrix(&self.codes()), inputs);
        drop(values);
        let added = low_rank.map(|([t, u], rank)| product(t, u, rank).buffer());
        let (sums, scales, bias) = (sums.buffer(), scales.buffer(), bias.map(Operand::buffer));
        let call = ScaledSums {
            sums: &sums,
            activation_scales: &scales,
            added: added.as_ref(),
            bias: bias.as_ref(),
        };
        let (words, output_buffer) = (&self.words.handle, output.buffer());
        let scaled = self.of.scale_sums(x.client(), words, call, &output_buffer);
        expect_launched("scale_sums", scaled);
        output
    }
}
