//! Accelerators in force: the plan of training, and a plan for each rollout.

use crate::{
    AccelerationError, Accelerator, Engagement, Engagements, Meter, Part, Safety, Shares, Shortfall, Slot,
    Target,
};
use flow_core::{AttentionBackend, Backends, InferencePass, Kernels, ModelSpec, Weights};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// An accelerator that is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Its slot.
    pub slot: Slot,
    /// Its name.
    pub name: String,
    /// Its promise, with the plan it was applied to.
    pub safety: Safety,
}

/// What an accelerator did in an iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct Activity {
    /// Its slot.
    pub slot: Slot,
    /// Its name.
    pub name: String,
    /// What was counted.
    pub engagements: Engagements,
    /// For how many rows it did something, and how many there were, by part of the rollout; empty for those that do not decide by
    /// row.
    pub rows: Shares,
    /// The most bytes that it held at a time; 0 for those that do not say.
    pub kept_bytes: u64,
    /// The relative L1 error of the final latent that it predicted, by sample; empty for those that predict nothing.
    pub predicted: BTreeMap<u64, f64>,
    /// If nothing was: why that may be.
    pub why_idle: Option<String>,
    /// What it was in force for and did not do, with how often.
    pub shortfalls: BTreeMap<Shortfall, u64>,
}

impl Activity {
    /// The share of rows for which it did something, from 0 to 1, by part of the rollout.
    pub fn shares(&self) -> BTreeMap<(Engagement, Part), f64> {
        let share = |(of, (answered, asked)): (&(Engagement, Part), &(u64, u64))| {
            (*asked > 0).then(|| (*of, *answered as f64 / *asked as f64))
        };
        self.rows.iter().filter_map(share).collect()
    }

    /// What was counted, to be told to other processes of the run.
    pub fn counts(&self) -> ActivityCounts {
        ActivityCounts {
            engagements: self.engagements,
            rows: self.rows.clone().into_iter().collect(),
            kept_bytes: self.kept_bytes,
            predicted: (self.predicted.iter())
                .map(|(sample, error)| (*sample, error.to_bits()))
                .collect(),
            shortfalls: self.shortfalls.clone().into_iter().collect(),
        }
    }

    /// The same of all processes of a run: `all` are their counts, this one's among them. Memory is the most of one process.
    pub fn of_all<'a>(self, all: impl Iterator<Item = &'a ActivityCounts>) -> Self {
        let mut sum = Self {
            engagements: Engagements::default(),
            rows: Shares::new(),
            kept_bytes: 0,
            predicted: BTreeMap::new(),
            shortfalls: BTreeMap::new(),
            ..self
        };
        for counts in all {
            sum.engagements = sum.engagements.and(counts.engagements);
            for (of, (answered, asked)) in &counts.rows {
                let (all_answered, all_asked) = sum.rows.entry(*of).or_default();
                (*all_answered, *all_asked) = (*all_answered + answered, *all_asked + asked);
            }
            sum.kept_bytes = sum.kept_bytes.max(counts.kept_bytes);
            let predicted = counts.predicted.iter();
            sum.predicted
                .extend(predicted.map(|(sample, bits)| (*sample, f64::from_bits(*bits))));
            for (shortfall, times) in &counts.shortfalls {
                let known = sum.shortfalls.iter_mut();
                match known.into_iter().find(|(known, _)| known.name == shortfall.name) {
                    Some((_, all_times)) => *all_times += times,
                    None => {
                        sum.shortfalls.insert(shortfall.clone(), *times);
                    }
                }
            }
        }
        if !sum.engagements.is_idle() {
            sum.why_idle = None;
        }
        sum
    }
}

/// What an accelerator did in one process of a run, as numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityCounts {
    engagements: Engagements,
    rows: Vec<((Engagement, Part), (u64, u64))>,
    kept_bytes: u64,
    /// By sample, the bits of the error.
    predicted: Vec<(u64, u64)>,
    shortfalls: Vec<(Shortfall, u64)>,
}

#[derive(Debug)]
struct InForce {
    accelerator: Arc<dyn Accelerator>,
    applied: Applied,
    meter: Meter,
}

/// The accelerators of a run, in order but not yet at work: they know no weights. [`set_up`](Self::set_up) makes the
/// [`Acceleration`] of them that has plans to compute by, so nothing is computed by an accelerator that was not set up:
///
/// ```compile_fail,E0599
/// fn training_plan(arrangement: &flow_accel::Arrangement) {
///     arrangement.training();
/// }
/// ```
#[derive(Debug)]
pub struct Arrangement {
    training: Arc<Backends>,
    in_force: Vec<InForce>,
    model: ModelSpec,
    /// Of the accelerators that the plan of training holds and that are another arrangement's.
    beneath: Vec<Meter>,
}

/// The accelerators of a run, at work.
#[derive(Debug)]
pub struct Acceleration(Arrangement);

impl Arrangement {
    /// The largest share of samples that an accelerator wants to be taken once more without it.
    pub fn audit_share(&self) -> f64 {
        let shares = self.in_force.iter().map(|each| each.accelerator.audit_share());
        shares.fold(0.0, f64::max)
    }

    /// Applies the accelerators of both slots to `base`, each slot in the order of its list. Those of the rollout are
    /// tried out once.
    ///
    /// # Errors
    /// All entries that cannot be in force: in the wrong slot or order, twice, in conflict, or refused.
    pub fn new(
        base: Backends,
        shared: &[Arc<dyn Accelerator>],
        rollout: &[Arc<dyn Accelerator>],
        model: &ModelSpec,
    ) -> Result<Self, Vec<AccelerationError>> {
        let mut errors = crate::arrangement::check(shared, rollout);
        let mut in_force: Vec<InForce> = Vec::new();
        let mut apply = |slot: Slot, plan: Backends, accelerator: &Arc<dyn Accelerator>| {
            let name = accelerator.name().to_owned();
            let applied = |each: &InForce| each.applied.slot == slot && each.applied.name == name;
            if accelerator.stage() != slot.takes() || in_force.iter().any(applied) {
                // Reported by the check of the arrangement.
                return plan;
            }
            let (safety, meter) = (accelerator.safety(&plan), Meter::default());
            let below: Vec<Meter> = in_force.iter().map(|each| each.meter.clone()).collect();
            let target = Target {
                model,
                meter: &meter,
                below: &below,
            };
            match accelerator.apply(plan.clone(), &target) {
                Ok(plan) => {
                    in_force.push(InForce {
                        accelerator: accelerator.clone(),
                        applied: Applied { slot, name, safety },
                        meter,
                    });
                    plan
                }
                Err(refusal) => {
                    errors.push(AccelerationError::Refused { name, refusal });
                    plan
                }
            }
        };
        let training = (shared.iter()).fold(base, |plan, each| apply(Slot::Shared, plan, each));
        (rollout.iter()).fold(training.clone(), |plan, each| apply(Slot::Rollout, plan, each));
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(Self {
            training: Arc::new(training),
            in_force,
            model: model.clone(),
            beneath: Vec::new(),
        })
    }

    /// Accelerators for rollouts beside those of this arrangement, on the same plan of training: with its shared accelerators, and
    /// with `entries` in the place of those of its rollouts. What they do is counted apart. They are tried out once.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn beside(&self, entries: &[Arc<dyn Accelerator>]) -> Result<Self, Vec<AccelerationError>> {
        let shared = self
            .in_force
            .iter()
            .filter(|each| each.applied.slot == Slot::Shared);
        let (accelerators, beneath): (Vec<Arc<dyn Accelerator>>, Vec<Meter>) = shared
            .map(|each| (each.accelerator.clone(), each.meter.clone()))
            .unzip();
        let mut errors = crate::arrangement::check(&accelerators, entries);
        let mut found = Self {
            training: self.training.clone(),
            in_force: Vec::new(),
            model: self.model.clone(),
            beneath,
        };
        let mut plan = (*self.training).clone();
        for accelerator in entries {
            let name = accelerator.name().to_owned();
            let is_twice = found.in_force.iter().any(|each| each.applied.name == name);
            if accelerator.stage() != Slot::Rollout.takes() || is_twice {
                // Reported by the check of the arrangement.
                continue;
            }
            let (safety, meter) = (accelerator.safety(&plan), Meter::default());
            let below = found.below(found.in_force.len());
            let target = Target {
                model: &found.model,
                meter: &meter,
                below: &below,
            };
            match accelerator.apply(plan.clone(), &target) {
                Ok(applied) => plan = applied,
                Err(refusal) => {
                    errors.push(AccelerationError::Refused { name, refusal });
                    continue;
                }
            }
            found.in_force.push(InForce {
                accelerator: accelerator.clone(),
                applied: Applied {
                    slot: Slot::Rollout,
                    name,
                    safety,
                },
                meter,
            });
        }
        if errors.is_empty() { Ok(found) } else { Err(errors) }
    }

    /// The meters of what is applied before entry `at`.
    fn below(&self, at: usize) -> Vec<Meter> {
        let own = self.in_force[..at].iter().map(|each| &each.meter);
        self.beneath.iter().chain(own).cloned().collect()
    }

    /// Kernels of training, by which noise is drawn and sampler steps are taken.
    pub fn kernels(&self) -> &Arc<dyn Kernels> {
        &self.training.kernels
    }

    /// What is in force, in the order of application.
    pub fn applied(&self) -> impl Iterator<Item = &Applied> {
        self.in_force.iter().map(|each| &each.applied)
    }

    /// Whether the importance ratio of a coupled trainer is exactly 1 before the first update.
    pub fn is_exact_on_policy(&self) -> bool {
        self.applied().all(|each| each.safety.is_exact_on_policy())
    }

    /// What computes attention in rollout and training, to be asked whether it serves the model's calls.
    pub fn attention(&self) -> &dyn AttentionBackend {
        &*self.training.attention
    }

    /// The plan of losses and evaluations in words, for logs and the run manifest.
    pub fn describe_training(&self) -> String {
        self.training.describe()
    }

    /// The name of the attention that losses and evaluations use.
    pub fn attention_name(&self) -> &str {
        self.training.attention.name()
    }

    /// The name of the kernels that losses and evaluations use.
    pub fn kernels_name(&self) -> &str {
        self.training.kernels.name()
    }

    /// The name of what decides which activations are kept.
    pub fn regions_name(&self) -> &str {
        self.training.regions.name()
    }

    /// Puts back what [`learned`](Acceleration::learned) gave. Names that are not in force are passed over.
    pub fn restore(&self, learned: &BTreeMap<String, Vec<u64>>) {
        for each in &self.in_force {
            if let Some(learned) = learned.get(&each.applied.name) {
                each.accelerator.restore(learned);
            }
        }
    }

    /// Sets every accelerator up, in order, with the weights that the run starts with.
    ///
    /// # Errors
    /// The first refusal.
    pub fn set_up(self, weights: &Weights) -> Result<Acceleration, AccelerationError> {
        for each in &self.in_force {
            let refused = |refusal| AccelerationError::Refused {
                name: each.applied.name.clone(),
                refusal,
            };
            each.accelerator.set_up(weights).map_err(refused)?;
        }
        Ok(Acceleration(self))
    }
}

impl Acceleration {
    /// The plan of losses and evaluations: the shared accelerators.
    pub fn training(&self) -> &Arc<Backends> {
        &self.0.training
    }

    /// What is in force, in the order of application.
    pub fn applied(&self) -> impl Iterator<Item = &Applied> {
        self.0.applied()
    }

    /// Whether the importance ratio of a coupled trainer is exactly 1 before the first update.
    pub fn is_exact_on_policy(&self) -> bool {
        self.0.is_exact_on_policy()
    }

    /// Opens a rollout with `weights`: the shared accelerators, and those of the rollout with state of their own.
    ///
    /// # Errors
    /// The first refusal.
    pub fn rollout<'w>(&self, weights: &'w Weights) -> Result<RolloutScope<'w>, AccelerationError> {
        let Arrangement {
            training,
            in_force,
            model,
            ..
        } = &self.0;
        let mut layers = Vec::new();
        for (at, each) in in_force.iter().enumerate() {
            if each.applied.slot == Slot::Rollout {
                let plan: &Arc<Backends> = layers.last().unwrap_or(training);
                let below = self.0.below(at);
                let target = Target {
                    model,
                    meter: &each.meter,
                    below: &below,
                };
                let applied = each.accelerator.apply((**plan).clone(), &target);
                let plan = applied.map_err(|refusal| AccelerationError::Refused {
                    name: each.applied.name.clone(),
                    refusal,
                })?;
                layers.push(Arc::new(plan));
            }
        }
        let plan = layers.last().unwrap_or(training).clone();
        Ok(RolloutScope {
            rollout: InferencePass::new(weights, plan),
            _layers: Layers(layers),
        })
    }

    /// What each accelerator did since this was last asked, in the order of application.
    pub fn take_activity(&self) -> Vec<Activity> {
        let of = |each: &InForce| {
            let engagements = each.meter.take();
            Activity {
                slot: each.applied.slot,
                name: each.applied.name.clone(),
                engagements,
                rows: each.meter.take_shares(),
                kept_bytes: each.meter.take_kept_bytes(),
                predicted: each.meter.take_predicted(),
                why_idle: engagements.is_idle().then(|| each.accelerator.why_idle()),
                shortfalls: each.meter.take_shortfalls(),
            }
        };
        self.0.in_force.iter().map(of).collect()
    }
}

impl Acceleration {
    /// See [`Arrangement::audit_share`].
    pub fn audit_share(&self) -> f64 {
        self.0.audit_share()
    }

    /// Tells every accelerator what became of the samples it predicted an error for: `found` holds the errors of those that
    /// were taken once more. Gives predicted and found errors of the first that had predicted any.
    pub fn audited(&self, activity: &[Activity], found: &BTreeMap<u64, f64>) -> Vec<(f64, f64)> {
        let mut first = Vec::new();
        for (each, did) in self.0.in_force.iter().zip(activity) {
            let both = |(sample, predicted): (&u64, &f64)| Some((*predicted, *found.get(sample)?));
            let pairs: Vec<(f64, f64)> = did.predicted.iter().filter_map(both).collect();
            if !pairs.is_empty() {
                each.accelerator.audited(&pairs);
                if first.is_empty() {
                    first = pairs;
                }
            }
        }
        first
    }

    /// What accelerators have learned, by name: part of a checkpoint.
    pub fn learned(&self) -> BTreeMap<String, Vec<u64>> {
        let learned = |each: &InForce| (each.applied.name.clone(), each.accelerator.learned());
        let all = self.0.in_force.iter().map(learned);
        all.filter(|(_, learned)| !learned.is_empty()).collect()
    }
}

impl fmt::Display for Arrangement {
    /// What is in force, in words, for logs and the run manifest.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for slot in Slot::ALL {
            let of_slot = self.applied().filter(|each| each.slot == slot);
            let words: Vec<String> = of_slot
                .map(|each| format!("{} ({})", each.name, each.safety))
                .collect();
            let words = if words.is_empty() {
                "none".into()
            } else {
                words.join(", ")
            };
            let end = if slot == Slot::Shared { "; " } else { "" };
            write!(f, "{slot}: {words}{end}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Acceleration {
    /// As of the [`Arrangement`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A rollout with its accelerators. The accelerators' state is in its plan and ends with it, last entry first, whether
/// the rollout comes to its end, fails or panics.
///
/// It borrows the weights, so the optimizer cannot step while it is open:
///
/// ```compile_fail,E0502
/// use flow_accel::Acceleration;
/// use flow_core::Weights;
///
/// fn optimizer_step(weights: &mut Weights) {
///     weights.values_mut();
/// }
///
/// fn iteration(acceleration: &Acceleration, weights: &mut Weights) {
///     let scope = acceleration.rollout(weights).unwrap();
///     optimizer_step(weights);
///     scope.plan();
/// }
/// ```
///
/// Nor can it outlive them:
///
/// ```compile_fail,E0505
/// use flow_accel::Acceleration;
/// use flow_core::Weights;
///
/// fn iteration(acceleration: &Acceleration, weights: Weights) {
///     let scope = acceleration.rollout(&weights).unwrap();
///     drop(weights);
///     scope.plan();
/// }
/// ```
#[derive(Debug)]
pub struct RolloutScope<'w> {
    // Dropped before the layers, being declared before them.
    rollout: InferencePass<'w>,
    /// The plan after each entry: what an entry put into it is held by the later ones, too.
    _layers: Layers,
}

/// Plans, dropped from the last to the first.
#[derive(Debug)]
struct Layers(Vec<Arc<Backends>>);

impl Drop for Layers {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

impl<'w> RolloutScope<'w> {
    /// The rollout.
    pub fn rollout(&self) -> &InferencePass<'w> {
        &self.rollout
    }

    /// Its plan.
    pub fn plan(&self) -> &Arc<Backends> {
        self.rollout.backends()
    }
}
