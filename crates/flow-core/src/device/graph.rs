//! A computation recorded once and replayed: what a device with graphs offers, and what a host-bound model needs.
//!
//! A recording is the list of kernels that a computation launched, with the memory that they read and wrote. A replay runs
//! them again on the same memory, without the host's part of the work. So it is the same arithmetic in the same order, to
//! the bit; only what stood in the host's memory during the recording (a number in the model's code) cannot change.

use crate::tensors::RawTensor;
use flow_registry::Refusal;
use std::fmt::Debug;

/// Records computations of one device.
pub trait Recorder: Debug + Send + Sync {
    /// Records what `compute` launches, given copies of `inputs` in memory of their own.
    ///
    /// `warm_up` runs before, given the same: it compiles every kernel that `compute` will launch, takes and frees the memory
    /// that it will take, and gives the outputs, by which the device sees whether it computed them. During `compute` nothing runs: it must not read a tensor back, nor make one from the host's
    /// values. What it takes from the device stays taken as long as the recording lives.
    ///
    /// # Errors
    /// [`Refusal`] with the device's reason, among them memory that is too small for a recording. Whatever `compute` returned holds nothing of use then, and the device may
    /// refuse to read what it was given, weights among it; [`is_readable`](Self::is_readable) says whether it does.
    fn record(
        &self,
        inputs: &[RawTensor],
        warm_up: &mut dyn FnMut(&[RawTensor]) -> Vec<RawTensor>,
        compute: &mut dyn FnMut(&[RawTensor]) -> Vec<RawTensor>,
    ) -> Result<Box<dyn Recorded>, Refusal>;

    /// A copy of `tensor` in memory of its own.
    fn copied(&self, tensor: &RawTensor) -> RawTensor;

    /// Whether anything but one owner holds the memory of `tensor`.
    fn is_held(&self, tensor: &RawTensor) -> bool;

    /// Whether the device still gives the values of all of `tensors`, everything asked of it being done. After a recording
    /// that failed, what it read may be lost.
    fn is_readable(&self, tensors: &[RawTensor]) -> bool;

    /// Gives memory that nothing uses back to the device.
    fn release(&self, like: &RawTensor);

    /// Whether memory comes in pages whose size [`fit_pages`](Self::fit_pages) may change.
    fn has_pages(&self) -> bool {
        false
    }

    /// Makes pages a little larger, if then tensors of so many `bytes` fill them and now they do not: a recording keeps whole pages.
    fn fit_pages(&self, _like: &RawTensor, _bytes: u64) {}
}

/// A recorded computation. It belongs to the thread that recorded it, whose order of launches it is part of.
pub trait Recorded: Debug + Send {
    /// Runs it again on `inputs`, of the shapes and types that it was recorded with. The outputs stand in memory that the
    /// next replay writes: copy what is to outlive it.
    ///
    /// # Errors
    /// [`Refusal`] if the device refuses, or if another thread than the recording one asks.
    fn replay(&mut self, inputs: &[RawTensor]) -> Result<&[RawTensor], Refusal>;

    /// The outputs of the last replay.
    fn outputs(&self) -> &[RawTensor];
}
