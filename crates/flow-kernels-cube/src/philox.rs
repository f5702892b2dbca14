//! Philox4x32-10 in a kernel: the numbers of `flow_rng`, bit for bit.
//!
//! Source: J. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.

use cubecl::prelude::*;

/// Four numbers of 32 bits at the counter `(c0, c1, c2, c3)` under a key.
#[cube]
pub(crate) fn philox(
    c0: u32,
    c1: u32,
    c2: u32,
    c3: u32,
    key_low: u32,
    key_high: u32,
) -> Vector<u32, Const<4>> {
    let (mut a, mut b, mut c, mut d) = (c0, c1, c2, c3);
    let (mut low, mut high) = (key_low, key_high);
    #[unroll]
    for _ in 0..10u32 {
        let (product_a, product_c) = (a * 0xD251_1F53u32, c * 0xCD9E_8D57u32);
        let (carry_a, carry_c) = (a.mul_hi(0xD251_1F53u32), c.mul_hi(0xCD9E_8D57u32));
        a = carry_c ^ b ^ low;
        c = carry_a ^ d ^ high;
        b = product_c;
        d = product_a;
        low += 0x9E37_79B9u32;
        high += 0xBB67_AE85u32;
    }
    let mut drawn = Vector::<u32, Const<4>>::empty();
    drawn.insert(0usize, a);
    drawn.insert(1usize, b);
    drawn.insert(2usize, c);
    drawn.insert(3usize, d);
    drawn
}
