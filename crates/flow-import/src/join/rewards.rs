//! Rewards: Flow-Factory's own that are here, and JPEG size; of others it is said what is nearest.

use toml_edit::{InlineTable, Value};

use super::known_rewards::{self, Known};
use super::{records, take_given};
use crate::convert;
use crate::draft::{Draft, Item, Origin, quoted};
use crate::note::Rank;
use crate::yaml::Node;

/// Why a reward model of Flow-Factory is not converted, and what of flow-train is nearest to it.
fn reason(model: &str) -> &'static str {
    let model = model.to_lowercase();
    if model.contains("pickscore") || model.contains("pick_score") {
        "flow-train's `pickscore` reads its weights from a folder: add that reward with its `path`"
    } else if model.contains("imagereward") || model.contains("image_reward") {
        "flow-train's `imagereward` reads its weights from a file: add that reward with its `path` and `tokenizer`"
    } else if model.contains("clip") {
        "flow-train's `clip-score` reads its weights from a folder: add that reward with its `path`"
    } else if model.contains("ocr") {
        "flow-train's `ocr` reads by the files of PP-OCR: add that reward with its `path`"
    } else if model.contains("vllm") || model.contains("rational") {
        "flow-train's `vlm-judge` asks such a server: add that reward with its `servers`, `model` and `question`"
    } else if model.contains("geneval") {
        "flow-train's `geneval` asks a detector on a server: add that reward with its `servers`"
    } else {
        "flow-train has no such reward; `flow-train list rewards` has those that there are, and `remote` and `command` ask a server or a \
         program of yours"
    }
}

pub(super) fn apply(draft: &mut Draft<'_>) {
    let mut given = false;
    for list in ["rewards", "eval_rewards"] {
        let Some(item) = take_given(draft, list) else {
            continue;
        };
        // What learns from records needs rewards for evaluations alone.
        let counts = list == "rewards" || records::rows(draft.kind).is_some();
        given |= counts && item.node.list().is_none_or(|nodes| !nodes.is_empty());
        rewards(draft, list, &item.origin, item.node);
    }
    if !given {
        draft.need("a reward");
        draft.remark(
            "rewards",
            "there is no reward, and training needs one: add a [[rewards]] table",
        );
    }
}

fn rewards(draft: &mut Draft<'_>, list: &'static str, origin: &Origin, node: &Node) {
    if let Some(nodes) = node.list() {
        if nodes.is_empty() {
            draft.same(origin, list, "an empty list");
        }
        for (index, node) in nodes.iter().enumerate() {
            let origin = Origin::new(format!("{}.{index}", origin.from), node.place, node);
            reward(draft, list, &origin, node);
        }
    } else if let Some(configs) = node.get("reward_configs") {
        let others: Vec<Item<'_>> = children(origin, node);
        for item in others
            .iter()
            .filter(|item| !item.origin.from.ends_with(".reward_configs"))
        {
            draft.keep(list, &item.origin, "flow-train has no such key");
        }
        let origin = Origin::new(format!("{}.reward_configs", origin.from), configs.place, configs);
        rewards(draft, list, &origin, configs);
    } else {
        reward(draft, list, origin, node);
    }
}

pub(super) fn children<'y>(origin: &Origin, node: &'y Node) -> Vec<Item<'y>> {
    let pairs = node.map().unwrap_or_default().iter();
    let child = |pair: &'y crate::yaml::Pair| Item {
        origin: Origin::new(
            format!("{}.{}", origin.from, quoted(&pair.key)),
            pair.place,
            &pair.node,
        ),
        node: &pair.node,
    };
    pairs.map(child).collect()
}

fn reward(draft: &mut Draft<'_>, list: &'static str, origin: &Origin, node: &Node) {
    let Some(model) = node.get("reward_model").and_then(Node::text) else {
        draft.keep(list, origin, "a reward is a map with a `reward_model`");
        if list == "rewards" {
            draft.need("a reward");
        }
        return;
    };
    if let Some(known) = Known::of(model)
        && known_rewards::push(draft, list, known, origin, node)
    {
        return;
    }
    let name = model
        .rsplit('.')
        .next()
        .unwrap_or(model)
        .to_lowercase()
        .replace('_', "");
    if !matches!(name.as_str(), "jpegcompressibility" | "jpegcompressibilityreward") {
        // What is trained hangs on rewards; evaluation goes without.
        let rank = if list == "rewards" {
            draft.need(format!("the reward {}", crate::yaml::quote_if_needed(model)));
            Rank::Verdict
        } else {
            Rank::Result
        };
        draft.keep_as(rank, list, origin, reason(model));
        return;
    }
    let mut table = InlineTable::new();
    table.insert("kind", "jpeg-compressibility".into());
    for item in children(origin, node) {
        match item.origin.from.rsplit('.').next() {
            Some("reward_model") => {}
            Some("name") => match item.node.text() {
                Some(name) => drop(table.insert("name", Value::from(name))),
                None => draft.keep(list, &item.origin, convert::not_a("a text", item.node)),
            },
            Some("weight") => match convert::number(item.node) {
                Ok(weight) => drop(table.insert("weight", weight)),
                Err(why) => draft.keep(list, &item.origin, why),
            },
            _ => {
                let reason = "rewards are computed on the host's worker threads";
                draft.keep_as(Rank::Detail, list, &item.origin, reason);
            }
        }
    }
    let text = "minus the size of the JPEG in kB, at quality 95";
    draft.push(list, table, origin, text.to_owned(), false);
}
