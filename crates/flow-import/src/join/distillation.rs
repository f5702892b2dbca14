//! Distillations: `diffusion-opd`, whose teachers stand in a list, and `dmd2`, `tdm` and `tdm-r1`, which have other networks with optimizers
//! of their own and take the steps of the rollout once more.

use toml_edit::Value;

use super::algorithm::NO_TRAINER;
use super::{table, take_given};
use crate::convert::{self, convert, list};
use crate::draft::{Draft, Item, Origin, quoted};
use crate::note::Rank;
use crate::rule::Conversion;
use crate::yaml::{Node, Pair};

/// Whether the trainer `kind` takes steps of the rollout once more, which must be deterministic, and has a fake score.
pub(super) fn replays(kind: &str) -> bool {
    ["dmd2", "tdm", "tdm-r1"].contains(&kind)
}

pub(super) fn apply(draft: &mut Draft<'_>) {
    teachers(draft);
    range(draft);
}

/// Keeps a key that the trainer does not read.
fn keep_unread(draft: &mut Draft<'_>, item: &Item<'_>) {
    let reason = match draft.trainer_exists {
        true => format!(
            "`algorithm.kind = \"{}\"` has no such key, nor has Flow-Factory's trainer",
            draft.kind
        ),
        false => NO_TRAINER.to_owned(),
    };
    draft.keep_as(Rank::Detail, "algorithm", &item.origin, reason);
}

/// `timestep_range`: of drawn times, or of steps of the rollout.
fn range(draft: &mut Draft<'_>) {
    let Some(item) = take_given(draft, "train.timestep_range") else {
        return;
    };
    let kind = draft.kind;
    let to = match kind {
        _ if !draft.trainer_exists => return keep_unread(draft, &item),
        "diffusion-opd" => "algorithm.step_range",
        "nft" | "awm" | "dpo" | "dgpo" | "crd" | "sft" | "offline-dpo" => "algorithm.train_timesteps.range",
        _ => return keep_unread(draft, &item),
    };
    let text = "part of the path, from noise (0) to image (1)";
    match convert(Conversion::Fraction, item.node) {
        Ok(value) => draft.set(to, value, &[&item.origin], text),
        Err(why) => draft.keep("algorithm", &item.origin, format!("{why} ({to}: {text})")),
    }
}

fn teachers(draft: &mut Draft<'_>) {
    const TO: &str = "algorithm.teachers";
    let item = take_given(draft, "train.teachers");
    if draft.kind != "diffusion-opd" || !draft.trainer_exists {
        if let Some(item) = &item {
            keep_unread(draft, item);
        }
        return;
    }
    let nodes = item.as_ref().map(|item| item.node.list().unwrap_or_default());
    let found: Option<Vec<Value>> = (nodes.unwrap_or_default().iter().enumerate())
        .map(|(index, node)| teacher(index, node))
        .collect();
    let found = found.filter(|found| !found.is_empty());
    match (item, found) {
        (Some(item), Some(found)) => {
            let text = "LoRAs over the weights of the run, whose paths are relative to this file. With several each prompt names its own, \
                        as `teacher` in the metadata of the file of prompts, in the place of `applicable_datasets`";
            draft.set_with_attention(TO, list(found), &[&item.origin], text);
            draft.need("the LoRAs of the teachers");
        }
        (item, _) => {
            let origins: Vec<&Origin> = item.iter().map(|item| &item.origin).collect();
            let text = ": each has a `name` and the `path` of a LoRA; write `[[algorithm.teachers]]` by hand";
            draft.ask(
                TO,
                list([]),
                &origins,
                "no teachers that it can read in the config",
                text,
            );
        }
    }
}

/// A map of `teachers`, if it has a name and a path that flow-train opens.
fn teacher(index: usize, node: &Node) -> Option<Value> {
    node.map()?;
    let name = match node.get("name") {
        Some(name) => name.text()?.to_owned(),
        None => format!("teacher-{index}"),
    };
    let path = convert(Conversion::Path, node.get("path")?).ok()?;
    let mut pairs = vec![("name", Value::from(name)), ("adapter", path)];
    if let Some(scale) = node.get("guidance_scale").filter(|scale| !scale.is_null()) {
        pairs.push(("guidance_scale", convert(Conversion::Guidance, scale).ok()?));
    }
    Some(Value::InlineTable(table(pairs)))
}

/// A table of `[algorithm]` that has the settings of a network beside the student, and the place of its map among those of `optimizers`.
pub(super) type NetworkMap = (&'static str, usize);

/// Which of the maps of `optimizers` is the student's, and which are those of the networks beside it: all there are, by their names.
pub(super) fn roles(kind: &str, maps: &[&[Pair]]) -> Option<(usize, Vec<NetworkMap>)> {
    let named = |wanted: &str| {
        let has_name = |pair: &Pair| pair.key == "name" && convert::is_one_of(&pair.node, &[wanted]);
        maps.iter().position(|pairs| pairs.iter().any(has_name))
    };
    let generator = named("generator")?;
    let mut networks = vec![("fake_score", named("fake")?)];
    if kind == "tdm-r1" {
        networks.push(("surrogate", named("surrogate")?));
    }
    (maps.len() == networks.len() + 1).then_some((generator, networks))
}

/// The settings of the optimizer of a network beside the student, which stand at `path`, in the table `table`.
pub(super) fn network(draft: &mut Draft<'_>, table: &str, path: &str, pairs: &[Pair]) {
    for pair in pairs {
        let origin = Origin::new(format!("{path}.{}", quoted(&pair.key)), pair.place, &pair.node);
        let (to, conversion) = match pair.key.as_str() {
            _ if pair.node.is_null() => {
                draft.same(&origin, "", "null is as if it were left out");
                continue;
            }
            "name" => {
                draft.same(&origin, "", "the settings of this network stand in its own table");
                continue;
            }
            "learning_rate" => ("learning_rate", Conversion::Number),
            "betas" => ("betas", Conversion::Range),
            _ => {
                let reason = "this network has a learning rate and betas of its own, and takes the rest of [optimizer]";
                draft.keep("algorithm", &origin, reason);
                continue;
            }
        };
        let to = format!("algorithm.{table}.{to}");
        match convert(conversion, &pair.node) {
            Ok(value) => draft.set(
                &to,
                value,
                &[&origin],
                "of the optimizer of a network beside the student",
            ),
            Err(why) => draft.keep("algorithm", &origin, format!("{why} ({to})")),
        }
    }
}
