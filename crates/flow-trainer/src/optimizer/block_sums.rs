//! Sums of the gradients of blocks of whose weights ranks have a part each, as in ZeRO-3 (Rajbhandari et al. 2020, arXiv:1910.02054).
//!
//! Backward gives the gradients of one block after another. Each is added to its block's sum of the lane at once, so that of a loss term under way no
//! more than a block's are there. In a rank's last loss term of an update the sums of a block are exchanged as soon as they are complete: each rank is
//! sent its part of them, and never has another one's. The host goes on meanwhile, and waits for all blocks at the end of the update.
//!
//! A lane adds up its loss terms one after another, and lanes are added by their tree: this order is that of the run on one rank, and it needs a
//! lane's whole sum until its last loss term. So where a rank has several loss terms, it holds the sums of all blocks, one for each level of the tree
//! that is open; where it has one, it never holds more than a block's.
//!
//! Blocks are exchanged in one order on all ranks, the last of the layout first, which is that of a backward pass; one that is complete
//! before its turn waits for it. A rank without loss terms exchanges none of its own in that order.

use super::Accumulated;
use crate::shards::Shards;
use flow_core::device::ComputeDevice;
use flow_core::{BlockGradients, Kernels, ModelSpec, ParamLayout, RawTensor, Stopped};
use flow_exchange::{Exchange, Lanes, Lost};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The lanes of an update's loss terms on this rank.
#[derive(Clone, Debug)]
pub(crate) struct LossTermLanes {
    /// All lanes of the update.
    pub lanes: Lanes,
    /// This rank's.
    pub own: Range<usize>,
    /// That of each loss term of this rank, in order.
    pub of_loss_terms: Vec<usize>,
    /// Units of all ranks.
    pub all_loss_terms: usize,
}

/// The sums of an update. One loss term is under way at a time.
#[derive(Debug)]
pub(crate) struct BlockSums {
    kernels: Arc<dyn Kernels>,
    device: ComputeDevice,
    exchange: Arc<dyn Exchange>,
    layout: Arc<ParamLayout>,
    shards: Shards,
    loss_terms: LossTermLanes,
    /// Places in the order of the exchange, by stack and block.
    places: BTreeMap<(String, usize), usize>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// In the order of the exchange.
    blocks: Vec<BlockSum>,
    /// Units that are over.
    done: usize,
    /// Blocks that were exchanged: the first ones.
    exchanged: usize,
}

/// The sums of one block.
#[derive(Debug)]
struct BlockSum {
    /// Places of its weights in parts.
    weights: Vec<usize>,
    sums: Accumulated,
    /// Gradients of the loss term under way, by weight; empty as long as there are none.
    loss_term: Vec<Option<RawTensor>>,
    /// Runs in backward that are still to come in the loss term under way.
    expected: usize,
    /// Units whose gradients are in the sums.
    added: usize,
    /// The first lane that has not got its place in the tree.
    next_lane: usize,
}

impl BlockSums {
    /// No gradients yet, of a model of `spec` and `layout` whose trained weights in parts are those that `shards` says.
    pub fn new(
        (spec, layout): (&ModelSpec, &Arc<ParamLayout>),
        shards: &Shards,
        exchange: &Arc<dyn Exchange>,
        (kernels, device): (&Arc<dyn Kernels>, &ComputeDevice),
        loss_terms: LossTermLanes,
    ) -> Self {
        let mut of_blocks: Vec<((String, usize), Vec<usize>)> = Vec::new();
        for (index, weight) in layout.specs().iter().enumerate() {
            let Some((stack, block)) = spec.block_of(&weight.name) else {
                continue;
            };
            if shards.counts(index).is_none() {
                continue;
            }
            let place = of_blocks
                .iter()
                .position(|((of, number), _)| of == stack && *number == block);
            match place {
                Some(place) => of_blocks[place].1.push(index),
                None => of_blocks.push(((stack.to_owned(), block), vec![index])),
            }
        }
        of_blocks.reverse();
        let places = of_blocks.iter().enumerate();
        let places = places.map(|(place, (block, _))| (block.clone(), place)).collect();
        let sum = |(_, weights): ((String, usize), Vec<usize>)| BlockSum {
            weights,
            sums: Accumulated::in_lanes(loss_terms.all_loss_terms, loss_terms.lanes),
            loss_term: Vec::new(),
            expected: 0,
            added: 0,
            next_lane: loss_terms.own.start,
        };
        let state = State {
            blocks: of_blocks.into_iter().map(sum).collect(),
            done: 0,
            exchanged: 0,
        };
        Self {
            kernels: kernels.clone(),
            device: device.clone(),
            exchange: exchange.clone(),
            layout: layout.clone(),
            shards: shards.clone(),
            loss_terms,
            places,
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the loss term under way: blocks that backward did not reach have added nothing to it.
    pub fn end_unit(&self) {
        let mut state = self.state();
        let done = state.done;
        for block in state.blocks.iter_mut().filter(|block| block.added == done) {
            self.add(block);
        }
        state.done += 1;
    }

    /// Begins the exchange of the blocks for which it has not begun, and leaves this rank's parts of the sums with `accumulated`, whose
    /// [exchange](Accumulated::exchange) ends it.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn finish(&self, accumulated: &mut Accumulated) -> Result<(), Lost> {
        let mut state = self.state();
        self.exchange_complete(&mut state)?;
        for block in std::mem::take(&mut state.blocks) {
            accumulated.put_beside(block.sums, &*self.kernels);
        }
        Ok(())
    }

    /// Adds the gradients of the loss term under way to the sums of its lane.
    fn add(&self, block: &mut BlockSum) {
        let lane = self.loss_terms.of_loss_terms[block.added];
        self.add_none(block, lane);
        let mut loss_term = std::mem::take(&mut block.loss_term);
        loss_term.resize(self.layout.len(), None);
        block.sums.add_to(lane, &*self.kernels, loss_term);
        block.next_lane = lane + 1;
        block.added += 1;
        block.expected = 0;
    }

    /// Lanes before `end` that have no loss terms take their place in the tree.
    fn add_none(&self, block: &mut BlockSum, end: usize) {
        for lane in block.next_lane..end {
            block.sums.add_none_to(lane, &*self.kernels, self.layout.len());
        }
        block.next_lane = block.next_lane.max(end);
    }

    /// Exchanges blocks whose turn it is, as long as they are complete.
    fn exchange_complete(&self, state: &mut State) -> Result<(), Lost> {
        while let Some(block) = state.blocks.get_mut(state.exchanged)
            && block.added == self.loss_terms.of_loss_terms.len()
        {
            self.exchange(block)?;
            state.exchanged += 1;
        }
        Ok(())
    }

    fn exchange(&self, block: &mut BlockSum) -> Result<(), Lost> {
        let kernels = &*self.kernels;
        self.add_none(block, self.loss_terms.own.end);
        let own = block.sums.present(kernels);
        let mine = block.weights.iter().map(|index| own.get(*index) == Some(&true));
        let mine: Vec<u8> = mine.map(u8::from).collect();
        let mut present = vec![false; self.layout.len()];
        for theirs in self.exchange.gather(&mine)? {
            for (index, flag) in block.weights.iter().zip(theirs) {
                present[*index] |= flag == 1;
            }
        }
        let on = (kernels, &self.device, Some(&self.shards));
        let exchange = (&*self.exchange, self.loss_terms.lanes);
        block.sums.begin_exchange(exchange, &self.layout, &present, on)
    }

    fn place(&self, stack: &str, block: usize) -> Option<usize> {
        self.places.get(&(stack.to_owned(), block)).copied()
    }
}

impl BlockGradients for BlockSums {
    fn expect(&self, stack: &str, block: usize) {
        if let Some(place) = self.place(stack, block) {
            self.state().blocks[place].expected += 1;
        }
    }

    fn take(&self, stack: &str, block: usize, gradients: Vec<(usize, RawTensor)>) {
        let Some(place) = self.place(stack, block) else {
            return;
        };
        let mut state = self.state();
        let block = &mut state.blocks[place];
        block.loss_term.resize(self.layout.len(), None);
        for (index, gradient) in gradients {
            match &mut block.loss_term[index] {
                Some(sum) => self.kernels.ops().optimizer.accumulate(sum, &gradient),
                none => *none = Some(gradient),
            }
        }
        block.expected = block.expected.saturating_sub(1);
        if block.expected > 0 {
            return;
        }
        self.add(block);
        if let Err(lost) = self.exchange_complete(&mut state) {
            let why = lost.to_string();
            drop(state);
            Stopped::RankLost { why }.stop();
        }
    }
}

#[cfg(test)]
mod tests;
