//! The algorithm, its KL term, and the policy that samples in NFT.

use toml_edit::Value;

use super::{number, table, take_given};
use crate::convert;
use crate::draft::Draft;
use crate::scalar::Scalar;

/// Flow-Factory's trainers that flow-train does not have, each with the nearest that it has, and why.
const NEAREST: &[(&str, &str, &str)] = &[
    (
        "dppo",
        "grpo",
        "it masks by divergence where GRPO clips the ratio",
    ),
    (
        "awm",
        "nft",
        "both train on clean images at drawn times, without log-probabilities of the rollout",
    ),
    (
        "dpo",
        "nft",
        "both train on clean images at drawn times; DPO compares the best and the worst of a group",
    ),
    (
        "dgpo",
        "nft",
        "both train on clean images at drawn times; DGPO weighs whole groups",
    ),
    (
        "crd",
        "nft",
        "both train on clean images at drawn times, against an old policy",
    ),
    (
        "tdm-r1",
        "nft",
        "it is decoupled, and NFT is the only such algorithm here",
    ),
    (
        "sft",
        "nft",
        "it learns from a data set without rewards; `flow-train pretrain` may be what you want",
    ),
    (
        "offline-dpo",
        "nft",
        "it learns from a data set without rollouts, which flow-train does not",
    ),
    ("diffusion-opd", "nft", "flow-train does not distil"),
    ("dmd2", "nft", "flow-train does not distil"),
    ("tdm", "nft", "flow-train does not distil"),
];

fn name(written: &str) -> String {
    written.to_lowercase().replace('_', "-")
}

/// Chooses our algorithm before any other rule, since defaults depend on it.
pub(crate) fn choose(draft: &mut Draft<'_>) {
    let Some(item) = draft.peek("train.trainer_type") else {
        return;
    };
    if item.node.is_null() {
        return;
    }
    let written = name(item.node.text().unwrap_or_default());
    let kind = ["grpo", "grpo-guard", "nft"]
        .into_iter()
        .find(|kind| *kind == written);
    let nearest = NEAREST.iter().find(|(theirs, ..)| *theirs == written);
    match (kind, nearest) {
        (Some(kind), _) => draft.set_kind(kind, true),
        (None, Some((_, nearest, _))) => draft.set_kind(nearest, false),
        (None, None) => draft.set_kind("grpo", false),
    }
}

pub(super) fn kind(draft: &mut Draft<'_>) {
    let kind = draft.kind;
    let item = take_given(draft, "train.trainer_type");
    let origins: Vec<_> = item.iter().map(|item| &item.origin).collect();
    if draft.trainer_exists {
        draft.set("algorithm.kind", kind, &origins, "the algorithm");
        if kind == "grpo-guard" {
            draft.set(
                "algorithm.reweight",
                false,
                &origins,
                "Flow-Factory does not divide the loss of a step by its -dt, which the official code does",
            );
        }
        return;
    }
    let written = item.as_ref().map(|item| item.node.flow()).unwrap_or_default();
    let why = NEAREST
        .iter()
        .find(|(theirs, ..)| *theirs == name(&written))
        .map(|(_, _, why)| *why);
    let text = format!(
        "flow-train has no trainer {written}; the nearest is {kind}, and only the keys that they share are converted: {}",
        why.unwrap_or("it is none of Flow-Factory's own, so flow-train's default is written")
    );
    draft.set_with_attention("algorithm.kind", kind, &origins, &text);
}

fn uses_lora(draft: &Draft<'_>) -> bool {
    let item = draft.peek("model.finetune_type");
    item.is_some_and(|item| {
        item.node
            .text()
            .is_some_and(|text| text.eq_ignore_ascii_case("lora"))
    })
}

pub(super) fn kl(draft: &mut Draft<'_>) {
    let beta = take_given(draft, "train.kl_beta");
    let kind = take_given(draft, "train.kl_type");
    let factor = match &beta {
        None => 0.0,
        Some(item) => match number(item) {
            Some(factor) => factor,
            None => {
                let reason = format!(
                    "{}; without it there is no KL term",
                    convert::not_a("a number", item.node)
                );
                draft.keep("algorithm", &item.origin, reason);
                0.0
            }
        },
    };
    if factor == 0.0 {
        for item in beta.iter().filter(|item| number(item).is_some()).chain(&kind) {
            draft.same(
                &item.origin,
                "algorithm.kl",
                "with a factor of 0 there is no KL term",
            );
        }
        return;
    }
    let Some(beta) = beta else { return };
    let Ok(value) = convert::number(beta.node) else {
        return;
    };
    let lora = uses_lora(draft);
    if draft.kind == "nft" {
        draft.set(
            "algorithm.kl_beta",
            value,
            &[&beta.origin],
            "factor of the KL term",
        );
        if lora {
            draft.set("algorithm.reference", "lora-off", &[&beta.origin], REFERENCE);
        }
        match &kind {
            Some(item) if convert::is_one_of(item.node, &["v-based"]) => {
                draft.same(&item.origin, "algorithm.kl_beta", "NFT compares velocities");
            }
            Some(item) => draft.keep(
                "algorithm",
                &item.origin,
                "NFT compares velocities, and nothing else",
            ),
            None => {}
        }
        return;
    }
    let ours = match &kind {
        None => "mean",
        Some(item) if convert::is_one_of(item.node, &["x-based"]) => "mean",
        Some(item) if convert::is_one_of(item.node, &["v-based"]) => "velocity",
        Some(item) => {
            let reason = "there is v-based and x-based; the latter, Flow-Factory's default, is written";
            draft.keep("algorithm", &item.origin, reason);
            "mean"
        }
    };
    let known = kind
        .as_ref()
        .filter(|item| convert::is_one_of(item.node, &["x-based", "v-based"]));
    let mut pairs = vec![("kind", Value::from(ours)), ("beta", value)];
    if lora {
        pairs.push(("reference", "lora-off".into()));
    }
    let origins: Vec<_> = [Some(&beta), known]
        .into_iter()
        .flatten()
        .map(|item| &item.origin)
        .collect();
    draft.set("algorithm.kl", table(pairs), &origins, REFERENCE);
}

const REFERENCE: &str =
    "as in Flow-Factory the reference is the base below the adapters, or a snapshot without them";

pub(super) fn old_policy(draft: &mut Draft<'_>) {
    if draft.kind != "nft" {
        if let Some(item) = draft.take("train.off_policy") {
            let reason = format!(
                "`algorithm.kind = \"{}\"` samples with the policy that it trains",
                draft.kind
            );
            draft.keep("algorithm", &item.origin, reason);
        }
        return;
    }
    let item = take_given(draft, "train.off_policy");
    let origins: Vec<_> = item.iter().map(|item| &item.origin).collect();
    let schedule = |flat: i64, rate: f64, hold: Value| {
        table([("flat", flat.into()), ("rate", rate.into()), ("hold", hold)])
    };
    match item.as_ref().map(|item| item.node.scalar()) {
        None | Some(Some(Scalar::Boolean(false))) if draft.trainer_exists || item.is_some() => {
            draft.set(
                "algorithm.old_policy",
                schedule(0, 0.0, Value::from(0.0)),
                &origins,
                "off_policy: false, the policy that is trained also samples",
            );
        }
        None => {}
        Some(Some(Scalar::Boolean(true))) => {
            let is = |from: &str, word: &str| {
                draft
                    .peek(from)
                    .is_some_and(|item| convert::is_one_of(item.node, &[word]))
            };
            let exact =
                is("train.ema_decay_schedule", "piecewise_linear") && is("train.ema_update_interval", "1");
            let decay = draft
                .peek("train.ema_decay")
                .and_then(|item| convert::number(item.node).ok());
            if exact {
                draft.set(
                    "algorithm.old_policy",
                    schedule(0, 0.001, decay.unwrap_or_else(|| Value::from(0.995))),
                    &origins,
                    "the average of Flow-Factory's schedule `piecewise_linear`",
                );
                return;
            }
            for origin in origins {
                draft.keep(
                    "algorithm",
                    origin,
                    "in Flow-Factory the moving average samples, with its schedule and interval; in flow-train the old \
                     policy has a schedule of its own, and its default is left: see algorithm.old_policy",
                );
            }
        }
        Some(_) => {
            for origin in origins {
                draft.keep("algorithm", origin, "off_policy is true or false");
            }
        }
    }
}
