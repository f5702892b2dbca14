//! The planner: what to keep so that a training step stays within a peak of memory and takes the least time.
//!
//! It measures each different block once ([`Profiler`]), lists what may be done with it (`options`), and finds the best
//! choice for all blocks exactly (`search`). What the model has in memory outside of its blocks is learnt from real
//! steps that compute everything again; the plan is then tried in real steps, and made again with less if they take
//! more than the budget. So the plan is optimal for what was measured, and the budget is kept by measurement.

mod options;
mod profile;
mod record;
pub mod search;

pub use options::{BlockOption, Cost, cost, options};
pub use profile::{BlockProfile, Profile, Profiler, RegionProfile, Slot};
pub use record::{BlockRecord, KindRecord, OptionRecord, PlanRecord, StepRecord};

use crate::block_policy::{Assignment, BlockPolicy, RegionPolicy, Saves};
use crate::engine::{Checkpointing, Counts};
use crate::memory_probe::MemoryProbe;
use crate::policy::PolicyError;
use crate::profiler::Clock;
use flow_core::{Backends, ModelSpec};
use search::{BlockChoices, Choice};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Runs of each block that is measured; the least time counts.
const REPEATS: usize = 3;
/// Plans that are tried before a budget is given up.
const ATTEMPTS: usize = 4;

/// Something that is computed under a plan.
pub type UnderPlan<'a> = Box<dyn Fn(&Arc<Backends>) + 'a>;

/// What is to be planned for: a training step, which the planner may run under any plan.
pub struct Workload<'a> {
    /// The model.
    pub spec: &'a ModelSpec,
    /// Who computes.
    pub plan: &'a Backends,
    /// One forward pass of the model with trained weights, and nothing else, under a plan.
    pub forward: UnderPlan<'a>,
    /// One training step, of as many passes beside one another as in the run, under a plan.
    pub step: UnderPlan<'a>,
    /// Passes beside one another in a step.
    pub passes: usize,
    /// Bytes that will be in use during the run and are not yet, for instance the optimizer's moments.
    pub reserved_bytes: u64,
    /// The device's memory.
    pub memory_probe: Arc<dyn MemoryProbe>,
    /// The device's clock.
    pub clock: Clock,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The model has nothing that could be computed again.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Nothing fits.
    #[error(
        "no choice of what to compute again keeps a training step within {budget_gib:.4} GiB; the smallest budget that \
         one would keep is {smallest_gib:.4} GiB. Raise `checkpointing.peak_gib`, or lower `sampling.micro_batch`"
    )]
    Infeasible {
        /// The budget.
        budget_gib: f64,
        /// What would do.
        smallest_gib: f64,
    },
}

/// A real step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The most bytes in use during it, all that the process holds and will hold included.
    pub peak_bytes: u64,
    /// Its time.
    pub time: Duration,
    /// What the engine held at most.
    pub counts: Counts,
}

/// What a step is predicted to take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predicted {
    /// The most bytes in use during it, all that the process holds included.
    pub peak_bytes: u64,
    /// Bytes that the engine holds when backward begins, for one pass: of blocks that run again. What operations of the
    /// others keep is not in it.
    pub held_bytes: u64,
    /// Its time.
    pub time: Duration,
}

/// A model whose blocks were measured, and one real step of it.
pub struct Planner<'a> {
    workload: Workload<'a>,
    profile: Profile,
    kinds: Vec<Vec<BlockOption>>,
    /// In use while no step runs, with what is reserved.
    resident_bytes: u64,
    /// In use in a step outside of what is simulated; negative if the simulation says too much.
    outside_bytes: i64,
    /// A step that computes every block again.
    full: Measured,
    /// What that step's blocks computed again.
    full_again: Duration,
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

impl<'a> Planner<'a> {
    /// Measures the blocks, and a step that computes every block again.
    ///
    /// # Errors
    /// [`PlanError::Policy`] if the model announces no blocks or regions.
    pub fn new(workload: Workload<'a>) -> Result<Self, PlanError> {
        crate::Policy::Full { split: false }.assign(workload.spec)?;
        let profiler = Arc::new(Profiler::new(
            workload.memory_probe.clone(),
            workload.clock.clone(),
            REPEATS,
        ));
        (workload.forward)(&Arc::new(Backends {
            regions: profiler.clone(),
            ..workload.memory_probe.observed(workload.plan)
        }));
        let profile = profiler.profile();
        drop(profiler);
        let kinds = profile.kinds.iter().map(options).collect();
        let mut planner = Self {
            workload,
            profile,
            kinds,
            resident_bytes: 0,
            outside_bytes: 0,
            full: Measured {
                peak_bytes: 0,
                time: Duration::ZERO,
                counts: Counts::default(),
            },
            full_again: Duration::ZERO,
        };
        let all = planner.same(&BlockPolicy::recomputed(Saves::default()));
        let measured = planner.measure("full", &all);
        planner.resident_bytes =
            planner.workload.memory_probe.in_use_bytes() + planner.workload.reserved_bytes;
        let simulated = planner.simulate(&all);
        planner.full_again = simulated.time;
        planner.full = measured;
        planner.outside_bytes = measured.peak_bytes as i64 - planner.total(simulated.peak_bytes) as i64;
        Ok(planner)
    }

    /// The blocks as they were measured.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// What may be done with each kind of block.
    pub fn options(&self) -> &[Vec<BlockOption>] {
        &self.kinds
    }

    fn same(&self, block_policy: &BlockPolicy) -> Assignment {
        Assignment::new(&self.workload.spec.stacks, |_, _| block_policy.clone())
    }

    /// Bytes of a whole step whose passes take `bytes` each, without what is outside of the simulation.
    fn total(&self, bytes: u64) -> u64 {
        self.resident_bytes + self.workload.passes as u64 * bytes
    }

    fn choices(&self) -> Vec<BlockChoices> {
        let choices = |(_, _, kind): &(String, usize, usize)| BlockChoices {
            costs: self.kinds[*kind].iter().map(|option| option.cost).collect(),
            gradient_bytes: gradients(&self.profile.kinds[*kind]),
        };
        self.profile.blocks.iter().map(choices).collect()
    }

    fn simulate(&self, assignment: &Assignment) -> Choice {
        let block_policies: BTreeMap<&str, &[BlockPolicy]> = assignment.stacks().collect();
        let blocks: Vec<BlockChoices> = self
            .profile
            .blocks
            .iter()
            .map(|(stack, block, kind)| BlockChoices {
                costs: vec![cost(
                    &self.profile.kinds[*kind],
                    &block_policies[stack.as_str()][*block],
                )],
                gradient_bytes: gradients(&self.profile.kinds[*kind]),
            })
            .collect();
        search::evaluate(&blocks, &vec![0; blocks.len()])
    }

    /// What a step under `assignment` is predicted to take.
    pub fn predict(&self, assignment: &Assignment) -> Predicted {
        let choice = self.simulate(assignment);
        let total = self.total(choice.peak_bytes) as i64 + self.outside_bytes;
        Predicted {
            peak_bytes: total.max(0) as u64,
            held_bytes: self.held_by_engine(assignment),
            time: (self.full.time + choice.time).saturating_sub(self.full_again),
        }
    }

    fn held_by_engine(&self, assignment: &Assignment) -> u64 {
        let block_policies: BTreeMap<&str, &[BlockPolicy]> = assignment.stacks().collect();
        let mut held = 0;
        for (stack, block, kind) in &self.profile.blocks {
            let (profile, blocks) = (&self.profile.kinds[*kind], block_policies[stack.as_str()]);
            let block_policy = &blocks[*block];
            if !block_policy.recompute {
                continue;
            }
            held += cost(profile, block_policy).held_bytes;
            // What leaves the block is the next one's input; if that one keeps none, it comes on top.
            if blocks.get(block + 1).is_none_or(|next| !next.recompute) {
                let leaving = |region: &RegionProfile| match block_policy.region(region.kind) {
                    RegionPolicy::Separate => region.leaving_bytes,
                    RegionPolicy::Inline => region.ending_bytes,
                };
                held += profile.regions.iter().map(leaving).sum::<u64>();
            }
        }
        if held > 0 {
            held + self.profile.shared_bytes
        } else {
            0
        }
    }

    /// Three real steps under `assignment`: one to warm up, one for the peak, and one for the time.
    pub fn measure(&self, name: &str, assignment: &Assignment) -> Measured {
        let memory_probe = &self.workload.memory_probe;
        let engine = Arc::new(Checkpointing::new(name, assignment.clone()));
        let under = |plan: Backends| {
            Arc::new(Backends {
                regions: engine.clone(),
                ..plan
            })
        };
        let plan = under(self.workload.plan.clone());
        (self.workload.step)(&plan);
        memory_probe.reset_peak();
        (self.workload.step)(&under(memory_probe.observed(self.workload.plan)));
        let peak_bytes = memory_probe.peak_bytes() + self.workload.reserved_bytes;
        Measured {
            time: self.time_of(&plan),
            peak_bytes,
            counts: engine.counts(),
        }
    }

    /// The time of a real step under `plan`.
    pub fn time_of(&self, plan: &Arc<Backends>) -> Duration {
        let clock = &self.workload.clock;
        let start = clock();
        (self.workload.step)(plan);
        clock().saturating_sub(start)
    }

    fn assignment(&self, choice: &Choice) -> Assignment {
        let mut block_policies = BTreeMap::new();
        for ((stack, block, kind), option) in self.profile.blocks.iter().zip(&choice.options) {
            let block_policy = &self.kinds[*kind][*option].block_policy;
            block_policies.insert((stack.as_str(), *block), block_policy);
        }
        Assignment::new(&self.workload.spec.stacks, |stack, block| {
            block_policies
                .get(&(stack, block))
                .map(|block_policy| (*block_policy).clone())
                // A block that the model declares and never calls.
                .unwrap_or_default()
        })
    }

    /// The best assignment within `budget_bytes` of peak memory, tried in real steps.
    ///
    /// # Errors
    /// [`PlanError::Infeasible`] with the smallest budget that would do.
    pub fn within(&mut self, budget_bytes: u64) -> Result<(Assignment, PlanRecord), PlanError> {
        let choices = self.choices();
        let mut smallest = 0;
        for _ in 0..ATTEMPTS {
            let outside = self.resident_bytes as i64 + self.outside_bytes;
            let passes = self.workload.passes as u64;
            let total_of = |bytes: u64| ((passes * bytes) as i64 + outside).max(0) as u64;
            smallest = smallest.max(total_of(search::smallest_budget(&choices)));
            let per_pass = (budget_bytes as i64 - outside).max(0) as u64 / passes;
            let Some(choice) = search::best(&choices, per_pass) else {
                break;
            };
            let assignment = self.assignment(&choice);
            let predicted = self.predict(&assignment);
            let measured = self.measure("budget", &assignment);
            if measured.peak_bytes <= budget_bytes {
                let record = self.record(budget_bytes, smallest, &choice, predicted, measured);
                return Ok((assignment, record));
            }
            // The next plan has that much less to spend, so that it comes out right.
            self.outside_bytes += measured.peak_bytes as i64 - predicted.peak_bytes as i64;
        }
        Err(PlanError::Infeasible {
            budget_gib: gib(budget_bytes),
            smallest_gib: gib(smallest.max(budget_bytes + 1)),
        })
    }
}

fn gradients(block: &BlockProfile) -> u64 {
    block.regions.iter().map(|region| region.gradient_bytes).sum()
}
