//! `delta`, the row sums of `dO ∘ O`, which backward subtracts from the gradients of probabilities.

use cubecl::prelude::*;
use flow_cube::register::{unpack_high, unpack_low};
use flow_cube::wgmma::OperandType;

/// Eight values of 16 bits.
pub(crate) type Eight = Vector<u32, Const<4>>;

/// Sum of the products of two times eight values of 16 bits, in order.
#[cube]
fn dot(a: Eight, b: Eight, before: f32, #[comptime] element: OperandType) -> f32 {
    let mut sum = before;
    #[unroll]
    for i in 0..4usize {
        let x = a.extract(i);
        let y = b.extract(i);
        sum += unpack_low(x, element) * unpack_low(y, element);
        sum += unpack_high(x, element) * unpack_high(y, element);
    }
    sum
}

/// A thread's share of a row of outputs and of their gradients: every other eight values, since two threads that are neighbours have a row.
#[derive(CubeType)]
pub(crate) struct RowFragment {
    o: Sequence<Eight>,
    d_o: Sequence<Eight>,
}

/// Reads a thread's share of a row. `o_from` and `do_from`: where the row begins, in units of eight values. Zeros if there is no such row.
#[cube]
pub(crate) fn read_row(
    o: &[Eight],
    d_o: &[Eight],
    o_from: u32,
    do_from: u32,
    exists: bool,
    #[comptime] head_dim: usize,
) -> RowFragment {
    let mut share = RowFragment {
        o: Sequence::new(),
        d_o: Sequence::new(),
    };
    #[unroll]
    for i in 0..comptime!((head_dim / 8).div_ceil(2)) {
        let of = comptime!(2 * i as u32) + UNIT_POS % 2;
        let mut x = Eight::new(0u32);
        let mut y = Eight::new(0u32);
        if exists && of < comptime!((head_dim / 8) as u32) {
            x = o[(o_from + of) as usize];
            y = d_o[(do_from + of) as usize];
        }
        share.o.push(x);
        share.d_o.push(y);
    }
    share
}

/// The row's sum; both of its threads get it.
#[cube]
pub(crate) fn row_product(
    row: &RowFragment,
    #[comptime] head_dim: usize,
    #[comptime] element: OperandType,
) -> f32 {
    let mut sum = 0.0f32;
    #[unroll]
    for i in 0..comptime!((head_dim / 8).div_ceil(2)) {
        sum = dot(*row.o.index(i), *row.d_o.index(i), sum, element);
    }
    sum + plane_shuffle_xor(sum, 1)
}
