//! Architecture, dimensions and weights; what is trained of them.

use toml_edit::Value;

use super::family::{Family, Other, is_full};
use super::{table, take_given, whole};
use crate::convert::{convert, float, list, not_a, number};
use crate::draft::{Draft, Item, Origin};
use crate::note::Rank;
use crate::rule::Conversion;

/// Pixels of an image per pixel of the latent, along a side: the autoencoders of SD3 and of Wan.
const PIXELS: i64 = 8;
/// Frames of a video per frame of Wan's latent; the first frame stands for itself.
const FRAMES: i64 = 4;
/// Frames that the adapter of Wan takes where the config names none.
const DEFAULT_FRAMES: i64 = 81;

pub(super) fn model(draft: &mut Draft<'_>) {
    let family = Family::of(draft);
    architecture(draft, family);
    size(draft, family);
    frames(draft, family);
    shift(draft, family);
    weights(draft, family);
}

fn architecture(draft: &mut Draft<'_>, family: Family) {
    let item = take_given(draft, "model.model_type");
    let origins: Vec<&Origin> = item.iter().map(|item| &item.origin).collect();
    let (table, other) = match family {
        Family::Other(other) => return not_here(draft, item.as_ref(), other),
        Family::Sd3(_) => ("mmdit", "SD3's transformer"),
        Family::Wan(_) => ("wan", "Wan's transformer"),
    };
    draft.need(format!(
        "an autoencoder and the text encoders of {}",
        family.name()
    ));
    if family.is_sized() {
        let text = format!("{other}, with the dimensions of {}", family.name());
        draft.set_explained("model.architecture", table, &origins, &text);
    } else {
        let text = format!(
            "{other}; `model.model_name_or_path` does not say which size, so the dimensions of [model.{table}] are to be \
             written: they stand in the checkpoint's transformer/config.json"
        );
        draft.set_with_attention("model.architecture", table, &origins, &text);
    }
    for (key, value) in family.dimensions() {
        let to = format!("model.{table}.{key}");
        draft.set(&to, value, &origins, "of this size of the model");
    }
}

/// What was asked for stands in the TOML: nothing else is trained in its place.
fn not_here(draft: &mut Draft<'_>, item: Option<&Item<'_>>, other: Other) {
    let written = item.map(|item| item.node.text().unwrap_or_default());
    let asked = match written {
        Some(written) if !written.is_empty() => written,
        _ => "flux1",
    };
    let because = match other.name {
        "" => format!(
            "no model {}",
            item.map_or(asked.to_owned(), |item| item.node.flow())
        ),
        name => format!("no model {name}{}", other.beyond),
    };
    let text = match item {
        None => ". It is Flow-Factory's default, since `model.model_type` is left out",
        Some(_) => "",
    };
    let origins: Vec<&Origin> = item.iter().map(|item| &item.origin).collect();
    // What Flow-Factory would not know may be the name of something here.
    let taken = flow_config::explain(draft.catalog, "model.architecture")
        .is_some_and(|key| key.allowed.iter().any(|(name, _)| name == asked));
    let asked = if taken {
        format!("flow-factory/{asked}")
    } else {
        asked.to_owned()
    };
    draft.ask("model.architecture", asked, &origins, &because, text);
}

fn size(draft: &mut Draft<'_>, family: Family) {
    let given: Vec<Item<'_>> = ["train.resolution", "train.height", "train.width"]
        .into_iter()
        .filter_map(|from| take_given(draft, from))
        .collect();
    let origins: Vec<&Origin> = given.iter().map(|item| &item.origin).collect();
    // Height and width stand above the resolution, which is one number or [height, width].
    let side = |index: usize, name: &str| side(&given, index, name);
    let sides = (side(0, "train.height"), side(1, "train.width"));
    match (family, sides) {
        (Family::Other(_), _) => {
            for origin in origins {
                draft.keep_as(
                    Rank::Detail,
                    "model",
                    origin,
                    "pixels of an image of a model that is not here",
                );
            }
        }
        (Family::Sd3(_), (Some(height), Some(width)))
            if height == width && height > 0 && height % PIXELS == 0 =>
        {
            draft.set(
                "model.mmdit.sample_size",
                height / PIXELS,
                &origins,
                "pixels of the latent: SD3's autoencoder makes an eighth of the image",
            );
        }
        (Family::Wan(_), (Some(height), Some(width))) if height >= 2 * PIXELS && width >= 2 * PIXELS => {
            let latent = |pixels: i64| pixels / (2 * PIXELS) * 2;
            let text = "pixels of the latent: an eighth of the video, in whole patches of two, as Flow-Factory rounds it";
            draft.set("model.wan.latent_height", latent(height), &origins, text);
            draft.set("model.wan.latent_width", latent(width), &origins, text);
        }
        _ => {
            let key = match family {
                Family::Wan(_) => "model.wan.latent_height and latent_width",
                _ => "model.mmdit.sample_size: the latent is square",
            };
            let reason = format!("the latent's side is an eighth of the image's; set {key}");
            for origin in origins {
                draft.keep("model", origin, reason.clone());
            }
        }
    }
}

/// Pixels of a side; Flow-Factory takes 512 where nothing says otherwise.
fn side(given: &[Item<'_>], index: usize, name: &str) -> Option<i64> {
    if let Some(item) = given.iter().find(|item| item.origin.from == name) {
        return whole(item);
    }
    let Some(resolution) = given.iter().find(|item| item.origin.from == "train.resolution") else {
        return Some(512);
    };
    match resolution.node.list() {
        Some(sides) => sides.get(index).or(sides.first()).and_then(|node| {
            whole(&Item {
                origin: resolution.origin.clone(),
                node,
            })
        }),
        None => whole(resolution),
    }
}

fn frames(draft: &mut Draft<'_>, family: Family) {
    let item = take_given(draft, "train.num_frames");
    let Family::Wan(_) = family else {
        if let Some(item) = item {
            let reason = "frames of a video; Flow-Factory hands it to the model's adapter";
            draft.keep_as(Rank::Detail, "model", &item.origin, reason);
        }
        return;
    };
    let origins: Vec<&Origin> = item.iter().map(|item| &item.origin).collect();
    let given = item.as_ref().map(whole);
    match given.unwrap_or(Some(DEFAULT_FRAMES)) {
        Some(frames) if frames >= 1 => draft.set(
            "model.wan.latent_frames",
            // Frames that do not fit are rounded as Flow-Factory rounds them: 6 is taken for 5, 8 for 9.
            if (frames - 1) % FRAMES == 0 {
                (frames - 1) / FRAMES + 1
            } else {
                frames / FRAMES + 1
            },
            &origins,
            "frames of the latent: the video's first, and one of every four after it",
        ),
        _ => {
            for origin in origins {
                draft.keep(
                    "model",
                    origin,
                    "frames are a whole number from 1; set model.wan.latent_frames",
                );
            }
        }
    }
}

/// The shift of sigmas, which Flow-Factory reads from the checkpoint unless the YAML has it.
fn shift(draft: &mut Draft<'_>, family: Family) {
    let given = [
        take_given(draft, "scheduler.shift"),
        take_given(draft, "scheduler.flow_shift"),
    ];
    // Each of diffusers' two schedulers has its own word for it.
    let (reads, text) = match family {
        Family::Sd3(_) => (
            "scheduler.shift",
            "the shift in SD3's scheduler_config.json, which Flow-Factory reads from the checkpoint",
        ),
        Family::Wan(_) => (
            "scheduler.flow_shift",
            "Flow-Factory takes it from the checkpoint unless the YAML has it: 3 for 480p and 5 for 720p. Its sigmas for Wan are \
             UniPC's, which begin at 0.999, and it evaluates with UniPC's steps of second order; flow-train takes Euler's",
        ),
        Family::Other(_) => ("", ""),
    };
    let mut value = None;
    for item in given.into_iter().flatten() {
        if item.origin.from != reads {
            let reason = "Flow-Factory hands it to the scheduler of diffusers, which for this model has no such setting";
            let reason = if reads.is_empty() {
                "the shift of sigmas of a model that is not here"
            } else {
                reason
            };
            draft.keep_as(Rank::Detail, "scheduler", &item.origin, reason);
            continue;
        }
        match number(item.node) {
            Ok(shift) if float(&shift) > 0.0 => value = Some((shift, item)),
            _ => draft.keep("scheduler", &item.origin, not_a("a number above 0", item.node)),
        }
    }
    if reads.is_empty() {
        return;
    }
    let (value, origins) = match value {
        Some((value, item)) => (value, vec![item.origin]),
        None => (Value::from(3.0), Vec::new()),
    };
    let origins: Vec<&Origin> = origins.iter().collect();
    let value = table([("kind", "static".into()), ("value", value)]);
    draft.set_explained("scheduler.shift", value, &origins, text);
}

fn weights(draft: &mut Draft<'_>, family: Family) {
    let Some(item) = take_given(draft, "model.model_name_or_path") else {
        if family.table().is_some() {
            draft.need("the model's weights");
        }
        return;
    };
    let written = item.node.text().unwrap_or_default();
    let file = written.ends_with(".safetensors") || written.ends_with(".index.json");
    if family.table().is_none() {
        let reason = "weights of a model that is not here";
        draft.keep_as(Rank::Detail, "model", &item.origin, reason);
    } else if file || is_local(written) {
        // A folder of Flow-Factory's is a whole pipeline.
        let (path, what) = if file {
            (written.to_owned(), "must hold the transformer")
        } else {
            (
                format!("{}/transformer", written.trim_end_matches('/')),
                "the transformer of the pipeline",
            )
        };
        let text =
            format!("{what}; the path is relative to this file, in Flow-Factory to the working directory");
        match convert(Conversion::Path, item.node) {
            Ok(_) => draft.set_with_attention("model.weights", path, &[&item.origin], &text),
            Err(why) => draft.keep("model", &item.origin, format!("{why} (model.weights: {text})")),
        }
    } else {
        draft.need(format!("a copy of {}", item.node.flow()));
        let reason = "flow-train downloads nothing and reads the transformer alone: fetch the folder `transformer` of this \
                      checkpoint and set model.weights to it";
        draft.keep_as(Rank::Verdict, "model", &item.origin, reason);
    }
}

/// Whether a name is a path rather than a name on a hub, which is `owner/name`.
fn is_local(written: &str) -> bool {
    written.starts_with(['/', '.', '~']) || written.matches('/').count() > 1
}

pub(super) fn lora_targets(draft: &mut Draft<'_>) {
    let family = Family::of(draft);
    let Some(item) = take_given(draft, "model.target_modules") else {
        return;
    };
    let names: Option<Vec<&str>> = match item.node.list() {
        Some(nodes) => nodes.iter().map(|node| node.text()).collect(),
        None => item.node.text().map(|text| vec![text]),
    };
    let Some(names) = names.filter(|names| !names.is_empty()) else {
        let reason = format!(
            "{}; lora.targets are patterns",
            not_a("a name or a list of names", item.node)
        );
        draft.keep("lora", &item.origin, reason);
        return;
    };
    // `transformer.to_q` is `to_q` of that component, the only one that flow-train trains.
    let bare = |name: &&str| name.strip_prefix("transformer.").unwrap_or(name).to_owned();
    let names: Vec<String> = names.iter().map(bare).collect();
    let every = names
        .iter()
        .any(|name| matches!(name.as_str(), "all" | "all-linear"));
    if is_full(draft) {
        return unfrozen(draft, &item, every);
    }
    if every {
        let text = "every linear";
        draft.set("lora.targets", list(["*".into()]), &[&item.origin], text);
        return;
    }
    let mut ends: Vec<&str> = Vec::new();
    for name in &names {
        match (name.as_str(), family.default_targets()) {
            ("default", Some(targets)) => ends.extend(targets),
            ("default", None) => {
                let reason =
                    "what Flow-Factory's adapter of the model puts adapters on; the model is not here";
                draft.keep_as(Rank::Detail, "lora", &item.origin, reason);
                return;
            }
            (name, _) => ends.push(name),
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    ends.retain(|end| seen.insert(*end));
    let patterns = ends.iter().map(|end| Value::from(format!("*.{end}")));
    draft.set(
        "lora.targets",
        list(patterns),
        &[&item.origin],
        "patterns on the dotted names of linears, which are diffusers' names where it has the architecture",
    );
}

/// Under `finetune_type: full` Flow-Factory freezes every weight whose name holds none of the modules'.
fn unfrozen(draft: &mut Draft<'_>, item: &Item<'_>, every: bool) {
    if every {
        draft.same(&item.origin, "model.finetune", "every weight is trained");
        return;
    }
    let reason = "Flow-Factory trains the weights of these modules alone and freezes the others; in flow-train `finetune = \
                  \"full\"` trains every weight, which takes more memory. Nearest: `finetune = \"lora\"` with these modules as \
                  lora.targets";
    draft.keep("lora", &item.origin, reason);
}
