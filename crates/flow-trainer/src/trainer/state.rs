//! What a run carries from iteration to iteration.

use crate::algorithm::{Memory, NetworkRole, SamplingWeights, SlowCopy};
use crate::optimizer::AdamW;
use crate::shards::Shards;
use flow_core::device::ComputeDevice;
use flow_core::{Changing, CoreError, Kernels, ParamKind, Weights};
use std::collections::BTreeMap;

/// Weights whose averages are formed at once: what is put together from halves for them is in memory meanwhile.
const AT_ONCE: usize = 16;

/// The weight sets of a run. All but the first are there only if something reads them.
#[derive(Clone, Debug)]
pub struct PolicyWeights {
    /// The trained weights.
    pub current: Weights,
    /// Their moving average.
    pub average: Option<Weights>,
    /// The slower copy that losses compare with, and that may sample ([`SlowCopy::Old`]).
    pub old: Option<Weights>,
    /// The slower copy that samples and does nothing else ([`SlowCopy::Sampling`]).
    pub sampling: Option<Weights>,
    /// The weights at the start.
    pub reference: Option<Weights>,
    /// The trained weights before the last update, which sampled the rollout after it; of a run whose rollouts are an update behind.
    pub previous: Option<Weights>,
    /// The frozen models that the algorithm learns from, in its order. Checkpoints leave them out: they are those of their files.
    pub teachers: Vec<Weights>,
}

/// Weights, moments and counters.
#[derive(Clone, Debug)]
pub struct TrainState {
    /// Iterations done.
    pub iteration: u64,
    /// The weight sets.
    pub weights: PolicyWeights,
    /// The optimizer.
    pub optimizer: AdamW,
    /// The networks that are trained beside the student, of an algorithm that has some.
    pub networks: BTreeMap<NetworkRole, TrainedNetwork>,
    /// What the algorithm remembers.
    pub memory: Memory,
}

impl TrainState {
    /// Whether there are weights that are not trained and that no process has whole.
    pub(super) fn has_frozen_parts(&self) -> bool {
        self.has_parts(false)
    }

    /// Whether there are weights that are trained and of which this process has a part alone, or no lower half.
    pub(super) fn lacks_trained_values(&self) -> bool {
        let current = &self.weights.current;
        let is_shared = (0..current.layout().len()).any(|index| current.shares_lower_half(index));
        is_shared || self.has_trained_parts()
    }

    /// Whether there are weights that are trained and that no process has whole.
    pub(super) fn has_trained_parts(&self) -> bool {
        self.has_parts(true)
    }

    fn has_parts(&self, trained: bool) -> bool {
        let mut flags = self.optimizer.trained().iter().enumerate();
        flags.any(|(index, flag)| *flag == trained && self.weights.current.is_in_parts(index))
    }

    /// Puts what is not trained of other networks onto the frozen weights of the run, so that all share them and a checkpoint holds them
    /// once: of networks that are trained beside the student, and of teachers that are adapters.
    ///
    /// # Errors
    /// If a network is of another architecture.
    pub(super) fn share_frozen(&mut self) -> Result<(), CoreError> {
        self.weights.share_with_teachers()?;
        for network in self.networks.values_mut() {
            let trained = self.optimizer.trained().iter().enumerate();
            for (index, _) in trained.filter(|(_, trained)| !**trained) {
                let value = &self.weights.current.stored()[index];
                network.weights.set(index, value.clone())?;
                if let Some(slow) = &mut network.slow {
                    slow.set(index, value.clone())?;
                }
            }
        }
        Ok(())
    }
}

/// A network with an optimizer of its own.
#[derive(Clone, Debug)]
pub struct TrainedNetwork {
    /// Its weights, of the student's layout.
    pub weights: Weights,
    /// Its optimizer.
    pub optimizer: AdamW,
    /// A slower copy of its weights, if its losses compare with one.
    pub slow: Option<Weights>,
}

impl TrainedNetwork {
    /// Lets the slower copy, if there is one, follow: `share` of it survives.
    pub(super) fn follow(&mut self, kernels: &dyn Kernels, device: &ComputeDevice, share: f64) {
        if let Some(slow) = &mut self.slow {
            let trained = self.optimizer.trained();
            average_into(slow, &self.weights, (kernels, device), trained, share);
        }
    }
}

/// Makes the trained values of `set` `decay set + (1 - decay) current`.
fn average_into(
    set: &mut Weights,
    current: &Weights,
    (kernels, device): (&dyn Kernels, &ComputeDevice),
    trained: &[bool],
    decay: f64,
) {
    let decay = device.plain(vec![decay as f32], &[1]);
    let mut set = set.update();
    let slow = set.each().enumerate().filter(|(index, _)| trained[*index]);
    let mut slow: Vec<(usize, Changing<'_>)> = slow.collect();
    // Some at a time: those stored in halves are put together on the way.
    for some in slow.chunks_mut(AT_ONCE) {
        let indices: Vec<usize> = some.iter().map(|(index, _)| *index).collect();
        let values = current.values(&indices, kernels);
        let pairs = some.iter_mut().zip(&values);
        let pairs = pairs
            .map(|((_, slow), value)| (&mut *slow.value, value))
            .collect();
        device.with_persistent_allocation(|| kernels.ops().optimizer.average_all(pairs, &decay));
    }
    let copies = slow.into_iter();
    let copies = copies.filter_map(|(_, slow)| Some((slow.copy?, &*slow.value)));
    device.with_persistent_allocation(|| kernels.ops().weights.copy_all(copies.collect()));
}

/// Shares of the slower sets that survive; none leaves a set as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Decays {
    pub average: Option<f64>,
    pub old: Option<f64>,
    pub sampling: Option<f64>,
}

impl Decays {
    /// Replaces a slower copy by the trained weights.
    pub(super) fn renewing(copy: SlowCopy) -> Self {
        let none = Self::default();
        match copy {
            SlowCopy::Old => Self {
                old: Some(0.0),
                ..none
            },
            SlowCopy::Sampling => Self {
                sampling: Some(0.0),
                ..none
            },
        }
    }
}

impl PolicyWeights {
    /// A slower copy.
    ///
    /// # Panics
    /// If the run was assembled without it although its algorithm keeps it.
    pub fn slow(&self, copy: SlowCopy) -> &Weights {
        let weights = match copy {
            SlowCopy::Old => &self.old,
            SlowCopy::Sampling => &self.sampling,
        };
        weights
            .as_ref()
            .expect("an algorithm that keeps a slower copy is given it")
    }

    /// Those that sample.
    pub(super) fn of_rollout(&self, sampling: SamplingWeights) -> &Weights {
        match sampling {
            SamplingWeights::Current => &self.current,
            SamplingWeights::Slow(copy) => self.slow(copy),
        }
    }

    /// The weights at the start.
    ///
    /// # Panics
    /// If the run was assembled without them although its algorithm compares with them.
    pub fn reference(&self) -> &Weights {
        self.reference
            .as_ref()
            .expect("an algorithm that compares with the start is given it")
    }

    /// The trained weights before the last update.
    ///
    /// # Panics
    /// If the rollouts of the run are not an update behind.
    pub(super) fn previous(&self) -> &Weights {
        self.previous
            .as_ref()
            .expect("a run whose rollouts are an update behind begins with them")
    }

    /// Makes [`previous`](Self::previous) what the trained weights are now. It has memory of its own: did it share that of the trained
    /// weights, the next step would move these away from where recordings of the model read them.
    pub(super) fn remember(&mut self, kernels: &dyn Kernels, device: &ComputeDevice, trained: &[bool]) {
        let Some(previous) = self.previous.as_mut() else {
            return;
        };
        let (current, ops) = (&self.current, kernels.ops());
        let mut previous = previous.update();
        let each = previous.each().enumerate().filter(|(index, _)| trained[*index]);
        device.with_persistent_allocation(|| {
            for (index, Changing { value, lower, copy }) in each {
                match lower {
                    // Halves hold bits that are no numbers, which a copy need not keep.
                    Some(lower) => {
                        let whole = current.values(&[index], kernels).remove(0);
                        let halves = ops.weights.split(&whole);
                        (*value, *lower) = (halves.upper, halves.lower);
                    }
                    None => ops
                        .weights
                        .copy_all(vec![(&mut *value, &current.stored()[index])]),
                }
                if let Some(copy) = copy {
                    ops.weights.copy_all(vec![(copy, &*value)]);
                }
            }
        });
    }

    /// Puts teachers that are adapters onto the frozen weights of the run, where the run trains adapters, too: both share them.
    ///
    /// # Errors
    /// If a teacher is of another architecture.
    fn share_with_teachers(&mut self) -> Result<(), CoreError> {
        let layout = self.current.layout().clone();
        if !layout.has_adapters() {
            return Ok(());
        }
        for teacher in self.teachers.iter_mut().filter(|it| it.layout().has_adapters()) {
            for (index, spec) in layout.specs().iter().enumerate() {
                if spec.kind != ParamKind::Adapter {
                    teacher.set(index, self.current.stored()[index].clone())?;
                }
            }
        }
        Ok(())
    }

    /// Shares out the lower halves of the trained weights, and of their copies in halves, as the optimizer's state is: each stays on the rank that
    /// steps it. Gives the reason if every rank keeps all of them although weights are whole and in halves.
    pub(crate) fn share_lower_halves(&mut self, shards: &Shards) -> Option<&'static str> {
        let followers = [&self.average, &self.old, &self.sampling];
        let reason = if followers.iter().any(|set| set.is_some()) {
            Some("the average, or the slower policy of the algorithm, follows all 32 bits on every process")
        } else if self.current.layout().has_adapters() {
            Some("the first process writes adapters from its own weights, and they are small")
        } else {
            None
        };
        if reason.is_some() {
            // Of parts there is one lower half anyway.
            return reason.filter(|_| self.current.has_halves() && self.current.blocks().is_none());
        }
        let kept = shards.kept_lower_halves();
        // Those before the last update are begun as a clone of the trained ones.
        for set in std::iter::once(&mut self.current).chain(&mut self.reference) {
            set.keep_lower_halves(kept.clone());
        }
        None
    }

    pub(super) fn follow(
        &mut self,
        kernels: &dyn Kernels,
        device: &ComputeDevice,
        trained: &[bool],
        Decays {
            average,
            old,
            sampling,
        }: Decays,
    ) {
        let sets = [
            (&mut self.average, average),
            (&mut self.old, old),
            (&mut self.sampling, sampling),
        ];
        for (set, decay) in sets {
            if let (Some(set), Some(decay)) = (set.as_mut(), decay) {
                average_into(set, &self.current, (kernels, device), trained, decay);
            }
        }
    }
}
