//! Settings of AdamW. They stand in `train`, and in newer configs in the list `optimizers`, which has a map for each set
//! of weights that is trained.

use super::distillation::NetworkMap;
use super::{distillation, take_given};
use crate::convert;
use crate::draft::{Draft, Item, Origin, quoted};
use crate::rule::Conversion;
use crate::table;
use crate::yaml::{self, Node, Pair};

/// The key in a map of `optimizers`, the key in `train`, and how both are converted.
const SETTINGS: [(&str, &str, Conversion); 5] = [
    ("learning_rate", "train.learning_rate", Conversion::Number),
    ("weight_decay", "train.adam_weight_decay", Conversion::Number),
    ("betas", "train.adam_betas", Conversion::Range),
    ("eps", "train.adam_epsilon", Conversion::Number),
    ("max_grad_norm", "train.max_grad_norm", Conversion::Number),
];

/// What `optimizers` comes to.
enum Listed<'y> {
    /// It is left out, or empty.
    Nothing,
    /// The keys of its one map.
    One(Vec<Item<'y>>),
    /// Something that is kept as a comment, so that nobody knows what the one optimizer of flow-train is to take.
    Unclear,
}

pub(super) fn apply(draft: &mut Draft<'_>) {
    let listed = listed(draft);
    for (name, from, conversion) in SETTINGS {
        let Some(rule) = table::rule(from) else {
            continue;
        };
        let in_list = match &listed {
            Listed::One(items) => items
                .iter()
                .find(|item| item.origin.from.rsplit('.').next() == Some(name)),
            Listed::Nothing | Listed::Unclear => None,
        };
        let in_train = take_given(draft, from);
        if let (Some(_), Some(item)) = (in_list, &in_train) {
            let reason = format!("`optimizers` has `{name}` too, and that is taken");
            draft.keep("optimizer", &item.origin, reason);
        }
        if let Some(item) = in_list.or(in_train.as_ref()) {
            match convert::convert(conversion, item.node) {
                Ok(value) => draft.set(rule.to, value, &[&item.origin], rule.doc),
                Err(why) => {
                    let reason = format!("{why} ({}: {})", rule.to, rule.doc);
                    draft.keep("optimizer", &item.origin, reason);
                }
            }
            continue;
        }
        let default = rule.default.filter(|_| !matches!(listed, Listed::Unclear));
        if let Some(Ok(node)) = default.map(yaml::parse)
            && let Ok(value) = convert::convert(conversion, &node)
        {
            draft.set(rule.to, value, &[], from);
        }
    }
}

fn listed<'y>(draft: &mut Draft<'y>) -> Listed<'y> {
    let Some(Item { origin, node }) = take_given(draft, "optimizers") else {
        return Listed::Nothing;
    };
    let nodes = node.list().unwrap_or(std::slice::from_ref(node));
    let maps: Option<Vec<&[Pair]>> = nodes.iter().map(Node::map).collect();
    match maps.as_deref() {
        Some([]) => {
            draft.same(&origin, "optimizer", "an empty list");
            Listed::Nothing
        }
        Some([[]]) => {
            draft.same(&origin, "optimizer", "an empty map");
            Listed::Nothing
        }
        Some([pairs]) => {
            let path = match node.list() {
                Some(_) => format!("{}.0", origin.from),
                None => origin.from,
            };
            Listed::One(one(draft, &path, pairs))
        }
        Some(maps) => {
            if let Some((generator, networks)) = roles(draft, maps) {
                let path = |index: usize| format!("{}.{index}", origin.from);
                for (table, index) in networks {
                    distillation::network(draft, table, &path(index), maps[index]);
                }
                return Listed::One(one(draft, &path(generator), maps[generator]));
            }
            let reason = "a map for each set of weights that is trained; flow-train trains one set with one optimizer, AdamW: \
                          write the settings that it is to have into [optimizer], where nothing was added for them";
            draft.keep("optimizer", &origin, reason);
            Listed::Unclear
        }
        None => {
            let reason = "a list of maps such as `{learning_rate: 3.0e-4}`; write the settings into [optimizer], where nothing was \
                          added for them";
            draft.keep("optimizer", &origin, reason);
            Listed::Unclear
        }
    }
}

/// The student's map and those of the networks beside it, where the trainer has some.
fn roles(draft: &Draft<'_>, maps: &[&[Pair]]) -> Option<(usize, Vec<NetworkMap>)> {
    if !distillation::replays(draft.kind) {
        return None;
    }
    distillation::roles(draft.kind, maps)
}

/// The settings in the one map; what else it has gets its note here.
fn one<'y>(draft: &mut Draft<'y>, path: &str, pairs: &'y [Pair]) -> Vec<Item<'y>> {
    let mut settings = Vec::new();
    for pair in pairs {
        let origin = Origin::new(format!("{path}.{}", quoted(&pair.key)), pair.place, &pair.node);
        match pair.key.as_str() {
            _ if pair.node.is_null() => draft.same(&origin, "", "null is as if it were left out"),
            "name" => draft.same(&origin, "", "flow-train has one optimizer, which needs no name"),
            key if SETTINGS.iter().any(|(name, ..)| *name == key) => settings.push(Item {
                origin,
                node: &pair.node,
            }),
            _ => draft.keep(
                "optimizer",
                &origin,
                "flow-train's optimizer is AdamW and has no such setting",
            ),
        }
    }
    settings
}
