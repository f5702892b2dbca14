//! Tensors, masks and statistics on the device, as the kernels for tensor cores take them.

use crate::call::Call;
use crate::passing::{BEHIND, Order};
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;
use flow_attention_mask::{MaskTiles, Side};

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
    pub(crate) order: Order,
}

impl TileList {
    /// Uploads what a mask was compiled to for `call`.
    pub fn new(client: &Client, call: &Call, tiles: &MaskTiles) -> Self {
        let [places, entries] = Self::words(tiles);
        let group = call.heads / call.kv_heads;
        // Of two tensors.
        let passing_values = match tiles.tiling.side {
            Side::Queries => 2 * (call.keys[0] + call.keys[1]) * call.head_dim / group,
            Side::Keys { .. } => 2 * group * call.queries * call.head_dim,
        };
        let lengths: Vec<u32> = places.chunks(4).map(|place| place[2]).collect();
        Self::upload(
            client,
            [&places, &entries, &tiles.patterns],
            tiles.mask_batch_stride,
            Order::of(
                lengths.chunks(tiles.row_blocks.max(1)),
                passing_values * size_of::<half::bf16>(),
            ),
        )
    }

    /// Places, and entries.
    ///
    /// A place has four words: the block of rows, where its entries begin, how many tiles there are, and the first of them. Places are in the
    /// order in which blocks start, those with most tiles first. For each tile there is an entry of two words for each 64 rows of a block: the
    /// tile, and the number of a pattern. Behind the last list are entries that kernels read ahead and do not use.
    pub fn words(tiles: &MaskTiles) -> [Vec<u32>; 2] {
        let units = tiles.tiling.units_per_block;
        let mut places = Vec::with_capacity(4 * tiles.mask_batches * tiles.row_blocks);
        for batch in 0..tiles.mask_batches {
            let list = |block: usize| {
                let at = batch * tiles.row_blocks + block;
                (tiles.offsets[at], tiles.offsets[at + 1] - tiles.offsets[at])
            };
            let mut order: Vec<usize> = (0..tiles.row_blocks).collect();
            order.sort_by_key(|block| std::cmp::Reverse(list(*block).1));
            for block in order {
                let (begin, length) = list(block);
                let first = tiles.entries[begin as usize * (1 + units)];
                places.extend([block as u32, begin, length, first]);
            }
        }
        let tile_count = tiles.entries.len() / (1 + units);
        let mut entries = Vec::with_capacity(2 * units * (tile_count + BEHIND));
        for entry in tiles.entries.chunks(1 + units) {
            for pattern in &entry[1..] {
                entries.extend([entry[0], *pattern]);
            }
        }
        entries.resize(entries.len() + 2 * units * BEHIND, 0);
        [places, entries]
    }

    fn upload(client: &Client, words: [&[u32]; 3], batch_stride: u32, order: Order) -> Self {
        let [places, entries, patterns] = words.map(|words| {
            let words = if words.is_empty() { &[0; 4] } else { words };
            (client.create_from_slice(u32::as_bytes(words)), words.len())
        });
        Self {
            places,
            entries,
            patterns,
            batch_stride,
            order,
        }
    }

    /// What kernels without a mask get.
    pub fn none(client: &Client) -> Self {
        Self::upload(client, [&[]; 3], 0, Order::BY_HEAD)
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
