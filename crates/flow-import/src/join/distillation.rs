//! Distillations: `diffusion-opd`, whose teachers stand in a list, and `dmd2` and `tdm`, which have a second network with an optimizer of
//! its own and take the steps of the rollout once more.

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
    ["dmd2", "tdm"].contains(&kind)
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

/// Which of the maps of `optimizers` is the student's, and which the fake score's: two, by their names.
pub(super) fn roles(maps: &[&[Pair]]) -> Option<(usize, usize)> {
    let named = |wanted: &str| {
        let has_name = |pair: &Pair| pair.key == "name" && convert::is_one_of(&pair.node, &[wanted]);
        maps.iter().position(|pairs| pairs.iter().any(has_name))
    };
    let (generator, fake) = (named("generator")?, named("fake")?);
    (maps.len() == 2).then_some((generator, fake))
}

/// The settings of the fake score's optimizer, which stand at `path`.
pub(super) fn fake_score(draft: &mut Draft<'_>, path: &str, pairs: &[Pair]) {
    for pair in pairs {
        let origin = Origin::new(format!("{path}.{}", quoted(&pair.key)), pair.place, &pair.node);
        let (to, conversion) = match pair.key.as_str() {
            _ if pair.node.is_null() => {
                draft.same(&origin, "", "null is as if it were left out");
                continue;
            }
            "name" => {
                draft.same(&origin, "", "the fake score's settings stand in its own table");
                continue;
            }
            "learning_rate" => ("algorithm.fake_score.learning_rate", Conversion::Number),
            "betas" => ("algorithm.fake_score.betas", Conversion::Range),
            _ => {
                let reason = "the fake score has a learning rate and betas of its own, and takes the rest of [optimizer]";
                draft.keep("algorithm", &origin, reason);
                continue;
            }
        };
        match convert(conversion, &pair.node) {
            Ok(value) => draft.set(to, value, &[&origin], "of the fake score's optimizer"),
            Err(why) => draft.keep("algorithm", &origin, format!("{why} ({to})")),
        }
    }
}
