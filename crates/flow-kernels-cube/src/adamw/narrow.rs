//! AdamW on weights that are bf16 where models see them: exact, with their low halves beside them, or rounded at random.

use super::{Place, Rates, stepped};
use crate::philox::philox;
use crate::split_f32::{high_of, joined, low_of, rounded};
use cubecl::prelude::*;

/// What a step of narrow weights is made with, and of each weight its vectors, its decay and its random numbers.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct NarrowStep {
    /// Vectors of each weight.
    pub vectors: Sequence<usize>,
    /// Decay of each weight.
    pub decays: Sequence<f32>,
    /// Stream of random numbers of each weight.
    pub streams: Sequence<u32>,
    /// First block of four random numbers of each weight.
    pub first_blocks: Sequence<u32>,
    /// Decay of the first moments.
    pub beta1: f32,
    /// Decay of the second moments.
    pub beta2: f32,
    /// Added to the root of the second moments.
    pub epsilon: f32,
    /// Low half of the key of random numbers.
    pub key_low: u32,
    /// High half of the key.
    pub key_high: u32,
    /// Purpose and number of the step, for random numbers.
    pub step: u32,
}

/// One step as [`super::adamw_kernel`] takes it, of weights in 16 bits. With `halves`, `lows` are the other 16 of f32 weights, and
/// nothing is rounded. Without, `lows` is empty, and the new weight is rounded up with the probability that makes its
/// expectation the f32 result (stochastic rounding): value `i` of weight `j` takes the high 16 bits of number
/// `4 * first_blocks[j] + i` that `flow_rng` draws at sample `streams[j]` and step `step`, whose key and purpose are given.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn adamw_narrow_kernel<G: Float, M: Float, N: Size>(
    highs: &mut Sequence<Box<[Vector<u16, N>]>>,
    gradients: &Sequence<Box<[Vector<G, N>]>>,
    firsts: &mut Sequence<Box<[Vector<M, N>]>>,
    seconds: &mut Sequence<Box<[Vector<M, N>]>>,
    lows: &mut Sequence<Box<[Vector<u16, N>]>>,
    varying: &[f32],
    narrow: &NarrowStep,
    #[comptime] halves: bool,
) {
    let mut place = Place::nowhere(&narrow.decays);
    let mut high = Vector::<u16, N>::empty();
    let mut low = Vector::<u16, N>::empty();
    let mut gradient = Vector::<f32, N>::empty();
    let mut first = Vector::<f32, N>::empty();
    let mut second = Vector::<f32, N>::empty();
    let mut stream = 0u32.runtime();
    let mut first_block = 0u32.runtime();
    #[unroll]
    for i in 0..highs.len() {
        place.look(*narrow.vectors.index(i), i as u32);
        if place.is_of(i as u32) {
            let at = place.at;
            place.decay = *narrow.decays.index(i);
            stream = *narrow.streams.index(i);
            first_block = *narrow.first_blocks.index(i);
            high = highs.index(i)[at];
            if comptime!(halves) {
                low = lows.index(i)[at];
            }
            gradient = Vector::cast_from(gradients.index(i)[at]);
            first = Vector::cast_from(firsts.index(i)[at]);
            second = Vector::cast_from(seconds.index(i)[at]);
        }
    }
    let mut weight = Vector::<f32, N>::empty();
    #[unroll]
    for lane in 0..N::value() {
        if comptime!(halves) {
            weight.insert(lane, joined(high.extract(lane), low.extract(lane)));
        } else {
            weight.insert(
                lane,
                f32::reinterpret(u32::cast_from(high.extract(lane)) << 16u32),
            );
        }
    }
    let is_taken = varying[3] >= 0.0f32;
    let rates = Rates::new(varying, place.decay, narrow.beta1, narrow.beta2, narrow.epsilon);
    let (result, m, v) = stepped::<N>(weight, gradient, first, second, &rates);
    let mut new_upper = Vector::<u16, N>::empty();
    let mut new_lower = Vector::<u16, N>::empty();
    if comptime!(halves) {
        #[unroll]
        for lane in 0..N::value() {
            let bits = u32::reinterpret(result.extract(lane));
            new_upper.insert(lane, high_of(bits));
            new_lower.insert(lane, low_of(bits));
        }
    } else {
        // A vector lies within one block of four numbers: its width divides four.
        let from = place.at * N::value();
        let block = first_block + (from / 4) as u32;
        let drawn = philox(block, narrow.step, stream, 0u32, narrow.key_low, narrow.key_high);
        #[unroll]
        for lane in 0..N::value() {
            let number = from % 4 + lane;
            let low = select(number == 0, drawn.extract(0usize), drawn.extract(1usize));
            let high = select(number == 2, drawn.extract(2usize), drawn.extract(3usize));
            let noise = select(number < 2, low, high) >> 16u32;
            new_upper.insert(lane, rounded(u32::reinterpret(result.extract(lane)), noise));
        }
    }
    #[unroll]
    for i in 0..highs.len() {
        if place.is_of(i as u32) && is_taken {
            let at = place.at;
            firsts.index_mut(i)[at] = Vector::cast_from(m);
            seconds.index_mut(i)[at] = Vector::cast_from(v);
            highs.index_mut(i)[at] = new_upper;
            if comptime!(halves) {
                lows.index_mut(i)[at] = new_lower;
            }
        }
    }
}
