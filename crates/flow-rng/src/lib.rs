//! Counter-based random numbers: Philox4x32-10, keyed by seed and purpose, addressed by sample and step.
//!
//! A draw is a pure function of its address, so it does not depend on thread count, on the order of draws, or on
//! what was drawn before a run was killed. There is no state to save.
//!
//! Source of the generator and its constants: J. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
//! SC 2011; checked against the known-answer vectors of Random123.

pub mod msun;
mod normals;

/// What a stream of numbers is for. Different purposes never share numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Purpose {
    /// Initial latents of a rollout.
    InitialNoise = 1,
    /// Noise of the SDE steps of a rollout.
    SdeNoise = 2,
    /// Order of prompts.
    Prompts = 3,
    /// Choice of the trained SDE steps.
    Window = 4,
    /// Initial model weights.
    Weights = 5,
    /// Initial adapter weights.
    Adapter = 6,
    /// Initial latents of evaluation images.
    Evaluation = 7,
    /// Order of training images in pretraining.
    PretrainOrder = 8,
    /// Noise of pretraining and of forward-process losses.
    ForwardNoise = 9,
    /// Times of pretraining and of forward-process losses.
    Timesteps = 10,
    /// Wrong captions and dropped conditions of pretraining.
    Captions = 11,
    /// Order of samples within an update.
    UpdateOrder = 12,
    /// Resampling for confidence intervals.
    Bootstrap = 13,
    /// Vectors that stand for words.
    Words = 14,
    /// Rounding of weights that are stored in bf16.
    Rounding = 15,
    /// How long is waited before something that failed is tried again.
    RetryWait = 16,
    /// Splits of a data set.
    DataSplit = 20,
    /// Which rendered scene an example shows.
    Scene = 21,
    /// How a scene is rendered.
    Rendering = 22,
    /// Initial weights of a classifier.
    ClassifierWeights = 23,
    /// Order of a classifier's training images.
    ClassifierOrder = 24,
    /// Augmentation of a classifier's training images.
    ClassifierAugmentation = 25,
    /// Noise that a classifier is tested with.
    ClassifierReport = 26,
    /// Tests and examples.
    Test = 255,
}

/// A family of random numbers for one seed and one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    key: [u32; 2],
    purpose: u32,
}

impl Stream {
    /// The stream of `purpose` under `seed`.
    pub fn new(seed: u64, purpose: Purpose) -> Self {
        Self {
            key: [seed as u32, (seed >> 32) as u32],
            purpose: purpose as u32,
        }
    }

    /// The numbers at one address, for instance a sample and a step. `step` uses 24 bits.
    ///
    /// # Panics
    /// If `step` is 2^24 or more.
    pub fn at(&self, sample: u64, step: u32) -> Draws {
        Draws {
            key: self.key,
            address: self.address(sample, step),
            block: 0,
            buffer: [0; 4],
            used: 4,
            spare: None,
        }
    }

    /// The key of [`philox4x32_10`] that these numbers are drawn with: for who draws them elsewhere.
    pub fn key(&self) -> [u32; 2] {
        self.key
    }

    /// The last three words of its counter at an address; the first is the number of the block of four words.
    ///
    /// # Panics
    /// If `step` is 2^24 or more.
    pub fn address(&self, sample: u64, step: u32) -> [u32; 3] {
        assert!(step < 1 << 24, "a random number's step has 24 bits, got {step}");
        [(self.purpose << 24) | step, sample as u32, (sample >> 32) as u32]
    }
}

/// An endless sequence of numbers at one address.
#[derive(Clone, Debug)]
pub struct Draws {
    key: [u32; 2],
    address: [u32; 3],
    block: u32,
    buffer: [u32; 4],
    used: usize,
    spare: Option<f64>,
}

impl Draws {
    /// The same numbers from number `first` on, as [`next_u32`](Self::next_u32) counts them.
    ///
    /// # Panics
    /// If that is 2^34 or more.
    #[must_use]
    pub fn from_number(mut self, first: u64) -> Self {
        self.block = u32::try_from(first / 4).expect("an address has 2^34 numbers");
        (self.used, self.spare) = (4, None);
        for _ in 0..first % 4 {
            self.next_u32();
        }
        self
    }

    /// 32 uniform bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.used == 4 {
            let [a, b, c] = self.address;
            self.buffer = philox4x32_10([self.block, a, b, c], self.key);
            self.block = self
                .block
                .checked_add(1)
                .expect("2^34 numbers drawn from one address");
            self.used = 0;
        }
        self.used += 1;
        self.buffer[self.used - 1]
    }

    /// 64 uniform bits.
    pub fn next_u64(&mut self) -> u64 {
        let low = u64::from(self.next_u32());
        low | u64::from(self.next_u32()) << 32
    }

    /// Uniform in `[0, 1)`, 53 bits.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `[low, high)`.
    pub fn uniform_in(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.uniform() as f32
    }

    /// Uniform in `0..bound`, without modulo bias (rejection).
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing to choose from");
        let zone = u64::MAX - u64::MAX % bound;
        loop {
            let bits = self.next_u64();
            if bits < zone {
                return bits % bound;
            }
        }
    }

    /// Standard normal (Box and Muller 1958), computed in f64 with `libm`, the same on every platform.
    pub fn normal(&mut self) -> f64 {
        if let Some(z) = self.spare.take() {
            return z;
        }
        let [cosine, sine] = normals::pair(self.next_u32(), self.next_u32());
        self.spare = Some(sine);
        cosine
    }

    /// Fills `out` with standard normal values rounded to f32: those of [`normal`](Self::normal), one after another.
    ///
    /// # Panics
    /// If more than 2^34 numbers are drawn from one address.
    pub fn fill_normal(&mut self, out: &mut [f32]) {
        // What a block was begun for is ended first.
        let mut begun = 0;
        while (self.spare.is_some() || self.used < 4) && begun < out.len() {
            out[begun] = self.normal() as f32;
            begun += 1;
        }
        let out = &mut out[begun..];
        let (groups, rest) = out.split_at_mut(out.len() / normals::GROUP * normals::GROUP);
        let next = u32::try_from(groups.len() / normals::GROUP * normals::BLOCKS).ok();
        let next = next.and_then(|blocks| self.block.checked_add(blocks));
        let next = next.expect("2^34 numbers drawn from one address");
        normals::fill(self.key, self.address, self.block, groups);
        self.block = next;
        for value in rest {
            *value = self.normal() as f32;
        }
    }

    /// A uniformly drawn order of `0..n` (Fisher and Yates).
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        self.shuffle(&mut order);
        order
    }

    /// Puts `items` into a uniformly drawn order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let chosen = self.below(last as u64 + 1) as usize;
            items.swap(last, chosen);
        }
    }
}

/// Ten rounds of Philox on a 128-bit counter with a 64-bit key.
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    philox(counter.map(|word| [word]), key).map(|[word]| word)
}

/// Ten rounds on `N` counters side by side: word by word, so that the compiler makes vectors of them.
#[inline(always)]
fn philox<const N: usize>(mut counters: [[u32; N]; 4], mut key: [u32; 2]) -> [[u32; N]; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        let mut next = [[0; N]; 4];
        for i in 0..N {
            let left = u64::from(counters[0][i]) * 0xD251_1F53;
            let right = u64::from(counters[2][i]) * 0xCD9E_8D57;
            next[0][i] = (right >> 32) as u32 ^ counters[1][i] ^ key[0];
            next[1][i] = right as u32;
            next[2][i] = (left >> 32) as u32 ^ counters[3][i] ^ key[1];
            next[3][i] = left as u32;
        }
        counters = next;
    }
    counters
}
