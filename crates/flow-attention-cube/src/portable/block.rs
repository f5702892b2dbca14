//! The steps of a block that the portable kernels share: loads, products, partial masks, stores.

use super::tiles::{CHUNK, ChannelTile, ROWS, THREADS, Tiles};
use cubecl::prelude::*;

/// The entries of the list of block `CUBE_POS_X` of sample `batch`: the first, and the one behind the last.
#[cube]
pub(super) fn list_range(mask: &[u32], batch: usize, batch_stride: usize) -> (usize, usize) {
    let list = batch * batch_stride + CUBE_POS_X as usize;
    let begin = mask[list] as usize;
    let end = mask[list + 1] as usize;
    (begin, end)
}

/// One element, or zero where there is no row before `end` or no channel. Without a branch: compilers for processors
/// take a time that grows with the square of the branches of a kernel with barriers.
#[cube]
pub(super) fn read_or_zero<F: Float>(
    source: &Tensor<F>,
    base: usize,
    row: usize,
    end: usize,
    channel: usize,
    #[comptime] head_dim: usize,
) -> f32 {
    let exists = row < end && channel < head_dim;
    let place = base + row * source.stride(2) + channel * source.stride(3);
    let value = f32::cast_from(source[select(exists, place, 0usize)]);
    select(exists, value, 0.0f32)
}

/// Rows of a head: from `first` on, of which those before `end` exist. The head begins at `base`.
#[derive(CubeType)]
pub(super) struct HeadRows {
    pub base: usize,
    pub first: usize,
    pub end: usize,
}

/// Copies as many rows as `to` has, `CHUNK` channels from `channel` on, to that chunk of `tile`, channel by channel with one element
/// more than it has rows. Zero where there is no row or no channel.
#[cube]
pub(super) fn load_channels<F: Float>(
    source: &Tensor<F>,
    rows: &HeadRows,
    channel: usize,
    tile: &mut Shared<[f32]>,
    chunk: usize,
    #[comptime] to: ChannelTile,
) {
    let at = comptime!(to.at);
    let count = comptime!(to.count);
    let head_dim = comptime!(to.head_dim);
    for i in 0..chunk * comptime!(count) / comptime!(THREADS) {
        let element = UNIT_POS as usize + i * THREADS;
        let row = element / CHUNK;
        let offset = element % CHUNK;
        tile[at + offset * comptime!(count + 1) + row] = read_or_zero(
            source,
            rows.base,
            rows.first + row,
            rows.end,
            channel + offset,
            head_dim,
        );
    }
}

/// Copies `CHUNK` rows from `first` on with all channels to the start of `tile`, row by row. Zero where there is no row
/// before `end` or no channel.
#[cube]
pub(super) fn load_rows<F: Float>(
    source: &Tensor<F>,
    base: usize,
    first: usize,
    end: usize,
    tile: &mut Shared<[f32]>,
    chunk: usize,
    #[comptime] tiles: Tiles,
) {
    let channels = comptime!(tiles.channels());
    for i in 0..chunk * channels / comptime!(THREADS) {
        let element = UNIT_POS as usize + i * THREADS;
        let row = element / channels;
        let channel = element % channels;
        tile[element] = read_or_zero(source, base, first + row, end, channel, comptime!(tiles.head_dim));
    }
}

/// Rows times columns over one chunk of channels, added to `scores`.
#[cube]
pub(super) fn add_products(
    stage: &Shared<[f32]>,
    scores: &mut Array<f32>,
    x: usize,
    y: usize,
    chunk: usize,
    #[comptime] tiles: Tiles,
) {
    let owned = comptime!(tiles.owned_columns());
    let columns_at = comptime!(CHUNK * (ROWS + 1));
    for c in 0..chunk {
        let mut columns = Array::<f32>::new(owned);
        #[unroll]
        for j in 0..owned {
            columns[j] = stage[columns_at + c * comptime!(tiles.columns + 1) + x + comptime!(16 * j)];
        }
        #[unroll]
        for r in 0..4usize {
            let row = stage[c * comptime!(ROWS + 1) + y + comptime!(16 * r)];
            #[unroll]
            for j in 0..owned {
                scores[comptime!(r * owned + j)] += row * columns[j];
            }
        }
    }
}

/// Weights (of rows, by column) times one chunk of columns with all channels, added to `sums`. `from`: the first column.
#[cube]
pub(super) fn add_weighted(
    weights: &Shared<[f32]>,
    stage: &Shared<[f32]>,
    sums: &mut Array<f32>,
    from: usize,
    x: usize,
    y: usize,
    chunk: usize,
    #[comptime] tiles: Tiles,
) {
    let owned = comptime!(tiles.owned_channels());
    let channels = comptime!(tiles.channels());
    for c in 0..chunk {
        let mut row_scales = Array::<f32>::new(4usize);
        #[unroll]
        for r in 0..4usize {
            row_scales[r] = weights[(y + comptime!(16 * r)) * comptime!(tiles.columns + 1) + from + c];
        }
        #[unroll]
        for j in 0..owned {
            let value = stage[c * channels + x + comptime!(16 * j)];
            #[unroll]
            for r in 0..4usize {
                sums[comptime!(r * owned + j)] += row_scales[r] * value;
            }
        }
    }
}

/// Sets everything to zero.
#[cube]
pub(super) fn clear(array: &mut Array<f32>, #[comptime] length: usize) {
    #[unroll]
    for i in 0..length {
        array[i] = 0.0f32;
    }
}

/// Sets the scales of this thread's four rows.
#[cube]
pub(super) fn set_all(row_scales: &mut Array<f32>, scale: f32) {
    #[unroll]
    for r in 0..4usize {
        row_scales[r] = scale;
    }
}

/// Puts the scores of this thread where all can read them.
#[cube]
pub(super) fn share(
    scores: &Array<f32>,
    tile: &mut Shared<[f32]>,
    x: usize,
    y: usize,
    #[comptime] tiles: Tiles,
) {
    let owned = comptime!(tiles.owned_columns());
    #[unroll]
    for r in 0..4usize {
        #[unroll]
        for j in 0..owned {
            let place = (y + comptime!(16 * r)) * comptime!(tiles.columns + 1) + x + comptime!(16 * j);
            tile[place] = scores[comptime!(r * owned + j)];
        }
    }
}

/// For each of this thread's four rows the word of partial mask `number` that is about it, shifted so that bit `8 j` is about
/// column `x + 16 j`. All ones for number 0, which stands for everything.
///
/// Thread `32 r + 4 (y mod 8) + (x mod 8) / 2` of the partial mask holds row `y + 16 r`, and its register
/// `4 (x / 8 + 2 j) + 2 (y / 8) + x mod 2` column `x + 16 j` (`flow_attention_mask::element`).
#[cube]
pub(super) fn partial_mask(
    mask: &[u32],
    patterns_at: usize,
    number: u32,
    words: &mut Array<u32>,
    x: usize,
    y: usize,
) {
    #[unroll]
    for r in 0..4usize {
        words[r] = 0xFFFF_FFFFu32;
    }
    if number > 1 {
        let thread = 4 * (y % 8) + (x % 8) / 2;
        let shift = (4 * (x / 8) + 2 * (y / 8) + x % 2) as u32;
        let at = patterns_at + (number as usize - 2) * 128 + thread;
        #[unroll]
        for r in 0..4usize {
            words[r] = mask[at + comptime!(32 * r)] >> shift;
        }
    }
}

/// Whether the partial mask allows this thread's column `j`.
#[cube]
pub(super) fn allowed(word: u32, #[comptime] j: usize) -> bool {
    (word >> comptime!(8 * j as u32)) & 1u32 == 1u32
}

/// Writes this thread's channels of its four rows, each scaled.
// The first of two equal branches is chosen when the kernel is made, the second when it runs.
#[allow(clippy::if_same_then_else)]
#[cube]
pub(super) fn store<F: Float>(
    target: &mut Tensor<F>,
    rows: &HeadRows,
    sums: &Array<f32>,
    row_scales: &Array<f32>,
    x: usize,
    y: usize,
    #[comptime] tiles: Tiles,
) {
    let owned = comptime!(tiles.owned_channels());
    #[unroll]
    for r in 0..4usize {
        let row = rows.first + y + comptime!(16 * r);
        let place = rows.base + row * target.stride(2) + x * target.stride(3);
        let step = target.stride(3) * 16;
        if row < rows.end {
            #[unroll]
            for j in 0..owned {
                let value = F::cast_from(sums[comptime!(r * owned + j)] * row_scales[r]);
                if comptime!(16 * j + 16 <= tiles.head_dim) {
                    target[place + j * step] = value;
                } else if x + comptime!(16 * j) < comptime!(tiles.head_dim) {
                    target[place + j * step] = value;
                }
            }
        }
    }
}

/// Sums up (or takes the largest of) what the sixteen threads of each row have put into `partial`, in the order of
/// columns.
#[cube]
pub(super) fn combine(partial: &Shared<[f32]>, row: usize, chunk: usize, #[comptime] largest: bool) -> f32 {
    let at = row * comptime!(CHUNK + 1);
    let mut result = partial[at];
    for i in 1..chunk {
        if comptime!(largest) {
            result = max(result, partial[at + i]);
        } else {
            result += partial[at + i];
        }
    }
    result
}
