//! The rules on `[model.dit]`: its dimensions, the images and the prompts of `[data]`.

use super::Position;
use super::section::{Conditioning, DitSection};
use flow_config::codes::{RULE_CONDITIONING, RULE_IMAGE_SHAPE, RULE_MODEL_SHAPE, RULE_UNUSED};
use flow_config::{ImageFacts, PromptFacts, Rules};

pub(super) fn check(dit: &DitSection, rules: &mut Rules<'_>, _path: &str) {
    rules.divides(("model.dit.patch", dit.patch), ("model.dit.height", dit.height));
    rules.divides(("model.dit.patch", dit.patch), ("model.dit.width", dit.width));
    rules.divides(("model.dit.heads", dit.heads), ("model.dit.hidden", dit.hidden));
    let head_channels = dit.hidden / dit.heads.max(1);
    let (what, channels) = match dit.position {
        Position::Sincos => ("`model.dit.hidden`", dit.hidden),
        Position::Rope => ("`model.dit.hidden / model.dit.heads`", head_channels),
    };
    if channels % 4 != 0 {
        let message = format!("{what} ({channels}) must be a multiple of 4 for this position encoding");
        rules
            .error(
                RULE_MODEL_SHAPE,
                &["model.dit.hidden", "model.dit.position", "model.dit.heads"],
                message,
            )
            .help("two axes take a sine and a cosine each; change `model.dit.hidden`");
    }
    moe(dit, rules);
    if let Some(images) = rules.data_facts().and_then(|facts| facts.images) {
        latent(dit, images, rules);
    }
    if let Some(prompts) = rules.data_facts().and_then(|facts| facts.prompts) {
        conditioning(dit, prompts, rules);
    }
}

fn moe(dit: &DitSection, rules: &mut Rules<'_>) {
    let moe = &dit.moe;
    if moe.experts == 0 {
        let written = rules.written_below("model.dit.moe");
        let unread = written.iter().find(|key| !key.ends_with(".experts"));
        for first in unread
            .cloned()
            .into_iter()
            .chain(rules.written_below("pretrain.balance_weight"))
        {
            rules
                .warning(
                    RULE_UNUSED,
                    &[&first, "model.dit.moe.experts"],
                    format!("`{first}` is not read: the model has no experts"),
                )
                .help("remove it, or set `model.dit.moe.experts`");
        }
    } else if moe.top_k > moe.experts {
        let (top_k, experts) = (moe.top_k, moe.experts);
        rules
            .error(
                RULE_MODEL_SHAPE,
                &["model.dit.moe.top_k", "model.dit.moe.experts"],
                format!("a token gets {top_k} experts, but there are {experts}"),
            )
            .help(format!("set `model.dit.moe.top_k` to at most {experts}"));
    }
}

/// Whether the model makes images of the data's size.
fn latent(dit: &DitSection, images: ImageFacts, rules: &mut Rules<'_>) {
    let ImageFacts { size, channels } = images;
    for (key, value, wanted, what) in [
        ("model.dit.height", dit.height, size, "pixels high"),
        ("model.dit.width", dit.width, size, "pixels wide"),
        (
            "model.dit.latent_channels",
            dit.latent_channels,
            channels,
            if channels == 1 {
                "channel deep"
            } else {
                "channels deep"
            },
        ),
    ] {
        if value != wanted {
            let message = format!("`{key}` is {value}, but the images of `[data]` are {wanted} {what}");
            rules
                .error(RULE_IMAGE_SHAPE, &[key, "data.image_size", "data"], message)
                .help(format!("set `{key} = {wanted}`, or change `[data]`"));
        }
    }
}

fn conditioning(dit: &DitSection, prompts: PromptFacts, rules: &mut Rules<'_>) {
    let (words, length) = (prompts.vocabulary, prompts.length);
    let place = "model.dit.conditioning";
    match &dit.conditioning {
        Conditioning::Class(_) => {
            let message = format!(
                "the prompts of `[data]` are {length} tokens long, but the model is conditioned on a class"
            );
            rules
                .error(
                    RULE_CONDITIONING,
                    &[&format!("{place}.kind"), place, "data.kind"],
                    message,
                )
                .help(format!(
                    "write `kind = \"tokens\", vocabulary = {words}, max_tokens = {length}`"
                ));
        }
        Conditioning::Tokens(tokens) => {
            if tokens.vocabulary < words {
                let message = format!(
                    "the model knows {} tokens, but the prompts of `[data]` use {words}",
                    tokens.vocabulary
                );
                rules
                    .error(
                        RULE_CONDITIONING,
                        &[&format!("{place}.vocabulary"), place, "data.kind"],
                        message,
                    )
                    .help(format!("set `{place}.vocabulary = {words}`"));
            }
            if tokens.max_tokens != length {
                let message = format!(
                    "the model takes {} tokens, but the prompts of `[data]` are {length} long",
                    tokens.max_tokens
                );
                rules
                    .error(
                        RULE_CONDITIONING,
                        &[&format!("{place}.max_tokens"), place, "data.kind"],
                        message,
                    )
                    .help(format!("set `{place}.max_tokens = {length}`"));
            }
        }
    }
}
