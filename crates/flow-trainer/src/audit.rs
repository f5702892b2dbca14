//! The on-policy audit: before the first optimizer step after a rollout, every importance ratio must be exactly 1.
//!
//! Anything else means that the loss does not see the policy that sampled: another batch composition, another kernel,
//! other weights, a rounded value. Flow-Factory PR #196 checks the same with tolerance 0 in its tests; here it runs in
//! every iteration.

use crate::policy::CallSite;
use flow_core::{Plain, cpu};

/// The largest deviation seen in an iteration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OnPolicyAudit {
    worst: Option<Deviation>,
    checked: u64,
}

/// A ratio that is not 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deviation {
    /// The sample.
    pub sample: u64,
    /// Step of the sampler.
    pub step: u32,
    /// The ratio.
    pub ratio: f32,
}

impl Deviation {
    /// `|ratio - 1|`, infinite if the ratio is not a number.
    pub fn size(&self) -> f32 {
        let size = (self.ratio - 1.0).abs();
        if size.is_nan() { f32::INFINITY } else { size }
    }
}

impl OnPolicyAudit {
    /// Looks at the ratios of one unit, `[B]`, before any optimizer step.
    pub fn check(&mut self, site: CallSite, samples: &[u64], ratio_b: &Plain) {
        for (sample, ratio) in samples.iter().zip(cpu::to_host(ratio_b)) {
            self.checked += 1;
            let found = Deviation {
                sample: *sample,
                step: site.step,
                ratio,
            };
            if found.size() > self.max_deviation() {
                self.worst = Some(found);
            }
        }
    }

    /// `max |ratio - 1|`, exactly 0 if all is well.
    pub fn max_deviation(&self) -> f32 {
        self.worst.map_or(0.0, |worst| worst.size())
    }

    /// The largest deviation, if there is one.
    pub fn worst(&self) -> Option<Deviation> {
        self.worst
    }

    /// Number of ratios looked at.
    pub fn checked(&self) -> u64 {
        self.checked
    }
}
