//! The second stage of sums over tokens or rows: partial sums of pieces, summed in the order of the pieces.

use crate::buffer::{Buffer, address_type, grid, with_type};
use cubecl::prelude::*;

/// Columns of a block, and threads that share a column's pieces.
const COLUMNS: usize = 32;
const SHARES: usize = 8;

/// Sizes of partial sums and of what they are added up to.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct PartialSizes {
    /// Samples.
    pub batch: usize,
    /// Pieces of a sample.
    pub pieces: usize,
    /// Chunks of a sample's output.
    pub chunks: usize,
    /// Columns of a chunk.
    pub columns: usize,
    /// The chunk that part 0 goes to.
    pub first: usize,
    /// The chunk that part 1 goes to; one that is not there without such a part.
    pub second: usize,
}

/// Writes `[batch, chunks, columns]`: to chunk `first` the sums of `partials[batch, pieces, parts, columns]` of part 0, to
/// chunk `second` those of part 1 if there is one, and zeros elsewhere. A block computes 32 columns of one chunk; 8 threads
/// share a column's pieces, and their sums are added in order.
#[cube(launch_unchecked, address_type = "dynamic")]
fn add_partials<F: Float>(
    partials: &[f32],
    output: &mut [F],
    sizes: &PartialSizes,
    #[comptime] parts: usize,
) {
    let mut shared: Shared<[f32]> = Shared::new_slice(comptime!(COLUMNS * SHARES));
    let lane = UNIT_POS as usize % COLUMNS;
    let share = UNIT_POS as usize / COLUMNS;
    let column_blocks = sizes.columns.div_ceil(COLUMNS);
    let column = CUBE_POS % column_blocks * COLUMNS + lane;
    let chunk = CUBE_POS / column_blocks % sizes.chunks;
    let sample = CUBE_POS / column_blocks / sizes.chunks;
    let exists = column < sizes.columns && sample < sizes.batch;
    let is_second = chunk == sizes.second && comptime!(parts == 2);
    let mut sum = 0.0f32;
    if exists && (chunk == sizes.first || is_second) {
        let part = select(is_second, 1usize, 0usize);
        for step in 0..sizes.pieces.div_ceil(SHARES) {
            let piece = step * SHARES + share;
            if piece < sizes.pieces {
                sum += partials[((sample * sizes.pieces + piece) * parts + part) * sizes.columns + column];
            }
        }
    }
    shared[UNIT_POS as usize] = sum;
    sync_cube();
    if share == 0 && exists {
        #[unroll]
        for other in 1..comptime!(SHARES) {
            sum += shared[comptime!(other * COLUMNS) + lane];
        }
        output[(sample * sizes.chunks + chunk) * sizes.columns + column] = F::cast_from(sum);
    }
}

/// Where the sums of partial sums go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub batch: usize,
    /// Pieces of a sample.
    pub pieces: usize,
    /// Chunks of a sample's output, of `columns` values each.
    pub chunks: usize,
    pub columns: usize,
    /// The chunk that each part goes to: one or two.
    pub parts: [Option<usize>; 2],
}

impl Target {
    /// Sums over all pieces for one row of `columns` values.
    pub fn row(pieces: usize, columns: usize) -> Self {
        Self {
            batch: 1,
            pieces,
            chunks: 1,
            columns,
            parts: [Some(0), None],
        }
    }

    pub fn add(self, client: &Client, partials: &Buffer, output: &Buffer) {
        let blocks = self.columns.div_ceil(COLUMNS) * self.chunks * self.batch;
        let none = self.chunks;
        let [first, second] = self.parts.map(|part| part.unwrap_or(none));
        // SAFETY: callers made `partials` and checked `output` by the same sizes.
        with_type!(output.element, F => unsafe {
            add_partials::launch_unchecked::<F>(
                client,
                grid(client, blocks),
                CubeDim::new_1d((COLUMNS * SHARES) as u32),
                address_type(&[partials, output]),
                partials.argument(),
                output.argument(),
                PartialSizesLaunch::new(
                    self.batch,
                    self.pieces,
                    self.chunks,
                    self.columns,
                    first,
                    second,
                ),
                if self.parts[1].is_some() { 2 } else { 1 },
            );
        });
    }
}
