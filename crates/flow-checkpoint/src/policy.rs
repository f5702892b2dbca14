//! The policies: from a word of the config and what a model declares to what becomes of each block.
//!
//! A policy is a function of those two alone. It never reads which device, kernels or fusions are in use.

use crate::block_policy::{
    ATTENTION, Assignment, BlockPolicy, GROUPED_LINEAR, LINEAR, Ordinals, RegionPolicy, SaveRule, Saves,
};
use crate::names::{self, Pattern};
use flow_core::{ModelSpec, RegionKind};
use std::fmt;

/// What backward keeps of a model's blocks, and what it computes again. Routers' choices are kept by every policy.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Policy {
    /// Everything that operations keep: no recomputation.
    #[default]
    None,
    /// The inputs of each block; the block is computed again.
    Full {
        /// Whether attention and feed-forward run again apart from one another, which keeps the outputs of the regions
        /// as well, and has the inner results of one of them in memory at a time.
        split: bool,
    },
    /// The inputs of every n-th block, from the first on, which are computed again; the others keep everything.
    BlockSkip {
        /// n, at least 1.
        every: usize,
    },
    /// The inputs of each block, the results of attention, and every n-th linear layer's result, from the block's first
    /// on; the rest is computed again.
    EveryNthLinear {
        /// n, at least 1.
        n: usize,
    },
    /// The inputs of each block and the results of attention, output and log-sum-exp; the rest is computed again.
    AttnOnly {
        /// As of `Full`.
        split: bool,
    },
    /// The inputs of each block, and what the patterns name: regions, whose outputs are kept and which run again by
    /// themselves, or results of operations, which are not computed again.
    Regions {
        /// Patterns with `*` and `?`.
        save: Vec<String>,
    },
    /// Whatever takes the least time of all that stays within a peak of memory; a planner finds it by measuring.
    Budget {
        /// The peak, in GiB (2^30 bytes), of everything that the process holds on the device.
        peak_gib: f64,
    },
}

/// Name and meaning of every policy.
const POLICIES: [(&str, &str); 7] = [
    (
        "none",
        "keep everything that operations keep; nothing is computed again",
    ),
    ("full", "keep the inputs of each block; compute it again"),
    (
        "block-skip",
        "keep the inputs of every n-th block and compute it again; the others as `none`",
    ),
    (
        "every-nth-linear",
        "keep the inputs of each block, attention and every n-th linear layer; compute the rest again",
    ),
    (
        "attn-only",
        "keep the inputs of each block and attention; compute the rest again",
    ),
    (
        "regions",
        "keep the inputs of each block and what patterns name; compute the rest again",
    ),
    (
        "budget",
        "keep what takes the least time within a peak of memory, found by measuring",
    ),
];

/// Why a policy cannot be followed for a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The model has nothing that the policy speaks of, so it would do nothing.
    #[error("the policy `{policy}` would do nothing: the model `{architecture}` announces no {missing}")]
    Ignored {
        /// The policy.
        policy: &'static str,
        /// The model.
        architecture: String,
        /// What it lacks.
        missing: &'static str,
    },
    /// A pattern that is none.
    #[error("`{pattern}` is no pattern: {problem}")]
    BadPattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A pattern that names nothing.
    #[error(
        "`{pattern}` names no region and no result of the model `{architecture}`{}; there are {}",
        .nearest.as_ref().map(|nearest| format!("; did you mean `{nearest}`?")).unwrap_or_default(),
        .available.join(", ")
    )]
    NoMatch {
        /// The pattern.
        pattern: String,
        /// The model.
        architecture: String,
        /// What it might have named, with `*` for the index of a block.
        available: Vec<String>,
        /// The one most like it, if one is.
        nearest: Option<String>,
    },
}

impl Policy {
    /// The names of all policies with what they mean.
    pub fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
        POLICIES.into_iter()
    }

    /// Its name, as in configs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Full { .. } => "full",
            Self::BlockSkip { .. } => "block-skip",
            Self::EveryNthLinear { .. } => "every-nth-linear",
            Self::AttnOnly { .. } => "attn-only",
            Self::Regions { .. } => "regions",
            Self::Budget { .. } => "budget",
        }
    }

    /// What becomes of the blocks of a model; `None` if that is for a planner to find.
    ///
    /// # Errors
    /// [`PolicyError`], if the policy would not do for this model what it says.
    ///
    /// # Panics
    /// If a number of the policy is 0, which no config can have.
    pub fn assign(&self, spec: &ModelSpec) -> Result<Option<Assignment>, PolicyError> {
        if *self == Self::None {
            return Ok(Some(Assignment::new(&spec.stacks, |_, _| BlockPolicy::default())));
        }
        if spec.stacks.iter().all(|(_, blocks)| *blocks == 0) {
            return Err(self.ignored(spec, "blocks that could be computed again"));
        }
        if spec.regions.is_empty() {
            return Err(self.ignored(spec, "regions that could be computed again"));
        }
        let every = |block_policy: BlockPolicy| Assignment::new(&spec.stacks, |_, _| block_policy.clone());
        let attention = || {
            if spec.regions.contains(&RegionKind::Attention) {
                Ok(())
            } else {
                Err(self.ignored(spec, "attention whose results could be kept"))
            }
        };
        Ok(Some(match self {
            Self::None => unreachable!("answered above"),
            Self::Full { split } => every(whole(Saves::default(), *split)),
            Self::BlockSkip { every } => {
                assert!(*every > 0, "every 0th block");
                Assignment::new(&spec.stacks, |_, index| {
                    if index.is_multiple_of(*every) {
                        BlockPolicy::recomputed(Saves::default())
                    } else {
                        BlockPolicy::default()
                    }
                })
            }
            Self::EveryNthLinear { n } => {
                assert!(*n > 0, "every 0th linear layer");
                let rule = |name, ordinals| SaveRule {
                    within: None,
                    name,
                    ordinals,
                };
                // Layers of experts are counted by themselves: they have another name, and are larger.
                let linear = [LINEAR, GROUPED_LINEAR].map(|name| rule(name, Ordinals::EveryNth(*n)));
                let rules = linear.into_iter().chain([rule(ATTENTION, Ordinals::All)]);
                every(BlockPolicy::recomputed(Saves::new(rules)))
            }
            Self::AttnOnly { split } => {
                attention()?;
                every(BlockPolicy {
                    // Apart, each region has its inner results alone in memory as it is.
                    defers: !split,
                    ..whole(Saves::all([ATTENTION]), *split)
                })
            }
            Self::Regions { save } => regions(save, spec)?,
            Self::Budget { .. } => return Ok(None),
        }))
    }

    fn ignored(&self, spec: &ModelSpec, missing: &'static str) -> PolicyError {
        PolicyError::Ignored {
            policy: self.name(),
            architecture: spec.architecture.clone(),
            missing,
        }
    }
}

/// A block that runs again, in one or with its large regions apart.
fn whole(saves: Saves, split: bool) -> BlockPolicy {
    let mut block_policy = BlockPolicy::recomputed(saves);
    if split {
        let apart = [RegionKind::Attention, RegionKind::Mlp, RegionKind::Moe];
        block_policy.regions = apart.map(|kind| (kind, RegionPolicy::Separate)).into();
    }
    block_policy
}

fn regions(save: &[String], spec: &ModelSpec) -> Result<Assignment, PolicyError> {
    let read = |pattern: &String| {
        Pattern::new(pattern).map_err(|problem| PolicyError::BadPattern {
            pattern: pattern.clone(),
            problem,
        })
    };
    let patterns = save.iter().map(read).collect::<Result<Vec<Pattern>, _>>()?;
    let mut matched = vec![false; patterns.len()];
    let mut named = |name: &str| {
        let mut found = false;
        for (pattern, matched) in patterns.iter().zip(&mut matched) {
            if pattern.matches(name) {
                *matched = true;
                found = true;
            }
        }
        found
    };
    let mut block_policies = std::collections::BTreeMap::new();
    for (stack, blocks) in &spec.stacks {
        for block in 0..*blocks {
            let mut apart = std::collections::BTreeMap::new();
            let mut rules = Vec::new();
            for kind in &spec.regions {
                let region = names::region(stack, block, *kind);
                if named(&region) {
                    apart.insert(*kind, RegionPolicy::Separate);
                }
                for name in names::results(*kind) {
                    if named(&names::result(&region, name)) {
                        rules.push(SaveRule {
                            within: Some(*kind),
                            name,
                            ordinals: Ordinals::All,
                        });
                    }
                }
            }
            let mut block_policy = BlockPolicy::recomputed(Saves::new(rules));
            block_policy.regions = apart;
            block_policies.insert((stack.as_str(), block), block_policy);
        }
    }
    if let Some(lost) = matched.iter().position(|matched| !matched) {
        return Err(PolicyError::NoMatch {
            pattern: save[lost].clone(),
            architecture: spec.architecture.clone(),
            available: names::with_stars(spec),
            nearest: names::nearest(&save[lost], spec),
        });
    }
    Ok(Assignment::new(&spec.stacks, |stack, block| {
        block_policies[&(stack, block)].clone()
    }))
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::None | Self::Full { split: false } | Self::AttnOnly { split: false } => Ok(()),
            Self::Full { split: true } | Self::AttnOnly { split: true } => f.write_str(" (split)"),
            Self::BlockSkip { every } => write!(f, " (every {every})"),
            Self::EveryNthLinear { n } => write!(f, " (n {n})"),
            Self::Regions { save } => write!(f, " (save {})", save.join(", ")),
            Self::Budget { peak_gib } => write!(f, " (peak {peak_gib} GiB)"),
        }
    }
}
