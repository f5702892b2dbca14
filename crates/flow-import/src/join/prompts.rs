//! Prompts, which Flow-Factory reads from a folder: `train.jsonl` or else `train.txt`, and likewise `test`
//! (`data_utils/dataset.py`).

use super::{records, take_given};
use crate::convert::{convert, not_a};
use crate::draft::{Draft, Item};
use crate::note::Rank;
use crate::rule::Conversion;

/// What is missing where the config names no folder.
const NEED: &str = "a file of prompts";
/// Keys of folders with what a prompt of a `.jsonl` refers to; a `.txt` refers to nothing.
const MEDIA: [&str; 3] = ["data.image_dir", "data.video_dir", "data.audio_dir"];

pub(super) fn apply(draft: &mut Draft<'_>) {
    if records::rows(draft.kind).is_some() {
        return records::data(draft);
    }
    let several = take_given(draft, "data.datasets");
    let folder = take_given(draft, "data.dataset_dir");
    let written = match (&several, &folder) {
        (None, Some(item)) => files(draft, item),
        (several, folder) => {
            for item in several.iter().chain(folder) {
                let reason = "flow-train reads one file of prompts: put those of all sets into one, and set data.path to it";
                draft.keep_as(Rank::Verdict, "data", &item.origin, reason);
            }
            false
        }
    };
    if !written {
        draft.need(NEED);
    }
}

/// Writes the files of a folder; whether they have paths that flow-train can open.
fn files(draft: &mut Draft<'_>, item: &Item<'_>) -> bool {
    let folder = item.node.text().unwrap_or_default().trim_end_matches('/');
    match convert(Conversion::Path, item.node) {
        Ok(_) if !folder.is_empty() => {}
        Ok(_) => {
            draft.keep("data", &item.origin, not_a("the path of a folder", item.node));
            return false;
        }
        Err(why) => {
            draft.keep(
                "data",
                &item.origin,
                format!("{why} (data.path: the file of prompts)"),
            );
            return false;
        }
    }
    let given = |from: &&str| draft.peek(from).is_some_and(|item| !item.node.is_null());
    let ending = if MEDIA.iter().any(given) { "jsonl" } else { "txt" };
    let origins = [&item.origin];
    draft.set("data.kind", "prompts", &origins, "prompts of a file");
    let text = "Flow-Factory reads `train.jsonl` of this folder, or else `train.txt`: name the one that is there. The path is relative to \
                this file, in Flow-Factory to the working directory";
    draft.set_with_attention("data.path", format!("{folder}/train.{ending}"), &origins, text);
    let text = "the prompts of evaluation; without this file remove the key: a tenth of the prompts is held out then";
    draft.set_explained(
        "data.test_path",
        format!("{folder}/test.{ending}"),
        &origins,
        text,
    );
    true
}
