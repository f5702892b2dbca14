//! An addend of attention's scores that depends on how far a key lies from a query.

use crate::tensors::{RawTensor, is_tracked, plain, shape};
use burn::backend::DispatchTensor;
use flow_registry::Refusal;

/// What is added to the scores of each head, by distance: query `i` of `S` and key `j` get `values[head, j - i + S - 1]`. So
/// relative positions are held in `S + T - 1` numbers for each head, and never as a matrix of all pairs (Raffel et al. 2020,
/// arXiv:1910.10683, section 2.1; Press et al. 2022, arXiv:2108.12409).
///
/// No gradient goes to it. Two are equal if they are the same one.
#[derive(Debug)]
pub struct RelativeBias {
    values: RawTensor,
}

impl PartialEq for RelativeBias {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl RelativeBias {
    /// Of `values` `[H, S + T - 1]`, in f32 or in the type of the operands. Keys of a second part are numbered after the first's.
    ///
    /// # Errors
    /// [`Refusal`] if `values` has other axes, or is tracked.
    pub fn new(values: &DispatchTensor) -> Result<Self, Refusal> {
        if is_tracked(values) {
            return Err(Refusal::because(
                "attention gives no gradient to a bias of its scores; freeze the table that it is made of",
            ));
        }
        let axes = shape(values);
        if axes.len() != 2 {
            return Err(Refusal::because(format!(
                "a bias of scores by distance is [heads, queries + keys - 1], not {axes:?}"
            )));
        }
        Ok(Self {
            values: plain(values),
        })
    }

    /// The values, `[H, S + T - 1]`.
    pub fn values(&self) -> &RawTensor {
        &self.values
    }
}
