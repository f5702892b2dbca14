//! The learning half of an iteration: losses at every position, the audit, optimizer steps.

use super::mean::Mean;
use super::micro_batches::{Counted, MicroBatch, PassBatches};
use super::row_comparison::Compared;
use super::stale_rollout::ratio_deviation;
use super::{AuditMode, Trainer};
use crate::algorithm::{
    Algorithm, LossContext, LossPoint, Moment, NetworkRole, ReferenceWeights, RolledOut, SamplingWeights,
    SlowCopy,
};
use crate::audit::{OnPolicyAudit, ReplayedStep};
use crate::distributed::{LossTermSeen, UpdateSeen, on_some_rank};
use crate::error::TrainError;
use crate::observer::{Observer, Phase};
use crate::optimizer::{Accumulated, BlockSums, LossTermLanes, StepReport};
use crate::policy::CallSite;
use crate::rollout::Trajectories;
use flow_accel::{Acceleration, Paradigm};
use flow_core::rng::Purpose;
use flow_core::{InferencePass, RawTensor, Stage, TrainingPass, cpu};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// What an update came to.
#[derive(Debug, Default)]
pub(super) struct UpdateOutcome {
    pub audit: Option<OnPolicyAudit>,
    pub loss: Mean,
    pub terms: BTreeMap<String, Mean>,
    pub steps: Vec<StepReport>,
}

/// One loss and its gradients.
pub(super) struct LossTerm {
    pub loss_values: Vec<f32>,
    pub replayed: Option<ReplayedStep>,
    pub terms: Vec<(&'static str, RawTensor)>,
    pub gradients: Vec<Option<RawTensor>>,
}

/// Whose weights a loss is differentiated in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Learner {
    /// The trained ones.
    Student,
    /// Those before the last update, which sampled a rollout that is an update behind.
    Previous,
    /// Those of a network beside them ([`Algorithm::network`]).
    Network(NetworkRole),
}

impl Learner {
    /// The part of the network, if the weights are of one beside the trained ones.
    pub(super) fn role(self) -> Option<NetworkRole> {
        match self {
            Self::Network(role) => Some(role),
            Self::Student | Self::Previous => None,
        }
    }
}

/// Where a loss is taken: a micro-batch, and one of the positions of the pass.
#[derive(Clone, Copy)]
pub(super) struct Site {
    pub micro_batch: usize,
    pub position: LossPoint,
    /// Its place among all of the pass.
    pub number: usize,
}

/// The positions of a pass, as many for each size of the run.
pub(super) struct LossPoints(pub Vec<Vec<LossPoint>>);

impl LossPoints {
    /// How many a micro-batch has.
    pub fn count(&self) -> usize {
        self.0.first().map_or(0, Vec::len)
    }

    /// Every position of every micro-batch, in order; `size` is the number of a micro-batch's size.
    pub fn sites(
        &self,
        micro_batches: impl Iterator<Item = usize>,
        size: impl Fn(usize) -> usize,
    ) -> Vec<Site> {
        let of = |micro_batch: usize| {
            let positions = self.0[size(micro_batch)].iter().enumerate();
            positions.map(move |(index, position)| Site {
                micro_batch,
                position: *position,
                number: micro_batch * self.count() + index,
            })
        };
        micro_batches.flat_map(of).collect()
    }
}

/// What the losses of a pass are computed from.
pub(super) struct Pass<'a> {
    pub batches: PassBatches<'a>,
    /// Which weights sampled.
    pub sampling: SamplingWeights,
    /// What the algorithm looked at before the first optimizer step, by the number of the site; empty if it does not.
    pub before: BTreeMap<usize, RawTensor>,
    /// The teacher of each sample of the iteration, by its id; empty where there are not several.
    pub teachers: BTreeMap<u64, usize>,
}

impl Pass<'_> {
    /// What is known at a site before an optimizer step.
    pub(super) fn given(&self, site: Site) -> Given<'_> {
        Given {
            micro_batch: &self.batches.micro_batches[&site.micro_batch],
            position: site.position,
            sampling: self.sampling,
            before: self.before.get(&site.number).cloned(),
            compared: Vec::new(),
            teachers: &self.teachers,
            learner: Learner::Student,
            sums: None,
        }
    }
}

/// What a loss is given beside the weights.
pub(super) struct Given<'a> {
    micro_batch: &'a MicroBatch<'a>,
    position: LossPoint,
    sampling: SamplingWeights,
    before: Option<RawTensor>,
    pub compared: Vec<RawTensor>,
    teachers: &'a BTreeMap<u64, usize>,
    pub learner: Learner,
    /// Who takes the gradients of weights in parts.
    sums: Option<Arc<BlockSums>>,
}

impl<A: Algorithm> Trainer<A, Acceleration> {
    /// The positions of pass `inner` of this iteration.
    pub(super) fn positions(&self, inner: usize) -> Result<LossPoints, TrainError> {
        let (seed, iteration) = (self.settings.seed, self.state.iteration);
        let schedules = std::iter::once(&self.schedule).chain(self.others.iter().map(|at| &at.schedule));
        let branches = self.branches();
        let of = |schedule| branches.positions(self.algorithm.positions(schedule, seed, iteration, inner));
        let positions: Vec<Vec<LossPoint>> = schedules.map(of).collect();
        match positions.iter().all(|of_size| of_size.len() == positions[0].len()) {
            true => Ok(LossPoints(positions)),
            false => Err(TrainError::setting(
                "pictures of different sizes have different numbers of training times, since their noise levels are shifted by their \
                 tokens",
            )
            .with_help("set `algorithm.train_timesteps.count`, or its strategy to \"uniform\"")
            .about("algorithm.train_timesteps")),
        }
    }

    /// Every inner pass over the rollout; what is counted and `groups` have one value per sample, in order. Of a rollout that is an update
    /// behind `ahead` is its audit by this rank.
    pub(super) fn update(
        &mut self,
        batches: &BTreeMap<usize, Trajectories>,
        counted: Counted<'_>,
        groups: &[u64],
        mut ahead: Option<OnPolicyAudit>,
        observer: &mut dyn Observer,
    ) -> Result<UpdateOutcome, TrainError> {
        let advantages = counted.advantages;
        let audited = self.algorithm.paradigm() == Paradigm::Coupled && self.settings.audit != AuditMode::Off;
        let is_behind = ahead.is_some();
        let rows = (advantages, groups);
        let mut outcome = UpdateOutcome {
            audit: audited.then(OnPolicyAudit::default),
            ..UpdateOutcome::default()
        };
        // The weights move below, the rollout does not.
        let sampling = self.algorithm.sampling_weights(self.state.optimizer.steps());
        for inner in 0..self.algorithm.inner_epochs() {
            let positions = self.positions(inner)?;
            let mut pass = self.pass(batches, rows, (inner, &positions), sampling)?;
            pass.batches.count(counted, &self.settings.geometry);
            let count = pass.batches.micro_batches.len();
            observer.phase(Phase::Update, count * positions.count());
            for update in pass.batches.steps.clone() {
                if update.len() * positions.count() == 0 {
                    continue;
                }
                let audits = (is_behind, ahead.take().unwrap_or_default());
                self.learn((&pass, &positions), &update, rows, audits, &mut outcome, observer)?;
            }
        }
        if outcome.steps.is_empty() && self.positions(0)?.count() == 0 {
            observer.notice(&format!(
                "iteration {}: no step of its rollout is one that the algorithm looks at, so there was no optimizer step",
                self.state.iteration + 1
            ));
        } else if outcome.steps.is_empty() {
            observer.notice(&format!(
                "iteration {}: the algorithm took no row of the rollout (no group has images whose rewards differ), so there was no \
                 optimizer step",
                self.state.iteration + 1
            ));
        }
        Ok(outcome)
    }

    /// One optimizer step of the networks and of the policy, from the micro-batches `update` of a pass. `seen_before` is what this rank saw
    /// of the audit of a rollout that may be an update behind.
    fn learn(
        &mut self,
        (pass, positions): (&Pass<'_>, &LossPoints),
        update: &Range<usize>,
        rows: (&[f32], &[u64]),
        (is_behind, seen_before): (bool, OnPolicyAudit),
        outcome: &mut UpdateOutcome,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let (lanes, mine) = (self.distribution.lanes, self.distribution.of_update(update));
        let all = update.len() * positions.count();
        self.learn_networks(pass, &positions.0, (update, mine.clone()), rows, outcome)?;
        let sites = positions.sites(mine, |number| pass.batches.size(number));
        let mut accumulated = Accumulated::in_lanes(all, lanes);
        let mut seen = UpdateSeen {
            loss_terms: Vec::with_capacity(sites.len()),
            audit: seen_before,
            present: Vec::new(),
        };
        let kernels = self.training_plan().kernels.clone();
        let compared = self.compared(Learner::Student, pass, &sites, update, rows)?;
        let weights = self.state.weights.current.layout().specs().len();
        // Rows that were arranged anew may be fewer micro-batches than lanes.
        let own_lanes = self.distribution.own_lanes();
        let sums = self.block_sums(&sites, update, all);
        let mut next_lane = own_lanes.start;
        let beside = (&compared, sums.as_ref());
        self.for_each_loss_term(Learner::Student, &sites, pass, beside, |batch, site, mut term| {
            if outcome.steps.is_empty()
                && let Some(replayed) = &term.replayed
            {
                match is_behind {
                    true => term.terms.push(ratio_deviation(replayed)),
                    false if outcome.audit.is_some() => {
                        self.check_loss_term(&mut seen.audit, batch, site.position, replayed);
                    }
                    false => {}
                }
            }
            seen.loss_terms
                .push(LossTermSeen::new(&term.loss_values, &term.terms));
            let lane = self.lane_of(&site, update);
            (next_lane..lane).for_each(|lane| accumulated.add_none_to(lane, &*kernels, weights));
            accumulated.add_to(lane, &*kernels, term.gradients);
            next_lane = lane + 1;
            observer.advance(1);
        })?;
        (next_lane..own_lanes.end).for_each(|lane| accumulated.add_none_to(lane, &*kernels, weights));
        sums.map_or(Ok(()), |sums| sums.finish(&mut accumulated))?;
        seen.present = accumulated.present(&*kernels);
        let present = self.take_in(Learner::Student, seen, outcome)?;
        let layout = self.state.weights.current.layout();
        let exchange = (&*self.distribution.exchange, lanes);
        let on = (&*kernels, &self.sampler.device, self.state.optimizer.shards());
        accumulated.exchange(exchange, layout, &present, on)?;
        if outcome.steps.is_empty()
            && let Some(audit) = &outcome.audit
        {
            self.judge(audit, observer)?;
        }
        outcome.steps.push(self.optimizer_step(accumulated, &present)?);
        let steps = self.state.optimizer.steps();
        self.follow_at(None, Moment::Step { steps });
        Ok(())
    }

    /// The lane of a loss term of an update.
    fn lane_of(&self, site: &Site, update: &Range<usize>) -> usize {
        (site.micro_batch - update.start) * self.distribution.lanes.count() / update.len()
    }

    /// Who takes the gradients of blocks at this rank's `sites` of an update of `all` loss terms, if ranks have parts of the trained weights.
    fn block_sums(&self, sites: &[Site], update: &Range<usize>, all: usize) -> Option<Arc<BlockSums>> {
        let state = &self.state;
        let shards = state.optimizer.shards().filter(|_| state.has_trained_parts())?;
        let loss_terms = LossTermLanes {
            lanes: self.distribution.lanes,
            own: self.distribution.own_lanes(),
            of_loss_terms: sites.iter().map(|site| self.lane_of(site, update)).collect(),
            all_loss_terms: all,
        };
        Some(Arc::new(BlockSums::new(
            (self.sampler.policy.model.spec(), state.weights.current.layout()),
            shards,
            &self.distribution.exchange,
            (&self.training_plan().kernels, &self.sampler.device),
            loss_terms,
        )))
    }

    /// Adds what all ranks saw of an update, in the order of loss terms. Gives the weights that have a gradient on some rank.
    pub(super) fn take_in(
        &self,
        learner: Learner,
        seen: UpdateSeen,
        outcome: &mut UpdateOutcome,
    ) -> Result<Vec<bool>, TrainError> {
        let all = match self.distribution.exchange.world().is_several() {
            true => self.distribution.gather(&seen)?,
            false => vec![seen],
        };
        for seen in &all {
            for loss_term in &seen.loss_terms {
                let loss = match learner {
                    Learner::Student | Learner::Previous => &mut outcome.loss,
                    Learner::Network(role) => outcome.terms.entry(role.loss_name().to_owned()).or_default(),
                };
                loss.add(loss_term.loss());
                for (name, values) in loss_term.terms() {
                    outcome.terms.entry(name.to_owned()).or_default().add(values);
                }
            }
            if let Some(audit) = &mut outcome.audit {
                audit.merge(&seen.audit);
            }
        }
        Ok(on_some_rank(all.iter().map(|seen| &seen.present)))
    }

    /// The micro-batches of pass `inner` over a rollout, and what the algorithm looks at before its first optimizer step.
    pub(super) fn pass<'a>(
        &self,
        batches: &'a BTreeMap<usize, Trajectories>,
        (advantages, groups): (&[f32], &[u64]),
        (inner, positions): (usize, &LossPoints),
        sampling: SamplingWeights,
    ) -> Result<Pass<'a>, TrainError> {
        let geometry = &self.settings.geometry;
        let arranged = self.algorithm.arrange(&RolledOut {
            advantages,
            groups,
            micro_batch: geometry.micro_batch_size(),
            updates: geometry.updates(),
            seed: self.settings.seed,
            iteration: self.state.iteration,
            pass: inner,
        });
        let batches = match arranged {
            None => {
                let history = self.prompt_sampler.history();
                let first = history.first_sample(self.state.iteration);
                let shared_noise = self.algorithm.shares_noise().then_some(first);
                PassBatches::as_rolled_out(batches, advantages, geometry, shared_noise)
            }
            Some(_) if !self.others.is_empty() => {
                return Err(TrainError::setting(format!(
                    "the algorithm `{}` puts images of the whole rollout together anew, which must be of one size",
                    self.algorithm.name()
                ))
                .with_help("remove `sampling.sizes` and `sampling.sizes_of_prompts`")
                .about("sampling.sizes"));
            }
            Some(arranged) => self.arranged(batches, advantages, &arranged)?,
        };
        let mut pass = Pass {
            batches,
            sampling,
            before: BTreeMap::new(),
            teachers: self.teachers_of_samples()?,
        };
        if self.algorithm.looks_before() {
            let device = &self.sampler.device;
            let numbers = pass.batches.micro_batches.keys().copied();
            let sites = positions.sites(numbers, |number| pass.batches.size(number));
            for wave in sites.chunks(device.concurrency()) {
                let looked = device.concurrently(wave.len(), |index| {
                    let site = wave[index];
                    let look = |context: &LossContext<'_, '_>| self.algorithm.before(context, site.position);
                    self.in_context(pass.given(site), look).0
                });
                let looked = wave.iter().zip(looked);
                let looked = looked.filter_map(|(site, looked)| Some((site.number, looked?)));
                pass.before.extend(looked);
            }
        }
        Ok(pass)
    }

    /// Losses and gradients at `sites`, computed beside one another and visited in order. If somebody takes gradients of weights in parts, loss terms
    /// come one after another, and have none of them.
    pub(super) fn for_each_loss_term(
        &self,
        learner: Learner,
        sites: &[Site],
        pass: &Pass<'_>,
        (compared, sums): (&Compared, Option<&Arc<BlockSums>>),
        mut visit: impl FnMut(&Trajectories, Site, LossTerm),
    ) -> Result<(), TrainError> {
        let device = &self.sampler.device;
        let micro_batches = &pass.batches.micro_batches;
        let beside = sums.map_or(device.concurrency(), |_| 1);
        for wave in sites.chunks(beside) {
            self.distribution.exchange.check()?;
            let computed = device.concurrently(wave.len(), |index| {
                let site = wave[index];
                let compared = compared.get(&site.number).cloned().unwrap_or_default();
                self.loss_term(Given {
                    compared,
                    learner,
                    sums: sums.cloned(),
                    ..pass.given(site)
                })
            });
            if let Some(sums) = sums {
                sums.end_unit();
            }
            for (site, loss_term) in wave.iter().zip(computed) {
                let batch = &*micro_batches[&site.micro_batch].batch;
                self.check_loss(&loss_term, site.micro_batch, batch, site.position)?;
                visit(batch, *site, loss_term);
            }
        }
        Ok(())
    }

    fn loss_term(&self, given: Given<'_>) -> LossTerm {
        let (position, weight) = (given.position, given.micro_batch.weight);
        let learner = given.learner;
        let (loss_term, pass) = self.in_context(given, |context| match learner {
            Learner::Student | Learner::Previous => self.algorithm.loss(context, position),
            Learner::Network(role) => self.algorithm.network_loss(role, context, position),
        });
        let loss = match weight {
            1.0 => loss_term.loss,
            weight => loss_term.loss * weight,
        };
        let loss_values = flow_core::tensors::plain(&loss.clone().into_dispatch());
        let gradients = pass.gradients(&loss);
        LossTerm {
            loss_values: cpu::to_host(&loss_values),
            replayed: loss_term.replayed,
            terms: loss_term.terms,
            gradients,
        }
    }

    /// What `compute` makes of the context of a loss, and the pass that it was computed in.
    pub(super) fn in_context<R>(
        &self,
        Given {
            micro_batch,
            position,
            sampling,
            before,
            compared,
            teachers,
            learner,
            sums,
        }: Given<'_>,
        compute: impl FnOnce(&LossContext<'_, '_>) -> R,
    ) -> (R, TrainingPass<'_>) {
        let weights = &self.state.weights;
        let device = &self.sampler.device;
        let networks = &self.state.networks;
        let network = learner.role().and_then(|role| networks.get(&role));
        let (learning, trained) = match (learner, network) {
            (Learner::Network(_), Some(network)) => (&network.weights, network.optimizer.trained()),
            (Learner::Previous, _) => (weights.previous(), self.state.optimizer.trained()),
            _ => (&weights.current, self.state.optimizer.trained()),
        };
        let pass = TrainingPass::new(learning, self.training_plan().clone(), trained.into());
        let pass = match sums {
            Some(sums) => pass.handing_to(sums),
            None => pass,
        };
        let inference = |weights| InferencePass::new(weights, self.training_plan().clone());
        let current = inference(&weights.current);
        let sampling = inference(weights.of_rollout(sampling));
        let reference = self.algorithm.reference().map(|kind| match kind {
            ReferenceWeights::WithoutAdapters => pass.reference(),
            ReferenceWeights::Snapshot => inference(weights.reference()),
        });
        let keeps_old = self.algorithm.keeps(SlowCopy::Old);
        let old = keeps_old.then(|| inference(weights.slow(SlowCopy::Old)));
        let of_role = |role: NetworkRole| networks.get(&role).map(|network| inference(&network.weights));
        let (fake, surrogate) = (of_role(NetworkRole::FakeScore), of_role(NetworkRole::Surrogate));
        let slow = networks.get(&NetworkRole::Surrogate);
        let slow = slow.and_then(|network| network.slow.as_ref());
        let surrogate_slow = slow.map(inference);
        let teachers = self.taught(&micro_batch.batch.samples, teachers);
        let (sampler, _) = self.at_size(micro_batch.batch.size);
        let noise = match position {
            LossPoint::Recorded(_) => None,
            LossPoint::Time { draw, .. } | LossPoint::EachRow { draw, .. } | LossPoint::Step { draw, .. } => {
                let values = sampler.policy.model.spec().latent.values();
                Some(sampler.noise(Purpose::ForwardNoise, &micro_batch.noise_of, draw, values))
            }
        };
        let advantages = micro_batch.advantages_at(position, self.algorithm.advantage_clip());
        let rows = advantages.len();
        let gates = &micro_batch.gates;
        let gates = (!gates.is_empty()).then(|| device.tensor(gates.clone(), [rows]));
        let computed = compute(&LossContext {
            pass: &pass,
            current: &current,
            sampling: &sampling,
            reference: reference.as_ref(),
            old: old.as_ref(),
            fake: fake.as_ref(),
            surrogate: surrogate.as_ref(),
            surrogate_slow: surrogate_slow.as_ref(),
            teachers,
            policy: &sampler.policy,
            kernels: &*self.training_plan().kernels,
            device,
            batch: &micro_batch.batch,
            advantages: device.tensor(advantages, [rows]),
            gates,
            noise,
            before,
            compared,
            site: self.site(Stage::Training),
        });
        (computed, pass)
    }

    /// Advantages within the algorithm's bound.
    pub(super) fn clamped(&self, advantages: &[f32]) -> Vec<f32> {
        let bound = self.algorithm.advantage_clip();
        (advantages.iter())
            .map(|value| value.clamp(-bound, bound))
            .collect()
    }

    pub(super) fn position_site(&self, batch: &Trajectories, position: LossPoint) -> CallSite {
        let step = match position {
            LossPoint::Recorded(index) | LossPoint::Step { index, .. } => {
                batch.records[index].step.step as u32
            }
            LossPoint::Time { .. } | LossPoint::EachRow { .. } => 0,
        };
        CallSite {
            step,
            ..self.site(Stage::Training)
        }
    }

    fn check_loss(
        &self,
        loss_term: &LossTerm,
        micro_batch: usize,
        batch: &Trajectories,
        position: LossPoint,
    ) -> Result<(), TrainError> {
        let loss = loss_term.loss_values[0];
        if loss.is_finite() {
            return Ok(());
        }
        let position = match position {
            LossPoint::Recorded(index) | LossPoint::Step { index, .. } => {
                format!("step {}", batch.records[index].step.step)
            }
            LossPoint::Time { sigma, .. } => format!("sigma {sigma:.4}"),
            LossPoint::EachRow { draw, .. } => format!("draw {draw} of the rows' times"),
        };
        let iteration = self.state.iteration + 1;
        Err(TrainError::NonFiniteLoss {
            iteration,
            micro_batch,
            position,
            value: loss,
        })
    }

    /// A step, of weights of which those that are `present` have a gradient.
    fn optimizer_step(
        &mut self,
        accumulated: Accumulated,
        present: &[bool],
    ) -> Result<StepReport, TrainError> {
        let iteration = self.state.iteration + 1;
        let kernels = self.training_plan().kernels.clone();
        let (state, device) = (&mut self.state, &self.sampler.device);
        let (optimizer, weights) = (&mut state.optimizer, &mut state.weights.current);
        let report = optimizer
            .step(&*kernels, device, weights, accumulated)
            .map_err(|source| TrainError::NonFiniteGradient { iteration, source })?;
        let exchange = &*self.distribution.exchange;
        optimizer.share(exchange, weights, present, (&*kernels, device))?;
        Ok(report)
    }
}
