//! The on-policy audit: before the first optimizer step after a rollout, the loss must see the policy that sampled.
//!
//! Two things are compared. Every importance ratio must be exactly 1, and the log-probability of each sample and the mean of
//! its step must be the bits that the rollout recorded. The second says more: a ratio is the exponential of a difference in
//! f32, so differences below 3e-8 leave it at 1.
//!
//! Anything else means another batch composition, another kernel, other weights, a rounded value. Flow-Factory PR #196
//! checks the ratio with tolerance 0 in its tests; here both are checked in every iteration.

use crate::policy::CallSite;
use flow_core::{RawTensor, cpu};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What the loss computed again of a recorded step.
#[derive(Clone, Debug)]
pub struct ReplayedStep {
    /// Importance ratio per row, `[B]`.
    pub ratio: RawTensor,
    /// Log-probability of each row's recorded latents, `[B]`, and their mean, `[B, N]`; none of an algorithm that does not
    /// hand them out.
    pub distribution: Option<Distribution>,
}

/// A step's distribution under a policy.
#[derive(Clone, Debug)]
pub struct Distribution {
    /// Log-probability of what the step came to, `[B]`.
    pub log_prob: RawTensor,
    /// Mean, `[B, N]`.
    pub mean: RawTensor,
}

/// The deviations seen in an iteration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OnPolicyAudit {
    worst: Option<Deviation>,
    checked: u64,
    compared: u64,
    other_bits: u64,
}

/// A number of the rollout, and what the loss computed in its place.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OtherBits {
    /// In the rollout.
    #[serde(with = "as_bits")]
    pub rollout: f32,
    /// In the loss.
    #[serde(with = "as_bits")]
    pub loss: f32,
}

impl OtherBits {
    fn of(rollout: f32, loss: f32) -> Option<Self> {
        (rollout.to_bits() != loss.to_bits()).then_some(Self { rollout, loss })
    }
}

impl fmt::Display for OtherBits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:e} in the rollout and {:e} in the loss",
            self.rollout, self.loss
        )
    }
}

/// A sample at a step whose ratio is not 1, or whose log-probability or mean is not the rollout's to the bit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Deviation {
    /// The sample.
    pub sample: u64,
    /// Step of the sampler.
    pub step: u32,
    /// The ratio.
    #[serde(with = "as_bits")]
    pub ratio: f32,
    /// The log-probability, if it has other bits.
    pub log_prob: Option<OtherBits>,
    /// The first value of the mean that has other bits.
    pub mean: Option<OtherBits>,
}

impl Deviation {
    /// `|ratio - 1|`, infinite if the ratio is not a number.
    pub fn size(&self) -> f32 {
        let size = (self.ratio - 1.0).abs();
        if size.is_nan() { f32::INFINITY } else { size }
    }
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sample, step, ratio, size) = (self.sample, self.step, self.ratio, self.size());
        write!(
            f,
            "sample {sample} at step {step} has importance ratio {ratio:.9} (|ratio - 1| = {size:.3e})"
        )?;
        if let Some(log_prob) = &self.log_prob {
            write!(f, ", log-probability {log_prob}")?;
        }
        if let Some(mean) = &self.mean {
            write!(f, ", a value of the mean {mean}")?;
        }
        Ok(())
    }
}

impl OnPolicyAudit {
    /// Looks at one loss term before any optimizer step: at its ratios, and at the bits of its distribution beside those that
    /// the rollout `recorded`.
    pub fn check(
        &mut self,
        site: CallSite,
        samples: &[u64],
        replayed: &ReplayedStep,
        recorded: Option<&Distribution>,
    ) {
        let rows = samples.len();
        let both = replayed
            .distribution
            .as_ref()
            .zip(recorded)
            .map(|(loss, rollout)| {
                let of = |tensor: &RawTensor| cpu::to_host(tensor);
                [
                    (of(&rollout.log_prob), of(&loss.log_prob)),
                    (of(&rollout.mean), of(&loss.mean)),
                ]
            });
        for (row, (sample, ratio)) in samples.iter().zip(cpu::to_host(&replayed.ratio)).enumerate() {
            self.checked += 1;
            let first_other = |(rollout, loss): &(Vec<f32>, Vec<f32>)| {
                let of_row = row * rollout.len() / rows..(row + 1) * rollout.len() / rows;
                let pairs = || rollout[of_row.clone()].iter().zip(&loss[of_row.clone()]);
                // All of them without a branch, which a processor does for several at once: most likely none differs.
                let other_bits = pairs().fold(0, |found, (rollout, loss)| {
                    found | (rollout.to_bits() ^ loss.to_bits())
                });
                if other_bits == 0 {
                    return None;
                }
                pairs().find_map(|(rollout, loss)| OtherBits::of(*rollout, *loss))
            };
            let [log_prob, mean] = (both.as_ref()).map_or([None; 2], |both| both.each_ref().map(first_other));
            self.compared += u64::from(both.is_some());
            self.other_bits += u64::from(log_prob.is_some() || mean.is_some());
            let found = Deviation {
                sample: *sample,
                step: site.step,
                ratio,
                log_prob,
                mean,
            };
            let is_off = found.size() > 0.0 || log_prob.is_some() || mean.is_some();
            if is_off && self.worst.is_none_or(|worst| found.size() > worst.size()) {
                self.worst = Some(found);
            }
        }
    }

    /// Adds what was seen of the loss terms that follow on these.
    pub fn merge(&mut self, next: &Self) {
        self.checked += next.checked;
        self.compared += next.compared;
        self.other_bits += next.other_bits;
        if let Some(found) = next.worst
            && self.worst.is_none_or(|worst| found.size() > worst.size())
        {
            self.worst = Some(found);
        }
    }

    /// `max |ratio - 1|`, exactly 0 if all is well.
    pub fn max_deviation(&self) -> f32 {
        self.worst.map_or(0.0, |worst| worst.size())
    }

    /// The largest deviation, of those of equal size the first; none if every ratio is 1 and every bit is the rollout's.
    pub fn worst(&self) -> Option<Deviation> {
        self.worst
    }

    /// Number of ratios looked at.
    pub fn checked(&self) -> u64 {
        self.checked
    }

    /// Number of them whose log-probability and mean were compared with the rollout's, bit by bit.
    pub fn compared(&self) -> u64 {
        self.compared
    }

    /// Number of those whose log-probability or mean has other bits than in the rollout.
    pub fn other_bits(&self) -> u64 {
        self.other_bits
    }
}

/// Numbers that may be none, which JSON does not have.
mod as_bits {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &f32, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(value.to_bits())
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<f32, D::Error> {
        u32::deserialize(from).map(f32::from_bits)
    }
}
