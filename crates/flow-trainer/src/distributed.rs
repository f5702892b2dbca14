//! One run on several ranks: who samples and learns from what, and what they tell each other.
//!
//! Every update's micro-batches are cut into lanes, and a rank has consecutive lanes of each update. What the ranks found is put
//! together in the order of samples and loss terms, so nothing that a run computes depends on how many there are.

use crate::audit::OnPolicyAudit;
use crate::error::TrainError;
use crate::geometry::BatchGeometry;
use crate::shards::Shards;
use crate::trainer::TrainState;
use flow_accel::{Activity, ActivityCounts};
pub use flow_config::Shard;
use flow_core::{RawTensor, Weights, cpu};
pub use flow_exchange::{Alone, Exchange, Lanes};
use serde::{Deserialize, Serialize};
use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;

/// How a run is spread over ranks.
#[derive(Clone, Debug)]
pub struct Distribution {
    /// To the other ranks.
    pub exchange: Arc<dyn Exchange>,
    /// Lanes of each sum of gradients.
    pub lanes: Lanes,
    /// Whether the config names the lanes; a resumed run has those of its checkpoint otherwise.
    pub lanes_given: bool,
    /// Iterations between two comparisons of the ranks' weights; 0 for none.
    pub check_every: u64,
    /// What each rank has a part of.
    pub shard: Shard,
}

impl Distribution {
    /// As a config asks; without lanes, one for each rank.
    pub fn of_config(config: &flow_config::DistributedConfig, exchange: Arc<dyn Exchange>) -> Self {
        let lanes = match config.lanes {
            0 => exchange.world().ranks,
            lanes => lanes,
        };
        Self {
            exchange,
            lanes: Lanes::new(lanes),
            lanes_given: config.lanes > 0,
            check_every: config.check_replicas_every as u64,
            shard: config.shard,
        }
    }

    /// Which rank has the moments of which of `weights` (one flag each says whether it is trained); none if every rank has all.
    pub fn shards(&self, weights: &Weights, trained: &[bool]) -> Option<Shards> {
        let (world, layout) = (self.exchange.world(), weights.layout());
        match self.shard {
            Shard::Optimizer | Shard::Weights if world.is_several() => Some(match weights.blocks() {
                Some(blocks) => Shards::beside_parts(layout, trained, &**blocks, world),
                None => Shards::new(layout, trained, world),
            }),
            Shard::Optimizer | Shard::Weights | Shard::None => None,
        }
    }

    /// Whether this process writes the run's files.
    pub fn is_first(&self) -> bool {
        self.exchange.world().is_first()
    }

    /// That ranks divide lanes, and lanes the micro-batches of an update.
    ///
    /// # Errors
    /// [`TrainError::Setting`] with what would do.
    pub fn fits(&self, geometry: &BatchGeometry) -> Result<(), TrainError> {
        let (ranks, lanes) = (self.exchange.world().ranks, self.lanes.count());
        let found = flow_validate::lanes(ranks, lanes, geometry.micro_batches_per_update());
        match found {
            None => Ok(()),
            Some((problem, help)) => Err(TrainError::setting(problem).with_help(help)),
        }
    }

    /// This rank's micro-batches of an update.
    pub(crate) fn of_update(&self, update: &Range<usize>) -> Range<usize> {
        let world = self.exchange.world();
        self.of_rank(update, world.rank)
    }

    /// This rank's lanes.
    pub(crate) fn own_lanes(&self) -> Range<usize> {
        let world = self.exchange.world();
        self.lanes.of_rank(world.rank, world.ranks)
    }

    /// A rank's micro-batches of an update. Where there are fewer than lanes, some lanes have none.
    pub(crate) fn of_rank(&self, update: &Range<usize>, rank: usize) -> Range<usize> {
        let lanes = self.lanes.of_rank(rank, self.exchange.world().ranks);
        let at = |lane: usize| update.start + (lane * update.len()).div_ceil(self.lanes.count());
        at(lanes.start)..at(lanes.end)
    }

    /// The micro-batches of a rank in an iteration, in order.
    pub(crate) fn micro_batches_of(&self, geometry: &BatchGeometry, rank: usize) -> Vec<usize> {
        let updates = geometry.update_micro_batches();
        updates.flat_map(|update| self.of_rank(&update, rank)).collect()
    }

    /// This rank's micro-batches of an iteration, in order.
    pub(crate) fn micro_batches(&self, geometry: &BatchGeometry) -> Vec<usize> {
        self.micro_batches_of(geometry, self.exchange.world().rank)
    }

    /// Columns with a value for each sample of the iteration, of those that each rank has of its own samples.
    pub(crate) fn gather_columns(
        &self,
        geometry: &BatchGeometry,
        mine: Vec<Vec<f32>>,
    ) -> Result<Vec<Vec<f32>>, TrainError> {
        let of_rank = |rank: usize| self.micro_batches_of(geometry, rank);
        self.gather_of((geometry.samples(), geometry.micro_batch_size()), of_rank, mine)
    }

    /// This rank's micro-batches of candidates, in order: no update sums over these, so that lanes do not matter.
    pub(crate) fn candidate_micro_batches(&self, geometry: &BatchGeometry) -> Range<usize> {
        self.candidate_micro_batches_of(geometry, self.exchange.world().rank)
    }

    fn candidate_micro_batches_of(&self, geometry: &BatchGeometry, rank: usize) -> Range<usize> {
        let (all, ranks) = (geometry.candidate_micro_batches(), self.exchange.world().ranks);
        rank * all / ranks..(rank + 1) * all / ranks
    }

    /// As [`gather_columns`](Self::gather_columns), with a value for each candidate of the iteration.
    pub(crate) fn gather_candidates(
        &self,
        geometry: &BatchGeometry,
        mine: Vec<Vec<f32>>,
    ) -> Result<Vec<Vec<f32>>, TrainError> {
        let of_rank =
            |rank: usize| -> Vec<usize> { self.candidate_micro_batches_of(geometry, rank).collect() };
        let candidates = geometry.prompts() * geometry.candidates();
        self.gather_of((candidates, geometry.micro_batch_size()), of_rank, mine)
    }

    /// Columns of `count` values, of those that each rank has of its micro-batches of `size`.
    fn gather_of(
        &self,
        (count, size): (usize, usize),
        of_rank: impl Fn(usize) -> Vec<usize>,
        mine: Vec<Vec<f32>>,
    ) -> Result<Vec<Vec<f32>>, TrainError> {
        if !self.exchange.world().is_several() {
            return Ok(mine);
        }
        let columns = mine.len();
        let bits: Vec<Vec<u32>> = mine.iter().map(|column| to_bits(column)).collect();
        let mut all = vec![vec![0.0; count]; columns];
        for (rank, theirs) in self.gather(&bits)?.into_iter().enumerate() {
            let samples = of_rank(rank);
            let samples = samples
                .into_iter()
                .flat_map(|index| index * size..(index + 1) * size);
            let samples: Vec<usize> = samples.collect();
            for (column, theirs) in all.iter_mut().zip(theirs) {
                for (sample, value) in samples.iter().zip(theirs) {
                    column[*sample] = f32::from_bits(value);
                }
            }
        }
        Ok(all)
    }

    /// What every rank says, in order.
    pub(crate) fn gather<T: Serialize + for<'a> Deserialize<'a>>(
        &self,
        mine: &T,
    ) -> Result<Vec<T>, TrainError> {
        gathered(&*self.exchange, mine)
    }

    /// What the accelerators of all ranks did, of what each did on its own.
    pub(crate) fn gather_activity(&self, own: Vec<Activity>) -> Result<Vec<Activity>, TrainError> {
        if !self.exchange.world().is_several() || own.is_empty() {
            return Ok(own);
        }
        let counts: Vec<ActivityCounts> = own.iter().map(Activity::counts).collect();
        let all = self.gather(&counts)?;
        let of_all = |(index, activity): (usize, Activity)| {
            activity.of_all(all.iter().filter_map(|of_rank| of_rank.get(index)))
        };
        Ok(own.into_iter().enumerate().map(of_all).collect())
    }

    /// Whether any rank wants it.
    pub(crate) fn any(&self, mine: bool) -> Result<bool, TrainError> {
        Ok(self.gather(&mine)?.contains(&true))
    }

    /// Compares weights and moments of all ranks, bit by bit, as far as all have them: of what is shared out, each rank has its own, and of
    /// weights whose lower halves are shared out all have the upper ones.
    ///
    /// # Errors
    /// [`TrainError::ReplicasDiffer`] with the first rank that has others than rank 0.
    pub(crate) fn compare_replicas(&self, state: &TrainState) -> Result<(), TrainError> {
        if !self.exchange.world().is_several() {
            return Ok(());
        }
        let all = self.gather(&state.fingerprint())?;
        let other = all.iter().position(|each| *each != all[0]);
        other.map_or(Ok(()), |rank| {
            Err(TrainError::ReplicasDiffer {
                rank,
                iteration: state.iteration,
            })
        })
    }
}

/// What every rank says, in order.
pub(crate) fn gathered<T: Serialize + for<'a> Deserialize<'a>>(
    exchange: &dyn Exchange,
    mine: &T,
) -> Result<Vec<T>, TrainError> {
    let unreadable = |error: serde_json::Error| {
        TrainError::setting(format!("what another rank says cannot be read ({error})"))
            .with_help("run the same build of flow-train on all ranks")
    };
    let mine = serde_json::to_vec(mine).map_err(unreadable)?;
    let all = exchange.gather(&mine)?;
    all.iter()
        .map(|each| serde_json::from_slice(each).map_err(unreadable))
        .collect()
}

impl TrainState {
    /// A hash over the bits of what all ranks have: the trained weights and their moments, as far as these are not shared out, and the steps
    /// taken.
    fn fingerprint(&self) -> u64 {
        // SipHash with fixed keys; nobody is to be kept from finding the same, only accidents.
        #[allow(deprecated)]
        let mut hasher = std::hash::SipHasher::new();
        hasher.write_u64(self.optimizer.steps());
        let mut add = |values: Vec<f32>| {
            for value in values {
                hasher.write_u32(value.to_bits());
            }
        };
        let current = &self.weights.current;
        let trained = self.optimizer.trained().iter().enumerate();
        for (index, _) in trained.filter(|(index, trained)| **trained && !current.is_in_parts(*index)) {
            add(current.common_host(index));
        }
        let are_everywhere = self.optimizer.shards().is_none();
        let moments = self.optimizer.moments().iter().flatten();
        for moments in moments.filter(|_| are_everywhere) {
            add(cpu::to_host(&moments.first));
            add(cpu::to_host(&moments.second));
        }
        for network in self.networks.values() {
            for (index, _) in self.optimizer.trained().iter().enumerate().filter(|(_, it)| **it) {
                add(network.weights.host(index));
                network.slow.iter().for_each(|slow| add(slow.host(index)));
            }
            for moments in network.optimizer.moments().iter().flatten() {
                add(cpu::to_host(&moments.first));
                add(cpu::to_host(&moments.second));
            }
        }
        hasher.finish()
    }
}

fn to_bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// What one loss term came to, as bits.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LossTermSeen {
    loss: Vec<u32>,
    terms: Vec<(String, Vec<u32>)>,
}

impl LossTermSeen {
    /// Of a loss term's loss and other terms.
    pub(crate) fn new(loss: &[f32], terms: &[(&'static str, RawTensor)]) -> Self {
        let bits = |values: &RawTensor| to_bits(&cpu::to_host(values));
        Self {
            loss: to_bits(loss),
            terms: terms
                .iter()
                .map(|(name, values)| ((*name).to_owned(), bits(values)))
                .collect(),
        }
    }

    /// The values of its loss.
    pub(crate) fn loss(&self) -> impl Iterator<Item = f32> + use<'_> {
        self.loss.iter().map(|bits| f32::from_bits(*bits))
    }

    /// The values of its other terms, by name.
    pub(crate) fn terms(
        &self,
    ) -> impl Iterator<Item = (&str, impl Iterator<Item = f32> + use<'_>)> + use<'_> {
        let terms = self.terms.iter();
        terms.map(|(name, values)| (name.as_str(), values.iter().map(|bits| f32::from_bits(*bits))))
    }
}

/// Which weights have a gradient on some rank, of what each rank has.
pub(crate) fn on_some_rank<'a>(ranks: impl Iterator<Item = &'a Vec<bool>>) -> Vec<bool> {
    let mut present: Vec<bool> = Vec::new();
    for of_rank in ranks {
        present.resize(present.len().max(of_rank.len()), false);
        for (present, theirs) in present.iter_mut().zip(of_rank) {
            *present |= theirs;
        }
    }
    present
}

/// What a rank saw in an update: its loss terms in order, its audit, and which weights have gradients.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct UpdateSeen {
    pub loss_terms: Vec<LossTermSeen>,
    pub audit: OnPolicyAudit,
    pub present: Vec<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::GeometryRequest;

    #[test]
    fn every_sample_of_an_iteration_is_of_one_rank_and_columns_come_back_in_order() {
        // 2 updates of 4 micro-batches of 3 samples.
        let geometry = BatchGeometry::new(GeometryRequest {
            prompts_per_step: 4,
            group_size: 6,
            micro_batch: 3,
            gradient_accumulation: 4,
        })
        .expect("everything divides");
        for ranks in [1, 2, 4] {
            let threads: Vec<_> = flow_exchange::in_process(ranks, std::time::Duration::from_secs(20))
                .into_iter()
                .map(|exchange| {
                    std::thread::spawn(move || {
                        let config = flow_config::DistributedConfig {
                            lanes: 4,
                            ..flow_config::DistributedConfig::default()
                        };
                        let distribution = Distribution::of_config(&config, exchange);
                        distribution.fits(&geometry).expect("4 lanes of 4 micro-batches");
                        let mine = distribution.micro_batches(&geometry);
                        let own = mine.iter().flat_map(|index| 3 * index..3 * index + 3);
                        let column: Vec<f32> = own.map(|sample| sample as f32).collect();
                        let all = distribution
                            .gather_columns(&geometry, vec![column])
                            .expect("everyone is there");
                        (mine, all)
                    })
                })
                .collect();
            let mut seen = Vec::new();
            for thread in threads {
                let (mine, all) = thread.join().expect("no panic");
                seen.extend(mine);
                assert_eq!(all, [(0..24).map(|sample| sample as f32).collect::<Vec<f32>>()]);
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..8).collect::<Vec<_>>(), "{ranks} ranks");
        }
    }
}
