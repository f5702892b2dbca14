//! Work split into pieces whose size never depends on the number of threads.

use rayon::prelude::*;
use std::mem::MaybeUninit;

/// Values below which one thread is faster than waking a second.
pub const SERIAL_BELOW: usize = 1 << 16;

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
    for_each_chunk(output, size, work, task);
}

fn for_each_chunk<T: Send>(
    output: &mut [T],
    size: usize,
    work: usize,
    task: impl Fn(usize, &mut [T]) + Send + Sync,
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

/// What a new piece holds when its task gets it.
#[derive(Clone, Copy, Debug)]
pub enum Start<'a> {
    /// Zeros.
    Zeros,
    /// These values over and over.
    Rows(&'a [f32]),
}

impl Start<'_> {
    /// Initialises memory while it is about to be used, which is cheaper than all at once before.
    fn fill<'p>(&self, piece: &'p mut [MaybeUninit<f32>]) -> &'p mut [f32] {
        match self {
            Start::Rows(row) if !row.is_empty() => {
                for piece in piece.chunks_mut(row.len()) {
                    piece.iter_mut().zip(*row).for_each(|(to, from)| {
                        to.write(*from);
                    });
                }
            }
            _ => piece.iter_mut().for_each(|to| {
                to.write(0.0);
            }),
        }
        // SAFETY: every value was written above: the chunks cover the piece and none is longer than the row.
        unsafe { piece.assume_init_mut() }
    }
}

/// Size of a new vector and of its pieces.
#[derive(Clone, Copy, Debug)]
pub struct Pieces {
    /// Values in all.
    pub length: usize,
    /// Values of one piece; the last may have fewer.
    pub size: usize,
}

/// A new vector made by `task(index, piece)`, piece by piece; `work` as for [`worth_threads`].
pub fn build(
    pieces: Pieces,
    work: usize,
    start: Start<'_>,
    task: impl Fn(usize, &mut [f32]) + Send + Sync,
) -> Vec<f32> {
    let mut values: Vec<f32> = Vec::with_capacity(pieces.length);
    let memory = &mut values.spare_capacity_mut()[..pieces.length];
    for_each_chunk(memory, pieces.size, work, |index, piece| {
        task(index, start.fill(piece))
    });
    // SAFETY: the pieces cover all of the memory, and every piece was initialised.
    unsafe { values.set_len(pieces.length) };
    values
}

/// [`build`] from zeros with the work in proportion to the length.
pub fn build_zeros(length: usize, size: usize, task: impl Fn(usize, &mut [f32]) + Send + Sync) -> Vec<f32> {
    build(Pieces { length, size }, length, Start::Zeros, task)
}

/// Two new vectors made together: `task(index, piece, piece)`. The second starts from zeros.
///
/// # Panics
/// If they have different numbers of pieces.
pub fn build_pair(
    first: Pieces,
    second: Pieces,
    work: usize,
    start: Start<'_>,
    task: impl Fn(usize, &mut [f32], &mut [f32]) + Send + Sync,
) -> (Vec<f32>, Vec<f32>) {
    let (first_size, second_size) = (first.size.max(1), second.size.max(1));
    assert_eq!(
        first.length.div_ceil(first_size),
        second.length.div_ceil(second_size),
        "numbers of pieces"
    );
    let (mut a, mut b): (Vec<f32>, Vec<f32>) = (
        Vec::with_capacity(first.length),
        Vec::with_capacity(second.length),
    );
    let a_memory = &mut a.spare_capacity_mut()[..first.length];
    let b_memory = &mut b.spare_capacity_mut()[..second.length];
    type Memory<'a> = &'a mut [MaybeUninit<f32>];
    let run = |(index, (a, b)): (usize, (Memory<'_>, Memory<'_>))| {
        task(index, start.fill(a), Start::Zeros.fill(b));
    };
    if first.length > first_size && worth_threads(work) {
        a_memory
            .par_chunks_mut(first_size)
            .zip(b_memory.par_chunks_mut(second_size))
            .enumerate()
            .for_each(run);
    } else {
        a_memory
            .chunks_mut(first_size)
            .zip(b_memory.chunks_mut(second_size))
            .enumerate()
            .for_each(run);
    }
    // SAFETY: the pieces cover all of the memory, as many of one as of the other, and every piece was initialised.
    unsafe {
        a.set_len(first.length);
        b.set_len(second.length);
    }
    (a, b)
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
