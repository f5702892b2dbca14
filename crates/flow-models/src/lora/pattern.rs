//! Targets that name no layer.

use flow_registry::{names_layer, nearest};
use std::collections::BTreeSet;

/// A message about the targets that name nothing, if there are any.
pub(super) fn unmatched(targets: &[String], names: &[String]) -> Option<String> {
    let lost = targets
        .iter()
        .filter(|target| !names.iter().any(|name| names_layer(target, name)));
    let lines: Vec<String> = lost
        .map(|target| {
            let near = nearest_end(target, names);
            let hint = near
                .map(|near| format!("; did you mean `{near}`?"))
                .unwrap_or_default();
            format!("target `{target}` names no linear layer{hint}")
        })
        .collect();
    if lines.is_empty() {
        return None;
    }
    let layers: BTreeSet<String> = names.iter().map(|name| numbers_as_stars(name)).collect();
    let layers: Vec<String> = layers.into_iter().collect();
    Some(format!(
        "{}. The model's linear layers: {}",
        lines.join(". "),
        layers.join(", ")
    ))
}

/// The end of a layer's name, of as many parts as `target`, that is most like it.
fn nearest_end(target: &str, names: &[String]) -> Option<String> {
    let parts = target.split('.').count();
    let ends: BTreeSet<&str> = names
        .iter()
        .map(|name| {
            let dots: Vec<usize> = name.match_indices('.').map(|(at, _)| at).collect();
            dots.len()
                .checked_sub(parts)
                .map_or(name.as_str(), |at| &name[dots[at] + 1..])
        })
        .collect();
    nearest(target, ends).map(str::to_owned)
}

/// `blocks.3.attn.to_q` as `blocks.*.attn.to_q`, to list the layers of a deep model in a few words.
fn numbers_as_stars(name: &str) -> String {
    let mut seen_number = false;
    let parts = name.split('.').map(|part| {
        let is_number = !seen_number && part.parse::<usize>().is_ok();
        seen_number |= is_number;
        if is_number { "*" } else { part }
    });
    parts.collect::<Vec<_>>().join(".")
}
