//! Batches, devices and accumulation. Flow-Factory spreads `prompts * group` images over W devices in batches of B and
//! makes S optimizer steps of them; flow-train makes the same optimizer steps of the same images on one device, with
//! batches of B and `prompts * group / (B * S)` of them accumulated. Where that is no whole number, it says so.

use super::{distillation, records, take_given, whole};
use crate::convert;
use crate::draft::{Draft, Item, Origin};

/// flow-train's group, where Flow-Factory's would be one image, whose advantage is always 0.
const LEAST_GROUP: i64 = 16;
/// Numbers beyond this are no batch sizes.
pub(super) const MOST: i64 = 65_536;

/// A key of the geometry: its number, and where it stood.
pub(super) struct Count<'y> {
    pub number: i64,
    item: Option<Item<'y>>,
}

impl Count<'_> {
    pub fn origin(&self) -> Option<&Origin> {
        self.item.as_ref().map(|item| &item.origin)
    }
}

/// Takes a key that must be a whole number from 1 on.
pub(super) fn count<'y>(draft: &mut Draft<'y>, from: &str, section: &str, default: i64) -> Count<'y> {
    let item = take_given(draft, from);
    match item.as_ref().map(whole) {
        None => Count {
            number: default,
            item,
        },
        Some(Some(number)) if (1..=MOST).contains(&number) => Count { number, item },
        Some(_) => {
            if let Some(item) = item {
                let what = format!("a whole number from 1 to {MOST}");
                let reason = format!(
                    "{}; Flow-Factory's default of {default} is taken",
                    convert::not_a(&what, item.node)
                );
                draft.keep(section, &item.origin, reason);
            }
            Count {
                number: default,
                item: None,
            }
        }
    }
}

pub(super) fn apply(draft: &mut Draft<'_>) {
    let text = "Flow-Factory computes on GPUs";
    draft.set("device.kind", "cuda", &[], text);
    if let Some(rows) = records::rows(draft.kind) {
        return records::geometry(draft, rows);
    }
    let sampler = Sampler::of(draft);
    let group = group(draft);
    let prompts = count(draft, "train.unique_sample_num_per_epoch", "sampling", 8);
    let batch = count(draft, "train.per_device_batch_size", "sampling", 1);
    let devices = count(draft, "num_processes", "sampling", 1);
    let images = prompts.number * group;

    let origins: Vec<&Origin> = prompts.origin().into_iter().collect();
    let theirs = sampler.prompts(draft, prompts.number, group, batch.number, devices.number);
    if theirs == prompts.number {
        draft.set(
            "sampling.prompts_per_step",
            prompts.number,
            &origins,
            "prompts per iteration",
        );
    } else {
        let text = format!(
            "{} prompts * {group} images cannot be spread evenly over {} devices in batches of {}, so Flow-Factory \
             raises the number of prompts to {theirs}; flow-train need not",
            prompts.number, devices.number, batch.number
        );
        draft.set_with_attention("sampling.prompts_per_step", prompts.number, &origins, &text);
    }
    let micro = micro_batch(draft, images, &batch, &devices);
    accumulation(draft, images / micro, batch.number == micro, &devices);
}

/// How Flow-Factory spreads groups over devices (`hparams/args.py` at commit a0b2bc5).
#[derive(Clone, Copy, PartialEq)]
enum Sampler {
    Auto,
    /// Whole groups on one device.
    Contiguous,
    /// A group anywhere.
    Repeat,
}

impl Sampler {
    fn of(draft: &Draft<'_>) -> Self {
        let item = draft.peek("data.sampler_type");
        let is = |word: &str| item.is_some_and(|item| convert::is_one_of(item.node, &[word]));
        if is("group_contiguous") {
            Self::Contiguous
        } else if is("distributed_k_repeat") || is("group_distributed") {
            Self::Repeat
        } else {
            Self::Auto
        }
    }

    /// The prompts of an iteration, which Flow-Factory raises until batches, devices and optimizer steps come out even.
    fn prompts(self, draft: &Draft<'_>, prompts: i64, group: i64, batch: i64, devices: i64) -> i64 {
        let at_once = devices * batch;
        let whole_groups = prompts % devices == 0;
        let tiled = (prompts / devices * group) % batch == 0;
        let contiguous = match self {
            Self::Contiguous => true,
            Self::Repeat => false,
            Self::Auto => whole_groups || !tiled,
        };
        let peek = |from: &str| {
            draft
                .peek(from)
                .and_then(whole)
                .filter(|n| (1..=MOST).contains(n))
        };
        let mut step = at_once / gcd(group, at_once);
        if peek("train.gradient_accumulation_steps").is_none() {
            step = step.saturating_mul(peek("train.gradient_step_per_epoch").unwrap_or(default_steps(draft)));
        }
        if contiguous {
            step = (step / gcd(step, devices)).saturating_mul(devices);
        }
        // Four factors of 65,536 are more than 63 bits hold.
        prompts.saturating_add(step - 1) / step * step
    }
}

/// Optimizer steps of a rollout where Flow-Factory's config says nothing.
fn default_steps(draft: &Draft<'_>) -> i64 {
    if distillation::replays(draft.kind) { 1 } else { 2 }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn group(draft: &mut Draft<'_>) -> i64 {
    let group = count(draft, "train.group_size", "sampling", 1);
    if group.number > 1 {
        let origins: Vec<&Origin> = group.origin().into_iter().collect();
        draft.set("sampling.group_size", group.number, &origins, "images per prompt");
        return group.number;
    }
    let reason =
        "the advantage within a group of one image is always 0, so flow-train's default of 16 is taken";
    match group.origin() {
        Some(origin) => draft.keep("sampling", origin, reason),
        None => draft.remark(
            "sampling.group_size",
            format!("`train.group_size` is left out, and Flow-Factory's default is 1; {reason}"),
        ),
    }
    LEAST_GROUP
}

fn micro_batch(draft: &mut Draft<'_>, images: i64, batch: &Count<'_>, devices: &Count<'_>) -> i64 {
    let largest = batch.number.min(images);
    let micro = (1..=largest).rev().find(|micro| images % micro == 0).unwrap_or(1);
    let several = devices.number > 1;
    let from_devices = devices.origin().filter(|_| several);
    let origins: Vec<&Origin> = batch.origin().into_iter().chain(from_devices).collect();
    if micro == batch.number {
        let text = if several {
            "images per call of the model; one device does the batches of all in turn"
        } else {
            "images per call of the model"
        };
        draft.set("sampling.micro_batch", micro, &origins, text);
    } else {
        let text = format!(
            "{images} images cannot be cut into batches of {}; this is the next lower number that divides them",
            batch.number
        );
        draft.set_with_attention("sampling.micro_batch", micro, &origins, &text);
    }
    if let Some(origin) = devices.origin().filter(|_| !several) {
        draft.same(
            origin,
            "sampling.micro_batch",
            "flow-train computes on one device",
        );
    }
    micro
}

/// `batches` is how many there are in a rollout; `as_written` whether they are of the size that the YAML says.
fn accumulation(draft: &mut Draft<'_>, batches: i64, as_written: bool, devices: &Count<'_>) {
    const TO: &str = "optimizer.gradient_accumulation";
    let accumulate = take_given(draft, "train.gradient_accumulation_steps");
    let (auto, accumulate) = match accumulate {
        Some(item) if convert::is_one_of(item.node, &["auto"]) => (Some(item), None),
        other => (None, other),
    };
    let accumulate = accumulate.and_then(|item| match whole(&item) {
        Some(number) if (1..=MOST).contains(&number) => Some((item, number)),
        _ => {
            let reason = "neither a whole number from 1 on nor `auto`; gradient_step_per_epoch is followed";
            draft.keep("optimizer", &item.origin, reason);
            None
        }
    });
    let default = default_steps(draft);
    let steps = count(draft, "train.gradient_step_per_epoch", "optimizer", default);
    let several = devices.number > 1;
    let wanted = match &accumulate {
        Some((item, number)) => {
            if let Some(origin) = steps.origin() {
                draft.same(
                    origin,
                    TO,
                    "gradient_accumulation_steps is given and stands above it",
                );
            }
            let origins = [Some(&item.origin), devices.origin().filter(|_| several)];
            (
                Some(number * devices.number),
                origins.into_iter().flatten().cloned().collect::<Vec<_>>(),
            )
        }
        None => {
            let even = batches % steps.number == 0;
            let origins = [steps.origin(), auto.as_ref().map(|item| &item.origin)];
            (
                even.then(|| batches / steps.number),
                origins.into_iter().flatten().cloned().collect(),
            )
        }
    };
    let (number, origins) = (wanted.0.filter(|number| batches % number == 0), wanted.1);
    let origins: Vec<&Origin> = origins.iter().collect();
    match number {
        Some(number) => {
            // 0 is flow-train's word for one step per rollout.
            let written = if number == batches { 0 } else { number };
            let spread = accumulate.is_some() || number % devices.number == 0;
            let text = format!(
                "{} optimizer steps per rollout of {batches} batches",
                batches / number
            );
            if as_written && spread {
                draft.set(TO, written, &origins, &text);
            } else {
                let text = format!(
                    "{text}; Flow-Factory, whose batches or devices do not come out even, may make others"
                );
                draft.set_with_attention(TO, written, &origins, &text);
            }
        }
        None => {
            let divisors = (1..=batches.min(MOST)).filter(|n| batches % n == 0);
            let fitting: Vec<String> = divisors.take(12).map(|n| n.to_string()).collect();
            let asked = match &accumulate {
                Some((_, number)) => format!("{} batches per optimizer step", number * devices.number),
                None => format!("{} optimizer steps", steps.number),
            };
            let reason = format!(
                "a rollout of {batches} batches cannot be cut into {asked}, so there is one step per rollout; \
                 {TO} may be {}",
                fitting.join(", ")
            );
            if origins.is_empty() {
                draft.remark(TO, format!("Flow-Factory's default: {reason}"));
            }
            for origin in origins {
                draft.keep("optimizer", origin, reason.clone());
            }
        }
    }
}
