//! The algorithm, its KL term, and the policy that samples.

use toml_edit::Value;

use super::ema::Schedule;
use super::family::Family;
use super::{number, records, table, take_given};
use crate::convert;
use crate::draft::{Draft, Item};
use crate::note::Rank;
use crate::rule::Conversion;
use crate::scalar::Scalar;

/// Flow-Factory's trainers that flow-train has, too, under the same names.
const HERE: [&str; 14] = [
    "grpo",
    "grpo-guard",
    "nft",
    "dppo",
    "awm",
    "dpo",
    "dgpo",
    "crd",
    "sft",
    "offline-dpo",
    "diffusion-opd",
    "dmd2",
    "tdm",
    "tdm-r1",
];

/// Flow-Factory's trainers that flow-train does not have, one of a branch, and whether they train on trajectories' log-probabilities, as
/// `grpo` does, rather than on clean images at drawn times, as `nft` does.
const OTHERS: [(&str, bool); 1] = [("dmdr", false)];

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
    let kind = HERE.into_iter().find(|kind| *kind == written);
    let other = OTHERS.iter().find(|(theirs, _)| *theirs == written);
    match (kind, other) {
        (Some(kind), _) => draft.set_kind(kind, true),
        (None, Some((_, false))) => draft.set_kind("nft", false),
        (None, _) => draft.set_kind("grpo", false),
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
        if records::rows(kind).is_some() {
            let text = "Flow-Factory counts passes over the data set, flow-train iterations of `sampling.prompts_per_step` records: multiply by \
                        their number per pass";
            draft.remark("run.steps", text);
        }
        return;
    }
    // What was asked for stands in the TOML: nothing else is trained in its place.
    let Some(item) = &item else { return };
    let because = format!("no trainer {}", item.node.flow());
    let asked = match item.node.text() {
        Some(text) => text.to_owned(),
        None => item.node.flow(),
    };
    let text = ". What only this trainer reads stands below as comments";
    draft.ask("algorithm.kind", asked, &origins, &because, text);
}

/// Keeps the keys of a trainer that flow-train does not have.
fn without_trainer<const N: usize>(draft: &mut Draft<'_>, keys: [&str; N]) -> bool {
    if draft.trainer_exists {
        return false;
    }
    for from in keys {
        if let Some(item) = take_given(draft, from) {
            draft.keep_as(Rank::Detail, "algorithm", &item.origin, NO_TRAINER);
        }
    }
    true
}

/// Why a key of `train` that belongs to the algorithm is not converted.
pub(crate) const NO_TRAINER: &str = "a key of a trainer that is not here";

fn uses_lora(draft: &Draft<'_>) -> bool {
    let item = draft.peek("model.finetune_type");
    item.is_some_and(|item| {
        item.node
            .text()
            .is_some_and(|text| text.eq_ignore_ascii_case("lora"))
    })
}

pub(super) fn kl(draft: &mut Draft<'_>) {
    if without_trainer(
        draft,
        ["train.kl_beta", "train.kl_type", "train.kl_guidance_scale"],
    ) {
        return;
    }
    match draft.kind {
        "dpo" | "offline-dpo" => {
            let reason = "DPO has the reference inside its loss, and no KL term";
            return without_kl(draft, reason, true);
        }
        "dmd2" | "tdm" | "tdm-r1" => return without_kl(draft, "a distillation has no KL term", true),
        "sft" | "diffusion-opd" => return without_kl(draft, "this trainer has no KL term", false),
        _ => {}
    }
    let beta = take_given(draft, "train.kl_beta");
    let kind = take_given(draft, "train.kl_type");
    let guidance = guidance_of_reference(draft);
    let lora = uses_lora(draft);
    let with_reference = ["dgpo", "crd"].contains(&draft.kind);
    if with_reference && lora {
        // Their losses compare with the reference whether the YAML has a KL term or not.
        draft.set("algorithm.reference", "lora-off", &[], REFERENCE);
    }
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
    // CRD has one where nothing is said.
    if factor == 0.0 && draft.kind != "crd" {
        let guidance = guidance.as_ref().map(|(item, _)| item);
        for item in beta
            .iter()
            .filter(|item| number(item).is_some())
            .chain(&kind)
            .chain(guidance)
        {
            draft.same(
                &item.origin,
                "algorithm.kl",
                "with a factor of 0 there is no KL term",
            );
        }
        return;
    }
    if ["nft", "awm"].contains(&draft.kind) || with_reference {
        if lora && !with_reference {
            let origins: Vec<_> = beta.iter().map(|item| &item.origin).collect();
            draft.set("algorithm.reference", "lora-off", &origins, REFERENCE);
        }
        return pull(draft, beta.as_ref(), kind.as_ref());
    }
    let Some(beta) = beta else { return };
    let Ok(value) = convert::number(beta.node) else {
        return;
    };
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
    let told = guidance.as_ref().map(|(item, _)| item);
    let origins: Vec<_> = [Some(&beta), known, told]
        .into_iter()
        .flatten()
        .map(|item| &item.origin)
        .collect();
    if let Some((_, scale)) = &guidance {
        pairs.push(("guidance_scale", scale.clone()));
    }
    draft.set("algorithm.kl", table(pairs), &origins, REFERENCE);
}

/// The guidance of DPPO's reference, as it is converted; other trainers of Flow-Factory read no such key.
fn guidance_of_reference<'y>(draft: &mut Draft<'y>) -> Option<(Item<'y>, Value)> {
    let item = take_given(draft, "train.kl_guidance_scale")?;
    if draft.kind != "dppo" {
        let reason = "of Flow-Factory's trainers only DPPO reads it";
        draft.keep_as(Rank::Detail, "algorithm", &item.origin, reason);
        return None;
    }
    // FLUX.1-dev is told its scale; others have none at 1 and below.
    let conversion = match Family::of(draft) {
        Family::Flux(_) => Conversion::Number,
        _ => Conversion::Guidance,
    };
    match convert::convert(conversion, item.node) {
        Ok(value) => Some((item, value)),
        Err(why) => {
            draft.keep(
                "algorithm",
                &item.origin,
                format!("{why} (algorithm.kl.guidance_scale)"),
            );
            None
        }
    }
}

/// The KL term of those that compare velocities, and nothing else.
fn pull(draft: &mut Draft<'_>, beta: Option<&Item<'_>>, kind: Option<&Item<'_>>) {
    if let Some((beta, Ok(value))) = beta.map(|item| (item, convert::number(item.node))) {
        let text = "factor of the KL term";
        draft.set("algorithm.kl_beta", value, &[&beta.origin], text);
    }
    let Some(kind) = kind else { return };
    if convert::is_one_of(kind.node, &["v-based"]) {
        draft.same(&kind.origin, "algorithm.kl_beta", "it compares velocities");
    } else {
        let reason = "NFT, AWM, DGPO and CRD compare velocities, and nothing else";
        draft.keep("algorithm", &kind.origin, reason);
    }
}

/// What has no KL term, and may compare with the reference otherwise.
fn without_kl(draft: &mut Draft<'_>, reason: &str, has_reference: bool) {
    for from in ["train.kl_beta", "train.kl_type", "train.kl_guidance_scale"] {
        if let Some(item) = take_given(draft, from) {
            draft.keep_as(Rank::Detail, "algorithm", &item.origin, reason);
        }
    }
    if has_reference && uses_lora(draft) {
        draft.set("algorithm.reference", "lora-off", &[], "adapters off");
    }
}

const REFERENCE: &str =
    "as in Flow-Factory the reference is the base below the adapters, or a snapshot without them";

const OFF_POLICY: &str = "whether the average samples";

pub(super) fn old_policy(draft: &mut Draft<'_>) {
    if without_trainer(draft, ["train.off_policy"]) {
        return;
    }
    let item = take_given(draft, "train.off_policy");
    let off_policy = match item.as_ref().map(|item| item.node.scalar()) {
        None => false,
        Some(Some(Scalar::Boolean(off_policy))) => *off_policy,
        Some(_) => {
            if let Some(item) = &item {
                draft.keep("algorithm", &item.origin, "off_policy is true or false");
            }
            return;
        }
    };
    let origins: Vec<_> = item.iter().map(|item| &item.origin).collect();
    if draft.kind == "dgpo" {
        for origin in origins {
            let up_to =
                "up to `algorithm.old_samples_after` optimizer steps the policy that is trained samples";
            match off_policy {
                true => draft.keep(
                    "algorithm",
                    origin,
                    format!("{up_to}, in Flow-Factory the moving average"),
                ),
                false => draft.same(origin, "algorithm.old_samples_after", up_to),
            }
        }
        return;
    }
    if draft.kind == "crd" {
        for origin in origins {
            let reason = "CRD samples with a copy of its own, `algorithm.sampling_copy`, in Flow-Factory too";
            draft.keep_as(Rank::Detail, "algorithm", origin, reason);
        }
        return;
    }
    let awm = draft.kind == "awm";
    if draft.kind != "nft" && !awm {
        for origin in origins {
            let reason = match records::rows(draft.kind) {
                Some(_) => records::NO_ROLLOUT.to_owned(),
                None => format!(
                    "`algorithm.kind = \"{}\"` samples with the policy that it trains, in Flow-Factory too",
                    draft.kind
                ),
            };
            draft.keep_as(Rank::Detail, "algorithm", origin, reason);
        }
        return;
    }
    if awm {
        draft.set("algorithm.off_policy", off_policy, &origins, OFF_POLICY);
        let pull = draft.peek("train.ema_kl_beta").and_then(number);
        if !off_policy && pull.is_none_or(|factor| factor == 0.0) {
            return;
        }
    } else if !off_policy {
        let on_policy = table([
            ("flat", 0.into()),
            ("rate", Value::from(0.0)),
            ("hold", Value::from(0.0)),
        ]);
        let text = "off_policy: false, the policy that is trained also samples";
        draft.set("algorithm.old_policy", on_policy, &origins, text);
        return;
    }
    let plan = Schedule::of(draft);
    if let Some((policy, text)) = plan.old_policy() {
        if plan.every == 1 || !plan.exists() {
            draft.set_explained("algorithm.old_policy", policy, &origins, &text);
        } else {
            let text = format!(
                "{text}. In Flow-Factory it follows every {} iterations, here every iteration",
                plan.every
            );
            draft.set_with_attention("algorithm.old_policy", policy, &origins, &text);
        }
        return;
    }
    let reason = format!(
        "in Flow-Factory the moving average samples, here with the schedule `{}`; flow-train's old policy rises linearly. Its \
         default is in force: see algorithm.old_policy",
        plan.kind
    );
    for origin in origins {
        draft.keep("algorithm", origin, reason.clone());
    }
}

/// Without `global_std` `gdpo` does not normalise over all images, in Flow-Factory's main branch as here.
pub(super) fn advantage(draft: &mut Draft<'_>) {
    const TO: &str = "advantage.global_std";
    let aggregation = take_given(draft, "train.advantage_aggregation");
    let global_std = take_given(draft, "train.global_std");
    let words = Conversion::Choice(&[("sum", "sum"), ("gdpo", "gdpo")]);
    let chosen = aggregation
        .as_ref()
        .map(|item| convert::convert(words, item.node));
    match (&aggregation, &chosen) {
        (Some(item), Some(Ok(value))) => {
            let text = "how several rewards become one advantage";
            draft.set("advantage.aggregation", value.clone(), &[&item.origin], text);
        }
        (Some(item), Some(Err(why))) => draft.keep("advantage", &item.origin, why.clone()),
        _ => draft.set(
            "advantage.aggregation",
            "gdpo",
            &[],
            "train.advantage_aggregation",
        ),
    }
    let sum = matches!(&chosen, Some(Ok(value)) if value.as_str() == Some("sum"));
    match &global_std {
        Some(item) => match convert::convert(Conversion::Switch, item.node) {
            Ok(value) if !sum && value.as_bool() == Some(false) => {
                let text = "the weighted sum of `gdpo` is not normalised over all images, as in Flow-Factory's main branch; at commit \
                            a0b2bc5 it was whatever this says";
                draft.set_with_attention(TO, value, &[&item.origin], text);
            }
            Ok(value) => {
                let text = "divide by the standard deviation over all images";
                draft.set(TO, value, &[&item.origin], text);
            }
            Err(why) => draft.keep("advantage", &item.origin, why),
        },
        None => draft.set(TO, true, &[], "train.global_std"),
    }
}
