//! How weights are stored: those that are frozen in the type of models, those that are trained as a run asks for.

use super::{Stored, Weights, form_of};
use crate::ops::Kernels;
use crate::params::WeightStorage;
use crate::split_f32::SplitF32;
use crate::tensors::{RawTensor, cast};
use burn::backend::TensorMetadata;
use burn::tensor::{DType, FloatDType};
use std::sync::{Arc, OnceLock};

/// Bytes of values that are replaced by others before the device gives back what they took.
const REPLACED_BYTES: usize = 1 << 30;

impl Weights {
    /// Keeps weights that are not `trained` (one flag each) in the type that models compute with, and in no other: what
    /// models see stays the same. Those in low precision stay in it.
    ///
    /// # Panics
    /// If `trained` has another length than the layout.
    pub fn freeze(&mut self, trained: &[bool]) {
        assert_eq!(trained.len(), self.layout.len(), "one flag per weight");
        let Some(dtype) = self.device.compute_dtype() else {
            return;
        };
        self.stored = Some(Stored {
            trained: trained.into(),
            storage: WeightStorage::Whole,
        });
        // Of what was in halves the lower one goes.
        let forms = self.low_precision.clone();
        self.convert(|index, value| {
            let is_float = form_of(&forms, index).is_none();
            (!trained[index] && is_float).then(|| (cast(value, dtype), None))
        });
    }

    /// [`Freezes`](Self::freeze) weights that are not `trained`, and stores the others as `storage` says, on a device where models
    /// compute in bf16; elsewhere all stay f32. What models see of a trained weight is the nearest bf16 either way; of two
    /// equally near ones [`SplitF32`](WeightStorage::SplitF32) take the one farther from zero, the others the even one.
    ///
    /// # Panics
    /// As [`freeze`](Self::freeze).
    pub fn store(&mut self, trained: &[bool], storage: WeightStorage, kernels: &dyn Kernels) {
        if self
            .stored
            .as_ref()
            .is_some_and(|before| before.storage != storage)
        {
            *self = self.whole(kernels);
        }
        self.freeze(trained);
        if self.device.compute_dtype() != Some(FloatDType::BF16) {
            return;
        }
        if let Some(stored) = &mut self.stored {
            stored.storage = storage;
        }
        let kept = self.kept_lowers.clone();
        let is_kept = |index: usize| kept.as_ref().is_none_or(|kept| kept[index]);
        self.convert(|index, value| match storage {
            _ if !trained[index] || value.dtype() != DType::F32 => None,
            WeightStorage::Whole => None,
            WeightStorage::SplitF32 => {
                let SplitF32 { upper, lower } = kernels.ops().weights.split(value);
                Some((upper, is_kept(index).then_some(lower)))
            }
            WeightStorage::Narrow => Some((cast(value, FloatDType::BF16), None)),
        });
    }

    /// Stores values that were replaced since [`store`](Self::store) as it said.
    pub fn settle(&mut self, kernels: &dyn Kernels) {
        if let Some(Stored { trained, storage }) = self.stored.clone() {
            self.store(&trained, storage, kernels);
        }
    }

    /// The same values, those that are trained in f32, in one piece.
    ///
    /// # Panics
    /// If another process has the lower half of one.
    #[must_use]
    pub fn whole(&self, kernels: &dyn Kernels) -> Self {
        let mut whole = self.clone();
        if let Some(stored) = &mut whole.stored {
            stored.storage = WeightStorage::Whole;
            let trained = stored.trained.clone();
            let joined = |index: usize, value: &RawTensor| {
                let narrow = trained[index] && value.dtype() != DType::F32;
                narrow.then(|| {
                    let value = self.values(&[index], kernels).remove(0);
                    (cast(&value, FloatDType::F32), None)
                })
            };
            whole.convert(joined);
        }
        whole
    }

    /// Replaces values, with their lower halves, by what `into` makes of them, in memory that lasts.
    fn convert(&mut self, into: impl Fn(usize, &RawTensor) -> Option<(RawTensor, Option<RawTensor>)> + Sync) {
        let device = self.device.clone();
        self.hide_parts();
        self.copies = OnceLock::new();
        let (values, lowers) = (Arc::make_mut(&mut self.values), Arc::make_mut(&mut self.lowers));
        let mut next = 0;
        while next < values.len() {
            next = device.with_persistent_allocation(|| {
                let mut replaced = 0;
                let all = values.iter_mut().zip(lowers.iter_mut()).enumerate();
                for (index, (value, lower)) in all.skip(next) {
                    if let Some(converted) = into(index, value) {
                        if converted.0.dtype() != value.dtype() {
                            replaced += value.shape().num_elements() * value.dtype().size();
                        }
                        (*value, *lower) = converted;
                    }
                    if replaced >= REPLACED_BYTES {
                        return index + 1;
                    }
                }
                usize::MAX
            });
            // What was replaced, before more is made: else a device holds both of all weights.
            device.release_unused();
        }
        self.show_parts();
    }
}
