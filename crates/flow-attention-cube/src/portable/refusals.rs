//! Why the portable kernels do not take a call. Nothing was launched then.

use flow_attention_mask::{MaskError, Sizes};
use flow_registry::Refusal;

/// Heads of `found` channels are too wide, or have none.
pub(super) fn head_dim(found: usize) -> Refusal {
    Refusal::because(format!(
        "heads of {found} channels: the portable attention kernels take 1 to 256"
    ))
}

/// The operand called `name` has another shape than the call implies, for the reason `why`.
pub(super) fn shape(name: &str, found: [usize; 4], expected: [usize; 4], why: &str) -> Refusal {
    Refusal::because(format!(
        "`{name}` is {found:?}, but must be {expected:?} ([batch, heads, tokens, channels]){why}"
    ))
}

/// Heads of queries cannot be shared out among the heads of keys.
pub(super) fn group(heads: usize, kv_heads: usize) -> Refusal {
    Refusal::because(format!(
        "{heads} heads of queries do not divide among {kv_heads} heads of keys; make it a multiple"
    ))
}

/// Not one or two segments of keys.
pub(super) fn segments(found: usize) -> Refusal {
    Refusal::because(format!(
        "keys and values in {found} segments: the portable attention kernels take one or two"
    ))
}

/// From the first element to the last the operand called `name` has more elements than its buffer.
pub(super) fn beyond(name: &str, reaches: usize, holds: usize) -> Refusal {
    Refusal::because(format!(
        "`{name}` reaches element {reaches}, but its buffer holds {holds}; check its shape and strides"
    ))
}

/// The device has less of something than is needed.
pub(super) fn device(what: &str, found: usize, needed: usize) -> Refusal {
    Refusal::because(format!(
        "this device offers {found} {what}, the portable attention kernels need {needed}"
    ))
}

/// The device does not know the element type.
pub(super) fn element(name: &str) -> Refusal {
    Refusal::because(format!(
        "this device does not store and convert {name}; use f32, which every device has"
    ))
}

/// The mask was compiled for another call, each with its channels.
pub(super) fn other_call((made, made_dim): (Sizes, usize), (call, call_dim): (Sizes, usize)) -> Refusal {
    Refusal::because(format!(
        "the mask was compiled for {made:?} and heads of {made_dim} channels, the call is {call:?} and {call_dim}"
    ))
}

/// The mask itself is wrong.
pub(super) fn mask(error: &MaskError) -> Refusal {
    Refusal::because(error.to_string())
}
