//! What becomes of each block of a model: the form that every policy takes.

use flow_core::{RegionKind, Site};
use std::collections::{BTreeMap, BTreeSet};

/// The store's name for the results of an attention operation: output and log-sum-exp.
pub const ATTENTION: &str = "attention";
/// The store's name for the result of a linear layer.
pub const LINEAR: &str = "linear";
/// The store's name for the results of the linear layers of all experts, computed as one.
pub const GROUPED_LINEAR: &str = "grouped_linear";
/// The store's name for the choices of a router, which every policy keeps: computed again, ties might fall otherwise.
pub const ROUTER: &str = "router";

/// Which of the results of one name are meant, by their order from 0 within what runs again: a block, or a region of a
/// block that does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ordinals {
    /// All.
    All,
    /// The first, and every n-th after it.
    EveryNth(usize),
    /// These.
    Only(BTreeSet<usize>),
}

impl Ordinals {
    fn contains(&self, ordinal: usize) -> bool {
        match self {
            Self::All => true,
            Self::EveryNth(n) => ordinal.is_multiple_of(*n),
            Self::Only(ordinals) => ordinals.contains(&ordinal),
        }
    }
}

/// Results that are kept rather than computed again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaveRule {
    /// The kind of region they come from; any, if absent.
    pub within: Option<RegionKind>,
    /// Their name in the store.
    pub name: &'static str,
    /// Which of them.
    pub ordinals: Ordinals,
}

/// The results that a block keeps. Those of routers are always among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saves(Vec<SaveRule>);

impl Default for Saves {
    fn default() -> Self {
        Self::new([])
    }
}

impl Saves {
    /// What `rules` say, and the choices of routers.
    pub fn new(rules: impl IntoIterator<Item = SaveRule>) -> Self {
        let mut rules: Vec<SaveRule> = rules.into_iter().collect();
        rules.push(SaveRule {
            within: None,
            name: ROUTER,
            ordinals: Ordinals::All,
        });
        Self(rules)
    }

    /// Every result called one of `names`.
    pub fn all(names: impl IntoIterator<Item = &'static str>) -> Self {
        Self::new(names.into_iter().map(|name| SaveRule {
            within: None,
            name,
            ordinals: Ordinals::All,
        }))
    }

    /// Whether any result called `name` is kept.
    pub fn mentions(&self, name: &str) -> bool {
        self.0.iter().any(|rule| rule.name == name)
    }

    /// Whether the result number `ordinal` of those called `name` in the block, computed in a region of `kind`, is kept.
    pub fn takes(&self, kind: RegionKind, name: &str, ordinal: usize) -> bool {
        self.0.iter().any(|rule| {
            rule.name == name
                && rule.within.is_none_or(|within| within == kind)
                && rule.ordinals.contains(ordinal)
        })
    }
}

/// What becomes of a region within a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RegionPolicy {
    /// The same as of what encloses it.
    #[default]
    Inline,
    /// It runs again by itself, when backward reaches it. If the block runs again as well, the region's outputs are
    /// kept, and the block's replay takes them instead of running it.
    Separate,
}

/// What becomes of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockPolicy {
    /// Whether backward keeps the block's inputs and runs it again, or keeps whatever the operations keep.
    pub recompute: bool,
    /// The results that are kept for whatever runs again.
    pub saves: Saves,
    /// What becomes of its regions, by kind; those not named are `Inline`.
    pub regions: BTreeMap<RegionKind, RegionPolicy>,
    /// Whether parts whose result is kept run when backward has come to them, rather than with the block: attention with its
    /// projections ([`Exec::deferrable`](flow_core::Exec::deferrable)). For policies that keep all results of attention.
    pub defers: bool,
}

impl BlockPolicy {
    /// Runs the block again but for what `saves` says.
    pub fn recomputed(saves: Saves) -> Self {
        Self {
            recompute: true,
            saves,
            regions: BTreeMap::new(),
            defers: false,
        }
    }

    /// Keeps the block's operations, but runs each region of `kinds` again by itself.
    pub fn split(saves: Saves, kinds: impl IntoIterator<Item = RegionKind>) -> Self {
        let apart = kinds.into_iter().map(|kind| (kind, RegionPolicy::Separate));
        Self {
            recompute: false,
            saves,
            regions: apart.collect(),
            defers: false,
        }
    }

    /// What becomes of the regions of `kind`.
    pub fn region(&self, kind: RegionKind) -> RegionPolicy {
        self.regions.get(&kind).copied().unwrap_or_default()
    }

    /// Whether anything runs again.
    pub fn recomputes(&self) -> bool {
        self.recompute
            || self
                .regions
                .values()
                .any(|block_policy| *block_policy != RegionPolicy::Inline)
    }
}

/// What becomes of every block of a model, by stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    stacks: BTreeMap<String, Vec<BlockPolicy>>,
}

impl Assignment {
    /// The policy of the block at `index` of each of `stacks` (name and number of blocks).
    pub fn new(stacks: &[(String, usize)], treat: impl Fn(&str, usize) -> BlockPolicy) -> Self {
        let of = |(name, blocks): &(String, usize)| {
            let blocks = (0..*blocks).map(|index| treat(name, index)).collect();
            (name.clone(), blocks)
        };
        Self {
            stacks: stacks.iter().map(of).collect(),
        }
    }

    /// The policy of the block at `site`.
    ///
    /// # Panics
    /// If the assignment was made for a model that declares no such block.
    pub fn block(&self, site: &Site) -> &BlockPolicy {
        let stack = self.stacks.get(&*site.stack);
        let block = stack.and_then(|blocks| blocks.get(site.block));
        block.unwrap_or_else(|| {
            panic!(
                "block {} of stack `{}` is not among those that the model declares",
                site.block, site.stack
            )
        })
    }

    /// Stacks with their blocks' policies.
    pub fn stacks(&self) -> impl Iterator<Item = (&str, &[BlockPolicy])> {
        self.stacks
            .iter()
            .map(|(name, blocks)| (name.as_str(), blocks.as_slice()))
    }

    /// Whether any block runs again, in whole or in part.
    pub fn recomputes(&self) -> bool {
        self.stacks.values().flatten().any(BlockPolicy::recomputes)
    }
}
