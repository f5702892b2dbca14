//! Weights in halves whose lower ones are shared out: the bits of a run that shares nothing, through checkpoints and on other numbers of ranks,
//! and half the bytes.

use super::{gradient, layout_of, settings, size};
use crate::optimizer::{Accumulated, AdamW};
use crate::shards::Shards;
use crate::state_of_ranks;
use crate::state_sections::{MOMENTS, Sections, add_moments, add_weights};
use burn::tensor::FloatDType;
use flow_core::device::ComputeDevice;
use flow_core::{Kernels, ParamView, WeightStorage, Weights, split_f32};
use flow_exchange::{Alone, Exchange, Lanes, Lost, Values, World, in_process};
use flow_kernels::CpuKernels;
use flow_report::{CheckpointReader, CheckpointStore, CheckpointWriter};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const SIZES: [usize; 6] = [40, 300, 7, 129, 64, 1];
/// The first one is frozen.
const TRAINED: [bool; 6] = [false, true, true, true, true, true];
/// One has no gradient.
const STEPPED: [bool; 6] = [false, true, true, true, false, true];

/// Counts the bytes of the parts of rows that this rank gives to all.
#[derive(Debug)]
struct Counting<'a> {
    exchange: &'a dyn Exchange,
    given: AtomicUsize,
}

impl Exchange for Counting<'_> {
    fn world(&self) -> World {
        self.exchange.world()
    }

    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Lost> {
        self.exchange.gather(mine)
    }

    fn sum(&self, lanes: &Lanes, parts: &mut [&mut dyn Values]) -> Result<(), Lost> {
        self.exchange.sum(lanes, parts)
    }

    fn reduce_scatter(
        &self,
        lanes: &Lanes,
        parts: &mut [&mut dyn Values],
        counts: &[usize],
        own: &mut dyn Values,
    ) -> Result<(), Lost> {
        self.exchange.reduce_scatter(lanes, parts, counts, own)
    }

    fn settle(&self) -> Result<(), Lost> {
        self.exchange.settle()
    }

    fn broadcast(&self, values: &mut dyn Values, from: usize) -> Result<(), Lost> {
        self.exchange.broadcast(values, from)
    }

    fn share(&self, values: &mut dyn Values, counts: &[usize]) -> Result<(), Lost> {
        let bytes = counts[self.world().rank] * values.value_type().bytes();
        self.given.fetch_add(bytes, Ordering::Relaxed);
        self.exchange.share(values, counts)
    }

    fn transfer(&self, values: &mut dyn Values, from: usize, to: usize) -> Result<(), Lost> {
        self.exchange.transfer(values, from, to)
    }

    fn check(&self) -> Result<(), Lost> {
        self.exchange.check()
    }

    fn abort(&self, words: &str) {
        self.exchange.abort(words);
    }
}

/// Weights and who steps them, on one rank.
struct OnRank<'a> {
    exchange: &'a dyn Exchange,
    device: ComputeDevice,
    kernels: CpuKernels,
    weights: Weights,
    optimizer: AdamW,
}

/// What a rank has after its steps.
#[derive(Debug)]
struct Had {
    /// The bits that models see, of all weights.
    seen: Vec<Vec<u16>>,
    /// What is compared between ranks, of all weights.
    common: Vec<Vec<u32>>,
    /// Whether the lower half is here, by weight.
    lower: Vec<bool>,
    /// Bytes given to all.
    given: usize,
}

impl<'a> OnRank<'a> {
    /// With lower halves shared out over several ranks, if that is `wanted`.
    fn begun(exchange: &'a dyn Exchange, wanted: bool) -> Self {
        let device = ComputeDevice::cpu().computing_in(FloatDType::BF16);
        let (layout, kernels, world) = (
            Arc::new(layout_of(&SIZES)),
            CpuKernels::default(),
            exchange.world(),
        );
        let mut weights = Weights::init(layout.clone(), 3, &device);
        weights.store(&TRAINED, WeightStorage::SplitF32, &kernels);
        let shards = world.is_several().then(|| Shards::new(&layout, &TRAINED, world));
        if let Some(shards) = shards.as_ref().filter(|_| wanted) {
            weights.keep_lower_halves(shards.kept_lower_halves());
        }
        let optimizer = AdamW::sharded(settings(), &layout, TRAINED.to_vec(), shards, &device);
        Self {
            exchange,
            device,
            kernels,
            weights,
            optimizer,
        }
    }

    /// As saved in `folder` after so many steps.
    fn resumed(exchange: &'a dyn Exchange, wanted: bool, (folder, steps): (&Path, u64)) -> Self {
        let mut run = Self::begun(exchange, wanted);
        let reader = reader(folder, steps);
        let sections = Sections {
            reader: &reader,
            device: &run.device,
            help: "Use another checkpoint",
        };
        sections
            .weights("current", &mut run.weights, |_| true)
            .expect("of the same weights");
        run.weights.settle(&run.kernels);
        let layout = run.weights.layout().clone();
        let moments = sections.moments(MOMENTS, &layout, &run.optimizer);
        run.optimizer
            .restore(steps, moments.expect("of the same weights"));
        run
    }

    fn steps(&mut self, numbers: RangeInclusive<u32>) {
        let layout = self.weights.layout().clone();
        for number in numbers {
            let gradients = STEPPED.iter().enumerate();
            let gradients = gradients
                .map(|(index, stepped)| stepped.then(|| gradient(&self.device, &layout, index, number)));
            let mut sums = Accumulated::of(1);
            sums.add(&self.kernels, gradients.collect());
            self.optimizer
                .step(&self.kernels, &self.device, &mut self.weights, sums)
                .expect("finite gradients");
            let on = (&self.kernels as &dyn Kernels, &self.device);
            self.optimizer
                .share(self.exchange, &mut self.weights, &STEPPED, on)
                .expect("everyone is there");
        }
    }

    /// Writes a checkpoint, of which each rank gives what it has.
    fn save(&self, folder: &Path) {
        if !self.exchange.world().is_first() {
            let sets = [Some(&self.weights)];
            return state_of_ranks::give(self.exchange, &self.optimizer, &sets).expect("everyone is there");
        }
        let mut writer = CheckpointWriter::new(self.optimizer.steps(), serde_json::Value::Null);
        let holders = (&self.optimizer, self.exchange);
        add_weights(&mut writer, ("current", 0), &self.weights, |_| true, holders).expect("new names");
        add_moments(&mut writer, MOMENTS, self.weights.layout(), holders).expect("new names");
        let saved = CheckpointStore::new(folder, NonZeroUsize::MIN).save(&writer);
        state_of_ranks::end(self.exchange, &self.optimizer).expect("everyone is there");
        saved.expect("a folder that can be written");
    }

    fn has(&self, given: usize) -> Had {
        let all: Vec<usize> = (0..SIZES.len()).collect();
        let seen = ParamView::plain(&self.weights).leaves_of(&all);
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect();
        let common = all.iter().map(|index| bits(self.weights.common_host(*index)));
        let lower = all.iter().map(|index| !self.weights.lacks_lower_half(*index));
        Had {
            seen: seen.iter().map(split_f32::bits).collect(),
            common: common.collect(),
            lower: lower.collect(),
            given,
        }
    }
}

fn reader(folder: &Path, steps: u64) -> CheckpointReader {
    let path = CheckpointStore::new(folder, NonZeroUsize::MIN).path_of(steps);
    CheckpointReader::open(&path).unwrap_or_else(|error| panic!("{error}"))
}

/// The tensors of a checkpoint, by name.
fn tensors(folder: &Path, steps: u64) -> Vec<(String, Vec<u8>)> {
    let reader = reader(folder, steps);
    let names = reader.sections().iter().map(|section| section.name.clone());
    names
        .map(|name| {
            let bytes = reader.section(&name).unwrap_or_else(|error| panic!("{error}"));
            (name, bytes)
        })
        .collect()
}

/// The steps of these numbers on so many ranks, from the beginning or from the checkpoint before them, and the checkpoint after them.
fn on_ranks(ranks: usize, wanted: bool, numbers: RangeInclusive<u32>, folder: &Path) -> Vec<Had> {
    let exchanges = match ranks {
        1 => vec![Arc::new(Alone) as Arc<dyn Exchange>],
        _ => in_process(ranks, Duration::from_secs(20)),
    };
    let on_rank = |exchange: &dyn Exchange| {
        let counting = Counting {
            exchange,
            given: AtomicUsize::new(0),
        };
        let mut run = match *numbers.start() {
            1 => OnRank::begun(&counting, wanted),
            next => OnRank::resumed(&counting, wanted, (folder, u64::from(next - 1))),
        };
        run.steps(numbers.clone());
        let given = counting.given.load(Ordering::Relaxed);
        run.save(folder);
        run.has(given)
    };
    let on_rank = &on_rank;
    std::thread::scope(|scope| {
        let threads: Vec<_> = exchanges
            .into_iter()
            .map(|exchange| scope.spawn(move || on_rank(&*exchange)))
            .collect();
        let all = threads.into_iter().map(|thread| thread.join());
        all.map(|had| had.expect("no rank panics")).collect()
    })
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// Bytes that all ranks give in so many steps, of `one` for each value.
fn bytes_of(steps: usize, one: usize) -> usize {
    let layout = layout_of(&SIZES);
    let stepped = STEPPED.iter().enumerate().filter(|(_, stepped)| **stepped);
    steps * one * stepped.map(|(index, _)| size(&layout, index)).sum::<usize>()
}

#[test]
fn lower_halves_that_are_shared_out_leave_the_bits_of_whole_weights_and_half_the_bytes_travel() {
    let alone = folder();
    let wanted = on_ranks(1, true, 1..=4, alone.path()).remove(0);
    assert!(wanted.lower.iter().all(|is_here| *is_here));
    for ranks in [2, 3] {
        for (is_shared, of_one) in [(true, 2), (false, 4)] {
            let words = format!("on {ranks}, shared {is_shared}");
            let root = folder();
            let all = on_ranks(ranks, is_shared, 1..=4, root.path());
            for had in &all {
                assert!(had.seen == wanted.seen, "{words}: what models see");
                assert!(had.common == all[0].common, "{words}: what is compared");
            }
            assert!(tensors(root.path(), 4) == tensors(alone.path(), 4), "{words}");
            let given: usize = all.iter().map(|had| had.given).sum();
            assert_eq!(given, bytes_of(4, of_one), "{words}");
            for (index, trained) in TRAINED.iter().enumerate() {
                let holders = all.iter().filter(|had| had.lower[index]).count();
                let expected = if is_shared && *trained { 1 } else { ranks };
                assert_eq!(holders, expected, "{words}: weight {index}");
            }
        }
    }
}

#[test]
fn a_checkpoint_of_shared_lower_halves_goes_on_shared_or_whole_on_any_number_of_ranks() {
    let alone = folder();
    let wanted = on_ranks(1, true, 1..=4, alone.path()).remove(0);
    for (first, before, second, after) in [
        (1, true, 2, true),
        (2, true, 3, true),
        (3, true, 1, true),
        (3, true, 2, false),
        (2, false, 3, true),
    ] {
        let words = format!("from {first} to {second}");
        let root = folder();
        on_ranks(first, before, 1..=2, root.path());
        for had in on_ranks(second, after, 3..=4, root.path()) {
            assert!(had.seen == wanted.seen, "{words}: what models see");
        }
        assert!(tensors(root.path(), 4) == tensors(alone.path(), 4), "{words}");
    }
}
