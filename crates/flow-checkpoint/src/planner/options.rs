//! What may be done with a block, and what that takes: a simulation of what is in memory while it is computed, computed
//! again and differentiated.
//!
//! Of all ways those remain of which no other takes at most as much of all three: of what is held until the block's
//! backward, of the peak, and of time (Pareto). None of the others can be part of a best plan, since a plan's peak grows
//! with each of the first two.

use super::profile::{BlockProfile, RegionProfile, Slot};
use crate::block_policy::{BlockPolicy, Ordinals, RegionPolicy, SaveRule, Saves};
use flow_core::RegionKind;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What a way to treat a block takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes held from the block's forward until its backward.
    pub held_bytes: u64,
    /// The most bytes in use during its backward, what is held included, above what the rest of the model has in use.
    pub peak_bytes: u64,
    /// Time of what is computed again.
    pub time: Duration,
}

impl Cost {
    fn at_most(&self, other: &Self) -> bool {
        self.held_bytes <= other.held_bytes && self.peak_bytes <= other.peak_bytes && self.time <= other.time
    }
}

/// A way to treat a block.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockOption {
    /// What is done.
    pub block_policy: BlockPolicy,
    /// What it takes.
    pub cost: Cost,
}

/// What becomes of one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Its operations keep what they keep.
    Kept,
    /// It runs again with the block.
    Again,
    /// It runs again alone.
    Separate,
}

impl Fate {
    /// Bytes that it takes to keep `slot`: a region that runs again alone has its outputs held, so what is one of them is
    /// there already.
    fn bytes_of(self, slot: &Slot) -> u64 {
        match self {
            Self::Separate => slot.bytes - slot.output_bytes,
            Self::Kept | Self::Again => slot.bytes,
        }
    }
}

/// A region's fate, and the bytes of its results that are kept.
#[derive(Clone, Copy, Debug)]
struct Part<'a> {
    region: &'a RegionProfile,
    fate: Fate,
    saved_bytes: u64,
    saved_time: Duration,
    /// Bytes of what it keeps with a graph that are not there before its own backward.
    deferred_bytes: u64,
}

impl Part<'_> {
    /// What its operations keep, computed with the block, until its own backward.
    fn kept_bytes(&self) -> u64 {
        self.region.kept_bytes.saturating_sub(self.deferred_bytes)
    }
}

/// Walks through forward, replay and backward of a block.
fn simulate(input_bytes: u64, parts: &[Part<'_>]) -> Cost {
    let held_of = |part: &Part<'_>| match part.fate {
        Fate::Kept => part.region.kept_bytes,
        Fate::Again => part.saved_bytes,
        // What leaves the block enters the next one, which holds it anyway.
        Fate::Separate => part.saved_bytes + part.region.output_bytes - part.region.leaving_bytes,
    };
    let held_bytes = input_bytes + parts.iter().map(held_of).sum::<u64>();
    let mut peak_bytes = held_bytes;
    // The replay: what is restored was held already, and becomes part of what the operations keep.
    let mut live = held_bytes;
    for part in parts.iter().filter(|part| part.fate == Fate::Again) {
        let restored = |bytes: u64| bytes.saturating_sub(part.saved_bytes + part.deferred_bytes);
        peak_bytes = peak_bytes.max(live + restored(part.region.forward_peak_bytes));
        live += restored(part.region.kept_bytes);
    }
    // Backward, from the last region to the first.
    let mut gradients = 0;
    for (at, part) in parts.iter().enumerate().rev() {
        let before = |part: &Part<'_>| match part.fate {
            Fate::Kept | Fate::Again => part.kept_bytes(),
            Fate::Separate => held_of(part),
        };
        let below: u64 = parts[..at].iter().map(before).sum();
        let region = part.region;
        let own = match part.fate {
            Fate::Kept | Fate::Again => region.backward_peak_bytes.max(region.kept_bytes),
            Fate::Separate => region.backward_peak_bytes.max(region.forward_peak_bytes),
        };
        peak_bytes = peak_bytes.max(input_bytes + below + own + region.output_bytes + gradients);
        gradients += region.gradient_bytes;
    }
    let again = parts.iter().filter(|part| part.fate != Fate::Kept);
    Cost {
        held_bytes,
        peak_bytes,
        time: again
            .map(|part| part.region.forward.saturating_sub(part.saved_time))
            .sum(),
    }
}

/// What `block_policy` takes of a block.
pub fn cost(block: &BlockProfile, block_policy: &BlockPolicy) -> Cost {
    let parts: Vec<Part<'_>> = block
        .regions
        .iter()
        .map(|region| {
            let fate = match (block_policy.region(region.kind), block_policy.recompute) {
                (RegionPolicy::Separate, _) => Fate::Separate,
                (RegionPolicy::Inline, true) => Fate::Again,
                (RegionPolicy::Inline, false) => Fate::Kept,
            };
            let saved = region
                .slots
                .iter()
                .filter(|slot| block_policy.saves.takes(slot.kind, slot.name, slot.ordinal));
            let (saved_bytes, saved_time) = saved.fold((0, Duration::ZERO), |(bytes, time), slot| {
                (bytes + fate.bytes_of(slot), time + slot.time)
            });
            let deferred_bytes = match fate {
                Fate::Again if block_policy.defers => region.deferred_bytes,
                _ => 0,
            };
            Part {
                region,
                fate,
                saved_bytes,
                saved_time,
                deferred_bytes,
            }
        })
        .collect();
    simulate(block.input_bytes, &parts)
}

/// A set of a region's results: bit `i` for result `i`.
#[derive(Clone, Copy, Debug)]
struct Subset {
    bits: u64,
    bytes: u64,
    time: Duration,
}

/// Those subsets of a region's results of which no other is at most as large and saves at least as much time.
fn subsets(region: &RegionProfile, fate: Fate) -> Vec<Subset> {
    let nothing = Subset {
        bits: 0,
        bytes: 0,
        time: Duration::ZERO,
    };
    let mut best = vec![nothing];
    // A region of more results than bits could be planned for keeps only mandatory ones of the rest.
    for (index, slot) in region.slots.iter().enumerate().take(64) {
        let with = |subset: &Subset| Subset {
            bits: subset.bits | 1 << index,
            bytes: subset.bytes + fate.bytes_of(slot),
            time: subset.time + slot.time,
        };
        let mut all: Vec<Subset> = best.iter().map(with).collect();
        if !slot.is_mandatory() {
            all.extend(best);
        }
        all.sort_by_key(|subset| (subset.bytes, std::cmp::Reverse(subset.time)));
        best = Vec::new();
        for subset in all {
            if best.last().is_none_or(|last| subset.time > last.time) {
                best.push(subset);
            }
        }
    }
    best
}

/// The ways to treat a block that a best plan may need, the one with least time first.
pub fn options(block: &BlockProfile) -> Vec<BlockOption> {
    let kept = BlockPolicy::default();
    let mut found = vec![BlockOption {
        cost: cost(block, &kept),
        block_policy: kept,
    }];
    let kinds: BTreeSet<RegionKind> = block.regions.iter().map(|region| region.kind).collect();
    let kinds: Vec<RegionKind> = kinds.into_iter().collect();
    let subsets: Vec<[Vec<Subset>; 2]> = (block.regions.iter())
        .map(|region| [Fate::Again, Fate::Separate].map(|fate| subsets(region, fate)))
        .collect();
    for apart in 0..1u32 << kinds.len().min(8) {
        let is_apart = |kind: RegionKind| {
            let at = kinds.iter().position(|one| *one == kind).unwrap_or(0);
            apart & (1 << at) != 0
        };
        // One choice per region, extended region by region.
        let mut partial: Vec<Vec<Part<'_>>> = vec![Vec::new()];
        let mut chosen: Vec<Vec<u64>> = vec![Vec::new()];
        for (region, [again, alone]) in block.regions.iter().zip(&subsets) {
            let (fate, subsets) = if is_apart(region.kind) {
                (Fate::Separate, alone)
            } else {
                (Fate::Again, again)
            };
            let (mut longer, mut bits) = (Vec::new(), Vec::new());
            for (parts, before) in partial.iter().zip(&chosen) {
                for subset in subsets {
                    let part = Part {
                        region,
                        fate,
                        saved_bytes: subset.bytes,
                        saved_time: subset.time,
                        deferred_bytes: 0,
                    };
                    longer.push([&parts[..], &[part]].concat());
                    bits.push([&before[..], &[subset.bits]].concat());
                }
            }
            (partial, chosen) = (longer, bits);
        }
        for (parts, bits) in partial.iter().zip(&chosen) {
            let cost = simulate(block.input_bytes, parts);
            // Most are worse than one that is there already, so no policy is made of them.
            if found.iter().any(|option| option.cost.at_most(&cost)) {
                continue;
            }
            found.retain(|option| !cost.at_most(&option.cost));
            let apart = kinds.iter().filter(|kind| is_apart(**kind));
            let block_policy = BlockPolicy {
                recompute: true,
                saves: saves(block, bits),
                regions: apart.map(|kind| (*kind, RegionPolicy::Separate)).collect(),
                defers: false,
            };
            found.push(BlockOption { block_policy, cost });
        }
    }
    found.sort_by_key(|option| (option.cost.time, option.cost.held_bytes, option.cost.peak_bytes));
    found
}

fn saves(block: &BlockProfile, bits: &[u64]) -> Saves {
    let mut ordinals: BTreeMap<&'static str, BTreeSet<usize>> = BTreeMap::new();
    for (region, bits) in block.regions.iter().zip(bits) {
        for (index, slot) in region.slots.iter().enumerate() {
            if index < 64 && bits & (1 << index) != 0 && !slot.is_mandatory() {
                ordinals.entry(slot.name).or_default().insert(slot.ordinal);
            }
        }
    }
    Saves::new(ordinals.into_iter().map(|(name, ordinals)| SaveRule {
        within: None,
        name,
        ordinals: Ordinals::Only(ordinals),
    }))
}
