//! The on-policy audit in a run: what losses compute again is compared with what the rollout recorded.

use super::rollout::RolloutOutcome;
use super::row_comparison::Compared;
use super::update::Learner;
use super::{AuditMode, Trainer};
use crate::algorithm::{Algorithm, LossContext, LossPoint};
use crate::audit::{Distribution, OnPolicyAudit, ReplayedStep};
use crate::error::TrainError;
use crate::observer::{Observer, Phase};
use crate::rollout::Trajectories;
use flow_accel::Acceleration;

/// Advantages for an audit: a ratio does not depend on them, so any will do.
fn any_advantages(samples: usize) -> Vec<f32> {
    (0..samples)
        .map(|sample| if sample % 2 == 0 { 1.0 } else { -1.0 })
        .collect()
}

impl<A: Algorithm> Trainer<A, Acceleration> {
    /// The audit alone: one rollout with the weights there are, and every loss and its gradients once, without an
    /// optimizer step. Nothing of the run changes.
    ///
    /// # Errors
    /// As those of a run.
    pub fn audit(&self, observer: &mut dyn Observer) -> Result<OnPolicyAudit, TrainError> {
        let rolled = self.roll_out(None, observer)?;
        for ticket in rolled.tickets {
            ticket.wait()?;
        }
        let positions = self.positions(0)?;
        let advantages = any_advantages(rolled.groups.len());
        let (values, sampling) = (
            (&*advantages, &*rolled.groups),
            self.algorithm.sampling_weights(self.state.optimizer.steps()),
        );
        let pass = self.pass(&rolled.batches, values, (0, &positions), sampling)?;
        let size = |number| pass.batches.size(number);
        let all = positions.sites(pass.batches.micro_batches.keys().copied(), size);
        observer.phase(Phase::Update, all.len());
        let mut compared = Compared::new();
        for update in &pass.batches.steps {
            let sites = positions.sites(update.clone(), size);
            compared.extend(self.compared(Learner::Student, &pass, &sites, update, values)?);
        }
        let mut audit = OnPolicyAudit::default();
        self.for_each_loss_term(
            Learner::Student,
            &all,
            &pass,
            (&compared, None),
            |batch, site, loss_term| {
                if let Some(replayed) = &loss_term.replayed {
                    self.check_loss_term(&mut audit, batch, site.position, replayed);
                }
                observer.advance(1);
            },
        )?;
        Ok(audit)
    }

    /// The audit of a rollout that is sampled an update ahead: the losses of one of its micro-batches, in each iteration another, under the
    /// weights that sampled it. What this rank has of it; the update puts the parts together.
    pub(super) fn audit_ahead(
        &self,
        rolled: &RolloutOutcome,
        sampler: Learner,
    ) -> Result<OnPolicyAudit, TrainError> {
        let mut audit = OnPolicyAudit::default();
        if self.settings.audit == AuditMode::Off {
            return Ok(audit);
        }
        let positions = self.positions(0)?;
        let advantages = any_advantages(rolled.groups.len());
        let sampling = self.algorithm.sampling_weights(self.state.optimizer.steps());
        let values = (&*advantages, &*rolled.groups);
        let pass = self.pass(&rolled.batches, values, (0, &positions), sampling)?;
        let micro_batches = &pass.batches.micro_batches;
        let all = self.settings.geometry.micro_batches() as u64;
        let number = (self.state.iteration % all) as usize;
        let own = micro_batches.contains_key(&number).then_some(number);
        let sites = positions.sites(own.into_iter(), |number| pass.batches.size(number));
        let device = &self.sampler.device;
        for wave in sites.chunks(device.concurrency()) {
            self.distribution.exchange.check()?;
            let replayed = device.concurrently(wave.len(), |index| {
                let site = wave[index];
                let mut given = pass.given(site);
                given.learner = sampler;
                let loss = |context: &LossContext<'_, '_>| self.algorithm.loss(context, site.position);
                // No gradient is asked for: there is no step before the next rollout is learnt from.
                self.in_context(given, loss).0.replayed
            });
            for (site, replayed) in wave.iter().zip(replayed) {
                let batch = &*micro_batches[&site.micro_batch].batch;
                if let Some(replayed) = &replayed {
                    self.check_loss_term(&mut audit, batch, site.position, replayed);
                }
            }
        }
        Ok(audit)
    }

    /// Compares what a loss computed again with what the rollout recorded.
    pub(super) fn check_loss_term(
        &self,
        audit: &mut OnPolicyAudit,
        batch: &Trajectories,
        position: LossPoint,
        replayed: &ReplayedStep,
    ) {
        let recorded = match position {
            LossPoint::Recorded(index) => batch.records.get(index).map(|record| Distribution {
                log_prob: record.log_prob.clone(),
                mean: record.mean.clone(),
            }),
            LossPoint::Time { .. } | LossPoint::EachRow { .. } | LossPoint::Step { .. } => None,
        };
        let site = self.position_site(batch, position);
        audit.check(site, &batch.samples, replayed, recorded.as_ref());
    }

    /// Stops or warns if a ratio is not exactly 1, or a log-probability or mean not the rollout's to the bit.
    pub(super) fn judge(&self, audit: &OnPolicyAudit, observer: &mut dyn Observer) -> Result<(), TrainError> {
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
}
