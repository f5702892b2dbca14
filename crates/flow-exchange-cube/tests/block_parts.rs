//! Weights of blocks in parts: whole ones come back bit by bit, whatever each rank computes.

use burn::tensor::FloatDType;
use flow_core::device::ComputeDevice;
use flow_core::params::LayoutBuilder;
use flow_core::stopped::caught;
use flow_core::{Drawn, Init, ModelSpec, ParamLayout, ParamView, Stopped, Weights, cpu};
use flow_exchange::{Exchange, Lanes, Lost, Values, World, in_process};
use flow_exchange_cube::{BlockExchange, BlockParts};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

/// Two stacks, of which the name of one ends like the other's: blocks of weights of several sizes, the last of one value.
fn model() -> (ModelSpec, Arc<ParamLayout>) {
    let mut layout = ParamLayout::default();
    let mut builder = LayoutBuilder::new(&mut layout);
    builder.param("embedder.weight", [3, 5], Init::Normal(1.0));
    for (stack, blocks) in [("blocks", 11), ("single_blocks", 2)] {
        for block in 0..blocks {
            let mut parts = builder.under(format_args!("{stack}.{block}"));
            parts.param("up.weight", [7, 13 + block], Init::Normal(1.0));
            parts.param("up.bias", [7], Init::Normal(1.0));
            parts.param("down.weight", [129, 3], Init::Normal(1.0));
            parts.param("gate", [1], Init::Normal(1.0));
            parts.buffer("table", [4], Init::Ones);
        }
    }
    let stacks = vec![("blocks".to_owned(), 11), ("single_blocks".to_owned(), 2)];
    let spec = ModelSpec {
        stacks,
        ..ModelSpec::default()
    };
    (spec, Arc::new(layout))
}

/// What a file would give.
fn file(layout: &Arc<ParamLayout>) -> Weights {
    Weights::init(layout.clone(), 3, &ComputeDevice::cpu())
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Weights of which this rank has a part each, as a file gives them.
fn in_parts(exchange: &BlockExchange, device: &ComputeDevice) -> Weights {
    let (spec, layout) = model();
    let frozen = vec![false; layout.len()];
    let parts = BlockParts::new(&spec, &layout, (exchange.world(), device));
    let blocks = exchange.hold(parts);
    let drawn = (Drawn::Adapters, &frozen[..]);
    let mut weights = Weights::init_on_parts(layout.clone(), (0, device), drawn, blocks);
    let file = file(&layout);
    for index in 0..layout.len() {
        weights
            .set_host(index, file.host(index))
            .expect("the shapes are those of the layout");
    }
    weights
}

/// The whole values of a block, by name, as a view of it shows them; `next` is said to be the one after it.
fn of_block(weights: &Weights, stack: &str, block: usize, next: Option<usize>) -> Vec<(String, Vec<u32>)> {
    let layout = weights.layout().clone();
    let view = ParamView::plain(weights);
    let view = view
        .of_block(stack, block, next)
        .expect("weights in parts are made whole");
    let prefix = format!("{stack}.{block}.");
    let specs = layout.specs().iter().enumerate();
    let specs = specs.filter(|(_, spec)| spec.name.starts_with(&prefix));
    specs
        .map(|(index, spec)| {
            let value = view.leaves_of(&[index]).remove(0);
            assert_eq!(flow_core::tensors::shape(&value), spec.shape, "{}", spec.name);
            (spec.name.clone(), bits(&cpu::to_host(&value)))
        })
        .collect()
}

/// The same of weights that are whole, in the type in which a device keeps what is frozen.
fn wanted(device: &ComputeDevice, stack: &str, block: usize) -> Vec<(String, Vec<u32>)> {
    let layout = model().1;
    let mut weights = Weights::zeros(layout.clone(), device);
    for index in 0..layout.len() {
        weights
            .set_host(index, file(&layout).host(index))
            .expect("the shapes are those of the layout");
    }
    weights.freeze(&vec![false; layout.len()]);
    let prefix = format!("{stack}.{block}.");
    let specs = layout.specs().iter().enumerate();
    let specs = specs.filter(|(_, spec)| spec.name.starts_with(&prefix));
    specs
        .map(|(index, spec)| (spec.name.clone(), bits(&weights.host(index))))
        .collect()
}

fn on_each<T: Send + 'static>(
    ranks: usize,
    of: impl Fn(BlockExchange) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let threads: Vec<_> = in_process(ranks, PATIENCE)
        .into_iter()
        .map(|exchange| {
            let of = of.clone();
            thread::spawn(move || of(BlockExchange::new(exchange)))
        })
        .collect();
    threads
        .into_iter()
        .map(|thread| thread.join().expect("no rank panics"))
        .collect()
}

#[test]
fn ranks_that_compute_different_blocks_get_the_bits_of_whole_weights_and_meet_at_the_next_exchange() {
    for device in [
        ComputeDevice::cpu(),
        ComputeDevice::cpu().computing_in(FloatDType::BF16),
    ] {
        for ranks in [2, 3, 4] {
            let on = device.clone();
            let seen = on_each(ranks, move |exchange| {
                let weights = in_parts(&exchange, &on);
                let rank = exchange.world().rank;
                // Rank 0 computes nothing, rank 1 all blocks as it says beforehand, rank 2 some of them twice and in another order, most of
                // them others than it said, and in the end not the one that it has ahead.
                let blocks: Vec<(&str, usize, Option<usize>)> = match rank {
                    0 => vec![],
                    1 => (0..11).map(|block| ("blocks", block, Some(block + 1))).collect(),
                    _ => vec![
                        ("single_blocks", 1, Some(0)),
                        ("blocks", 10, Some(9)),
                        ("blocks", 1, Some(1)),
                        ("blocks", 1, Some(2)),
                        ("blocks", 2, None),
                        ("blocks", 4, Some(5)),
                    ],
                };
                for (stack, block, next) in blocks {
                    let found = of_block(&weights, stack, block, next);
                    assert!(found == wanted(&on, stack, block), "{stack}.{block} on {ranks}");
                }
                exchange.gather(&[rank as u8]).expect("everyone is there")
            });
            let ordered: Vec<Vec<u8>> = (0..ranks as u8).map(|rank| vec![rank]).collect();
            assert!(seen.iter().all(|gathered| *gathered == ordered));
        }
    }
}

/// The first weight of a block that is not of one value, and all its values.
fn whole(weights: &Weights, block: usize) -> Vec<u32> {
    of_block(weights, "blocks", block, None).remove(0).1
}

#[test]
fn a_set_that_changes_is_gathered_as_it_is_then_and_its_clones_stay_as_they_were() {
    for ranks in [2, 3] {
        on_each(ranks, |exchange| {
            let device = ComputeDevice::cpu();
            let mut weights = in_parts(&exchange, &device);
            let before = weights.clone();
            let first = whole(&weights, 4);
            assert_eq!(whole(&before, 4), first, "clones are of one set");
            exchange.gather(&[]).expect("everyone is there");
            // Each rank doubles what it has; a part that is empty is one value that stands for nothing.
            let mut update = weights.update();
            for changing in update.each() {
                let shape = flow_core::tensors::shape(changing.value);
                let doubled = cpu::to_host(changing.value).into_iter().map(|value| 2.0 * value);
                *changing.value = device.plain(doubled.collect(), &shape);
            }
            drop(update);
            // Rank 0 looks at the changed set while the others look at the old one.
            let doubled: Vec<u32> = (first.iter())
                .map(|bits| (2.0 * f32::from_bits(*bits)).to_bits())
                .collect();
            match exchange.world().rank {
                0 => {
                    assert_eq!(whole(&weights, 4), doubled);
                    assert_eq!(whole(&before, 4), first);
                }
                _ => {
                    assert_eq!(whole(&before, 4), first);
                    assert_eq!(whole(&weights, 4), doubled);
                }
            }
            exchange.gather(&[]).expect("everyone is there");
            let index = weights
                .layout()
                .find("blocks.4.up.weight")
                .expect("it is declared");
            assert!(weights.is_in_parts(index));
            let counts = weights.blocks().and_then(|blocks| blocks.counts(index));
            let counts = counts.expect("it is in parts");
            assert_eq!(counts.iter().sum::<usize>(), first.len());
            assert_eq!(weights.own_host(index).len(), counts[exchange.world().rank]);
        });
    }
}

#[test]
fn a_weight_that_is_replaced_is_not_read_from_a_block_that_was_ahead() {
    on_each(2, |exchange| {
        let device = ComputeDevice::cpu();
        let mut weights = in_parts(&exchange, &device);
        of_block(&weights, "blocks", 4, Some(5));
        exchange.gather(&[]).expect("everyone is there");
        let index = weights.layout().find("blocks.5.up.weight");
        let index = index.expect("it is declared");
        let count: usize = weights.layout().specs()[index].shape.iter().product();
        weights
            .set_host(index, vec![2.5; count])
            .expect("as many values as it has");
        assert_eq!(whole(&weights, 5), vec![2.5f32.to_bits(); count]);
        exchange.gather(&[]).expect("everyone is there");
    });
}

#[test]
fn every_value_has_one_rank_that_keeps_it_and_no_rank_keeps_much_more_than_its_share() {
    let (spec, layout) = model();
    let device = ComputeDevice::cpu();
    for ranks in [2, 3, 4] {
        let worlds: Vec<_> = in_process(ranks, PATIENCE)
            .iter()
            .map(|exchange| exchange.world())
            .collect();
        let parts: Vec<BlockParts> = worlds
            .iter()
            .map(|world| BlockParts::new(&spec, &layout, (*world, &device)))
            .collect();
        // With the gaps between weights, which portions are of as well.
        let (mut shared, mut in_rows) = (0, 0);
        for (index, weight) in layout.specs().iter().enumerate() {
            let own: Vec<_> = parts.iter().map(|parts| parts.own_part(index)).collect();
            let is_of_block = weight.name.contains("blocks.") && !weight.name.ends_with("table");
            assert!(
                own.iter().all(|own| own.is_some() == is_of_block),
                "{}",
                weight.name
            );
            // Ranks have consecutive parts; those without any have none wherever.
            let mut next = 0;
            for part in own.into_iter().flatten().filter(|part| !part.is_empty()) {
                assert_eq!(part.start, next, "{}", weight.name);
                next = part.end;
            }
            let count: usize = weight.shape.iter().product();
            assert_eq!(next, if is_of_block { count } else { 0 }, "{}", weight.name);
            shared += next;
            in_rows += next.next_multiple_of(128);
        }
        let kept: Vec<usize> = parts.iter().map(BlockParts::kept_values).collect();
        assert_eq!(kept.iter().sum::<usize>(), shared);
        // In each of 13 rows a portion may be longer by what it is aligned to.
        assert!(
            kept.iter().all(|kept| *kept <= in_rows / ranks + 13 * 128),
            "{kept:?}"
        );
    }
}

#[test]
fn several_threads_of_a_rank_may_compute_blocks_beside_one_another() {
    on_each(2, |exchange| {
        let device = ComputeDevice::cpu();
        let weights = in_parts(&exchange, &device);
        let weights = &weights;
        thread::scope(|scope| {
            for first in 0..3 {
                let device = &device;
                scope.spawn(move || {
                    for block in (first..11).step_by(3) {
                        let found = of_block(weights, "blocks", block, Some(block + 3));
                        assert!(found == wanted(device, "blocks", block));
                    }
                });
            }
        });
        exchange.gather(&[]).expect("everyone is there");
    });
}

#[test]
fn a_rank_that_stops_ends_the_computation_of_the_others_with_its_words() {
    let outcomes = on_each(2, |exchange| {
        let device = ComputeDevice::cpu();
        let weights = in_parts(&exchange, &device);
        if exchange.world().rank == 1 {
            exchange.abort("its disk is full");
            // It is there until the other has seen it.
            let _ = exchange.gather(&[]);
            return Ok(());
        }
        let outcome = caught(|| of_block(&weights, "blocks", 0, Some(1))).map(drop);
        exchange.abort("it lost the other");
        outcome
    });
    let Err(Stopped::RankLost { why }) = &outcomes[0] else {
        panic!("{outcomes:?}");
    };
    assert!(why.contains("its disk is full"), "{why}");
}

/// Writes down what is asked of an exchange, and the type of rows.
#[derive(Debug)]
struct Logged {
    exchange: Arc<dyn Exchange>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Logged {
    fn log(&self, words: impl Into<String>) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.push(words.into());
    }
}

impl Exchange for Logged {
    fn world(&self) -> World {
        self.exchange.world()
    }

    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Lost> {
        self.log("gather");
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
        self.log(format!("{:?}", values.value_type()));
        self.exchange.share(values, counts)
    }

    fn share_ahead(&self, values: &mut dyn Values, counts: &[usize]) -> Result<(), Lost> {
        self.log(format!("{:?} ahead", values.value_type()));
        self.exchange.share_ahead(values, counts)
    }

    fn await_ahead(&self) -> Result<(), Lost> {
        self.log("await");
        self.exchange.await_ahead()
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

#[test]
fn a_block_travels_once_a_pass_in_the_type_it_is_stored_in_and_ahead_of_its_turn() {
    for (device, of) in [
        (ComputeDevice::cpu(), "F32"),
        (ComputeDevice::cpu().computing_in(FloatDType::BF16), "Bf16"),
    ] {
        let threads: Vec<_> = in_process(2, PATIENCE)
            .into_iter()
            .map(|exchange| {
                let device = device.clone();
                thread::spawn(move || {
                    let log: Arc<Mutex<Vec<String>>> = Arc::default();
                    let logged = Logged {
                        exchange,
                        log: Arc::clone(&log),
                    };
                    let exchange = BlockExchange::new(Arc::new(logged));
                    let weights = in_parts(&exchange, &device);
                    let forward = (0..11).map(|block| (block, Some(block + 1).filter(|next| *next < 11)));
                    let backward = (0..11).rev().map(|block: usize| (block, block.checked_sub(1)));
                    for (block, next) in forward.chain(backward) {
                        let found = of_block(&weights, "blocks", block, next);
                        assert!(found == wanted(&device, "blocks", block), "block {block}");
                    }
                    exchange.gather(&[]).expect("everyone is there");
                    std::mem::take(&mut *log.lock().unwrap_or_else(PoisonError::into_inner))
                })
            })
            .collect();
        let ahead = format!("{of} ahead");
        let ahead = ahead.as_str();
        // The first block of a pass and the second come in one round; the last one is there when it is asked for.
        let between = ["await", "gather", ahead].repeat(9);
        let parts: [&[&str]; 6] = [
            &["gather", of, ahead],
            &between,
            &["await", "gather", of, ahead],
            &between,
            &["await"],
            // At the next exchange, after a round in which nobody wants a block.
            &["await", "gather", "gather"],
        ];
        let wanted = parts.concat();
        for thread in threads {
            assert_eq!(thread.join().expect("no rank panics"), wanted);
        }
    }
}

#[test]
#[should_panic(expected = "read outside of the block")]
fn a_weight_in_parts_that_is_read_outside_of_its_block_is_a_bug() {
    let exchange = in_process(2, PATIENCE).remove(0);
    let weights = in_parts(&BlockExchange::new(exchange), &ComputeDevice::cpu());
    let index = weights
        .layout()
        .find("blocks.3.up.weight")
        .expect("it is declared");
    ParamView::plain(&weights).leaves_of(&[index]);
}
