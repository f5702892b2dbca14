//! The learning half of an iteration: losses at every position, the audit, optimizer steps.

use super::{AuditMode, Parts};
use crate::algorithm::{Algorithm, LossContext, Position, ReferenceWeights, SamplingWeights};
use crate::audit::{Distribution, OnPolicyAudit, ReplayedStep};
use crate::distributed::{UnitSeen, UpdateSeen};
use crate::error::TrainError;
use crate::observer::{Observer, Phase};
use crate::optimizer::{Accumulated, StepReport};
use crate::policy::CallSite;
use crate::rollout::Trajectories;
use flow_accel::{Acceleration, Paradigm};
use flow_core::rng::Purpose;
use flow_core::{InferencePass, RawTensor, Stage, TrainingPass, cpu};
use std::collections::BTreeMap;
use std::ops::Range;

/// What an update came to.
#[derive(Debug, Default)]
pub(super) struct UpdateOutcome {
    pub audit: Option<OnPolicyAudit>,
    pub loss: Mean,
    pub terms: BTreeMap<String, Mean>,
    pub steps: Vec<StepReport>,
}

/// A running mean, accumulated in f64 in the order of the units.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    sum: f64,
    count: u64,
}

impl Mean {
    fn add(&mut self, values: impl Iterator<Item = f32>) {
        for value in values {
            self.sum += f64::from(value);
            self.count += 1;
        }
    }

    pub(super) fn value(&self) -> f64 {
        if self.count == 0 {
            0.0
        } else {
            self.sum / self.count as f64
        }
    }
}

/// One loss and its gradients.
struct Unit {
    loss: f32,
    loss_values: RawTensor,
    replayed: Option<ReplayedStep>,
    terms: Vec<(&'static str, RawTensor)>,
    gradients: Vec<Option<RawTensor>>,
}

/// Every position of every micro-batch, in order.
fn units(micro_batches: Range<usize>, positions: &[Position]) -> Vec<(usize, Position)> {
    micro_batches
        .flat_map(|micro_batch| positions.iter().map(move |position| (micro_batch, *position)))
        .collect()
}

impl<A: Algorithm> Parts<A, Acceleration> {
    /// Every inner pass over the rollout; `advantages` has one value per sample, in order.
    pub(super) fn update(
        &mut self,
        batches: &BTreeMap<usize, Trajectories>,
        advantages: &[f32],
        observer: &mut dyn Observer,
    ) -> Result<UpdateOutcome, TrainError> {
        let audited = self.algorithm.paradigm() == Paradigm::Coupled && self.settings.audit != AuditMode::Off;
        let mut outcome = UpdateOutcome {
            audit: audited.then(OnPolicyAudit::default),
            ..UpdateOutcome::default()
        };
        let geometry = self.settings.geometry;
        let seed = self.settings.seed;
        for inner in 0..self.algorithm.inner_epochs() {
            let positions = self
                .algorithm
                .positions(&self.schedule, seed, self.state.iteration, inner);
            observer.phase(Phase::Update, batches.len() * positions.len());
            for update in geometry.update_micro_batches() {
                let units = units(self.distribution.of_update(&update), &positions);
                let all = update.len() * positions.len();
                let mut accumulated = Accumulated::in_lanes(all, self.distribution.lanes);
                let mut seen = UpdateSeen {
                    units: Vec::with_capacity(units.len()),
                    audit: OnPolicyAudit::default(),
                    present: Vec::new(),
                };
                let kernels = self.training_plan().kernels.clone();
                self.for_each_unit(
                    &units,
                    batches,
                    advantages,
                    |batch, (micro_batch, position), unit| {
                        if outcome.steps.is_empty()
                            && let (true, Some(replayed)) = (audited, &unit.replayed)
                        {
                            self.check_unit(&mut seen.audit, batch, position, replayed);
                        }
                        seen.units.push(UnitSeen::new(&unit.loss_values, &unit.terms));
                        let lane = self.distribution.lane_of(&update, micro_batch);
                        accumulated.add_to(lane, &*kernels, unit.gradients);
                        observer.advance(1);
                    },
                )?;
                seen.present = accumulated.present(&*kernels);
                let present = self.take_in(seen, &mut outcome)?;
                let layout = self.state.weights.current.layout();
                let exchange = (&*self.distribution.exchange, self.distribution.lanes);
                accumulated.exchange(exchange, layout, &present, &self.sampler.device)?;
                if outcome.steps.is_empty()
                    && let Some(audit) = &outcome.audit
                {
                    self.judge(audit, observer)?;
                }
                outcome.steps.push(self.optimizer_step(accumulated)?);
            }
        }
        Ok(outcome)
    }

    /// Adds what all ranks saw of an update, in the order of units. Gives the weights that have a gradient on some rank.
    fn take_in(&self, seen: UpdateSeen, outcome: &mut UpdateOutcome) -> Result<Vec<bool>, TrainError> {
        let all = match self.distribution.exchange.world().is_several() {
            true => self.distribution.gather(&seen)?,
            false => vec![seen],
        };
        let weights = all.iter().map(|seen| seen.present.len()).max();
        let mut present = vec![false; weights.unwrap_or(0)];
        for seen in &all {
            for unit in &seen.units {
                outcome.loss.add(unit.loss());
                for (name, values) in unit.terms() {
                    outcome.terms.entry(name.to_owned()).or_default().add(values);
                }
            }
            if let Some(audit) = &mut outcome.audit {
                audit.merge(&seen.audit);
            }
            for (present, theirs) in present.iter_mut().zip(&seen.present) {
                *present |= theirs;
            }
        }
        Ok(present)
    }

    /// The audit alone: one rollout with the weights there are, and every loss and its gradients once, without an
    /// optimizer step. Nothing of the run changes.
    ///
    /// # Errors
    /// As those of a run.
    pub fn audit(&self, observer: &mut dyn Observer) -> Result<OnPolicyAudit, TrainError> {
        let rolled = self.roll_out(observer)?;
        for ticket in rolled.tickets {
            ticket.wait()?;
        }
        let seed = self.settings.seed;
        let positions = self
            .algorithm
            .positions(&self.schedule, seed, self.state.iteration, 0);
        observer.phase(Phase::Update, rolled.batches.len() * positions.len());
        let units = units(0..rolled.batches.len(), &positions);
        // Rewards do not enter a ratio; any advantages do.
        let advantages: Vec<f32> = (0..rolled.groups.len())
            .map(|sample| if sample % 2 == 0 { 1.0 } else { -1.0 })
            .collect();
        let mut audit = OnPolicyAudit::default();
        self.for_each_unit(
            &units,
            &rolled.batches,
            &advantages,
            |batch, (_, position), unit| {
                if let Some(replayed) = &unit.replayed {
                    self.check_unit(&mut audit, batch, position, replayed);
                }
                observer.advance(1);
            },
        )?;
        Ok(audit)
    }

    /// Losses and gradients at `units` (micro-batch and position), computed beside one another and visited in order.
    fn for_each_unit(
        &self,
        units: &[(usize, Position)],
        batches: &BTreeMap<usize, Trajectories>,
        advantages: &[f32],
        mut visit: impl FnMut(&Trajectories, (usize, Position), Unit),
    ) -> Result<(), TrainError> {
        let device = &self.sampler.device;
        for wave in units.chunks(device.concurrency()) {
            self.distribution.exchange.check()?;
            let computed = device.concurrently(wave.len(), |index| {
                let (micro_batch, position) = wave[index];
                let batch = &batches[&micro_batch];
                let first = micro_batch * self.settings.geometry.micro_batch_size();
                self.unit(batch, &advantages[first..first + batch.samples.len()], position)
            });
            for ((micro_batch, position), unit) in wave.iter().zip(computed) {
                let (unit, batch) = (unit?, &batches[micro_batch]);
                self.check_loss(&unit, *micro_batch, batch, *position)?;
                visit(batch, (*micro_batch, *position), unit);
            }
        }
        Ok(())
    }

    fn unit(&self, batch: &Trajectories, advantages: &[f32], position: Position) -> Result<Unit, TrainError> {
        let weights = &self.state.weights;
        let device = &self.sampler.device;
        let trained = self.state.optimizer.trained();
        let pass = TrainingPass::new(&weights.current, self.training_plan().clone(), trained.into());
        let sampling = match self.algorithm.sampling_weights() {
            SamplingWeights::Current => &weights.current,
            SamplingWeights::Old => weights.old(),
        };
        let sampling = InferencePass::new(sampling, self.training_plan().clone());
        let reference = self.algorithm.reference().map(|kind| match kind {
            ReferenceWeights::WithoutAdapters => pass.reference(),
            ReferenceWeights::Snapshot => {
                InferencePass::new(weights.reference(), self.training_plan().clone())
            }
        });
        let noise = match position {
            Position::Recorded(_) => None,
            Position::Time { draw, .. } => {
                let values = self.sampler.policy.model.spec().latent.values();
                Some(
                    self.sampler
                        .noise(Purpose::ForwardNoise, &batch.samples, draw, values),
                )
            }
        };
        let bound = self.algorithm.advantage_clip();
        let advantages: Vec<f32> = advantages
            .iter()
            .map(|value| value.clamp(-bound, bound))
            .collect();
        let rows = advantages.len();
        let context = LossContext {
            pass: &pass,
            sampling: &sampling,
            reference: reference.as_ref(),
            policy: &self.sampler.policy,
            kernels: &*self.training_plan().kernels,
            device,
            batch,
            advantages: device.tensor(advantages, [rows]),
            noise,
            site: self.site(Stage::Training),
        };
        let unit = self.algorithm.loss(&context, position);
        let loss_values = flow_core::tensors::plain(&unit.loss.clone().into_dispatch());
        let gradients = pass.gradients(&unit.loss);
        Ok(Unit {
            loss: cpu::to_host(&loss_values)[0],
            loss_values,
            replayed: unit.replayed,
            terms: unit.terms,
            gradients,
        })
    }

    /// Compares what a loss computed again with what the rollout recorded.
    fn check_unit(
        &self,
        audit: &mut OnPolicyAudit,
        batch: &Trajectories,
        position: Position,
        replayed: &ReplayedStep,
    ) {
        let recorded = match position {
            Position::Recorded(index) => batch.records.get(index).map(|record| Distribution {
                log_prob: record.log_prob.clone(),
                mean: record.mean.clone(),
            }),
            Position::Time { .. } => None,
        };
        let site = self.position_site(batch, position);
        audit.check(site, &batch.samples, replayed, recorded.as_ref());
    }

    fn position_site(&self, batch: &Trajectories, position: Position) -> CallSite {
        let step = match position {
            Position::Recorded(index) => batch.records[index].step.step as u32,
            Position::Time { .. } => 0,
        };
        CallSite {
            step,
            ..self.site(Stage::Training)
        }
    }

    fn check_loss(
        &self,
        unit: &Unit,
        micro_batch: usize,
        batch: &Trajectories,
        position: Position,
    ) -> Result<(), TrainError> {
        if unit.loss.is_finite() {
            return Ok(());
        }
        let position = match position {
            Position::Recorded(index) => format!("step {}", batch.records[index].step.step),
            Position::Time { sigma, .. } => format!("sigma {sigma:.4}"),
        };
        let iteration = self.state.iteration + 1;
        Err(TrainError::NonFiniteLoss {
            iteration,
            micro_batch,
            position,
            value: unit.loss,
        })
    }

    /// Stops or warns if a ratio is not exactly 1, or a log-probability or mean not the rollout's to the bit.
    fn judge(&self, audit: &OnPolicyAudit, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let Some(deviation) = audit.worst() else {
            return Ok(());
        };
        let iteration = self.state.iteration + 1;
        if self.settings.audit == AuditMode::Stop && self.settings.lossless {
            let plan = self.training_plan().describe();
            return Err(TrainError::OffPolicy {
                iteration,
                deviation,
                plan,
            });
        }
        observer.notice(&format!(
            "iteration {iteration}: before the first optimizer step {deviation}, the largest deviation from the rollout"
        ));
        Ok(())
    }

    fn optimizer_step(&mut self, accumulated: Accumulated) -> Result<StepReport, TrainError> {
        let iteration = self.state.iteration + 1;
        let kernels = self.training_plan().kernels.clone();
        let state = &mut self.state;
        let weights = &mut state.weights.current;
        (state
            .optimizer
            .step(&*kernels, &self.sampler.device, weights, accumulated))
        .map_err(|source| TrainError::NonFiniteGradient { iteration, source })
    }
}
