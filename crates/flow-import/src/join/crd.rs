//! CRD: what rewards are centred on, and how its two copies of the weights follow (Flow-Factory `trainers/crd.py` at commit a0b2bc5,
//! lines 50 to 103).

use toml_edit::Value;

use super::{number, table, take_given};
use crate::convert;
use crate::draft::Draft;

/// Flow-Factory's presets by number and name: `[flat, start, rate, hold]`.
const PRESETS: [(&[&str], [f64; 4]); 7] = [
    (&["0", "none"], [0.0, 0.0, 0.0, 0.0]),
    (&["1", "slow"], [0.0, 0.0, 0.001, 0.5]),
    (&["2", "medium"], [75.0, 0.0, 0.0075, 0.999]),
    (&["3", "offline"], [0.0, 1.0, 0.0, 1.0]),
    (&["4", "fast"], [0.0, 0.0, 0.02, 0.99]),
    (&["5", "moderate"], [0.0, 0.0, 0.01, 0.5]),
    (&["6"], [0.0, 0.0, 0.0075, 0.999]),
];

pub(super) fn apply(draft: &mut Draft<'_>) {
    // What is left is kept as a comment with the text of the table.
    if draft.kind != "crd" || !draft.trainer_exists {
        return;
    }
    centre(draft);
    for (from, to, text) in [
        (
            "train.old_model_decay",
            "algorithm.old_copy",
            "how the copy follows that the implicit reward measures from",
        ),
        (
            "train.sampling_model_decay",
            "algorithm.sampling_copy",
            "how the copy follows that samples",
        ),
    ] {
        let Some(item) = take_given(draft, from) else {
            continue;
        };
        match decay(item.node.flow().trim_matches(['"', '\''])) {
            Some([flat, start, rate, hold]) => {
                let copy = table([
                    ("flat", Value::from(flat as i64)),
                    ("start", Value::from(start)),
                    ("rate", Value::from(rate)),
                    ("hold", Value::from(hold)),
                ]);
                draft.set(to, copy, &[&item.origin], text);
            }
            None => {
                let names: Vec<&str> = PRESETS.iter().flat_map(|(names, _)| *names).copied().collect();
                let reason = format!(
                    "{}; there is flat-start-rate-hold, such as 0-0.25-0.005-0.999, and {}; flow-train's default is in force",
                    convert::not_a("a decay", item.node),
                    names.join(", ")
                );
                draft.keep("algorithm", &item.origin, reason);
            }
        }
    }
}

fn centre(draft: &mut Draft<'_>) {
    const TO: &str = "algorithm.centre_weights";
    let Some(item) = take_given(draft, "train.weight_temp") else {
        return;
    };
    let Some(temperature) = number(&item) else {
        draft.keep("algorithm", &item.origin, convert::not_a("a number", item.node));
        return;
    };
    let origins = [&item.origin];
    if temperature < 0.0 {
        draft.set(TO, "uniform", &origins, "all images count the same in the centre");
    } else if temperature == 0.0 {
        let text = "by the signs of advantages; Flow-Factory looks for negative numbers among rewards between 0 and 1, finds none, and \
                    counts all images the same in their place";
        draft.set_with_attention(TO, "signs", &origins, text);
    } else {
        let text = "by a softmax of rewards, towards both ends";
        draft.set(TO, "softmax", &origins, text);
        draft.set("algorithm.centre_temperature", temperature, &origins, text);
    }
}

/// `[flat, start, rate, hold]` of `flat-start-rate-hold`, or of a preset.
fn decay(written: &str) -> Option<[f64; 4]> {
    let written = written.to_lowercase();
    let preset = PRESETS.iter().find(|(names, _)| names.contains(&&*written));
    if let Some((_, decay)) = preset {
        return Some(*decay);
    }
    let parts: Option<Vec<f64>> = written.split('-').map(|part| part.trim().parse().ok()).collect();
    let decay: [f64; 4] = parts?.try_into().ok()?;
    let is_share = |value: f64| (0.0..=1.0).contains(&value);
    let [flat, start, rate, hold] = decay;
    let is_right =
        flat.fract() == 0.0 && (0.0..=1e8).contains(&flat) && [start, rate, hold].into_iter().all(is_share);
    is_right.then_some(decay)
}
