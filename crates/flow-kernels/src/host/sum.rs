//! Sums in a fixed order: 16 lanes, then a tree over the lanes. The order depends on the length only.

const LANES: usize = 16;

macro_rules! tree {
    ($lanes:expr) => {{
        let mut lanes = $lanes;
        let mut width = LANES / 2;
        while width > 0 {
            for lane in 0..width {
                lanes[lane] += lanes[lane + width];
            }
            width /= 2;
        }
        lanes[0]
    }};
}

/// Sum of `term(a)`.
#[inline(always)]
pub fn sum(a: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (blocks, rest) = a.as_chunks::<LANES>();
    for block in blocks {
        for lane in 0..LANES {
            lanes[lane] += term(block[lane]);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += term(*value);
    }
    tree!(lanes)
}

/// Sum of `term(a, b)` over pairs.
#[inline(always)]
pub fn sum_pairs(a: &[f32], b: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let ((a_blocks, a_rest), (b_blocks, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..LANES {
            lanes[lane] += term(a[lane], b[lane]);
        }
    }
    for (lane, (a, b)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *lane += term(*a, *b);
    }
    tree!(lanes)
}

/// Sum of `term(a, b)` over pairs, accumulated in f64.
#[inline(always)]
pub fn sum_pairs_f64(a: &[f32], b: &[f32], term: impl Fn(f32, f32) -> f64) -> f64 {
    let mut lanes = [0.0f64; LANES];
    let ((a_blocks, a_rest), (b_blocks, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..LANES {
            lanes[lane] += term(a[lane], b[lane]);
        }
    }
    for (lane, (a, b)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *lane += term(*a, *b);
    }
    tree!(lanes)
}
