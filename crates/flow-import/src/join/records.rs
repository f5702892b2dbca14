//! Trainers on records of a data set, `sft` and `offline-dpo`: their data, and how much of them an iteration takes.

use super::geometry::{MOST, count};
use super::take_given;
use crate::convert::convert;
use crate::draft::{Draft, Origin};
use crate::note::Rank;
use crate::rule::Conversion;

/// Why what only a rollout reads is kept.
pub(super) const NO_ROLLOUT: &str = "a trainer on records makes no rollout, so this is not read";

/// Images of a record, if the trainer `kind` learns from records.
pub(super) fn rows(kind: &str) -> Option<i64> {
    match kind {
        "sft" => Some(1),
        "offline-dpo" => Some(2),
        _ => None,
    }
}

/// Flow-Factory's records are a `train.jsonl` of nested objects; flow-train reads others, so that somebody has to write them anew.
pub(super) fn data(draft: &mut Draft<'_>) {
    let several = take_given(draft, "data.datasets");
    let folder = take_given(draft, "data.dataset_dir");
    let (kind, name, form) = match draft.kind {
        "sft" => (
            "images",
            "",
            "pictures with captions: a folder of pictures, each with a text file of its name, or a `.jsonl` whose lines have `image` and \
             `caption`",
        ),
        _ => (
            "preferences",
            "pairs.jsonl",
            "pairs of pictures: a `.jsonl` whose lines have `prompt`, `chosen` and `rejected`",
        ),
    };
    if let Some(item) = &several {
        let reason = format!("flow-train reads one set of {form}: put all into one, and set data.path to it");
        draft.keep_as(Rank::Verdict, "data", &item.origin, reason);
    }
    let mut path = match name {
        "" => "pictures".to_owned(),
        name => name.to_owned(),
    };
    let mut origins: Vec<&Origin> = Vec::new();
    if let Some(item) = &folder {
        let written = item.node.text().unwrap_or_default().trim_end_matches('/');
        match convert(Conversion::Path, item.node) {
            Ok(_) if !written.is_empty() => {
                path = match name {
                    "" => written.to_owned(),
                    name => format!("{written}/{name}"),
                };
                origins.push(&item.origin);
            }
            Ok(_) => draft.keep("data", &item.origin, format!("not the path of {form}")),
            Err(why) => draft.keep("data", &item.origin, format!("{why} (data.path: {form})")),
        }
    }
    let first = form.split(':').next().unwrap_or(form);
    draft.need(format!("{first} as flow-train reads them"));
    draft.set("data.kind", kind, &origins, first);
    let text = format!(
        "{form}. Flow-Factory's `train.jsonl` names them in another way. The path is relative to this file"
    );
    draft.set_with_attention("data.path", path, &origins, &text);
}

/// An optimizer step takes `gradient_accumulation_steps` batches of each device; an iteration of flow-train is one such step.
pub(super) fn geometry(draft: &mut Draft<'_>, rows: i64) {
    for from in [
        "train.group_size",
        "train.unique_sample_num_per_epoch",
        "train.gradient_step_per_epoch",
        "train.num_batches_per_epoch",
    ] {
        if let Some(item) = take_given(draft, from) {
            draft.keep_as(Rank::Detail, "sampling", &item.origin, NO_ROLLOUT);
        }
    }
    let batch = count(draft, "train.per_device_batch_size", "sampling", 1);
    let devices = count(draft, "num_processes", "sampling", 1);
    let accumulated = count(draft, "train.gradient_accumulation_steps", "optimizer", 1);
    let counts = [&batch, &devices, &accumulated];
    let records = (counts.iter()).fold(1_i64, |product, count| product.saturating_mul(count.number));
    let origins: Vec<&Origin> = counts.iter().filter_map(|count| count.origin()).collect();
    draft.set("sampling.group_size", rows, &[], "images of a record");
    let text = "records of an optimizer step: batches of all devices that are accumulated";
    if records > MOST {
        let text = format!("{text}; {records} are too many, so flow-train's default is in force");
        for origin in origins {
            draft.keep("sampling", origin, text.clone());
        }
    } else {
        draft.set("sampling.prompts_per_step", records, &origins, text);
        let origins: Vec<&Origin> = batch.origin().into_iter().collect();
        let text = "images per call of the model";
        draft.set("sampling.micro_batch", batch.number * rows, &origins, text);
    }
    let text = "one optimizer step per iteration";
    draft.set("optimizer.gradient_accumulation", 0, &[], text);
}
