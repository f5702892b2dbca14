//! Architecture, dimensions and weights; what adapters are put on.

use toml_edit::Value;

use super::{table, take_given, whole};
use crate::convert::{convert, list, not_a};
use crate::draft::{Draft, Item, Origin};
use crate::rule::Conversion;

/// Pixels of an image per pixel of SD3's latent, along a side.
const SD3_AUTOENCODER: i64 = 8;

pub(super) fn model(draft: &mut Draft<'_>) {
    let is_sd3 = architecture(draft);
    size(draft, is_sd3);
    weights(draft, is_sd3);
}

/// Whether the model is one of the SD3 family.
fn architecture(draft: &mut Draft<'_>) -> bool {
    let Some(item) = take_given(draft, "model.model_type") else {
        draft.remark(
            "model.architecture",
            "`model.model_type` is left out, so Flow-Factory would take flux1, which flow-train does not have; its \
             architectures are `dit`, `mmdit` and `wan`",
        );
        return false;
    };
    let written = item.node.flow();
    match written.to_lowercase().replace('_', "-").as_str() {
        "sd3" | "sd3-5" | "sd3.5" | "\"sd3.5\"" => {
            draft.set_with_attention(
                "model.architecture",
                "mmdit",
                &[&item.origin],
                "SD3's transformer; the dimensions of [model.mmdit] are SD3.5-medium's unless they are set. There is no \
                 text encoder and no autoencoder: prompts and images are those of [data]",
            );
            draft.set(
                "scheduler.shift",
                table([("kind", "static".into()), ("value", Value::from(3.0))]),
                &[&item.origin],
                "the shift of SD3's scheduler_config.json, which Flow-Factory reads from the checkpoint",
            );
            true
        }
        name => {
            let shift = if name.starts_with("flux1") {
                "Its sigma shift would be `scheduler.shift = { kind = \"dynamic\" }`, and its guidance scale is an input \
                 of the model, not classifier-free guidance"
            } else {
                "Its sigma shift stands in its scheduler_config.json and goes to [scheduler.shift]"
            };
            let nearest = if name.starts_with("wan2") { "wan" } else { "mmdit" };
            let reason = format!(
                "flow-train has no model {written}; the nearest architecture is `{nearest}`, without it `dit` is used. {shift}"
            );
            draft.keep("model", &item.origin, reason);
            false
        }
    }
}

fn size(draft: &mut Draft<'_>, is_sd3: bool) {
    let given: Vec<Item<'_>> = ["train.resolution", "train.height", "train.width"]
        .into_iter()
        .filter_map(|from| take_given(draft, from))
        .collect();
    let origins: Vec<&Origin> = given.iter().map(|item| &item.origin).collect();
    if !is_sd3 {
        for origin in origins {
            draft.keep(
                "model",
                origin,
                "images are as large as data.image_size, and so are the latents",
            );
        }
        return;
    }
    // Height and width stand above the resolution, which is one number or [height, width].
    let side = |index: usize, name: &str| {
        let named = given.iter().find(|item| item.origin.from == name);
        if let Some(item) = named {
            return whole(item);
        }
        let Some(resolution) = given.iter().find(|item| item.origin.from == "train.resolution") else {
            return Some(512);
        };
        match resolution.node.list() {
            Some(sides) => sides.get(index).and_then(|node| {
                let item = Item {
                    origin: resolution.origin.clone(),
                    node,
                };
                whole(&item)
            }),
            None => whole(resolution),
        }
    };
    match (side(0, "train.height"), side(1, "train.width")) {
        (Some(height), Some(width)) if height == width && height > 0 && height % SD3_AUTOENCODER == 0 => {
            draft.set(
                "model.mmdit.sample_size",
                height / SD3_AUTOENCODER,
                &origins,
                "pixels of the latent: SD3's autoencoder makes an eighth of the image",
            );
        }
        _ => {
            for origin in origins {
                draft.keep(
                    "model",
                    origin,
                    "the latent is square, its side an eighth of the image's: set model.mmdit.sample_size",
                );
            }
        }
    }
}

fn weights(draft: &mut Draft<'_>, is_sd3: bool) {
    let Some(item) = take_given(draft, "model.model_name_or_path") else {
        return;
    };
    let written = item.node.text().unwrap_or_default();
    if written.ends_with(".safetensors") || written.ends_with(".index.json") {
        let text = "must hold the transformer; the path is relative to this file";
        match convert(Conversion::Path, item.node) {
            Ok(path) => draft.set_with_attention("model.weights", path, &[&item.origin], text),
            Err(why) => draft.keep("model", &item.origin, format!("{why} (model.weights: {text})")),
        }
        return;
    }
    let folder = if is_sd3 {
        "; the folder `transformer` of the checkpoint will do"
    } else {
        ""
    };
    let reason = format!(
        "flow-train downloads nothing and reads the transformer only: set model.weights to its safetensors file{folder}"
    );
    draft.keep("model", &item.origin, reason);
}

pub(super) fn lora_targets(draft: &mut Draft<'_>) {
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
    if names.contains(&"default") {
        let reason =
            "the default modules depend on Flow-Factory's adapter of the model; name them in lora.targets";
        draft.keep("lora", &item.origin, reason);
        return;
    }
    let every = |name: &&str| matches!(*name, "all" | "all-linear");
    if names.iter().any(every) {
        let text = "every linear";
        draft.set("lora.targets", list(["*".into()]), &[&item.origin], text);
        return;
    }
    let patterns = names.iter().map(|name| Value::from(format!("*.{name}")));
    draft.set(
        "lora.targets",
        list(patterns),
        &[&item.origin],
        "patterns on the dotted names of linears, which are diffusers' names where it has the architecture",
    );
}
