//! AdamW on weights that are bf16 where models see them: exact, with their lower halves beside them, or rounded at random.

use super::{Rates, THREADS, stepped};
use crate::halves::{joined, lower_of, rounded, upper_of};
use crate::philox::philox;
use cubecl::prelude::*;

/// One step as [`super::adamw_kernel`] takes it, of weights in 16 bits. With `halves`, `lowers` are the other 16 of f32 weights, and
/// nothing is rounded. Without, `lowers` is empty, and the new weight is rounded up with the probability that makes its
/// expectation the f32 result (stochastic rounding): value `i` of weight `streams[j]` takes the upper 16 bits of the
/// number `i` that `flow_rng` draws at sample `streams[j]` and step `step`, whose key and purpose are given.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn adamw_narrow_kernel<G: Float, M: Float, N: Size>(
    uppers: &mut Sequence<Box<[Vector<u16, N>]>>,
    gradients: &Sequence<Box<[Vector<G, N>]>>,
    firsts: &mut Sequence<Box<[Vector<M, N>]>>,
    seconds: &mut Sequence<Box<[Vector<M, N>]>>,
    lowers: &mut Sequence<Box<[Vector<u16, N>]>>,
    varying: &[f32],
    vectors: &Sequence<usize>,
    decays: &Sequence<f32>,
    streams: &Sequence<u32>,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    key_low: u32,
    key_high: u32,
    step: u32,
    #[comptime] halves: bool,
) {
    let mut begin = 0usize.runtime();
    #[unroll]
    for i in 0..uppers.len() {
        let length = *vectors.index(i);
        let end = begin + length.div_ceil(comptime!(THREADS));
        let at = (CUBE_POS - begin) * comptime!(THREADS) + UNIT_POS as usize;
        if CUBE_POS >= begin && CUBE_POS < end && at < length && varying[3] >= 0.0f32 {
            let rates = Rates::new(varying, *decays.index(i), beta1, beta2, epsilon);
            let upper = uppers.index(i)[at];
            let mut weight = Vector::<f32, N>::empty();
            if comptime!(halves) {
                let lower = lowers.index(i)[at];
                #[unroll]
                for lane in 0..N::value() {
                    weight.insert(lane, joined(upper.extract(lane), lower.extract(lane)));
                }
            } else {
                #[unroll]
                for lane in 0..N::value() {
                    weight.insert(
                        lane,
                        f32::reinterpret(u32::cast_from(upper.extract(lane)) << 16u32),
                    );
                }
            }
            let gradient = Vector::<f32, N>::cast_from(gradients.index(i)[at]);
            let m = Vector::<f32, N>::cast_from(firsts.index(i)[at]);
            let v = Vector::<f32, N>::cast_from(seconds.index(i)[at]);
            let (result, m, v) = stepped::<N>(weight, gradient, m, v, &rates);
            firsts.index_mut(i)[at] = Vector::cast_from(m);
            seconds.index_mut(i)[at] = Vector::cast_from(v);
            let mut upper = Vector::<u16, N>::empty();
            if comptime!(halves) {
                let mut lower = Vector::<u16, N>::empty();
                #[unroll]
                for lane in 0..N::value() {
                    let bits = u32::reinterpret(result.extract(lane));
                    upper.insert(lane, upper_of(bits));
                    lower.insert(lane, lower_of(bits));
                }
                lowers.index_mut(i)[at] = lower;
            } else {
                // A vector lies within one block of four numbers: its width divides four.
                let first = at * N::value();
                let drawn = philox(
                    (first / 4) as u32,
                    step,
                    *streams.index(i),
                    0u32,
                    key_low,
                    key_high,
                );
                let from = first % 4;
                #[unroll]
                for lane in 0..N::value() {
                    let place = from + lane;
                    let low = select(place == 0, drawn.extract(0usize), drawn.extract(1usize));
                    let high = select(place == 2, drawn.extract(2usize), drawn.extract(3usize));
                    let noise = select(place < 2, low, high) >> 16u32;
                    upper.insert(lane, rounded(u32::reinterpret(result.extract(lane)), noise));
                }
            }
            uppers.index_mut(i)[at] = upper;
        }
        begin = end;
    }
}
