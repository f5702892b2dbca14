//! The diffusers folder of the model, what of it is overridden, and what is trained of it.

use toml_edit::Value;

use super::family::{Family, Flux, Other, is_full};
use super::{table, take_given, whole};
use crate::convert::{self, convert, float, list, not_a, number};
use crate::draft::{Draft, Item, Origin};
use crate::note::Rank;
use crate::rule::Conversion;

/// Sides of an image are multiples of this many pixels: eight of the autoencoder in patches of two, for every model here.
const PIXELS: i64 = 16;
/// The longest side that flow-train takes.
const MOST_PIXELS: i64 = 16_384;
/// Pixels of a side where Flow-Factory's config says nothing.
const DEFAULT_PIXELS: i64 = 512;
/// Frames of a video per frame of Wan's latent; the first frame stands for itself.
const FRAMES: i64 = 4;
/// The most frames that flow-train takes.
const MOST_FRAMES: i64 = 4097;
/// The checkpoint that Flow-Factory takes where the config names none.
const DEFAULT_MODEL: &str = "black-forest-labs/FLUX.1-dev";

pub(super) fn model(draft: &mut Draft<'_>) {
    let family = Family::of(draft);
    let kind = take_given(draft, "model.model_type");
    if let Family::Other(other) = family {
        not_here(draft, kind.as_ref(), other);
        return nothing_of_it(draft);
    }
    let has_folder = folder(draft, family);
    let origins: Vec<&Origin> = kind.iter().map(|item| &item.origin).collect();
    if has_folder {
        for origin in origins {
            let text = "the diffusers folder says which architecture it is";
            draft.same(origin, "model.architecture", text);
        }
    } else {
        draft.need(format!("a diffusers folder of {}, as model.path", family.name()));
        let text = format!(
            "the transformer of {}; its dimensions are those of the diffusers folder that `model.path` is to name, which brings \
             text encoders and autoencoder too",
            family.name()
        );
        let architecture = family.architecture().unwrap_or_default();
        draft.set_explained("model.architecture", architecture, &origins, &text);
    }
    size(draft, has_folder);
    frames(draft, family, has_folder);
    shift(draft, family);
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
    let origins: Vec<&Origin> = item.iter().map(|item| &item.origin).collect();
    // What Flow-Factory would not know may be the name of something here.
    let taken = flow_config::explain(draft.catalog, "model.architecture")
        .is_some_and(|key| key.allowed.iter().any(|(name, _)| name == asked));
    let asked = if taken {
        format!("flow-factory/{asked}")
    } else {
        asked.to_owned()
    };
    draft.ask("model.architecture", asked, &origins, &because, "");
}

/// The other keys of a model that is not here.
fn nothing_of_it(draft: &mut Draft<'_>) {
    for (from, section, reason) in [
        (
            "train.resolution",
            "model",
            "pixels of an image of a model that is not here",
        ),
        (
            "train.height",
            "model",
            "pixels of an image of a model that is not here",
        ),
        (
            "train.width",
            "model",
            "pixels of an image of a model that is not here",
        ),
        (
            "train.num_frames",
            "model",
            "frames of a video of a model that is not here",
        ),
        (
            "scheduler.shift",
            "scheduler",
            "the shift of sigmas of a model that is not here",
        ),
        (
            "scheduler.flow_shift",
            "scheduler",
            "the shift of sigmas of a model that is not here",
        ),
        (
            "model.model_name_or_path",
            "model",
            "weights of a model that is not here",
        ),
    ] {
        if let Some(item) = take_given(draft, from) {
            draft.keep_as(Rank::Detail, section, &item.origin, reason);
        }
    }
}

/// Writes `model.path`; whether there is one.
fn folder(draft: &mut Draft<'_>, family: Family) -> bool {
    let Some(item) = take_given(draft, "model.model_name_or_path") else {
        if let Family::Flux(_) = family {
            copy(draft, DEFAULT_MODEL, &[]);
            return true;
        }
        return false;
    };
    let written = match convert(Conversion::Path, item.node) {
        Ok(_) => item.node.text().unwrap_or_default(),
        Err(why) => {
            draft.keep(
                "model",
                &item.origin,
                format!("{why} (model.path: the diffusers folder)"),
            );
            return false;
        }
    };
    let relative = "the path is relative to this file, in Flow-Factory to the working directory";
    if written.is_empty() {
        draft.keep("model", &item.origin, not_a("the path of a folder", item.node));
        false
    } else if written.ends_with(".safetensors") || written.ends_with(".index.json") {
        let text = format!("must hold the transformer; {relative}");
        draft.set_with_attention("model.weights", written, &[&item.origin], &text);
        false
    } else if is_hub_name(written) {
        copy(draft, written, &[&item.origin]);
        true
    } else {
        let text = "the folder with `model_index.json`";
        if written.starts_with('/') {
            draft.set("model.path", written, &[&item.origin], text);
        } else {
            let text = format!("{text}; {relative}");
            draft.set_with_attention("model.path", written, &[&item.origin], &text);
        }
        true
    }
}

/// `model.path` is the copy that `flow-train fetch` makes of a checkpoint on a hub.
fn copy(draft: &mut Draft<'_>, name: &str, origins: &[&Origin]) {
    draft.need(format!("a copy of {name} (`flow-train fetch {name}`)"));
    let folder = name.rsplit('/').next().unwrap_or(name);
    let text = format!(
        "`flow-train fetch {name}` makes this folder in the working directory; the path is relative to this file"
    );
    draft.set_needed("model.path", folder, origins, &text);
}

/// Whether a name is one on a hub, `owner/name`, rather than a path.
pub(super) fn is_hub_name(written: &str) -> bool {
    let is_part = |part: &str| {
        let begins = |first: char| first.is_ascii_alphanumeric() || first == '_';
        let allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        part.starts_with(begins) && part.chars().all(allowed)
    };
    written
        .split_once('/')
        .is_some_and(|(owner, name)| is_part(owner) && is_part(name))
}

fn size(draft: &mut Draft<'_>, has_folder: bool) {
    let resolution = take_given(draft, "train.resolution");
    let own = [
        (take_given(draft, "train.height"), "model.height"),
        (take_given(draft, "train.width"), "model.width"),
    ];
    // Height and width stand above the resolution, which is one number or [height, width].
    if let (Some(item), [(Some(_), _), (Some(_), _)]) = (&resolution, &own) {
        let reason = "height and width are there too and stand above it";
        draft.keep_as(Rank::Detail, "model", &item.origin, reason);
    }
    let mut refused: Vec<&Origin> = Vec::new();
    for (index, (item, to)) in own.iter().enumerate() {
        let (origin, side) = match (item, &resolution) {
            (Some(item), _) => (Some(&item.origin), whole(item)),
            (None, Some(item)) => (Some(&item.origin), side(item, index)),
            (None, None) => (None, Some(DEFAULT_PIXELS)),
        };
        let origins: Vec<&Origin> = origin.into_iter().collect();
        match side.filter(|side| has_folder && (PIXELS..=MOST_PIXELS).contains(side)) {
            Some(side) if side % PIXELS == 0 => {
                draft.set(to, side, &origins, "pixels of an image or of a frame");
            }
            Some(side) => {
                let text = format!("{side} pixels, rounded down to whole patches of {PIXELS}");
                draft.set_with_attention(to, side / PIXELS * PIXELS, &origins, &text);
            }
            None => refused.extend(
                origins
                    .into_iter()
                    .filter(|origin| !refused.contains(origin))
                    .collect::<Vec<_>>(),
            ),
        }
    }
    let reason = if has_folder {
        format!(
            "a side is a whole number of pixels from {PIXELS} to {MOST_PIXELS}; set model.width and model.height"
        )
    } else {
        "pixels of an image or of a frame; set model.width and model.height when you set model.path"
            .to_owned()
    };
    for origin in refused {
        draft.keep("model", origin, reason.clone());
    }
}

/// The side of this index of a resolution.
fn side(resolution: &Item<'_>, index: usize) -> Option<i64> {
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

fn frames(draft: &mut Draft<'_>, family: Family, has_folder: bool) {
    let Some(item) = take_given(draft, "train.num_frames") else {
        return;
    };
    let Family::Wan(_) = family else {
        let reason = "frames of a video; Flow-Factory hands it to the model's adapter";
        return draft.keep_as(Rank::Detail, "model", &item.origin, reason);
    };
    // Frames that do not fit are rounded as Flow-Factory rounds them: 6 is taken for 5, 8 for 9.
    let rounded = whole(&item)
        .filter(|frames| (1..=MOST_FRAMES).contains(frames))
        .map(|frames| {
            if (frames - 1) % FRAMES == 0 {
                frames
            } else {
                frames / FRAMES * FRAMES + 1
            }
        })
        .filter(|frames| has_folder && *frames <= MOST_FRAMES);
    match rounded {
        Some(frames) => draft.set(
            "model.frames",
            frames,
            &[&item.origin],
            "frames of the video: one and a multiple of four more, rounded as Flow-Factory rounds them",
        ),
        None => {
            let reason = format!(
                "frames are a whole number from 1 to {MOST_FRAMES}; set model.frames with model.path"
            );
            draft.keep("model", &item.origin, reason);
        }
    }
}

/// The shift of sigmas, which both programs read from the checkpoint unless the config has it.
fn shift(draft: &mut Draft<'_>, family: Family) {
    let given = [
        take_given(draft, "scheduler.shift"),
        take_given(draft, "scheduler.flow_shift"),
    ];
    // Each of diffusers' two schedulers has its own word for it.
    let reads = match family {
        Family::Sd3(_) | Family::Flux(Flux::Schnell) => "scheduler.shift",
        Family::Wan(_) => "scheduler.flow_shift",
        Family::Flux(Flux::Dev) | Family::Qwen | Family::Other(_) => "",
    };
    if let Family::Wan(_) = family {
        let text = "Flow-Factory's sigmas for Wan are UniPC's, which begin at 0.999, and it evaluates with UniPC's steps of second \
                    order; flow-train takes Euler's";
        draft.remark("evaluation", text);
    }
    for item in given.into_iter().flatten() {
        if item.origin.from != reads {
            let reason = "Flow-Factory hands it to the scheduler of diffusers, which for this model reads no such setting";
            draft.keep_as(Rank::Detail, "scheduler", &item.origin, reason);
            continue;
        }
        match number(item.node) {
            Ok(shift) if float(&shift) > 0.0 => {
                let value = table([("kind", "static".into()), ("value", shift)]);
                let text = "instead of the shift of the checkpoint";
                draft.set("scheduler.shift", value, &[&item.origin], text);
            }
            _ => draft.keep("scheduler", &item.origin, not_a("a number above 0", item.node)),
        }
    }
}

/// Guidance of rollouts: a second branch, or the scale that FLUX.1-dev is told.
pub(super) fn guidance(draft: &mut Draft<'_>) {
    let family = Family::of(draft);
    let item = take_given(draft, "train.guidance_scale");
    let origins: Vec<&Origin> = item.iter().map(|item| &item.origin).collect();
    let (to, conversion, text) = match family {
        Family::Flux(Flux::Schnell) => {
            for origin in origins {
                let reason = "FLUX.1-schnell is told no scale, in Flow-Factory neither";
                draft.keep_as(Rank::Detail, "sampling", origin, reason);
            }
            return;
        }
        Family::Flux(Flux::Dev) => (
            "sampling.embedded_guidance_scale",
            Conversion::Number,
            "the scale that FLUX.1 is told; there is no second branch",
        ),
        _ => (
            "sampling.guidance_scale",
            Conversion::Guidance,
            "classifier-free guidance of rollouts; at 1 and below there is none",
        ),
    };
    match item.as_ref().map(|item| convert(conversion, item.node)) {
        None => draft.set(to, 3.5, &[], "train.guidance_scale"),
        Some(Ok(value)) => draft.set(to, value, &origins, text),
        Some(Err(why)) => {
            for origin in origins {
                draft.keep("sampling", origin, format!("{why} ({to}: {text})"));
            }
        }
    }
}

/// Guidance of evaluation of a model that is told its scale, which is one for training and evaluation.
///
/// Whether the family is such a one.
pub(super) fn told_guidance(draft: &mut Draft<'_>) -> bool {
    let Family::Flux(flux) = Family::of(draft) else {
        return false;
    };
    let of = |item: Option<&Item<'_>>| {
        item.and_then(|item| convert::number(item.node).ok())
            .map(|value| float(&value))
    };
    let training = of(draft.peek("train.guidance_scale")).unwrap_or(3.5);
    let item = take_given(draft, "eval.guidance_scale");
    let evaluation = of(item.as_ref());
    let one = "FLUX.1-dev is told one scale in training and evaluation, `sampling.embedded_guidance_scale`";
    match (flux, item) {
        (Flux::Schnell, Some(item)) => {
            let reason = "FLUX.1-schnell is told no scale, in Flow-Factory neither";
            draft.keep_as(Rank::Detail, "evaluation", &item.origin, reason);
        }
        (Flux::Dev, Some(item)) if evaluation == Some(training) => {
            draft.same(&item.origin, "sampling.embedded_guidance_scale", one);
        }
        (Flux::Dev, Some(item)) => draft.keep("evaluation", &item.origin, one),
        (Flux::Dev, None) if training != 3.5 => {
            draft.remark(
                "evaluation",
                format!("Flow-Factory evaluates with a scale of 3.5; {one}"),
            );
        }
        (_, None) => {}
    }
    true
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
