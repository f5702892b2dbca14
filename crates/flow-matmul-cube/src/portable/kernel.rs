//! The portable kernel: a block of 256 threads sums up 64 x 64 elements, 16 summands at a time.
//!
//! Thread `(x, y)`, both below 16, owns the rows `y + 16 r` and the columns `x + 16 j`. Sums are in f32, in the order of the
//! summands, first pair of operands first: an element's bits depend on its row, its column and nothing else.

use crate::problem::{Activation, Epilogue, Layout};
use cubecl::prelude::*;
use flow_cube::activation::{Arithmetic, activate, derivative};

/// Threads of a block.
pub(crate) const THREADS: usize = 256;
/// Rows and columns of a block.
pub(super) const SIDE: usize = 64;
/// Summands that pass through shared memory at a time.
pub(super) const CHUNK: usize = 16;
/// From one summand's row of shared memory to the next; one more than there are, so that threads meet different banks.
const PITCH: usize = SIDE + 1;

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// Where rows and columns of the operands are.
    pub layout: Layout,
    /// Whether there is a second pair of operands.
    pub low_rank: bool,
    /// Whether there is a bias.
    pub bias: bool,
    /// The epilogue; `tokens` is not looked at.
    pub epilogue: Epilogue,
    /// Of activations.
    pub arithmetic: Arithmetic,
    /// Whether there are groups of rows.
    pub grouped: bool,
    /// Whether sums are scaled by row and column: operands are codes that were widened.
    pub scaled: bool,
}

/// What a block sums of an operand: rows (of B by columns) from `first` to before `end`, summands from `summand` to before
/// `summands`.
#[derive(CubeType)]
struct Range {
    first: usize,
    end: usize,
    summand: usize,
    summands: usize,
}

impl Kind {
    fn gated(&self) -> bool {
        matches!(self.epilogue, Epilogue::GateAndAdd { .. })
    }
}

/// Copies 16 summands from `summand` on, of 64 rows from `first` on, to `stage` from `at` on; zeros where there are none.
/// `transposed`: whether the matrix has a row for each summand. Without a branch: compilers for processors take a time that
/// grows with the square of the branches of a kernel with barriers.
#[cube]
fn load<F: Float>(
    source: &[F],
    stride: usize,
    first: usize,
    rows: usize,
    summand: usize,
    summands: usize,
    stage: &mut Shared<[f32]>,
    chunk: usize,
    #[comptime] at: usize,
    #[comptime] transposed: bool,
) {
    for i in 0..chunk * SIDE / THREADS {
        let element = UNIT_POS as usize + i * THREADS;
        // Neighbouring threads read neighbouring elements of memory.
        let (offset, of) = if comptime!(transposed) {
            (element % SIDE, element / SIDE)
        } else {
            (element / CHUNK, element % CHUNK)
        };
        let row = first + offset;
        let s = summand + of;
        let exists = row < rows && s < summands;
        let place = if comptime!(transposed) {
            s * stride + row
        } else {
            row * stride + s
        };
        let value = f32::cast_from(source[select(exists, place, 0usize)]);
        stage[at + of * PITCH + offset] = select(exists, value, 0.0f32);
    }
}

/// Adds up the products of a pair of operands, whose ranges have as many summands.
#[cube]
fn add_products<F: Float>(
    a: &[F],
    b: &[F],
    a_stride: usize,
    b_stride: usize,
    of_a: &Range,
    of_b: &Range,
    stage: &mut Shared<[f32]>,
    sums: &mut Array<f32>,
    x: usize,
    y: usize,
    chunk: usize,
    #[comptime] layout: Layout,
) {
    let mut done = 0usize;
    while of_a.summand + done < of_a.summands {
        load::<F>(
            a,
            a_stride,
            of_a.first,
            of_a.end,
            of_a.summand + done,
            of_a.summands,
            stage,
            chunk,
            0usize,
            comptime!(layout == Layout::Tn),
        );
        load::<F>(
            b,
            b_stride,
            of_b.first,
            of_b.end,
            of_b.summand + done,
            of_b.summands,
            stage,
            chunk,
            comptime!(CHUNK * PITCH),
            comptime!(layout != Layout::Nt),
        );
        sync_cube();
        for c in 0..chunk {
            let mut columns = Array::<f32>::new(4usize);
            #[unroll]
            for j in 0..4usize {
                columns[j] = stage[comptime!(CHUNK * PITCH) + c * PITCH + x + comptime!(16 * j)];
            }
            #[unroll]
            for r in 0..4usize {
                let row = stage[c * PITCH + y + comptime!(16 * r)];
                #[unroll]
                for j in 0..4usize {
                    sums[comptime!(4 * r + j)] += row * columns[j];
                }
            }
        }
        sync_cube();
        done += chunk;
    }
}

/// `D = epilogue(op(A) op(B) + op(A₂) op(B₂) + bias)`. `chunk` is always [`CHUNK`], but not so that compilers know: Mesa's
/// for processors would unroll all inner loops and take minutes. `offsets` says where the rows of `groups` groups begin; in
/// weight gradients a group is `CUBE_POS_Z`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn portable_matmul<F: Float, O: Float>(
    a: &[F],
    b: &[F],
    low_rank_a: &[F],
    low_rank_b: &[F],
    bias: &[F],
    gate: &[F],
    row_scales: &[f32],
    column_scales: &[f32],
    other: &mut [F],
    d: &mut [O],
    offsets: &[u32],
    m: usize,
    n: usize,
    k: usize,
    rank: usize,
    a_stride: usize,
    b_stride: usize,
    a_2_stride: usize,
    b_2_stride: usize,
    gate_start: usize,
    gate_stride: usize,
    row_scale_start: usize,
    column_scale_start: usize,
    other_stride: usize,
    d_stride: usize,
    tokens: usize,
    groups: usize,
    chunk: usize,
    #[comptime] kind: Kind,
) {
    let mut stage: Shared<[f32]> = Shared::new_slice(comptime!(2 * CHUNK * PITCH));
    let x = UNIT_POS as usize % 16;
    let y = UNIT_POS as usize / 16;
    let first_column = CUBE_POS_Y as usize * SIDE;
    let mut of_a = Range {
        first: CUBE_POS_X as usize * SIDE,
        end: m,
        summand: 0usize,
        summands: k,
    };
    let mut of_b = Range {
        first: first_column,
        end: n,
        summand: 0usize,
        summands: k,
    };
    let mut bias_first = 0usize;
    let mut d_first = 0usize;
    if comptime!(kind.grouped) {
        if comptime!(kind.layout == Layout::Tn) {
            // A group's rows are its summands.
            let group = CUBE_POS_Z as usize;
            of_a.summand = offsets[group] as usize;
            of_a.summands = offsets[group + 1] as usize;
            of_b.summand = of_a.summand;
            of_b.summands = of_a.summands;
            d_first = group * m;
        } else {
            // Tiles of 64 rows are those of the groups one after another. More are launched than there are.
            let tile = CUBE_POS_X as usize;
            let mut before = 0usize;
            let mut mine = 0usize;
            of_a.end = 0usize;
            for group in 0..groups {
                let begin = offsets[group] as usize;
                let end = offsets[group + 1] as usize;
                let count = (end - begin).div_ceil(SIDE);
                let here = tile >= before && tile < before + count;
                mine = select(here, group, mine);
                of_a.first = select(
                    here,
                    begin + (tile - select(here, before, tile)) * SIDE,
                    of_a.first,
                );
                of_a.end = select(here, end, of_a.end);
                before += count;
            }
            of_a.summands = select(of_a.end == 0, 0usize, k);
            if comptime!(kind.layout == Layout::Nt) {
                of_b.first += mine * n;
                of_b.end += mine * n;
            } else {
                of_b.summand = mine * k;
                of_b.summands = mine * k + k;
            }
            bias_first = mine * n;
        }
    }
    let mut sums = Array::<f32>::new(16usize);
    #[unroll]
    for i in 0..16usize {
        sums[i] = 0.0f32;
    }
    add_products::<F>(
        a,
        b,
        a_stride,
        b_stride,
        &of_a,
        &of_b,
        &mut stage,
        &mut sums,
        x,
        y,
        chunk,
        comptime!(kind.layout),
    );
    if comptime!(kind.scaled) {
        #[unroll]
        for r in 0..4usize {
            let row = of_a.first + y + comptime!(16 * r);
            let row_scale = row_scales[row_scale_start + select(row < m, row, 0usize)];
            #[unroll]
            for j in 0..4usize {
                let column = first_column + x + comptime!(16 * j);
                let column_scale = column_scales[column_scale_start + select(column < n, column, 0usize)];
                let at = comptime!(4 * r + j);
                sums[at] = sums[at] * row_scale * column_scale;
            }
        }
    }
    if comptime!(kind.low_rank) {
        let of_a_2 = Range {
            first: of_a.first,
            end: m,
            summand: 0usize,
            summands: rank,
        };
        let of_b_2 = Range {
            first: first_column,
            end: n,
            summand: 0usize,
            summands: rank,
        };
        add_products::<F>(
            low_rank_a,
            low_rank_b,
            a_2_stride,
            b_2_stride,
            &of_a_2,
            &of_b_2,
            &mut stage,
            &mut sums,
            x,
            y,
            chunk,
            comptime!(kind.layout),
        );
    }
    let (activation, slope) = comptime!(kind.epilogue.functions());
    #[unroll]
    for r in 0..4usize {
        let row = of_a.first + y + comptime!(16 * r);
        #[unroll]
        for j in 0..4usize {
            let column = first_column + x + comptime!(16 * j);
            if row < of_a.end && column < n {
                let mut sum = sums[comptime!(4 * r + j)];
                if comptime!(kind.bias) {
                    sum += f32::cast_from(bias[bias_first + column]);
                }
                // As the same steps one by one: see `Epilogue`.
                let rounded = f32::cast_from(F::cast_from(sum));
                let to = (d_first + row) * d_stride + column;
                if comptime!(kind.epilogue == Epilogue::Accumulate) {
                    d[to] = O::cast_from(f32::cast_from(d[to]) + sum);
                } else if comptime!(activation.is_some()) {
                    if comptime!(kind.epilogue.writes_other()) {
                        other[(d_first + row) * other_stride + column] = F::cast_from(sum);
                    }
                    let function = comptime!(activation.unwrap_or(Activation::Silu));
                    d[to] = O::cast_from(activate(rounded, function, comptime!(kind.arithmetic)));
                } else if comptime!(slope.is_some()) {
                    let at = f32::cast_from(other[(d_first + row) * other_stride + column]);
                    let function = comptime!(slope.unwrap_or(Activation::Silu));
                    d[to] = O::cast_from(rounded * derivative(at, function, comptime!(kind.arithmetic)));
                } else if comptime!(kind.gated()) {
                    let residual = f32::cast_from(other[(d_first + row) * other_stride + column]);
                    let gate = f32::cast_from(gate[gate_start + row / tokens * gate_stride + column]);
                    d[to] = O::cast_from(residual + gate * rounded);
                } else if comptime!(kind.epilogue == Epilogue::Add) {
                    let before = f32::cast_from(other[(d_first + row) * other_stride + column]);
                    d[to] = O::cast_from(before + rounded);
                } else {
                    d[to] = O::cast_from(sum);
                }
            }
        }
    }
}
