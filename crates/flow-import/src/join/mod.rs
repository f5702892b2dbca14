//! Keys that are converted together, because one value of flow-train follows from several of Flow-Factory or the
//! other way round. Each function takes its keys from the draft and sees to it that each comes to something; what it
//! leaves is kept as a comment with the text of the table.

mod acceleration;
mod algorithm;
mod crd;
mod distillation;
mod ema;
mod family;
mod geometry;
mod known_rewards;
mod model;
mod optimizer;
mod path;
mod prompts;
mod records;
mod rewards;

pub(crate) use algorithm::{NO_TRAINER, choose as choose_algorithm};

use crate::draft::{Draft, Item};
use crate::rule::Join;
use crate::scalar::Scalar;

/// Applies a group's conversion.
pub(crate) fn apply(join: Join, draft: &mut Draft<'_>) {
    match join {
        Join::Model => model::model(draft),
        Join::LoraTargets => model::lora_targets(draft),
        Join::Guidance => model::guidance(draft),
        Join::Prompts => prompts::apply(draft),
        Join::Advantage => algorithm::advantage(draft),
        Join::Algorithm => algorithm::kind(draft),
        Join::Dynamics => path::dynamics(draft),
        Join::Window => path::window(draft),
        Join::Geometry => geometry::apply(draft),
        Join::Optimizer => optimizer::apply(draft),
        Join::Kl => algorithm::kl(draft),
        Join::OldPolicy => algorithm::old_policy(draft),
        Join::Crd => crd::apply(draft),
        Join::Distillation => distillation::apply(draft),
        Join::Ema => ema::apply(draft),
        Join::Evaluation => path::evaluation(draft),
        Join::Seed => path::seed(draft),
        Join::Logging => path::logging(draft),
        Join::Rewards => rewards::apply(draft),
        Join::Acceleration => acceleration::apply(draft),
    }
}

/// The whole number of an item.
fn whole(item: &Item<'_>) -> Option<i64> {
    match item.node.scalar()? {
        Scalar::Integer(number) => Some(*number),
        Scalar::Float(number) if number.fract() == 0.0 && number.abs() < 9e15 => Some(*number as i64),
        _ => None,
    }
}

/// The number of an item.
fn number(item: &Item<'_>) -> Option<f64> {
    match item.node.scalar()? {
        Scalar::Integer(number) => Some(*number as f64),
        Scalar::Float(number) => Some(*number),
        _ => None,
    }
}

/// An inline table of these keys.
fn table(pairs: impl IntoIterator<Item = (&'static str, toml_edit::Value)>) -> toml_edit::InlineTable {
    let mut table = toml_edit::InlineTable::new();
    for (key, mut value) in pairs {
        value.decor_mut().clear();
        table.insert(key, value);
    }
    table
}

/// Takes a key unless it is null; null is noted as left out.
fn take_given<'y>(draft: &mut Draft<'y>, from: &str) -> Option<Item<'y>> {
    let item = draft.take(from)?;
    if item.node.is_null() {
        draft.same(&item.origin, "", "null is as if it were left out");
        return None;
    }
    Some(item)
}
