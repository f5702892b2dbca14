//! The turns of the networks that are trained beside the student: their optimizer steps before one of its own.

use super::Trainer;
use super::update::{Learner, LossPoints, Pass, UpdateOutcome};
use crate::algorithm::{Algorithm, LossPoint, NetworkRole};
use crate::audit::OnPolicyAudit;
use crate::distributed::{Lanes, LossTermSeen, UpdateSeen};
use crate::error::TrainError;
use crate::optimizer::Accumulated;
use flow_accel::Acceleration;
use std::ops::Range;

impl<A: Algorithm> Trainer<A, Acceleration> {
    /// Takes the optimizer steps of each network that the algorithm has, on the micro-batches `update`, `mine` of which are this rank's.
    /// `rows` are the advantages and groups of all samples of the iteration.
    pub(super) fn learn_networks(
        &mut self,
        pass: &Pass<'_>,
        positions: &[Vec<LossPoint>],
        (update, mine): (&Range<usize>, Range<usize>),
        rows: (&[f32], &[u64]),
        outcome: &mut UpdateOutcome,
    ) -> Result<(), TrainError> {
        for role in NetworkRole::ALL {
            let turns = self.algorithm.network(role).map_or(0, |plan| plan.updates);
            for turn in 0..turns {
                let of_sizes = positions
                    .iter()
                    .map(|all| self.algorithm.network_positions(role, all, turn));
                let positions = LossPoints(of_sizes.collect());
                self.learn_network(role, (pass, &positions), (update, mine.clone()), rows, outcome)?;
            }
        }
        Ok(())
    }

    /// One optimizer step of a network.
    fn learn_network(
        &mut self,
        role: NetworkRole,
        (pass, positions): (&Pass<'_>, &LossPoints),
        (update, mine): (&Range<usize>, Range<usize>),
        rows: (&[f32], &[u64]),
        outcome: &mut UpdateOutcome,
    ) -> Result<(), TrainError> {
        let (learner, lanes): (Learner, Lanes) = (Learner::Network(role), self.distribution.lanes);
        let all = update.len() * positions.count();
        let sites = positions.sites(mine, |number| pass.batches.size(number));
        let kernels = self.training_plan().kernels.clone();
        let mut accumulated = Accumulated::in_lanes(all, lanes);
        let mut seen = UpdateSeen {
            loss_terms: Vec::with_capacity(sites.len()),
            audit: OnPolicyAudit::default(),
            present: Vec::new(),
        };
        let compared = self.compared(learner, pass, &sites, update, rows)?;
        self.for_each_loss_term(learner, &sites, pass, (&compared, None), |_, site, loss_term| {
            seen.loss_terms
                .push(LossTermSeen::new(&loss_term.loss_values, &loss_term.terms));
            let lane = (site.micro_batch - update.start) * lanes.count() / update.len();
            accumulated.add_to(lane, &*kernels, loss_term.gradients);
        })?;
        seen.present = accumulated.present(&*kernels);
        let present = self.take_in(learner, seen, outcome)?;
        let layout = self.state.weights.current.layout();
        let exchange = (&*self.distribution.exchange, lanes);
        let on = (&*kernels, &self.sampler.device, None);
        accumulated.exchange(exchange, layout, &present, on)?;
        let iteration = self.state.iteration + 1;
        let (network, device) = (self.state.networks.get_mut(&role), &self.sampler.device);
        let network = network.expect("an algorithm that trains a network is given it");
        (network.optimizer)
            .step(&*kernels, device, &mut network.weights, accumulated)
            .map_err(|source| TrainError::NonFiniteGradient { iteration, source })?;
        let steps = network.optimizer.steps();
        if let Some(share) = self.algorithm.network_survives(role, steps) {
            network.follow(&*kernels, device, share);
        }
        Ok(())
    }
}
