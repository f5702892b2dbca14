//! What is said of a run that asks more of memory than there is.

use crate::checkpoint_policy;
use crate::codes::{BUDGET_TOO_SMALL, TOO_MUCH_MEMORY};
use crate::memory::{MemoryEstimate, gib};
use crate::phase::Phase;
use flow_checkpoint::Policy;
use flow_config::{Catalog, Config, Diagnostic, Finetune, TextConfig};

/// A run whose estimate is above `available` bytes.
pub(crate) fn check(
    config: &Config,
    catalog: &Catalog,
    estimate: &MemoryEstimate,
    available: u64,
) -> Option<Diagnostic> {
    let available = available as f64;
    let (peak, most) = estimate.peak();
    if most <= available {
        return None;
    }
    let fits = estimate.certain() <= available;
    let (phase, parts) = match fits {
        true => (peak, estimate.parts(peak)),
        false => (Phase::Update, estimate.least().parts(Phase::Update)),
    };
    let parts = parts.into_iter().filter(|(_, bytes)| *bytes > 0.0);
    let parts: Vec<String> = parts
        .map(|(name, bytes)| format!("{name} {}", gib(bytes)))
        .collect();
    let (needs, needed) = match fits {
        true => ("may need about", most),
        false => ("needs at least", estimate.certain()),
    };
    let message = format!(
        "the run {needs} {} of memory{}, and the device has {}: {}",
        gib(needed),
        match phase {
            Phase::Update => String::new(),
            phase => format!(" {}", phase.in_words()),
        },
        gib(available),
        parts.join(", ")
    );
    let dimensions = catalog.model(config).map(|kind| {
        let name = kind.plugin.name();
        kind.size_keys.map(|key| format!("model.{name}.{key}"))
    });
    let dimensions: Vec<&str> = dimensions.iter().flatten().map(String::as_str).collect();
    let later = beyond_encoding(estimate, available).filter(|_| phase == Phase::Encoding);
    let (first, help) = match later {
        None => remedy(config, estimate, available, phase),
        // Encoding elsewhere would leave a run that does not fit either.
        Some(later) => {
            let (key, help) = remedy(config, estimate, available, later);
            let (_, encoding) = advice(config, Phase::Encoding);
            let (needed, when) = (gib(estimate.at(later)), later.in_words());
            let help = format!("it may need about {needed} {when}, too: {help}. And {encoding}");
            (key, help)
        }
    };
    // A smaller micro-batch takes fewer activations, and nothing else.
    let related = (fits && later.unwrap_or(phase) == Phase::Update)
        .then_some("sampling.micro_batch")
        .into_iter()
        .chain(dimensions);
    let diagnostic = match fits {
        true => Diagnostic::warning,
        false => Diagnostic::error,
    };
    Some(
        diagnostic(TOO_MUCH_MEMORY, message)
            .path(first)
            .related(related.filter(|key| *key != first))
            .help(help),
    )
}

/// The time after prompts are encoded at which most of what is more than `available` is there, if it is more at any.
fn beyond_encoding(estimate: &MemoryEstimate, available: f64) -> Option<Phase> {
    let later = [Phase::Rollout, Phase::Update].map(|phase| (phase, estimate.at(phase)));
    let too_large = later.into_iter().filter(|(_, bytes)| *bytes > available);
    let largest = too_large.max_by(|a, b| a.1.total_cmp(&b.1));
    largest.map(|(phase, _)| phase)
}

/// The key to look at, and what to do where the run takes too much in `phase`.
fn remedy(
    config: &Config,
    estimate: &MemoryEstimate,
    available: f64,
    phase: Phase,
) -> (&'static str, String) {
    match fitting_micro_batch(config, estimate, available) {
        _ if phase != Phase::Update => advice(config, phase),
        Some(fitting) => (
            "sampling.micro_batch",
            format!(
                "`sampling.micro_batch = {fitting}` would fit ({} is set)",
                config.sampling.micro_batch
            ),
        ),
        None if config.model.finetune == Finetune::Full && estimate.weights < available => (
            "model.finetune",
            "train adapters with `model.finetune = \"lora\"`, which need neither gradients nor moments of the whole \
             model, or choose a smaller model or a device with more memory"
                .into(),
        ),
        None => (
            "model.architecture",
            "choose a smaller model, fewer images per iteration, or a device with more memory".into(),
        ),
    }
}

/// The key to look at, and what to do where another phase than the update takes most.
fn advice(config: &Config, phase: Phase) -> (&'static str, String) {
    let model = match config.model.path {
        Some(_) => "model.path",
        None => "model.architecture",
    };
    match phase {
        Phase::Loading | Phase::Update => (
            model,
            "choose a smaller model or a device with more memory; weights that are trained are read in f32 before they are stored in bf16, \
             so that adapters (`model.finetune = \"lora\"`) take less"
                .into(),
        ),
        Phase::Encoding if matches!(config.text, TextConfig::Bert(_)) => (
            "text.micro_batch",
            "encode fewer texts at a time (`text.micro_batch`), or take a smaller encoder (`text.path`)".into(),
        ),
        Phase::Encoding => (
            model,
            "encode the prompts on a device of the same kind with more memory, and name its `prompt-cache` in `text.cache`; or leave an \
             encoder out where the pipeline allows it (`\"text_encoder_3\": [null, null]` in the `model_index.json` of SD3)"
                .into(),
        ),
        Phase::Rollout if config.model.own_autoencoder().is_some() => (
            "sampling.micro_batch",
            "decode fewer images at a time (`sampling.micro_batch`), or take a smaller autoencoder (`model.autoencoder`)".into(),
        ),
        Phase::Rollout => (
            "model.width",
            "make smaller pictures or shorter videos (`model.width`, `model.height`, `model.frames`)".into(),
        ),
    }
}

/// The largest micro-batch below the config's that divides the images and fits.
fn fitting_micro_batch(config: &Config, estimate: &MemoryEstimate, available: f64) -> Option<usize> {
    let sampling = &config.sampling;
    let per_image = estimate.activations / sampling.micro_batch.max(1) as f64;
    let rest = estimate.at(Phase::Update) - estimate.activations;
    let fits = |images: &usize| {
        sampling.images_per_step().is_multiple_of(*images) && rest + per_image * *images as f64 <= available
    };
    (1..sampling.micro_batch).rev().find(fits)
}

/// A budget of activation checkpointing that the weights and what grows with them exceed.
pub(crate) fn check_budget(config: &Config, estimate: &MemoryEstimate) -> Option<Diagnostic> {
    let Policy::Budget { peak_gib } = checkpoint_policy(config) else {
        return None;
    };
    let budget = peak_gib * (1u64 << 30) as f64;
    if estimate.state() <= budget {
        return None;
    }
    let message = format!(
        "`checkpointing.peak_gib = {peak_gib}` is less than the {} of weights, gradients, moments and copies",
        gib(estimate.state())
    );
    Some(
        Diagnostic::error(BUDGET_TOO_SMALL, message)
            .path("checkpointing.peak_gib")
            .related(["model.finetune"])
            .help(
                "raise it, or train adapters with `model.finetune = \"lora\"`; recomputation saves activations, and these \
                 are none",
            ),
    )
}
