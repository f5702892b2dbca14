//! Slower copies of the trained weights: which an algorithm may keep, when they follow, and how fast.

/// A copy of the trained weights that follows them slowly. It begins as they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SlowCopy {
    /// The one that losses compare with, [`LossContext::old`](super::LossContext::old); it may sample, too.
    Old,
    /// One that samples, and is compared with nothing.
    Sampling,
}

/// When a slower copy may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// After an optimizer step.
    Step {
        /// Optimizer steps of the run, with this one.
        steps: u64,
    },
    /// After an iteration.
    Iteration {
        /// Its number, counted from 1.
        iteration: u64,
        /// Optimizer steps of the run.
        steps: u64,
    },
}

/// Which weights a rollout samples with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplingWeights {
    /// The trained ones.
    Current,
    /// A slower copy of them.
    Slow(SlowCopy),
}

/// A table that says how a slower copy follows, with defaults of its own: fields with defaults of their type would give a table that is
/// written in part the defaults of another algorithm.
macro_rules! copy_config {
    ($(#[$about:meta])* $name:ident { flat: $flat:expr, start: $start:expr, rate: $rate:expr, hold: $hold:expr }) => {
        $(#[$about])*
        ///
        /// `copy <- d copy + (1 - d) current`, with `d = start` before step `flat`, then `min(start + (step - flat) * rate, hold)`; steps
        /// are the optimizer's.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            /// Optimizer steps with `d = start`.
            #[schemars(range(max = 100_000_000))]
            pub flat: usize,
            /// `d` up to then; 0 copies the trained weights, 1 leaves the copy as it is.
            #[schemars(range(min = 0.0, max = 1.0))]
            pub start: f64,
            /// Rise of `d` per optimizer step after that.
            #[schemars(range(min = 0.0, max = 1.0))]
            pub rate: f64,
            /// Most that `d` becomes.
            #[schemars(range(min = 0.0, max = 1.0))]
            pub hold: f64,
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    flat: $flat,
                    start: $start,
                    rate: $rate,
                    hold: $hold,
                }
            }
        }

        impl $name {
            /// Share of the copy that survives at optimizer step `step`; none if all of it does.
            pub(in crate::algorithm) fn survives(&self, step: u64) -> Option<f64> {
                $crate::algorithm::slow::survives(self.flat as u64, [self.start, self.rate, self.hold], step)
            }
        }
    };
}
pub(super) use copy_config;

/// `d` of [`copy_config`], none where it is 1.
pub(super) fn survives(flat: u64, [start, rate, hold]: [f64; 3], step: u64) -> Option<f64> {
    let share = match step.checked_sub(flat) {
        None => start,
        Some(beyond) => (start + beyond as f64 * rate).min(hold),
    };
    (share < 1.0).then_some(share)
}
