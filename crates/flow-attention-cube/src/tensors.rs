//! Tensors, masks and statistics on the device, as the kernels for tensor cores take them.

use crate::passing::BEHIND;
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;

/// A tensor `[B, H, S, D]` on the device, with its strides in elements; the last one is 1, the others multiples of 8.
#[derive(Clone, Debug)]
pub struct Heads {
    /// Where it is.
    pub handle: Handle,
    /// `[B, H, S, D]`.
    pub shape: [usize; 4],
    /// Elements from one to the next, of each axis.
    pub strides: [usize; 4],
}

impl Heads {
    /// A tensor without gaps.
    pub fn contiguous(handle: Handle, shape: [usize; 4]) -> Self {
        let [_, heads, rows, channels] = shape;
        let strides = [heads * rows * channels, rows * channels, channels, 1];
        Self {
            handle,
            shape,
            strides,
        }
    }

    /// Elements from the first to the last, with both.
    pub(crate) fn elements(&self) -> usize {
        1 + self
            .shape
            .iter()
            .zip(self.strides)
            .map(|(n, s)| (n - 1) * s)
            .sum::<usize>()
    }
}

/// Keys and values of one part.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Keys.
    pub k: &'a Heads,
    /// Values.
    pub v: &'a Heads,
}

/// A mask on the device: which tiles pass each block, and what of them is seen.
#[derive(Clone, Debug)]
pub struct TileList {
    places: (Handle, usize),
    entries: (Handle, usize),
    patterns: (Handle, usize),
    pub(crate) batch_stride: u32,
}

impl TileList {
    /// Tiles behind the last list of which entries can be read.
    pub const BEHIND: usize = BEHIND;

    /// Uploads a list.
    ///
    /// `places` holds four words for each place of the grid: the block of rows, where its entries begin, how many tiles there are,
    /// and the first of them. `entries` holds for each tile, and in it for each 64 rows of a block, two words: the tile and the number
    /// of a pattern, and those of [`BEHIND`](Self::BEHIND) tiles behind the last list, which kernels read and do not use. `batch_stride` is
    /// the number of places of a sample, or 0 if all samples have the same list.
    pub fn new(
        client: &Client,
        places: &[u32],
        entries: &[u32],
        patterns: &[u32],
        batch_stride: u32,
    ) -> Self {
        let put = |words: &[u32]| {
            let words = if words.is_empty() { &[0; 4] } else { words };
            (client.create_from_slice(u32::as_bytes(words)), words.len())
        };
        Self {
            places: put(places),
            entries: put(entries),
            patterns: put(patterns),
            batch_stride,
        }
    }

    /// What kernels without a mask get.
    pub fn none(client: &Client) -> Self {
        Self::new(client, &[], &[], &[], 0)
    }

    /// Places, entries and patterns.
    pub(crate) fn arguments(&self) -> [BufferArg; 3] {
        let of = |(handle, length): &(Handle, usize), width| unsafe {
            BufferArg::from_raw_parts(handle.clone(), length / width)
        };
        [of(&self.places, 4), of(&self.entries, 2), of(&self.patterns, 1)]
    }
}

/// Rows of `lse` and of `delta` for a head of `queries` queries.
pub fn lse_rows(queries: usize) -> usize {
    queries.next_multiple_of(128)
}

/// Operands of backward.
#[derive(Clone, Copy, Debug)]
pub struct Backward<'a> {
    /// Queries.
    pub q: &'a Heads,
    /// Output of forward.
    pub o: &'a Heads,
    /// Gradient of the output.
    pub d_o: &'a Heads,
    /// Log-sum-exp of forward, `[B, H, lse_rows]`.
    pub lse: &'a Handle,
    /// Scratch in f32: sums over channels of `d_o ∘ o`, `[B, H, lse_rows]`, which the kernel for queries writes; then sums of the
    /// kernel for keys, if it takes queries in pieces.
    pub delta: &'a Handle,
    /// Factor on the scores.
    pub scale: f32,
}
