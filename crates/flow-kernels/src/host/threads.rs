//! Work split into pieces whose size never depends on the number of threads.

use rayon::prelude::*;

/// Values below which one thread is faster than waking a second.
pub const SERIAL_BELOW: usize = 1 << 15;

/// Values that one piece of an elementwise operation has.
pub const PIECE: usize = 1 << 14;

/// Whether `work` (values touched, roughly) is worth more than one thread.
pub fn worth_threads(work: usize) -> bool {
    work >= SERIAL_BELOW && rayon::current_num_threads() > 1
}

/// Runs `task(index, state)` for every index below `count`, on threads if `work` is worth them. `state` is scratch memory
/// that `prepare` makes for a run of indices; what it holds at a call's start is undefined.
pub fn for_each_with<S>(
    count: usize,
    work: usize,
    prepare: impl Fn() -> S + Send + Sync,
    task: impl Fn(usize, &mut S) + Send + Sync,
) {
    if count > 1 && worth_threads(work) {
        (0..count)
            .into_par_iter()
            .for_each_init(prepare, |state, index| task(index, state));
    } else {
        let mut state = prepare();
        (0..count).for_each(|index| task(index, &mut state));
    }
}

/// Runs `task(index, piece)` for every piece of `size` values of `output`; the last may be shorter.
pub fn for_each_piece(output: &mut [f32], size: usize, task: impl Fn(usize, &mut [f32]) + Send + Sync) {
    let work = output.len();
    for_each_piece_of(output, size, work, task);
}

/// As [`for_each_piece`] where the work is not the size of the output.
pub fn for_each_piece_of(
    output: &mut [f32],
    size: usize,
    work: usize,
    task: impl Fn(usize, &mut [f32]) + Send + Sync,
) {
    let size = size.max(1);
    if output.len() > size && worth_threads(work) {
        output
            .par_chunks_mut(size)
            .enumerate()
            .for_each(|(index, piece)| task(index, piece));
    } else {
        output
            .chunks_mut(size)
            .enumerate()
            .for_each(|(index, piece)| task(index, piece));
    }
}

/// As [`for_each_piece`], with two outputs cut into as many pieces of their own sizes.
pub fn for_each_pair_of_pieces(
    (first, first_size): (&mut [f32], usize),
    (second, second_size): (&mut [f32], usize),
    task: impl Fn(usize, &mut [f32], &mut [f32]) + Send + Sync,
) {
    let work = first.len();
    for_each_pair_of_pieces_of((first, first_size), (second, second_size), work, task);
}

/// As [`for_each_pair_of_pieces`] where the work is not the size of the first output.
pub fn for_each_pair_of_pieces_of(
    (first, first_size): (&mut [f32], usize),
    (second, second_size): (&mut [f32], usize),
    work: usize,
    task: impl Fn(usize, &mut [f32], &mut [f32]) + Send + Sync,
) {
    let (first_size, second_size) = (first_size.max(1), second_size.max(1));
    if first.len() > first_size && worth_threads(work) {
        let pairs = first
            .par_chunks_mut(first_size)
            .zip(second.par_chunks_mut(second_size));
        pairs.enumerate().for_each(|(index, (a, b))| task(index, a, b));
    } else {
        let pairs = first.chunks_mut(first_size).zip(second.chunks_mut(second_size));
        pairs.enumerate().for_each(|(index, (a, b))| task(index, a, b));
    }
}

/// Rows of `columns` values that make a piece of about [`PIECE`] values.
pub fn rows_per_piece(columns: usize) -> usize {
    (PIECE / columns.max(1)).max(1)
}

/// The sum of all rows of `columns` values, in order.
pub fn sum_rows(rows: &[f32], columns: usize) -> Vec<f32> {
    let mut sums = vec![0.0; columns];
    for row in rows.chunks_exact(columns.max(1)) {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += value;
        }
    }
    sums
}
