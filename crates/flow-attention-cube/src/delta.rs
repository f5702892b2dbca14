//! Sums over channels of `dO ∘ O`, which backward subtracts from the gradients of probabilities.

use cubecl::prelude::*;
use flow_cube::register::{unpack_high, unpack_low};
use flow_cube::wgmma::Factor;

/// Eight values of 16 bits.
pub(crate) type Eight = Vector<u32, Const<4>>;

/// Sum of the products of two times eight values of 16 bits, in order.
#[cube]
fn dot(a: Eight, b: Eight, before: f32, #[comptime] element: Factor) -> f32 {
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

/// The sum of one row, by two threads that are neighbours; both get it. `o_from` and `do_from`: where the row begins, in
/// units of eight values. 0 if there is no such row.
#[cube]
pub(crate) fn row_product(
    o: &[Eight],
    d_o: &[Eight],
    o_from: u32,
    do_from: u32,
    exists: bool,
    #[comptime] head_dim: usize,
    #[comptime] element: Factor,
) -> f32 {
    let mut sum = 0.0f32;
    if exists {
        #[unroll]
        for i in 0..comptime!((head_dim / 8).div_ceil(2)) {
            let of = comptime!(2 * i as u32) + UNIT_POS % 2;
            if of < comptime!((head_dim / 8) as u32) {
                sum = dot(
                    o[(o_from + of) as usize],
                    d_o[(do_from + of) as usize],
                    sum,
                    element,
                );
            }
        }
    }
    sum + plane_shuffle_xor(sum, 1)
}
