//! The turns of the fake score: its optimizer steps before one of the student.

use super::Parts;
use super::update::{Learner, Pass, Positions, UpdateOutcome};
use crate::algorithm::{Algorithm, Position};
use crate::audit::OnPolicyAudit;
use crate::distributed::{Lanes, UnitSeen, UpdateSeen};
use crate::error::TrainError;
use crate::optimizer::Accumulated;
use flow_accel::Acceleration;
use std::ops::Range;

impl<A: Algorithm> Parts<A, Acceleration> {
    /// Takes the fake score's optimizer steps on the micro-batches `update`, `mine` of which are this rank's, if the algorithm has one.
    pub(super) fn learn_fake_score(
        &mut self,
        pass: &Pass<'_>,
        positions: &[Vec<Position>],
        (update, mine): (&Range<usize>, Range<usize>),
        outcome: &mut UpdateOutcome,
    ) -> Result<(), TrainError> {
        let Some(turns) = self.algorithm.fake_score().map(|fake| fake.updates) else {
            return Ok(());
        };
        let lanes: Lanes = self.distribution.lanes;
        for turn in 0..turns {
            let of_sizes = positions
                .iter()
                .map(|all| self.algorithm.fake_positions(all, turn));
            let positions = Positions(of_sizes.collect());
            let all = update.len() * positions.count();
            let sites = positions.sites(mine.clone(), |number| pass.batches.size(number));
            let kernels = self.training_plan().kernels.clone();
            let mut accumulated = Accumulated::in_lanes(all, lanes);
            let mut seen = UpdateSeen {
                units: Vec::with_capacity(sites.len()),
                audit: OnPolicyAudit::default(),
                present: Vec::new(),
            };
            self.for_each_unit(
                Learner::FakeScore,
                &sites,
                pass,
                &Default::default(),
                |_, site, unit| {
                    seen.units.push(UnitSeen::new(&unit.loss_values, &unit.terms));
                    let lane = (site.micro_batch - update.start) * lanes.count() / update.len();
                    accumulated.add_to(lane, &*kernels, unit.gradients);
                },
            )?;
            seen.present = accumulated.present(&*kernels);
            let present = self.take_in(Learner::FakeScore, seen, outcome)?;
            let layout = self.state.weights.current.layout();
            let exchange = (&*self.distribution.exchange, lanes);
            accumulated.exchange(exchange, layout, &present, &self.sampler.device)?;
            let iteration = self.state.iteration + 1;
            let fake = self.state.fake_score.as_mut();
            let fake = fake.expect("an algorithm that has a fake score is given it");
            (fake.optimizer)
                .step(&*kernels, &self.sampler.device, &mut fake.weights, accumulated)
                .map_err(|source| TrainError::NonFiniteGradient { iteration, source })?;
        }
        Ok(())
    }
}
