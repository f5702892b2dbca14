//! The order of a recording: warm up, look whether there is room, record; and out of it again where a step is declined.
//!
//! A device that runs out of memory in the middle of a recording may lose what it was given. So what the recording needs is
//! measured on the way to it and compared with what the device has, while nothing depends on the answer yet.

use crate::stopped;
use crate::tensors::RawTensor;
use flow_registry::Refusal;

/// The steps of a recording, as a device does them. [`record`] calls them, all from one thread.
pub trait CaptureDevice {
    /// What was recorded.
    type Graph;
    /// Memory that is kept from everything else until this is dropped.
    type SetAside;

    /// Bytes that the runtime has taken of the device's memory, for tensors and for itself.
    fn bytes_reserved(&self) -> u64;

    /// Bytes of the device's memory that nobody has taken; none if the device does not say.
    fn bytes_free(&self) -> Option<u64>;

    /// Bytes that [`set_aside`](Self::set_aside) takes, besides those that the runtime has taken already.
    fn bytes_to_set_aside(&self) -> u64;

    /// Takes memory that nobody needs, so that the next run takes more than it needs.
    ///
    /// # Errors
    /// If the device has none left.
    fn set_aside(&self) -> Result<Self::SetAside, Refusal>;

    /// Begins the warm-up: from here to [`stop`](Self::stop) the runtime holds the thread's order of launches for one recording.
    ///
    /// # Errors
    /// If another recording is under way. There is nothing to stop then.
    fn prepare(&self) -> Result<(), Refusal>;

    /// Waits until all that was asked of the device is done.
    ///
    /// # Errors
    /// If the device failed, or did not compute one of `outputs`: for want of memory, say.
    fn finish(&self, outputs: &[RawTensor]) -> Result<(), Refusal>;

    /// Begins to record.
    ///
    /// # Errors
    /// If the device refuses.
    fn start(&self) -> Result<(), Refusal>;

    /// Ends the recording; after [`prepare`](Self::prepare) alone, or after a step that failed, ends the attempt.
    ///
    /// # Errors
    /// If there is nothing that can be replayed.
    fn stop(&self) -> Result<Self::Graph, Refusal>;
}

/// Records what `compute` launches on `device`, and gives the recording with the outputs of `compute`.
///
/// `warm_up` launches the same before, twice. The first run compiles the kernels and takes the memory; how much that is decides
/// whether there is a recording at all. The second takes what the first did not, with more than it needs set aside for the
/// recording: how much is in use at once depends on how far the thread runs ahead of the device.
///
/// # Errors
/// [`Refusal`] if the device declines a step, if it did not compute an output of `warm_up`, or if a recording needs more
/// memory than is free. The device records nothing afterwards, whichever step it was, and also if one of the two panics.
pub fn record<D: CaptureDevice>(
    device: &D,
    warm_up: &mut dyn FnMut() -> Vec<RawTensor>,
    compute: &mut dyn FnMut() -> Vec<RawTensor>,
) -> Result<(D::Graph, Vec<RawTensor>), Refusal> {
    device.prepare()?;
    let attempt = Attempt(Some(device));
    let before = device.bytes_reserved();
    let mut warmed_up = || device.finish(&warm_up());
    warmed_up()?;
    let warm_up_bytes = device.bytes_reserved().saturating_sub(before);
    fits(warm_up_bytes, device.bytes_to_set_aside(), device.bytes_free())?;
    let set_aside = device.set_aside()?;
    warmed_up()?;
    drop(set_aside);
    device.start()?;
    let outputs = compute();
    Ok((attempt.end()?, outputs))
}

/// Whether a device with `free` bytes after the warm-up, which took `warm_up` bytes, has room for a recording: it takes what
/// the warm-up took, and `set_aside` bytes before.
fn fits(warm_up: u64, set_aside: u64, free: Option<u64>) -> Result<(), Refusal> {
    let Some(free) = free.filter(|free| *free < set_aside) else {
        return Ok(());
    };
    // Both as they were before the warm-up, whose memory the recording takes over.
    Err(Refusal::because(format!(
        "a recording needs {}, {} are free",
        gib(warm_up + set_aside),
        gib(warm_up + free)
    )))
}

fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64)
}

/// A device that was prepared, and is to be left recording nothing.
struct Attempt<'a, D: CaptureDevice>(Option<&'a D>);

impl<D: CaptureDevice> Attempt<'_, D> {
    fn end(mut self) -> Result<D::Graph, Refusal> {
        let device = self.0.take().expect("it ends once");
        device.stop()
    }
}

impl<D: CaptureDevice> Drop for Attempt<'_, D> {
    fn drop(&mut self) {
        if let Some(device) = self.0 {
            // Nothing was recorded, and why is known already. A device that panics here may be why this one unwinds.
            let _ = stopped::caught(|| device.stop().map(drop));
        }
    }
}
