//! Initial values of weights.

use crate::rng::{Purpose, Stream};

/// How a weight starts. Drawn from the weight's name and the seed, so adding a weight changes no other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All 0.
    Zeros,
    /// All 1.
    Ones,
    /// Normal with this standard deviation.
    Normal(f32),
    /// Uniform within `±sqrt(6 / (fan in + fan out))` of a `[out, in]` matrix (Glorot and Bengio 2010).
    XavierUniform,
    /// Uniform within `±1/sqrt(fan in)`.
    FanIn,
}

impl Init {
    /// Values of a weight called `name` of `shape`.
    pub fn values(self, name: &str, shape: &[usize], seed: u64, purpose: Purpose) -> Vec<f32> {
        let count = shape.iter().product();
        let fan_in = shape.iter().skip(1).product::<usize>().max(1) as f64;
        let fan_out = shape.first().copied().unwrap_or(1) as f64;
        let mut draws = Stream::new(seed, purpose).at(fnv1a_64(name), 0);
        let mut uniform = |limit: f64| {
            (0..count)
                .map(|_| ((2.0 * draws.uniform() - 1.0) * limit) as f32)
                .collect()
        };
        match self {
            Self::Zeros => vec![0.0; count],
            Self::Ones => vec![1.0; count],
            Self::XavierUniform => uniform((6.0 / (fan_in + fan_out)).sqrt()),
            Self::FanIn => uniform(1.0 / fan_in.sqrt()),
            Self::Normal(deviation) => (0..count)
                .map(|_| (draws.normal() * f64::from(deviation)) as f32)
                .collect(),
        }
    }
}

/// FNV-1a: an address for a name. Published constants, stable across platforms and releases of Rust.
fn fnv1a_64(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
