//! Sums of blocks in parts beside sums of whole weights.

use super::{BlockSums, LossTermLanes};
use crate::optimizer::Accumulated;
use crate::optimizer::accumulated::Summed;
use crate::shards::Shards;
use flow_core::cpu::to_host;
use flow_core::device::ComputeDevice;
use flow_core::params::LayoutBuilder;
use flow_core::rng::{Purpose, Stream};
use flow_core::{BlockGradients, Init, Kernels, ModelSpec, ParamLayout, RawTensor};
use flow_exchange::{Exchange, Lanes, in_process};
use flow_exchange_cube::{BlockExchange, BlockParts};
use flow_kernels::CpuKernels;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const LANES: usize = 4;

/// The lanes of the loss terms of each rank, in order. Lane 2 has none.
const LOSS_TERMS: [&[usize]; 2] = [&[0, 0, 1], &[3]];

/// A loss term in whose backward pass no gradient reaches block 1.
const WITHOUT: usize = 1;

/// Two blocks of two weights each, of which ranks have no even halves: they are cut within a piece of those whose squares are summed apart, of which
/// the larger weights have several.
fn layout() -> Arc<ParamLayout> {
    let mut layout = ParamLayout::default();
    let mut builder = LayoutBuilder::new(&mut layout);
    for block in 0..2 {
        let mut weights = builder.under(format_args!("blocks.{block}"));
        weights.param("up", [3, 9_001 + block], Init::Zeros);
        weights.param("bias", [7], Init::Zeros);
    }
    Arc::new(layout)
}

/// The gradient of a weight in one of the two runs of its block in a loss term.
fn gradient(layout: &ParamLayout, index: usize, loss_term: usize, run: u32) -> RawTensor {
    let shape = &layout.specs()[index].shape;
    let mut values = vec![0.0; shape.iter().product()];
    Stream::new(5, Purpose::Test)
        .at((4 * loss_term + index) as u64, run)
        .fill_normal(&mut values);
    ComputeDevice::cpu().plain(values, shape)
}

/// The sums of one process that has all loss terms and all weights.
fn whole(layout: &ParamLayout, kernels: &dyn Kernels) -> Summed {
    let mut sums = Accumulated::in_lanes(LANES, Lanes::new(LANES));
    let (of_loss_terms, mut loss_term) = (LOSS_TERMS.concat(), 0);
    for lane in 0..LANES {
        if !of_loss_terms.contains(&lane) {
            sums.add_none_to(lane, kernels, layout.len());
        }
        while of_loss_terms.get(loss_term) == Some(&lane) {
            let both_runs = |index: usize| {
                let mut sum = gradient(layout, index, loss_term, 0);
                let second = gradient(layout, index, loss_term, 1);
                kernels.ops().optimizer.accumulate(&mut sum, &second);
                (index < 2 || loss_term != WITHOUT).then_some(sum)
            };
            let gradients = (0..layout.len()).map(both_runs).collect();
            sums.add_to(lane, kernels, gradients);
            loss_term += 1;
        }
    }
    sums.total(kernels)
}

/// Compares a rank's sums with those of one process.
fn compare(exchange: Arc<dyn Exchange>) {
    let (layout, world, device) = (layout(), exchange.world(), ComputeDevice::cpu());
    let spec = ModelSpec {
        stacks: vec![("blocks".to_owned(), 2)],
        ..ModelSpec::default()
    };
    let kernels: Arc<dyn Kernels> = Arc::new(CpuKernels::default());
    let exchange = BlockExchange::new(exchange);
    let blocks = exchange.hold(BlockParts::new(&spec, &layout, (world, &device)));
    let shards = Shards::beside_parts(&layout, &[true; 4], &*blocks, world);
    let exchange: Arc<dyn Exchange> = Arc::new(exchange);
    let lanes = Lanes::new(LANES);
    let loss_terms = LossTermLanes {
        lanes,
        own: lanes.of_rank(world.rank, world.ranks),
        of_loss_terms: LOSS_TERMS[world.rank].to_vec(),
        all_loss_terms: 4,
    };
    let first = LOSS_TERMS[..world.rank].concat().len();
    let own_loss_terms = first..first + loss_terms.of_loss_terms.len();
    let sums = BlockSums::new(
        (&spec, &layout),
        &shards,
        &exchange,
        (&kernels, &device),
        loss_terms,
    );
    for loss_term in own_loss_terms {
        for block in [0, 1, 0, 1] {
            sums.expect("blocks", block);
        }
        for (block, run) in [(1, 0), (0, 0), (1, 1), (0, 1)] {
            if (block, loss_term) != (1, WITHOUT) {
                let weights = 2 * block..2 * block + 2;
                let gradients = weights.map(|index| (index, gradient(&layout, index, loss_term, run)));
                sums.take("blocks", block, gradients.collect());
            }
        }
        sums.end_unit();
    }
    let mut accumulated = Accumulated::in_lanes(4, lanes);
    sums.finish(&mut accumulated).expect("everyone is there");
    let on = (&*kernels, &device, Some(&shards));
    let ended = accumulated.exchange((&*exchange, lanes), &layout, &[false; 4], on);
    ended.expect("everyone is there");
    let (found, wanted) = (accumulated.total(&*kernels), whole(&layout, &*kernels));
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    for index in 0..layout.len() {
        let own = shards.own_part(index).expect("it is in parts");
        let found = found.sums[index].as_ref().map_or_else(Vec::new, to_host);
        let wanted = to_host(wanted.sums[index].as_ref().expect("it has a gradient"));
        assert_eq!(bits(&found), bits(&wanted[own]), "weight {index}");
    }
    let squares = |sums: &Summed| {
        let squares = sums.squares(&*kernels);
        squares
            .map(|(index, squares)| (index, squares.total().to_bits()))
            .collect::<Vec<_>>()
    };
    assert_eq!(squares(&found), squares(&wanted), "squares");
}

#[test]
fn blocks_that_run_twice_or_get_no_gradient_add_up_on_ranks_with_other_numbers_of_loss_terms() {
    let ranks = in_process(LOSS_TERMS.len(), Duration::from_secs(20));
    let threads: Vec<_> = ranks
        .into_iter()
        .map(|exchange| thread::spawn(move || compare(exchange)))
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("no rank panics"));
}
