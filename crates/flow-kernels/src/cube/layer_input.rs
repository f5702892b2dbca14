//! The rows that linear layers multiply: numbers, FP8 codes, or both, made once for all layers that read them.

use super::low_precision::quantised;
use super::operand::{Operand, expect_launched};
use flow_kernels_cube::row_codes::RowCodes;
use flow_kernels_cube::{Buffer, Refusal};
use flow_matmul_cube::fp8::Quantised;
use std::cell::OnceCell;

/// In which forms layers read their rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InputForms {
    /// As numbers: for a product of numbers, or for an adapter.
    pub numbers: bool,
    /// As codes with scales.
    pub codes: bool,
}

impl InputForms {
    /// What either reads.
    pub fn or(self, other: Self) -> Self {
        Self {
            numbers: self.numbers || other.numbers,
            codes: self.codes || other.codes,
        }
    }
}

/// The rows of one input, in the forms that are there.
#[derive(Debug)]
pub(super) struct LayerInput {
    /// Of the rows' shape, type and device.
    like: Operand,
    numbers: Option<Operand>,
    codes: OnceCell<Quantised>,
}

impl LayerInput {
    /// Rows that are numbers. The first product of codes quantises them.
    pub fn of_numbers(numbers: Operand) -> Self {
        Self {
            like: numbers.clone(),
            numbers: Some(numbers),
            codes: OnceCell::new(),
        }
    }

    /// Rows like those of `like`, which `make` writes as codes, and as numbers if these are read, too. None if no codes are read, or if
    /// such rows cannot be made so: then they are numbers first.
    pub fn made_as_codes(
        operation: &str,
        like: &Operand,
        forms: InputForms,
        make: impl FnOnce(Option<&Buffer>, &RowCodes) -> Result<(), Refusal>,
    ) -> Option<Self> {
        let (rows, columns) = like.rows_and_columns();
        if !forms.codes || rows == 0 || !RowCodes::fits(columns) {
            return None;
        }
        let made = Quantised::empty(like.client(), [rows, columns]);
        let room = RowCodes {
            codes: made.codes.handle.clone(),
            scales: made.scales.handle.clone(),
        };
        let numbers = forms.numbers.then(|| like.empty_like());
        let launched = make(numbers.as_ref().map(Operand::buffer).as_ref(), &room);
        expect_launched(operation, launched);
        Some(Self {
            like: like.clone(),
            numbers,
            codes: OnceCell::from(made),
        })
    }

    /// A tensor of the rows' shape, type and device, whatever its values.
    pub fn like(&self) -> &Operand {
        &self.like
    }

    /// The rows as numbers.
    ///
    /// # Panics
    /// If they were made without, for layers that read none: a bug of the glue.
    pub fn numbers(&self) -> &Operand {
        self.numbers.as_ref().expect("a layer said that it reads numbers")
    }

    /// The rows as codes with scales, quantised now unless that was done.
    pub fn codes(&self) -> &Quantised {
        self.codes.get_or_init(|| quantised(self.numbers()))
    }
}
