//! The operations of weights that are stored or copied.

use crate::split_f32::SplitF32;
use crate::tensors::RawTensor;
use std::fmt::Debug;

/// Operations on stored weights. None of them has a gradient.
pub trait WeightOps: Debug + Send + Sync {
    /// An f32 tensor in two halves, each of its shape.
    fn split(&self, value: &RawTensor) -> SplitF32;

    /// The f32 tensors of halves. Devices make many in one launch.
    fn join(&self, halves: &[SplitF32]) -> Vec<RawTensor>;

    /// Makes each copy the values of the tensor beside it, in the type that the copy has. A copy that nothing else holds stays
    /// where it is on a device with recordings, which read it there.
    fn copy_all(&self, copies: Vec<(&mut RawTensor, &RawTensor)>);
}
