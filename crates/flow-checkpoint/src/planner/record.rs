//! A plan as it is written down.

use super::options::BlockOption;
use super::profile::BlockProfile;
use super::search::Choice;
use super::{Measured, Planner, Predicted};
use crate::block_policy::BlockPolicy;
use serde::{Deserialize, Serialize};
use std::hash::Hasher;
use std::time::Duration;

/// What was planned, for whom, and how it came out. Bytes are bytes, times milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanRecord {
    /// Of everything that the plan depends on but times: architecture, blocks and their sizes, passes, budget.
    pub digest: String,
    /// The architecture.
    pub architecture: String,
    /// The budget.
    pub budget_bytes: u64,
    /// The smallest budget that could be kept.
    pub smallest_budget_bytes: u64,
    /// In use while no step runs, with what will be in use during the run.
    pub resident_bytes: u64,
    /// Passes beside one another in a step.
    pub passes: usize,
    /// What a step was predicted to take.
    pub predicted: StepRecord,
    /// What it took.
    pub measured: StepRecord,
    /// A step that computes every block again, for comparison.
    pub full: StepRecord,
    /// How much longer than this plan's the least possible time of recomputation may be, for what was measured: 0, the
    /// search being exact.
    pub optimality_gap_ms: f64,
    /// The different blocks.
    pub kinds: Vec<KindRecord>,
    /// What becomes of each block.
    pub blocks: Vec<BlockRecord>,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// The most in use.
    pub peak_bytes: u64,
    /// Held when backward begins for blocks that run again, by all passes.
    pub held_bytes: u64,
    /// Its time.
    pub wall_ms: f64,
}

/// A kind of block, with the ways to treat it of which none is at least as good as another in all that it takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KindRecord {
    /// Bytes of its inputs.
    pub input_bytes: u64,
    /// Bytes that its operations keep if nothing is computed again.
    pub kept_bytes: u64,
    /// Time of its forward.
    pub forward_ms: f64,
    /// The ways, the one with least time first.
    pub options: Vec<OptionRecord>,
}

/// A way to treat a block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptionRecord {
    /// In words.
    pub keeps: String,
    /// Held from forward until backward.
    pub held_bytes: u64,
    /// The most in use during its backward.
    pub peak_bytes: u64,
    /// Time of what is computed again.
    pub again_ms: f64,
}

/// A block of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockRecord {
    /// Its stack.
    pub stack: String,
    /// Its index there.
    pub block: usize,
    /// Position in [`PlanRecord::kinds`].
    pub kind: usize,
    /// Position in [`KindRecord::options`].
    pub option: usize,
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A policy in words.
fn keeps(block: &BlockProfile, block_policy: &BlockPolicy) -> String {
    if !block_policy.recompute {
        return "everything".into();
    }
    let mut parts = vec!["inputs".to_owned()];
    for region in &block.regions {
        for slot in &region.slots {
            if block_policy.saves.takes(slot.kind, slot.name, slot.ordinal) {
                parts.push(format!("{}:{} {}", slot.kind, slot.name, slot.ordinal));
            }
        }
    }
    parts.extend(block_policy.regions.keys().map(|kind| format!("{kind} apart")));
    parts.join(", ")
}

impl Planner<'_> {
    pub(super) fn record(
        &self,
        budget_bytes: u64,
        smallest_budget_bytes: u64,
        choice: &Choice,
        predicted: Predicted,
        measured: Measured,
    ) -> PlanRecord {
        let passes = self.workload.passes;
        let kind = |(block, options): (&BlockProfile, &Vec<BlockOption>)| KindRecord {
            input_bytes: block.input_bytes,
            kept_bytes: block.regions.iter().map(|region| region.kept_bytes).sum(),
            forward_ms: block.regions.iter().map(|region| ms(region.forward)).sum(),
            options: options
                .iter()
                .map(|option| OptionRecord {
                    keeps: keeps(block, &option.block_policy),
                    held_bytes: option.cost.held_bytes,
                    peak_bytes: option.cost.peak_bytes,
                    again_ms: ms(option.cost.time),
                })
                .collect(),
        };
        let step = |measured: &Measured| StepRecord {
            peak_bytes: measured.peak_bytes,
            held_bytes: measured.counts.most_held_bytes,
            wall_ms: ms(measured.time),
        };
        let blocks = self.profile.blocks.iter().zip(&choice.options);
        PlanRecord {
            digest: self.digest(budget_bytes),
            architecture: self.workload.spec.architecture.clone(),
            budget_bytes,
            smallest_budget_bytes,
            resident_bytes: self.resident_bytes,
            passes,
            predicted: StepRecord {
                peak_bytes: predicted.peak_bytes,
                held_bytes: predicted.held_bytes * passes as u64,
                wall_ms: ms(predicted.time),
            },
            measured: step(&measured),
            full: step(&self.full),
            optimality_gap_ms: 0.0,
            kinds: self.profile.kinds.iter().zip(&self.kinds).map(kind).collect(),
            blocks: blocks
                .map(|((stack, block, kind), option)| BlockRecord {
                    stack: stack.clone(),
                    block: *block,
                    kind: *kind,
                    option: *option,
                })
                .collect(),
        }
    }

    /// Equal for runs that ask the planner the same, whatever the clock said. FNV-1a: it need not withstand anybody.
    fn digest(&self, budget_bytes: u64) -> String {
        struct Fnv(u64);
        impl Hasher for Fnv {
            fn finish(&self) -> u64 {
                self.0
            }
            fn write(&mut self, bytes: &[u8]) {
                for byte in bytes {
                    self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
                }
            }
        }
        let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
        let spec = self.workload.spec;
        hash.write(format!("{} {} {budget_bytes}", spec.architecture, self.workload.passes).as_bytes());
        for block in &self.profile.kinds {
            hash.write(format!(" {}", block.input_bytes).as_bytes());
            for region in &block.regions {
                let slots = region.slots.iter().map(|slot| (slot.name, slot.bytes));
                let sizes = (region.kind, region.output_bytes, region.gradient_bytes);
                hash.write(format!(" {sizes:?} {:?}", slots.collect::<Vec<_>>()).as_bytes());
            }
        }
        hash.write(format!("{:?}", self.profile.blocks).as_bytes());
        format!("{:016x}", hash.finish())
    }
}
