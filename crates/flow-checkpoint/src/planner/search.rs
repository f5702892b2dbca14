//! The best choice of one option per block, exactly.
//!
//! Backward goes from the last block to the first. At block `i` there are in memory: what all blocks before it hold, what
//! it takes itself at its peak, and the gradients of the weights of the blocks after it. So a choice fits a budget if,
//! for every `i`,
//!
//! ```text
//! sum of held(j) for j < i  +  peak(i)  +  sum of gradients(j) for j > i  <=  budget
//! ```
//!
//! The search goes through the blocks in order with all pairs of (bytes held so far, time so far) that fit and of which
//! no other is at most as large in both. A pair that is left out can be replaced in any plan by the one that is at most
//! as large, so the plan that is found takes the least time of all.

use super::options::Cost;
use std::time::Duration;

/// What the search is told of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockChoices {
    /// The costs to choose from.
    pub costs: Vec<Cost>,
    /// Gradients of the block's weights.
    pub gradient_bytes: u64,
}

/// A choice for every block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Position in `costs`, per block.
    pub options: Vec<usize>,
    /// Time of what is computed again.
    pub time: Duration,
    /// Bytes held when backward begins.
    pub held_bytes: u64,
    /// The largest sum at any block.
    pub peak_bytes: u64,
}

/// Gradients of the blocks after each one.
fn gradients_after(blocks: &[BlockChoices]) -> Vec<u64> {
    let mut after = vec![0; blocks.len()];
    for index in (0..blocks.len().saturating_sub(1)).rev() {
        after[index] = after[index + 1] + blocks[index + 1].gradient_bytes;
    }
    after
}

/// What the choice of `options` takes.
pub fn evaluate(blocks: &[BlockChoices], options: &[usize]) -> Choice {
    let after = gradients_after(blocks);
    let (mut held_bytes, mut peak_bytes, mut time) = (0, 0, Duration::ZERO);
    for ((block, option), after) in blocks.iter().zip(options).zip(after) {
        let cost = block.costs[*option];
        peak_bytes = peak_bytes.max(held_bytes + cost.peak_bytes + after);
        held_bytes += cost.held_bytes;
        time += cost.time;
    }
    Choice {
        options: options.to_vec(),
        time,
        held_bytes,
        peak_bytes: peak_bytes.max(held_bytes),
    }
}

/// The smallest budget that any choice fits.
///
/// Of two choices for a block that both fit, the one that holds less leaves more to every later block. So a budget
/// suffices if taking, at each block, the least that fits comes through.
pub fn smallest_budget(blocks: &[BlockChoices]) -> u64 {
    let after = gradients_after(blocks);
    let suffices = |budget: u64| {
        let mut held = 0u64;
        for (block, after) in blocks.iter().zip(&after) {
            let fitting = block
                .costs
                .iter()
                .filter(|cost| held + cost.peak_bytes + after <= budget);
            match fitting.map(|cost| cost.held_bytes).min() {
                Some(least) => held += least,
                None => return false,
            }
        }
        held <= budget
    };
    let worst = |block: &BlockChoices| {
        let peak = block
            .costs
            .iter()
            .map(|cost| cost.peak_bytes.max(cost.held_bytes));
        peak.max().unwrap_or(0) + block.gradient_bytes
    };
    let (mut low, mut high) = (0, blocks.iter().map(worst).sum());
    while low < high {
        let middle = low + (high - low) / 2;
        if suffices(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// Bytes and time up to a block, and how they came about.
#[derive(Clone, Copy, Debug)]
struct Label {
    held: u64,
    time: Duration,
    /// Position among the labels of the block before.
    from: usize,
    option: usize,
}

/// The choice of least time that fits `budget`, and of those the one that holds least; `None` if none fits.
pub fn best(blocks: &[BlockChoices], budget: u64) -> Option<Choice> {
    let after = gradients_after(blocks);
    let limit = known_time(blocks, budget);
    let start = Label {
        held: 0,
        time: Duration::ZERO,
        from: 0,
        option: 0,
    };
    let mut stages = vec![vec![start]];
    for (block, after) in blocks.iter().zip(after) {
        let before = stages.last().expect("there is the start");
        let mut next = Vec::new();
        for (from, label) in before.iter().enumerate() {
            for (option, cost) in block.costs.iter().enumerate() {
                let time = label.time + cost.time;
                let fits =
                    label.held + cost.peak_bytes + after <= budget && label.held + cost.held_bytes <= budget;
                if fits && limit.is_none_or(|limit| time <= limit) {
                    next.push(Label {
                        held: label.held + cost.held_bytes,
                        time,
                        from,
                        option,
                    });
                }
            }
        }
        next.sort_by_key(|label| (label.held, label.time, label.from, label.option));
        let mut kept: Vec<Label> = Vec::new();
        for label in next {
            if kept.last().is_none_or(|last| label.time < last.time) {
                kept.push(label);
            }
        }
        if kept.is_empty() {
            return None;
        }
        stages.push(kept);
    }
    // Time falls with what is held, so the last label has the least time.
    let mut at = stages.last()?.len() - 1;
    let mut options = Vec::new();
    for stage in stages[1..].iter().rev() {
        options.push(stage[at].option);
        at = stage[at].from;
    }
    options.reverse();
    Some(evaluate(blocks, &options))
}

/// The time of a choice that fits, if a simple one does: the same kind of option everywhere. No better plan takes longer.
fn known_time(blocks: &[BlockChoices], budget: u64) -> Option<Duration> {
    let most = blocks.iter().map(|block| block.costs.len()).max().unwrap_or(0);
    (0..most)
        .filter_map(|option| {
            let options: Vec<usize> = blocks
                .iter()
                .map(|block| option.min(block.costs.len() - 1))
                .collect();
            let choice = evaluate(blocks, &options);
            (choice.peak_bytes <= budget).then_some(choice.time)
        })
        .min()
}
