//! How threads walk down the columns of a matrix, with sums over its rows in one order.
//!
//! A block has `across` columns of threads, a vector of columns each, and `down` threads for each of these. A thread takes
//! every `down`-th row of its piece; the sums of the threads of a column are added from the first to the last.

use cubecl::prelude::*;

/// Threads of a block.
pub(crate) const THREADS: usize = 256;
/// Columns of threads at most.
const ACROSS: usize = 32;

/// A division of the columns of a matrix among threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Columns {
    /// Vectors of a row.
    pub vectors: usize,
    /// Values of a vector.
    pub width: usize,
    /// Vectors of columns that a block has.
    pub across: usize,
    /// Threads that share a column.
    pub down: usize,
}

impl Columns {
    /// For rows of `columns` values in vectors of `width`.
    pub fn new(columns: usize, width: usize) -> Self {
        let vectors = columns / width;
        let across = vectors.next_power_of_two().min(ACROSS);
        Self {
            vectors,
            width,
            across,
            down: THREADS / across,
        }
    }

    /// Blocks beside each other.
    pub fn blocks(self) -> usize {
        self.vectors.div_ceil(self.across)
    }
}

/// Rows of one piece of the sums over `rows` rows of `columns` columns: so many that the sums of the pieces are few beside
/// the rows, so few that there are blocks for a whole GPU.
pub(crate) fn rows_per_piece(rows: usize, columns: Columns) -> usize {
    // As many rows as give a thread 4 to 32 of them.
    let per_thread = (rows / (columns.down * 32)).next_power_of_two().clamp(4, 32);
    columns.down * per_thread
}

/// The thread's vector of columns, and which of the threads that share it this is.
#[cube]
pub(crate) fn place(block: usize, #[comptime] columns: Columns) -> (usize, usize) {
    let lane = UNIT_POS as usize % columns.across;
    (block * columns.across + lane, UNIT_POS as usize / columns.across)
}

/// The sum over the threads of a column, for the first of them; 0 for the others. Every thread of the block calls this.
#[cube]
pub(crate) fn fold<N: Size>(
    sum: Vector<f32, N>,
    shared: &mut Shared<[Vector<f32, N>]>,
    #[comptime] columns: Columns,
) -> Vector<f32, N> {
    let lane = UNIT_POS as usize % columns.across;
    shared[UNIT_POS as usize] = sum;
    sync_cube();
    let mut folded = Vector::<f32, N>::new(0.0f32);
    if UNIT_POS < columns.across as u32 {
        for other in 0..columns.down {
            folded += shared[other * columns.across + lane];
        }
    }
    sync_cube();
    folded
}
