//! Philox4x32-10, the counter-based generator behind every random choice of this crate.
//!
//! Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), and the
//! known-answer vectors of Random123 (`kat_vectors`).
//! A counter-based generator has no state to keep: the numbers of example `i` are a function of `(seed, i)`, so
//! examples can be made in any order and on any thread.

const MULTIPLIER_0: u32 = 0xD251_1F53;
const MULTIPLIER_1: u32 = 0xCD9E_8D57;
/// The golden ratio, by which the first key word moves each round.
const WEYL_0: u32 = 0x9E37_79B9;
/// The square root of three minus one, by which the second key word moves each round.
const WEYL_1: u32 = 0xBB67_AE85;
const ROUNDS: usize = 10;

/// Four random words for a counter and a key.
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..ROUNDS {
        let product_0 = u64::from(MULTIPLIER_0) * u64::from(c0);
        let product_1 = u64::from(MULTIPLIER_1) * u64::from(c2);
        let (high_0, low_0) = ((product_0 >> 32) as u32, product_0 as u32);
        let (high_1, low_1) = ((product_1 >> 32) as u32, product_1 as u32);
        (c0, c1, c2, c3) = (high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0);
        k0 = k0.wrapping_add(WEYL_0);
        k1 = k1.wrapping_add(WEYL_1);
    }
    [c0, c1, c2, c3]
}

/// The random numbers that belong to `(seed, purpose, index)`, one after another.
///
/// The key is the seed; the counter is (block, purpose, low word of the index, high word of the index), so streams
/// with different arguments never overlap within their first 2³⁴ words.
#[derive(Debug, Clone)]
pub struct Stream {
    key: [u32; 2],
    purpose: u32,
    index: u64,
    block: u32,
    words: [u32; 4],
    used: usize,
}

impl Stream {
    /// The stream of `(seed, purpose, index)`; `purpose` keeps apart the streams that one seed feeds.
    pub fn new(seed: u64, purpose: u32, index: u64) -> Self {
        Self {
            key: [seed as u32, (seed >> 32) as u32],
            purpose,
            index,
            block: 0,
            words: [0; 4],
            used: 4,
        }
    }

    /// 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.used == 4 {
            let counter = [
                self.block,
                self.purpose,
                self.index as u32,
                (self.index >> 32) as u32,
            ];
            self.words = philox4x32_10(counter, self.key);
            self.block = self.block.wrapping_add(1);
            self.used = 0;
        }
        self.used += 1;
        self.words[self.used - 1]
    }

    /// Uniform in [0, 1), a multiple of 2⁻²⁴.
    pub fn uniform(&mut self) -> f32 {
        (self.next_u32() >> 8) as f32 * (1.0 / 16_777_216.0)
    }

    /// Uniform in [low, high).
    pub fn uniform_in(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.uniform()
    }

    /// Uniform in 0 to `bound - 1`, without bias; 0 if `bound` is 0.
    ///
    /// Lemire's method (arXiv:1805.10941): the high word of a product, with the few biased low words rejected.
    pub fn below(&mut self, bound: u32) -> u32 {
        if bound == 0 {
            return 0;
        }
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let product = u64::from(self.next_u32()) * u64::from(bound);
            if product as u32 >= threshold {
                return (product >> 32) as u32;
            }
        }
    }

    /// Standard normal, by Box and Muller (1958) in `f64`, rounded to `f32`.
    ///
    /// The functions come from `libm`, not from the platform, so that every machine draws the same numbers.
    pub fn normal(&mut self) -> f32 {
        // In (0, 1], so that the logarithm is finite.
        let radius_uniform = (f64::from(self.next_u32()) + 1.0) / 4_294_967_296.0;
        let angle_uniform = f64::from(self.next_u32()) / 4_294_967_296.0;
        let radius = libm::sqrt(-2.0 * libm::log(radius_uniform));
        (radius * libm::cos(std::f64::consts::TAU * angle_uniform)) as f32
    }

    /// Shuffles in place (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u32 + 1) as usize;
            items.swap(last, other);
        }
    }
}
