//! What can be wrong with a mask, said to the person who wrote it.

use thiserror::Error;

/// A mask that means nothing, or that does not fit the attention call it is used in.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MaskError {
    /// An axis of the call is empty, or too large to be numbered in 32 bits.
    #[error("attention over {axis} = {found}: it must be at least 1 and below 2^31")]
    Size {
        /// `batch`, `queries` or `keys`.
        axis: &'static str,
        /// How many there are.
        found: usize,
    },
    /// A list has the wrong length.
    #[error("the {mask} mask has {found} {what}, but the attention call has {expected}; give one for each")]
    Length {
        /// Name of the mask.
        mask: &'static str,
        /// What the list holds.
        what: &'static str,
        /// How many the mask has.
        found: usize,
        /// How many the call has.
        expected: usize,
    },
    /// A value exceeds what the call has.
    #[error("{what} {index} of the {mask} mask is {found}, but the attention call has {limit} {of}")]
    Beyond {
        /// Name of the mask.
        mask: &'static str,
        /// What the value is.
        what: &'static str,
        /// Where it stands in its list, from 0.
        index: usize,
        /// The value.
        found: usize,
        /// Largest allowed value.
        limit: usize,
        /// What there are `limit` of.
        of: &'static str,
    },
    /// Cumulative lengths that do not begin with 0 or that decrease.
    #[error(
        "cumulative lengths of {of} must begin with 0 and never decrease, as in [0, 5, 12]; entry {index} is {found} \
         after {before}"
    )]
    Cumulative {
        /// `queries` or `keys`.
        of: &'static str,
        /// Where, from 0.
        index: usize,
        /// The entry.
        found: usize,
        /// What it must not be below.
        before: usize,
    },
    /// Query and key lists that do not describe the same number of things.
    #[error(
        "the {mask} mask describes {queries} {what} for queries but {keys} for keys; they must be as many"
    )]
    Unequal {
        /// Name of the mask.
        mask: &'static str,
        /// What is described.
        what: &'static str,
        /// How many for queries.
        queries: usize,
        /// How many for keys.
        keys: usize,
    },
    /// A list or an extent that must not be empty.
    #[error("the {mask} mask has no {what}; give at least one")]
    Empty {
        /// Name of the mask.
        mask: &'static str,
        /// What is missing.
        what: &'static str,
    },
    /// A grid of video tokens whose size is not that of the call.
    #[error(
        "the video window is over {frames} frames x {height} x {width} = {tokens} tokens, but the attention call has \
         {found} {axis}; they must be equal"
    )]
    Grid {
        /// Frames of the grid.
        frames: usize,
        /// Its height.
        height: usize,
        /// Its width.
        width: usize,
        /// Their product.
        tokens: usize,
        /// `queries` or `keys`.
        axis: &'static str,
        /// How many the call has.
        found: usize,
    },
    /// A tiling that kernels cannot have.
    #[error("{what} is {found}; allowed: {allowed}")]
    Tiling {
        /// Which number.
        what: &'static str,
        /// Its value.
        found: usize,
        /// The values that are allowed.
        allowed: &'static str,
    },
}
