//! The names of what a model declares, which `regions { save }` chooses from.
//!
//! A region is `STACK.BLOCK.KIND`, for instance `transformer_blocks.3.attention`. The results that operations within a
//! region may keep are `REGION:RESULT`, for instance `transformer_blocks.3.attention:linear`, all of that name together.

use crate::block_policy::{ATTENTION, GROUPED_LINEAR, LINEAR, ROUTER};
use flow_core::{ModelSpec, RegionKind};
use std::collections::BTreeSet;

/// The results that operations in a region of `kind` may pass through the store.
pub(crate) fn results(kind: RegionKind) -> &'static [&'static str] {
    match kind {
        RegionKind::Attention => &[ATTENTION, LINEAR],
        RegionKind::Mlp | RegionKind::AdaLn => &[LINEAR],
        RegionKind::Moe => &[LINEAR, GROUPED_LINEAR, ROUTER],
        RegionKind::Router => &[LINEAR, ROUTER],
        RegionKind::Block | RegionKind::Norm => &[],
    }
}

/// A pattern with `*` and `?`, for whole names or what follows a dot of them.
#[derive(Clone, Debug)]
pub(crate) struct Pattern(glob::Pattern);

impl Pattern {
    /// # Errors
    /// What is wrong with `text`.
    pub fn new(text: &str) -> Result<Self, String> {
        glob::Pattern::new(text)
            .map(Self)
            .map_err(|error| format!("{} (at character {})", error.msg, error.pos))
    }

    pub fn matches(&self, name: &str) -> bool {
        let from_a_dot = name.match_indices('.').map(|(at, _)| &name[at + 1..]);
        std::iter::once(name)
            .chain(from_a_dot)
            .any(|end| self.0.matches(end))
    }
}

/// The name of a region.
pub(crate) fn region(stack: &str, block: usize, kind: RegionKind) -> String {
    format!("{stack}.{block}.{kind}")
}

/// The name of the results called `result` of a region.
pub(crate) fn result(region: &str, result: &str) -> String {
    format!("{region}:{result}")
}

/// Every name of `spec`, those of all blocks of a stack as one, with a star in the place of their index.
pub(crate) fn with_stars(spec: &ModelSpec) -> Vec<String> {
    let kinds: BTreeSet<RegionKind> = spec.regions.iter().copied().collect();
    let mut names = Vec::new();
    for (stack, _) in &spec.stacks {
        for kind in &kinds {
            let region = format!("{stack}.*.{kind}");
            let of_region = results(*kind).iter().map(|name| result(&region, name));
            let of_region: Vec<String> = of_region.collect();
            names.push(region);
            names.extend(of_region);
        }
    }
    names
}

/// The declared name most like `asked`, if one is like it.
pub(crate) fn nearest(asked: &str, spec: &ModelSpec) -> Option<String> {
    let names = with_stars(spec);
    // As short as `asked` is: `attn` is like `attention` and unlike `transformer_blocks.*.attention`.
    let depth = asked.matches('.').count();
    let ends: Vec<String> = names
        .iter()
        .map(|name| {
            let parts: Vec<&str> = name.split('.').collect();
            parts[parts.len().saturating_sub(depth + 1)..].join(".")
        })
        .collect();
    flow_registry::nearest(asked, ends.iter().map(String::as_str)).map(str::to_owned)
}
