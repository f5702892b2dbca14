//! The plan of shares, and steps of a state that is shared out beside those of a whole one.

mod lower_halves;

use super::{Shards, count, size};
use crate::optimizer::{Accumulated, AdamW, AdamWSettings, MomentStorage, RateSchedule};
use burn::tensor::FloatDType;
use flow_core::cpu::to_host;
use flow_core::device::ComputeDevice;
use flow_core::params::LayoutBuilder;
use flow_core::rng::{Purpose, Stream};
use flow_core::{
    Drawn, Init, Kernels, ModelSpec, ParamLayout, ParamView, RawTensor, WeightStorage, Weights, split_f32,
};
use flow_exchange::{Exchange, Lanes, World, in_process};
use flow_exchange_cube::{BlockExchange, BlockParts};
use flow_kernels::CpuKernels;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

fn layout_of(sizes: &[usize]) -> ParamLayout {
    let mut layout = ParamLayout::default();
    let mut builder = LayoutBuilder::new(&mut layout);
    for (index, size) in sizes.iter().enumerate() {
        builder.param(&format!("weight{index}"), [*size], Init::Normal(1.0));
    }
    layout
}

fn world(rank: usize, ranks: usize) -> World {
    World {
        rank,
        ranks,
        local_rank: rank,
        local_ranks: ranks,
        attempt: 0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_trained_weight_has_one_owner_on_all_ranks_alike_and_no_rank_has_more_than_a_share_and_a_weight(
        weights in prop::collection::vec((1usize..5000, any::<bool>()), 0..40), ranks in 1usize..9,
    ) {
        let (sizes, trained): (Vec<usize>, Vec<bool>) = weights.into_iter().unzip();
        let layout = layout_of(&sizes);
        let first = Shards::new(&layout, &trained, world(0, ranks));
        let mut values = vec![0; ranks];
        for (index, (size, trained)) in sizes.iter().zip(&trained).enumerate() {
            let owner = first.owner(index);
            prop_assert_eq!(owner.is_some(), *trained);
            if let Some(owner) = owner {
                prop_assert!(owner < ranks);
                values[owner] += size;
            }
        }
        for rank in 0..ranks {
            let shards = Shards::new(&layout, &trained, world(rank, ranks));
            prop_assert_eq!(&shards.owners, &first.owners);
            prop_assert!((0..sizes.len()).all(|index| shards.is_own(index) == (first.owner(index) == Some(rank))));
        }
        let largest = sizes.iter().zip(&trained).filter(|(_, trained)| **trained);
        let largest = largest.map(|(size, _)| *size).max().unwrap_or(0);
        let (most, all) = (*values.iter().max().unwrap(), values.iter().sum::<usize>());
        prop_assert!(most * ranks <= all + largest * ranks, "{values:?}");
    }

    #[test]
    fn every_stepped_weight_is_shared_once_by_its_owner_and_not_too_much_at_a_time(
        weights in prop::collection::vec((1usize..50, any::<bool>()), 0..40), ranks in 1usize..5, at_once in 1usize..300,
    ) {
        let (sizes, stepped): (Vec<usize>, Vec<bool>) = weights.into_iter().unzip();
        let layout = layout_of(&sizes);
        let shards = Shards::new(&layout, &vec![true; sizes.len()], world(0, ranks));
        let mut seen = vec![Vec::new(); ranks];
        for batch in shards.batches(&layout, &stepped, at_once) {
            prop_assert_eq!(batch.len(), ranks);
            prop_assert!(batch.iter().any(|of_rank| !of_rank.is_empty()));
            for (rank, of_rank) in batch.into_iter().enumerate() {
                prop_assert!(of_rank.len() < 2 || count(&layout, &of_rank) <= at_once / ranks);
                seen[rank].extend(of_rank);
            }
        }
        for (rank, seen) in seen.into_iter().enumerate() {
            let wanted = (0..sizes.len()).filter(|index| stepped[*index] && shards.owner(*index) == Some(rank));
            prop_assert_eq!(seen, wanted.collect::<Vec<_>>());
        }
    }
}

fn settings() -> AdamWSettings {
    AdamWSettings {
        learning_rate: 1e-3,
        betas: (0.9, 0.99),
        epsilon: 1e-8,
        weight_decay: 0.01,
        // Clips, so that the norm of all gradients is in every step.
        max_grad_norm: 0.5,
        warmup_steps: 0,
        schedule: RateSchedule::default(),
        moments: MomentStorage::F32,
        seed: 7,
    }
}

/// The gradient of the weight at `index` in a step.
fn gradient(device: &ComputeDevice, layout: &ParamLayout, index: usize, number: u32) -> RawTensor {
    let mut values = vec![0.0; size(layout, index)];
    Stream::new(5, Purpose::Test)
        .at(index as u64, number)
        .fill_normal(&mut values);
    device.plain(values, &layout.specs()[index].shape)
}

/// Weights, one of them frozen and one of them without a gradient, and the bits of what steps leave: of the weights, of what models see of
/// them, and of the moments that are here.
fn after_steps(exchange: &dyn Exchange, is_shared: bool, storage: WeightStorage) -> [Vec<Vec<u32>>; 3] {
    let device = ComputeDevice::cpu().computing_in(FloatDType::BF16);
    let layout = Arc::new(layout_of(&[40, 300, 7, 129, 64, 1]));
    let trained = vec![false, true, true, true, true, true];
    let stepped = [false, true, true, true, false, true];
    let kernels = CpuKernels::default();
    let mut weights = Weights::init(layout.clone(), 3, &device);
    weights.store(&trained, storage, &kernels);
    let settings = settings();
    let shards = is_shared.then(|| Shards::new(&layout, &trained, exchange.world()));
    let mut optimizer = AdamW::sharded(settings, &layout, trained, shards, &device);
    let all: Vec<usize> = (0..layout.len()).collect();
    let seen = |weights: &Weights| ParamView::plain(weights).leaves_of(&all);
    for number in 1..=4 {
        // Made now, so that steps have to bring them up to date.
        drop(seen(&weights));
        let gradients = stepped.iter().enumerate();
        let gradients =
            gradients.map(|(index, stepped)| stepped.then(|| gradient(&device, &layout, index, number)));
        let mut sums = Accumulated::of(1);
        sums.add(&kernels, gradients.collect());
        optimizer.step(&kernels, &device, &mut weights, sums).unwrap();
        optimizer
            .share(
                exchange,
                &mut weights,
                &stepped,
                (&kernels as &dyn Kernels, &device),
            )
            .unwrap();
    }
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<u32>>();
    let moments = optimizer.moments().iter().map(|moments| match moments {
        Some(moments) => bits([to_host(&moments.first), to_host(&moments.second)].concat()),
        None => Vec::new(),
    });
    [
        all.iter().map(|index| bits(weights.host(*index))).collect(),
        seen(&weights)
            .iter()
            .map(|value| split_f32::bits(value).into_iter().map(u32::from).collect())
            .collect(),
        moments.collect(),
    ]
}

#[test]
fn steps_of_a_shared_state_leave_the_bits_of_a_whole_one_however_weights_are_stored() {
    for storage in [
        WeightStorage::Whole,
        WeightStorage::SplitF32,
        WeightStorage::Narrow,
    ] {
        let [weights, seen, moments] = after_steps(&flow_exchange::Alone, false, storage);
        for ranks in [2, 3] {
            let threads: Vec<_> = in_process(ranks, Duration::from_secs(20))
                .into_iter()
                .map(|exchange| std::thread::spawn(move || after_steps(&*exchange, true, storage)))
                .collect();
            let mut owners = vec![0; moments.len()];
            for thread in threads {
                let of_rank = thread.join().expect("no rank panics");
                assert!(of_rank[0] == weights, "{storage:?} on {ranks}");
                assert!(of_rank[1] == seen, "{storage:?} on {ranks}: what models see");
                for (index, own) in of_rank[2].iter().enumerate().filter(|(_, own)| !own.is_empty()) {
                    assert_eq!(own, &moments[index], "{storage:?} on {ranks}: moments of {index}");
                    owners[index] += 1;
                }
            }
            assert_eq!(owners, [0, 1, 1, 1, 1, 1], "{storage:?} on {ranks}");
        }
    }
}

/// The bits of weights after steps, and of what models see of those of the block: on ranks with parts of it, or on one process.
fn after_steps_of_a_block(exchange: Arc<dyn Exchange>, storage: WeightStorage) -> [Vec<Vec<u32>>; 2] {
    let device = ComputeDevice::cpu().computing_in(FloatDType::BF16);
    let mut layout = ParamLayout::default();
    let mut builder = LayoutBuilder::new(&mut layout);
    builder.param("embedder", [40], Init::Normal(1.0));
    let mut block = builder.under("blocks.0");
    block.param("up", [3, 101], Init::Normal(1.0));
    block.param("bias", [7], Init::Normal(1.0));
    block.param("down", [129], Init::Normal(1.0));
    builder.param("head", [5], Init::Normal(1.0));
    let layout = Arc::new(layout);
    let spec = ModelSpec {
        stacks: vec![("blocks".to_owned(), 1)],
        ..ModelSpec::default()
    };
    let (kernels, trained, world) = (CpuKernels::default(), vec![true; 5], exchange.world());
    let exchange = BlockExchange::new(exchange);
    let blocks = world.is_several().then(|| {
        let parts = BlockParts::new(&spec, &layout, (world, &device));
        exchange.hold(parts)
    });
    let mut weights = match &blocks {
        Some(blocks) => {
            let drawn = (Drawn::All, &trained[..]);
            Weights::init_on_parts(layout.clone(), (3, &device), drawn, blocks.clone())
        }
        None => Weights::init(layout.clone(), 3, &device),
    };
    weights.store(&trained, storage, &kernels);
    let before = weights.clone();
    let shards = blocks.map(|blocks| Shards::beside_parts(&layout, &trained, &*blocks, world));
    let mut optimizer = AdamW::sharded(settings(), &layout, trained, shards, &device);
    let lanes = Lanes::new(world.ranks);
    for number in 1..=4 {
        let gradient = |index: usize| Some(gradient(&device, &layout, index, number));
        let mut sums = Accumulated::in_lanes(1, lanes);
        match number as usize % world.ranks == world.rank {
            true => sums.add_to(world.rank, &kernels, (0..5).map(gradient).collect()),
            false => sums.add_none_to(world.rank, &kernels, 5),
        }
        sums.present(&kernels);
        let on = (&kernels as &dyn Kernels, &device, optimizer.shards());
        sums.exchange((&exchange, lanes), &layout, &[true; 5], on)
            .unwrap();
        optimizer.step(&kernels, &device, &mut weights, sums).unwrap();
        let on = (&kernels as &dyn Kernels, &device);
        optimizer.share(&exchange, &mut weights, &[true; 5], on).unwrap();
    }
    let seen = |weights: &Weights| -> Vec<Vec<u32>> {
        let view = ParamView::plain(weights);
        let view = view.of_block("blocks", 0, None).unwrap_or(view);
        let values = view.leaves_of(&[1, 2, 3]);
        let bits = values.iter().map(split_f32::bits);
        bits.map(|bits| bits.into_iter().map(u32::from).collect())
            .collect()
    };
    // Of the set as it was, too, which nothing changed.
    let all_seen = [seen(&before), seen(&weights)].concat();
    exchange.gather(&[]).unwrap();
    let own = (0..5).map(|index| weights.own_host(index));
    let own = own.map(|values| values.into_iter().map(f32::to_bits).collect());
    [own.collect(), all_seen]
}

#[test]
fn steps_of_parts_put_together_are_those_of_whole_weights_however_these_are_stored() {
    for storage in [
        WeightStorage::Whole,
        WeightStorage::SplitF32,
        WeightStorage::Narrow,
    ] {
        let [whole, seen] = after_steps_of_a_block(Arc::new(flow_exchange::Alone), storage);
        for ranks in [2, 3] {
            let threads: Vec<_> = in_process(ranks, Duration::from_secs(20))
                .into_iter()
                .map(|exchange| std::thread::spawn(move || after_steps_of_a_block(exchange, storage)))
                .collect();
            let mut parts = vec![Vec::new(); 5];
            for thread in threads {
                let [own, seen_here] = thread.join().expect("no rank panics");
                assert!(seen_here == seen, "{storage:?} on {ranks}: what models see");
                assert_eq!([&own[0], &own[4]], [&whole[0], &whole[4]]);
                parts.iter_mut().zip(own).for_each(|(all, own)| all.extend(own));
            }
            assert!(parts[1..4] == whole[1..4], "{storage:?} on {ranks}");
        }
    }
}
