//! What a loss reads of other rows than its own: numbers per row, of all micro-batches of an optimizer step and of all ranks, and what the
//! algorithm makes of them together.

use super::Trainer;
use super::update::{Learner, Pass, Site};
use crate::algorithm::{Algorithm, LossContext, StepRows};
use crate::error::TrainError;
use flow_accel::Acceleration;
use flow_core::{RawTensor, cpu};
use std::collections::BTreeMap;
use std::ops::Range;

/// By the number of the site, what [`Algorithm::compare`] gave for its rows.
pub(super) type Compared = BTreeMap<usize, Vec<RawTensor>>;

/// The numbers of one site, each with the bits of one value per row.
type Numbers = Vec<Vec<u32>>;

impl<A: Algorithm> Trainer<A, Acceleration> {
    /// Compares the rows of the micro-batches `update` for `learner`, at this rank's `sites` of them, under the weights there are.
    /// `advantages` and `groups` are those of all samples of the iteration.
    pub(super) fn compared(
        &self,
        learner: Learner,
        pass: &Pass<'_>,
        sites: &[Site],
        update: &Range<usize>,
        (advantages, groups): (&[f32], &[u64]),
    ) -> Result<Compared, TrainError> {
        if !self.algorithm.compares_rows(learner.role()) {
            return Ok(Compared::new());
        }
        if pass.batches.arranged {
            return Err(TrainError::setting(format!(
                "the algorithm `{}` puts images of the rollout together anew and compares those of an optimizer step",
                self.algorithm.name()
            ))
            .with_help("an algorithm does one or the other"));
        }
        let mine = self.row_numbers(pass, sites)?;
        let all = match self.distribution.exchange.world().is_several() {
            true => self.distribution.gather(&mine)?.concat(),
            false => mine,
        };
        // Ranks have consecutive micro-batches of an update, and loss terms go through the positions of one after another.
        let positions = all.len() / update.len();
        let size = self.settings.geometry.micro_batch_size();
        let samples = update.start * size..update.end * size;
        let advantages = self.clamped(&advantages[samples.clone()]);
        let mut compared = Compared::new();
        for position in 0..positions {
            let numbers = side_by_side(all.iter().skip(position).step_by(positions));
            let found = self.algorithm.compare(&StepRows {
                advantages: &advantages,
                groups: &groups[samples.clone()],
                numbers: &numbers,
            });
            for site in sites.iter().skip(position).step_by(positions) {
                let first = (site.micro_batch - update.start) * size;
                let of_rows = |values: &Vec<f32>| {
                    let rows = values[first..first + size].to_vec();
                    self.sampler.device.plain(rows, &[size])
                };
                compared.insert(site.number, found.iter().map(of_rows).collect());
            }
        }
        Ok(compared)
    }

    /// The numbers of rows at `sites`, in order.
    fn row_numbers(&self, pass: &Pass<'_>, sites: &[Site]) -> Result<Vec<Numbers>, TrainError> {
        let device = &self.sampler.device;
        let mut found = Vec::with_capacity(sites.len());
        for wave in sites.chunks(device.concurrency()) {
            self.distribution.exchange.check()?;
            let looked = device.concurrently(wave.len(), |index| {
                let site = wave[index];
                let look = |context: &LossContext<'_, '_>| self.algorithm.row_numbers(context, site.position);
                self.in_context(pass.given(site), look).0
            });
            let bits = |values: &RawTensor| cpu::to_host(values).into_iter().map(f32::to_bits).collect();
            found.extend(
                looked
                    .iter()
                    .map(|numbers| numbers.iter().map(bits).collect::<Numbers>()),
            );
        }
        Ok(found)
    }
}

/// Each number with the values of all loss terms' rows, in order.
fn side_by_side<'a>(loss_terms: impl Iterator<Item = &'a Numbers>) -> Vec<Vec<f32>> {
    let mut numbers: Vec<Vec<f32>> = Vec::new();
    for loss_term in loss_terms {
        numbers.resize(loss_term.len(), Vec::new());
        for (values, bits) in numbers.iter_mut().zip(loss_term) {
            values.extend(bits.iter().map(|bits| f32::from_bits(*bits)));
        }
    }
    numbers
}
