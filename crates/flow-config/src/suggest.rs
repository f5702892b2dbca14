//! What someone probably meant: the nearest of some names.

use flow_registry::simplify;

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

/// The candidate nearest to what was written, if any is near enough to be worth naming: what it is called here, or as
/// [`flow_registry::nearest`] has it.
pub fn nearest<'c>(written: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let alias = |(from, _): &&(&str, &str)| simplify(from) == simplify(written);
    let alias = ALIASES.iter().find(alias).map(|(_, to)| *to);
    let candidates: Vec<&str> = candidates.into_iter().collect();
    let same = |candidate: &&&str| simplify(candidate) == simplify(written);
    let called = candidates.iter().find(|candidate| alias == Some(**candidate));
    match candidates.iter().find(same).or(called) {
        Some(candidate) => Some(candidate),
        None => flow_registry::nearest(written, candidates),
    }
}
