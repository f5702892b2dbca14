//! Accelerators in force: the plan of training, and a plan for each rollout.

use crate::{AccelerationError, Accelerator, Engagement, Engagements, Meter, Part, Safety, Slot, Target};
use flow_core::{ModelSpec, Plan, Rollout, Weights};
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
    /// The share of rows for which it did something, from 0 to 1, by part of the rollout; empty for those that do not
    /// decide by row.
    pub shares: BTreeMap<(Engagement, Part), f64>,
    /// The most bytes that it held at a time; 0 for those that do not say.
    pub kept_bytes: u64,
    /// The relative L1 error of the final latent that it predicted, by sample; empty for those that predict nothing.
    pub predicted: BTreeMap<u64, f64>,
    /// If nothing was: why that may be.
    pub why_idle: Option<String>,
}

#[derive(Clone, Debug)]
struct InForce {
    accelerator: Arc<dyn Accelerator>,
    applied: Applied,
    meter: Meter,
}

/// The accelerators of a run.
#[derive(Clone, Debug)]
pub struct Acceleration {
    training: Arc<Plan>,
    in_force: Vec<InForce>,
    model: ModelSpec,
}

impl Acceleration {
    /// Applies the accelerators of both slots to `base`, each slot in the order of its list. Those of the rollout are
    /// tried out once.
    ///
    /// # Errors
    /// All entries that cannot be in force: in the wrong slot or order, twice, in conflict, or refused.
    pub fn new(
        base: Plan,
        shared: &[Arc<dyn Accelerator>],
        rollout: &[Arc<dyn Accelerator>],
        model: &ModelSpec,
    ) -> Result<Self, Vec<AccelerationError>> {
        let mut errors = crate::arrangement::check(shared, rollout);
        let mut in_force = Vec::new();
        let mut apply = |slot: Slot, plan: Plan, accelerator: &Arc<dyn Accelerator>| {
            let name = accelerator.name().to_owned();
            let applied = |each: &InForce| each.applied.slot == slot && each.applied.name == name;
            if accelerator.stage() != slot.takes() || in_force.iter().any(applied) {
                // Reported by the check of the arrangement.
                return plan;
            }
            let (safety, meter) = (accelerator.safety(&plan), Meter::default());
            match accelerator.apply(plan.clone(), &Target { model, meter: &meter }) {
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
        })
    }

    /// The plan of losses and evaluations: the shared accelerators.
    pub fn training(&self) -> &Arc<Plan> {
        &self.training
    }

    /// What is in force, in the order of application.
    pub fn applied(&self) -> impl Iterator<Item = &Applied> {
        self.in_force.iter().map(|each| &each.applied)
    }

    /// Whether the importance ratio of a coupled trainer is exactly 1 before the first update.
    pub fn is_exact_on_policy(&self) -> bool {
        self.applied().all(|each| each.safety.is_exact_on_policy())
    }

    /// Sets every accelerator up, in order. Called once, when the weights are those the run starts with.
    ///
    /// # Errors
    /// The first refusal.
    pub fn set_up(&self, weights: &Weights) -> Result<(), AccelerationError> {
        for each in &self.in_force {
            let refused = |refusal| AccelerationError::Refused {
                name: each.applied.name.clone(),
                refusal,
            };
            each.accelerator.set_up(weights).map_err(refused)?;
        }
        Ok(())
    }

    /// Opens a rollout with `weights`: the shared accelerators, and those of the rollout with state of their own.
    ///
    /// # Errors
    /// The first refusal.
    pub fn rollout<'w>(&self, weights: &'w Weights) -> Result<RolloutScope<'w>, AccelerationError> {
        let mut layers = Vec::new();
        for each in &self.in_force {
            if each.applied.slot == Slot::Rollout {
                let below: &Arc<Plan> = layers.last().unwrap_or(&self.training);
                let (model, meter) = (&self.model, &each.meter);
                let applied = each
                    .accelerator
                    .apply((**below).clone(), &Target { model, meter });
                let plan = applied.map_err(|refusal| AccelerationError::Refused {
                    name: each.applied.name.clone(),
                    refusal,
                })?;
                layers.push(Arc::new(plan));
            }
        }
        let plan = layers.last().unwrap_or(&self.training).clone();
        Ok(RolloutScope {
            rollout: Rollout::new(weights, plan),
            _layers: Layers(layers),
        })
    }

    /// What each accelerator did since this was last asked, in the order of application.
    ///
    /// A replayed call does again what it was recorded with, and asks nobody: so an accelerator that has done something before
    /// is not idle while recordings are replayed.
    pub fn take_activity(&self) -> Vec<Activity> {
        let counted: Vec<Engagements> = self.in_force.iter().map(|each| each.meter.take()).collect();
        let is_replayed = counted
            .iter()
            .any(|engagements| engagements.of(Engagement::GraphReplayed) > 0);
        let of = |(each, engagements): (&InForce, Engagements)| {
            let is_idle = engagements.is_idle() && !(is_replayed && each.meter.has_engaged());
            Activity {
                slot: each.applied.slot,
                name: each.applied.name.clone(),
                engagements,
                shares: each.meter.take_shares(),
                kept_bytes: each.meter.take_kept_bytes(),
                predicted: each.meter.take_predicted(),
                why_idle: is_idle.then(|| each.accelerator.why_idle()),
            }
        };
        self.in_force.iter().zip(counted).map(of).collect()
    }
}

impl Acceleration {
    /// The largest share of samples that an accelerator wants to be taken once more without it.
    pub fn audit_share(&self) -> f64 {
        let shares = self.in_force.iter().map(|each| each.accelerator.audit_share());
        shares.fold(0.0, f64::max)
    }

    /// Tells every accelerator what became of the samples it predicted an error for: `found` holds the errors of those that
    /// were taken once more. Gives predicted and found errors of the first that had predicted any.
    pub fn audited(&self, activity: &[Activity], found: &BTreeMap<u64, f64>) -> Vec<(f64, f64)> {
        let mut first = Vec::new();
        for (each, did) in self.in_force.iter().zip(activity) {
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
        let all = self.in_force.iter().map(learned);
        all.filter(|(_, learned)| !learned.is_empty()).collect()
    }

    /// Puts back what [`learned`](Self::learned) gave. Names that are not in force are passed over.
    pub fn restore(&self, learned: &BTreeMap<String, Vec<u64>>) {
        for each in &self.in_force {
            if let Some(learned) = learned.get(&each.applied.name) {
                each.accelerator.restore(learned);
            }
        }
    }
}

impl fmt::Display for Acceleration {
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
    rollout: Rollout<'w>,
    /// The plan after each entry: what an entry put into it is held by the later ones, too.
    _layers: Layers,
}

/// Plans, dropped from the last to the first.
#[derive(Debug)]
struct Layers(Vec<Arc<Plan>>);

impl Drop for Layers {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

impl<'w> RolloutScope<'w> {
    /// The rollout.
    pub fn rollout(&self) -> &Rollout<'w> {
        &self.rollout
    }

    /// Its plan.
    pub fn plan(&self) -> &Arc<Plan> {
        self.rollout.plan()
    }
}
