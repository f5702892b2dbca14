//! Why the portable kernels do not take a call.

use flow_attention_mask::MaskError;
use flow_registry::Refusal;
use thiserror::Error;

/// Why the portable kernels do not take a call. Nothing was launched.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Declined {
    /// Heads that are too wide.
    #[error("heads of {found} channels: the portable attention kernels take 1 to 256")]
    HeadDim {
        /// Channels.
        found: usize,
    },
    /// An operand has another shape than the call implies.
    #[error("`{name}` is {found:?}, but must be {expected:?} ([batch, heads, tokens, channels]){why}")]
    Shape {
        /// Name of the operand.
        name: &'static str,
        /// Its shape.
        found: [usize; 4],
        /// What it must be.
        expected: [usize; 4],
        /// Where that comes from.
        why: &'static str,
    },
    /// Heads of queries cannot be shared out among the heads of keys.
    #[error("{heads} heads of queries do not divide among {kv_heads} heads of keys; make it a multiple")]
    Group {
        /// Heads of queries.
        heads: usize,
        /// Heads of keys.
        kv_heads: usize,
    },
    /// Not one or two segments of keys.
    #[error("keys and values in {found} segments: the portable attention kernels take one or two")]
    Segments {
        /// How many.
        found: usize,
    },
    /// An operand's strides reach behind its buffer.
    #[error("`{name}` reaches element {reaches}, but its buffer holds {holds}; check its shape and strides")]
    Beyond {
        /// Name of the operand.
        name: &'static str,
        /// Elements from the first to the last, with both.
        reaches: usize,
        /// Elements of the buffer.
        holds: usize,
    },
    /// The device cannot do something.
    #[error("this device offers {found} {what}, the portable attention kernels need {needed}")]
    Device {
        /// What.
        what: &'static str,
        /// How much it has.
        found: usize,
        /// How much is needed.
        needed: usize,
    },
    /// The device does not know the element type.
    #[error("this device does not store and convert {element}; use f32, which every device has")]
    Element {
        /// Name of the type.
        element: &'static str,
    },
    /// The mask was compiled for another call.
    #[error(
        "the mask was compiled for {made:?} and heads of {made_dim} channels, the call is {call:?} and {call_dim}"
    )]
    Mask {
        /// What it was compiled for.
        made: flow_attention_mask::Sizes,
        /// Channels it was compiled for.
        made_dim: usize,
        /// The call.
        call: flow_attention_mask::Sizes,
        /// Its channels.
        call_dim: usize,
    },
    /// The mask itself is wrong.
    #[error(transparent)]
    MaskError(#[from] MaskError),
}

impl From<Declined> for Refusal {
    fn from(declined: Declined) -> Self {
        Self::because(declined.to_string())
    }
}
