//! What someone probably meant: the nearest of some names.

/// Names from other tools and other spellings, and what they are called here.
const ALIASES: &[(&str, &str)] = &[
    ("lr", "learning_rate"),
    ("eps", "epsilon"),
    ("batch_size", "micro_batch"),
    ("color", "colour"),
    ("colors", "colours"),
    ("target-color", "target-colour"),
    ("epochs", "steps"),
    ("max_epochs", "steps"),
    ("iterations", "steps"),
    ("num_epochs", "steps"),
    ("num_steps", "steps"),
    ("num_inference_steps", "steps"),
    ("unique_sample_num_per_epoch", "prompts_per_step"),
    ("per_device_batch_size", "micro_batch"),
    ("num_inner_epochs", "inner_epochs"),
    ("adv_clip_range", "advantage_clip"),
    ("nft_beta", "beta"),
    ("dynamics_type", "dynamics"),
    ("eta", "noise_level"),
    ("cfg", "guidance_scale"),
    ("lora_rank", "rank"),
    ("lora_alpha", "alpha"),
    ("target_modules", "targets"),
    ("save_freq", "every"),
    ("eval_freq", "every"),
    ("depth", "layers"),
    ("hidden_size", "hidden"),
    ("dim", "hidden"),
    ("num_heads", "heads"),
    ("patch_size", "patch"),
    ("rewards", "rewards"),
    ("reward", "rewards"),
    ("train", "optimizer"),
    ("eval", "evaluation"),
    ("log", "logging"),
    ("optimiser", "optimizer"),
    ("float32", "f32"),
    ("fp32", "f32"),
    ("bfloat16", "bf16"),
    ("gpu", "cuda"),
    ("pretrained_model_name_or_path", "weights"),
    ("model_name_or_path", "weights"),
    ("checkpoint_path", "weights"),
    ("ckpt", "weights"),
];

/// The candidate nearest to what was written, if any is near enough to be worth naming.
pub fn nearest<'c>(written: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let written = simplify(written);
    // Beyond this length nobody mistyped a key, and the distance is quadratic.
    if written.is_empty() || written.len() > 64 {
        return None;
    }
    let alias = ALIASES
        .iter()
        .find(|(from, _)| simplify(from) == written)
        .map(|(_, to)| *to);
    let score = |candidate: &str| {
        let simple = simplify(candidate);
        if alias == Some(candidate) || simple == written {
            return 2.0;
        }
        let contained =
            written.len() >= 3 && simple.contains(&written) || simple.len() >= 3 && written.contains(&simple);
        let distance = strsim::normalized_damerau_levenshtein(&written, &simple);
        if contained { distance.max(0.7) } else { distance }
    };
    let mut best: Option<(f64, &str)> = None;
    for candidate in candidates {
        let score = score(candidate);
        if score >= 0.6 && best.is_none_or(|(least, _)| score > least) {
            best = Some((score, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// How like two names are, from 0 to 1, letters and digits in lower case alone.
pub fn likeness(one: &str, other: &str) -> f64 {
    strsim::normalized_damerau_levenshtein(&simplify(one), &simplify(other))
}

/// Letters and digits in lower case: `-`, `_` and case are no difference.
fn simplify(name: &str) -> String {
    name.chars()
        .filter(|c| c.is_alphanumeric())
        .flat_map(char::to_lowercase)
        .collect()
}
