//! How threads share the rows of a matrix, and sums over a row in one order.
//!
//! A row belongs to `threads_per_row` threads: at most a plane (a warp), several rows to a block, where that keeps the row in
//! registers; a whole block otherwise. The order of additions depends on the row's length, its type and the device.

use cubecl::prelude::*;

/// Threads of a block at most.
const THREADS: usize = 256;
/// Threads of a block whose rows belong to planes.
const NARROW_THREADS: usize = 128;
/// Values of one row that a thread of a plane keeps at most.
const HELD: usize = 64;

/// A division of rows among threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rows {
    /// Values of a row.
    pub columns: usize,
    /// Values of a vector; they divide a row.
    pub width: usize,
    /// Threads of a row.
    pub threads_per_row: usize,
    /// Rows of a block at a time.
    pub groups: usize,
    /// Threads of a plane, or 1 if the device does not say.
    pub plane: usize,
}

/// Threads of a plane, or 1 if they differ from kernel to kernel.
pub(crate) fn plane_size(client: &Client) -> usize {
    let hardware = &client.properties().hardware;
    match hardware.plane_size_min == hardware.plane_size_max {
        true => hardware.plane_size_max as usize,
        false => 1,
    }
}

impl Rows {
    /// For rows of `columns` values, several to a block if they are short.
    pub fn several(columns: usize, width: usize, plane: usize) -> Self {
        let vectors = columns / width;
        let threads_per_row = plane.min(vectors.next_power_of_two());
        if columns > threads_per_row * HELD {
            return Self::whole(columns, width, plane);
        }
        Self {
            columns,
            width,
            threads_per_row,
            groups: NARROW_THREADS / threads_per_row,
            plane,
        }
    }

    /// For rows of `columns` values, each a block's.
    pub fn whole(columns: usize, width: usize, plane: usize) -> Self {
        let vectors = columns / width;
        let each = vectors.div_ceil(THREADS);
        let threads_per_row = vectors.div_ceil(each).next_multiple_of(plane);
        Self {
            columns,
            width,
            threads_per_row,
            groups: 1,
            plane,
        }
    }

    /// Threads of a block.
    pub fn threads(self) -> usize {
        self.threads_per_row * self.groups
    }

    /// Vectors of a row.
    pub fn vectors(self) -> usize {
        self.columns / self.width
    }

    /// Vectors of a row that a thread keeps.
    pub fn held(self) -> usize {
        self.vectors().div_ceil(self.threads_per_row)
    }

    /// Steps of the sum within a plane.
    pub fn steps(self) -> usize {
        self.threads_per_row.min(self.plane).trailing_zeros() as usize
    }

    /// Planes that share a row.
    pub fn planes(self) -> usize {
        self.threads_per_row.div_ceil(self.plane)
    }

    /// Numbers in shared memory for `count` sums at once.
    pub fn shared(self, count: usize) -> usize {
        self.planes() * count
    }
}

/// Sum of the values of a vector, from the first to the last.
#[cube]
pub(crate) fn total<N: Size>(values: Vector<f32, N>) -> f32 {
    let mut sum = values.extract(0usize);
    #[unroll]
    for i in 1..N::value() {
        sum += values.extract(i);
    }
    sum
}

/// Replaces each of `count` numbers by its sum over the threads of the row. Every thread of the block calls this.
#[cube]
pub(crate) fn row_sums(
    values: &mut Array<f32>,
    shared: &mut Shared<[f32]>,
    #[comptime] count: usize,
    #[comptime] rows: Rows,
) {
    #[unroll]
    for i in 0..count {
        let mut sum = values[i];
        #[unroll]
        for step in 0..comptime!(rows.steps()) {
            sum += plane_shuffle_xor(sum, comptime!(1u32 << step as u32));
        }
        values[i] = sum;
    }
    if comptime!(rows.planes() > 1) {
        let place = UNIT_POS as usize % rows.plane;
        if place == 0 {
            #[unroll]
            for i in 0..count {
                shared[comptime!(i * rows.planes()) + UNIT_POS as usize / rows.plane] = values[i];
            }
        }
        sync_cube();
        #[unroll]
        for i in 0..count {
            let mut sum = shared[comptime!(i * rows.planes())];
            #[unroll(rows.planes() <= 8)]
            for plane in 1..comptime!(rows.planes()) {
                sum += shared[comptime!(i * rows.planes()) + plane];
            }
            values[i] = sum;
        }
        sync_cube();
    }
}
