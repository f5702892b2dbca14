//! How weights are stored, and values of weights that are being changed.

use super::block_weights::PartsSet;
use crate::tensors::{RawTensor, copy_again};

/// How trained weights are stored where models compute in bf16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightStorage {
    /// f32, and beside it a copy in bf16 that models see: 6 bytes a weight.
    #[default]
    Whole,
    /// f32 in two halves of 16 bits, of which models see the upper one: 4 bytes, and no bit is lost ([`SplitF32`](crate::split_f32::SplitF32)).
    SplitF32,
    /// bf16: 2 bytes. A step rounds its result up or down at random, so that its expectation is what was computed.
    Narrow,
}

/// One weight that is being changed.
#[derive(Debug)]
pub struct Changing<'a> {
    /// The value, or the upper half of one.
    pub value: &'a mut RawTensor,
    /// The lower half, if there is one.
    pub lower: Option<&'a mut RawTensor>,
    /// The copy that models see, if there is one: it must be the value in its type afterwards.
    pub copy: Option<&'a mut RawTensor>,
}

/// Values of weights that are being changed. See [`Weights::update`](super::Weights::update).
#[derive(Debug)]
pub struct WeightsUpdate<'a> {
    values: &'a mut [RawTensor],
    lowers: &'a mut [Option<RawTensor>],
    copies: Option<&'a mut [RawTensor]>,
    /// Of weights in parts, which are shown again when all is changed.
    parts: Option<&'a PartsSet>,
}

impl<'a> WeightsUpdate<'a> {
    pub(super) fn new(
        values: &'a mut [RawTensor],
        lowers: &'a mut [Option<RawTensor>],
        copies: Option<&'a mut [RawTensor]>,
        parts: Option<&'a PartsSet>,
    ) -> Self {
        Self {
            values,
            lowers,
            copies,
            parts,
        }
    }

    /// Every weight in the layout's order. Of one that processes have parts of, this process's part, as one row; where that is empty, one value
    /// that stands for nothing.
    pub fn each(&mut self) -> impl Iterator<Item = Changing<'_>> {
        let parts = self.parts;
        let copies = self.copies.as_deref_mut().into_iter().flatten().map(Some);
        let copies = copies.chain(std::iter::repeat_with(|| None));
        let halves = self.values.iter_mut().zip(self.lowers.iter_mut());
        let all = halves.zip(copies).enumerate();
        all.map(move |(index, ((value, lower), copy))| Changing {
            value,
            lower: lower.as_mut(),
            // Parts have none: what is gathered of them is in the type of models.
            copy: copy.filter(|_| !parts.is_some_and(|parts| parts.has(index))),
        })
    }

    /// Changes the value at `index`.
    ///
    /// # Panics
    /// As [`change_with_copy`](Self::change_with_copy).
    pub fn change(&mut self, index: usize, change: impl FnOnce(&mut RawTensor)) {
        self.change_with_copy(index, |value, copy| {
            change(value);
            if let Some(copy) = copy {
                copy_again(copy, value);
            }
        });
    }

    /// Changes the value at `index`, and the copy that models see, if there is one: it must be the value in its type
    /// afterwards.
    ///
    /// # Panics
    /// If the value is stored in halves.
    pub fn change_with_copy(
        &mut self,
        index: usize,
        change: impl FnOnce(&mut RawTensor, Option<&mut RawTensor>),
    ) {
        assert!(
            self.lowers[index].is_none(),
            "a value in halves is changed by kernels that know them"
        );
        let is_part = self.parts.is_some_and(|parts| parts.has(index));
        let copies = self.copies.as_mut().filter(|_| !is_part);
        let copy = copies.map(|copies| &mut copies[index]);
        change(&mut self.values[index], copy);
    }
}

impl Drop for WeightsUpdate<'_> {
    fn drop(&mut self) {
        if let Some(parts) = self.parts {
            parts.show_all(self.values);
        }
    }
}
