//! What of a config may change when a run goes on.
//!
//! [`RULES`] has every key of the schema: a key of its own, or one below a section that is the same in all its keys. A test compares
//! it with the schema. A key that nobody thought of may not change.

use serde_json::Value;

/// Whether a key may change when a run goes on; with what follows, as a sentence's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// It may not: the run would be another one.
    Fixed(&'static str),
    /// It may.
    MayChange(&'static str),
    /// It may, but evaluations before and after it measure different things.
    Measures(&'static str),
}

use Rule::{Fixed, MayChange, Measures};

const MODEL: Rule = Fixed("the run has another model");
const ADAPTERS: Rule = Fixed("the run has other adapters");
const DATA: Rule = Fixed("the run has other prompts");
const TEXT: Rule = Fixed("the run's prompts are encoded in another way");
const REWARD: Rule = Fixed("the run is trained on other rewards");
const ASKED: Rule = MayChange("how rewards are computed, and how long they may take");
const ANSWERED: Rule = MayChange("others answer for the reward, and must score alike");
const SEED: Rule = Fixed("the run draws other prompts and noise");
const PLACE: Rule = MayChange("where the run is written");
const PRETRAINING: Rule = MayChange("only `pretrain` reads it");
const MACHINE: Rule =
    MayChange("where and in which precision later iterations are computed; their last bits may be others");
const SPEED: Rule = MayChange("how later iterations are computed");
const PATH: Rule = MayChange("later rollouts take other steps");
const GEOMETRY: Rule =
    MayChange("later iterations are of another size; prompts and noise go on where they were");
const EXPLORATION: Rule = MayChange("later groups are chosen from other candidates");
const LOSS: Rule = MayChange("the loss of later iterations");
const STEP: Rule = MayChange("later optimizer steps");
const AVERAGE: Rule = MayChange("how the average follows from here on");
const WRITTEN: Rule = MayChange("what is written down, and when");
const EVALUATION: Rule = Measures("evaluations before and after cannot be compared");

/// Keys and sections with their rules; of several that fit a key, the longest holds. A list's place is written `[]`.
pub const RULES: &[(&str, Rule)] = &[
    (
        "config_version",
        MayChange("the format that the file is written in"),
    ),
    (
        "preset",
        MayChange("values are compared, wherever they come from"),
    ),
    ("run.name", PLACE),
    ("run.dir", PLACE),
    ("run.on_exists", PLACE),
    ("run.steps", MayChange("how long the run goes on")),
    ("run.seed", SEED),
    ("device", MACHINE),
    (
        "distributed.lanes",
        MayChange("gradients are summed in another order; later iterations have other last bits"),
    ),
    (
        "distributed.order",
        MayChange(
            "gradients of several processes are summed in another order; later iterations have other last bits",
        ),
    ),
    ("distributed.timeout_s", SPEED),
    ("distributed.check_replicas_every", SPEED),
    ("distributed.transport", SPEED),
    ("distributed.nccl", SPEED),
    ("distributed.shard", SPEED),
    ("model", MODEL),
    ("lora", ADAPTERS),
    ("lora.export", WRITTEN),
    ("data", DATA),
    ("data.pretrain_on_held_out", PRETRAINING),
    ("data.buckets", PRETRAINING),
    ("text", TEXT),
    ("text.cache", MayChange("where encoded prompts are kept")),
    ("text.micro_batch", SPEED),
    ("pretrain", PRETRAINING),
    ("rewards", REWARD),
    (
        "rewards[].weight",
        MayChange("rewards add up in another way, before and after cannot be compared"),
    ),
    ("rewards[].batch", ASKED),
    ("rewards[].batch_size", ASKED),
    ("rewards[].processes", ASKED),
    ("rewards[].timeout_s", ASKED),
    ("rewards[].start_timeout_s", ASKED),
    ("rewards[].retries", ASKED),
    ("rewards[].backoff_s", ASKED),
    ("rewards[].headers_from", ASKED),
    ("rewards[].api_key_from", ASKED),
    ("rewards[].requests_per_server", ASKED),
    ("rewards[].servers", ANSWERED),
    ("rewards[].device", MACHINE),
    ("eval_rewards", EVALUATION),
    ("eval_rewards[].batch", ASKED),
    ("eval_rewards[].batch_size", ASKED),
    ("eval_rewards[].processes", ASKED),
    ("eval_rewards[].timeout_s", ASKED),
    ("eval_rewards[].start_timeout_s", ASKED),
    ("eval_rewards[].retries", ASKED),
    ("eval_rewards[].backoff_s", ASKED),
    ("eval_rewards[].headers_from", ASKED),
    ("eval_rewards[].api_key_from", ASKED),
    ("eval_rewards[].requests_per_server", ASKED),
    ("eval_rewards[].servers", ANSWERED),
    ("eval_rewards[].device", MACHINE),
    (
        "eval_rewards[].weight",
        MayChange("evaluation reports each reward by itself"),
    ),
    ("scheduler.dynamics", PATH),
    ("scheduler.steps", PATH),
    ("scheduler.sigma_min", PATH),
    ("scheduler.shift_terminal", PATH),
    ("scheduler.noise_level", PATH),
    ("scheduler.shift.kind", PATH),
    ("scheduler.shift.value", PATH),
    ("scheduler.shift.base_tokens", PATH),
    ("scheduler.shift.max_tokens", PATH),
    ("scheduler.shift.base_shift", PATH),
    ("scheduler.shift.max_shift", PATH),
    ("scheduler.after_window.kind", PATH),
    ("scheduler.after_window.share", PATH),
    ("scheduler.window.kind", PATH),
    ("scheduler.window.steps", PATH),
    ("scheduler.window.count", PATH),
    ("scheduler.window.from", PATH),
    ("scheduler.window.seed", SEED),
    ("scheduler.window.size", PATH),
    ("scheduler.window.stride", PATH),
    ("scheduler.window.hold", PATH),
    ("scheduler.window.hold_decay", PATH),
    ("scheduler.window.hold_least", PATH),
    ("scheduler.window.decay_from", PATH),
    ("scheduler.window.decay_rate", PATH),
    ("scheduler.window.range", PATH),
    ("sampling.group_size", GEOMETRY),
    ("sampling.prompts_per_step", GEOMETRY),
    ("sampling.micro_batch", SPEED),
    ("sampling.guidance_scale", PATH),
    ("sampling.embedded_guidance_scale", PATH),
    ("sampling.initial_noise", PATH),
    ("sampling.sizes", Fixed("the run makes pictures of other sizes")),
    (
        "sampling.sizes_of_prompts",
        Fixed("the run makes pictures of other sizes"),
    ),
    (
        "sampling.staleness",
        MayChange("later rollouts are sampled from the weights before, or from those that learn from them"),
    ),
    ("exploration", EXPLORATION),
    ("exploration.candidates", GEOMETRY),
    ("sampling.branching.kind", PATH),
    ("sampling.branching.splits", PATH),
    ("sampling.branching.children", PATH),
    ("sampling.branching.fusion", LOSS),
    ("sampling.branching.leaves", LOSS),
    ("sampling.branching.extremes", LOSS),
    ("sampling.branching.untrained_steps", LOSS),
    ("sampling.branching.untrained_hold", LOSS),
    ("sampling.branching.untrained_least", LOSS),
    ("algorithm.kind", Fixed("the run has another algorithm")),
    ("algorithm.clip_range", LOSS),
    ("algorithm.advantage_clip", LOSS),
    ("algorithm.kl.kind", LOSS),
    ("algorithm.kl.beta", LOSS),
    ("algorithm.kl.reference", LOSS),
    ("algorithm.kl.guidance_scale", LOSS),
    ("algorithm.inner_epochs", LOSS),
    ("algorithm.reweight", LOSS),
    ("algorithm.step_weights", LOSS),
    ("algorithm.mask", LOSS),
    ("algorithm.mask_threshold", LOSS),
    ("algorithm.weighting", LOSS),
    ("algorithm.huber_power", LOSS),
    ("algorithm.old_policy_beta", LOSS),
    ("algorithm.off_policy", LOSS),
    ("algorithm.beta", LOSS),
    ("algorithm.advantage_mode", LOSS),
    ("algorithm.kl_beta", LOSS),
    ("algorithm.reference", LOSS),
    ("algorithm.old_policy.flat", LOSS),
    ("algorithm.old_policy.rate", LOSS),
    ("algorithm.old_policy.hold", LOSS),
    ("algorithm.shared_noise", LOSS),
    ("algorithm.clip_error", LOSS),
    ("algorithm.clip_kl", LOSS),
    ("algorithm.reference_guidance", LOSS),
    ("algorithm.against_old", LOSS),
    ("algorithm.old_copy.flat", LOSS),
    ("algorithm.old_copy.start", LOSS),
    ("algorithm.old_copy.rate", LOSS),
    ("algorithm.old_copy.hold", LOSS),
    ("algorithm.old_samples_after", PATH),
    ("algorithm.sampling_copy.flat", PATH),
    ("algorithm.sampling_copy.start", PATH),
    ("algorithm.sampling_copy.rate", PATH),
    ("algorithm.sampling_copy.hold", PATH),
    ("algorithm.loss", LOSS),
    ("algorithm.baseline", LOSS),
    ("algorithm.normalise_errors", LOSS),
    ("algorithm.centre", LOSS),
    ("algorithm.centre_weights", LOSS),
    ("algorithm.centre_temperature", LOSS),
    ("algorithm.adaptive_kl", LOSS),
    ("algorithm.teachers", Fixed("the run learns from other teachers")),
    ("algorithm.loss_target", LOSS),
    ("algorithm.self_normalise", LOSS),
    ("algorithm.step_range", LOSS),
    ("algorithm.real_guidance_scale", LOSS),
    ("algorithm.perturbation_range", LOSS),
    ("algorithm.fake_score.updates", STEP),
    ("algorithm.fake_score.learning_rate", STEP),
    ("algorithm.fake_score.betas", STEP),
    ("algorithm.distance", LOSS),
    ("algorithm.huber_threshold", LOSS),
    ("algorithm.signal_to_noise_clip", LOSS),
    ("algorithm.importance_clip", LOSS),
    ("algorithm.query_interval", LOSS),
    ("algorithm.query_max_sigma", LOSS),
    ("algorithm.query_distribution", LOSS),
    ("algorithm.query_logit_mean", LOSS),
    ("algorithm.query_logit_std", LOSS),
    ("algorithm.tdm_weight", LOSS),
    ("algorithm.cfg_reward_scale", LOSS),
    ("algorithm.surrogate.learning_rate", STEP),
    ("algorithm.surrogate.betas", STEP),
    ("algorithm.surrogate.preference_beta", LOSS),
    ("algorithm.surrogate.reference_beta", LOSS),
    ("algorithm.surrogate.reference_threshold", LOSS),
    ("algorithm.surrogate.clip_range", LOSS),
    ("algorithm.surrogate.slow_decay_min", LOSS),
    ("algorithm.surrogate.slow_decay_max", LOSS),
    ("algorithm.surrogate.time_weighting", LOSS),
    ("algorithm.diversity", LOSS),
    ("algorithm.judges", LOSS),
    ("algorithm.gate.suspects", LOSS),
    ("algorithm.gate.share", LOSS),
    ("algorithm.gate.share_range", LOSS),
    ("algorithm.gate.rate", LOSS),
    ("algorithm.gate.window", LOSS),
    ("algorithm.renewal.divergence", LOSS),
    ("algorithm.renewal.iterations", LOSS),
    ("algorithm.train_timesteps.count", LOSS),
    ("algorithm.train_timesteps.strategy", LOSS),
    ("algorithm.train_timesteps.shift", LOSS),
    ("algorithm.train_timesteps.range", LOSS),
    ("advantage.aggregation", LOSS),
    ("advantage.global_std", LOSS),
    ("advantage.std_floor", LOSS),
    ("optimizer.learning_rate", STEP),
    ("optimizer.betas", STEP),
    ("optimizer.epsilon", STEP),
    ("optimizer.weight_decay", STEP),
    ("optimizer.max_grad_norm", STEP),
    ("optimizer.gradient_accumulation", STEP),
    ("optimizer.warmup_steps", STEP),
    ("optimizer.schedule.kind", STEP),
    ("optimizer.schedule.steps", STEP),
    ("optimizer.schedule.to", STEP),
    ("optimizer.moments", MACHINE),
    ("optimizer.gradients", MACHINE),
    ("optimizer.weights", MACHINE),
    (
        "ema.enabled",
        MayChange("the average is kept no longer; earlier checkpoints have it"),
    ),
    ("ema.update_every", AVERAGE),
    ("ema.schedule.kind", AVERAGE),
    ("ema.schedule.decay", AVERAGE),
    ("ema.schedule.warmup", AVERAGE),
    ("ema.schedule.initial", AVERAGE),
    ("ema.schedule.steps", AVERAGE),
    ("ema.schedule.flat", AVERAGE),
    ("ema.schedule.rate", AVERAGE),
    ("ema.schedule.maximum", AVERAGE),
    ("evaluation.every", WRITTEN),
    ("evaluation.grid", WRITTEN),
    ("evaluation.prompts", EVALUATION),
    ("evaluation.images_per_prompt", EVALUATION),
    ("evaluation.steps", EVALUATION),
    ("evaluation.guidance_scale", EVALUATION),
    ("evaluation.seed", EVALUATION),
    ("evaluation.weights", EVALUATION),
    ("checkpoints", WRITTEN),
    ("logging", WRITTEN),
    ("audit", WRITTEN),
    ("watch", WRITTEN),
    ("acceleration", SPEED),
    ("checkpointing", SPEED),
    ("runtime", SPEED),
];

/// The parameter of the accelerator `low_precision` that says what gradients are products of.
const DATA_GRADIENT: &str = "acceleration.shared[].params.data_gradient";

/// Parameters of the accelerator `low_precision`, which say what the frozen weights are.
const STORED: [&str; 4] = [
    "acceleration.shared[].params.compute",
    "acceleration.shared[].params.format",
    "acceleration.shared[].params.keep",
    DATA_GRADIENT,
];

/// The rule of a key (with `[]` for places of lists) that changes from `before` to `after`.
pub fn of(key: &str, before: &Value, after: &Value) -> Rule {
    if key == "ema.enabled" && *before == Value::Bool(false) && *after == Value::Bool(true) {
        return Fixed("the run began without an average");
    }
    // A window of another kind has no seed, or has one where there was none.
    if key == "scheduler.window.seed" && (before.is_null() || after.is_null()) {
        return PATH;
    }
    // The names of a list's entries say nothing of these: parameters of one accelerator alone, which asks for each.
    if is_below(key, DATA_GRADIENT) {
        return Fixed("the gradients of its layers' inputs are computed in another precision");
    }
    if is_form(key) {
        return Fixed("the frozen weights are stored in another form, which is another policy");
    }
    let fits = RULES.iter().filter(|(section, _)| is_below(key, section));
    let longest = fits.max_by_key(|(section, _)| section.len());
    longest.map_or(
        Fixed("nothing is known of what a run is with another value"),
        |(_, rule)| *rule,
    )
}

/// Whether a key (with `[]` for places of lists) says in which form frozen weights are stored.
pub fn is_form(key: &str) -> bool {
    STORED.iter().any(|stored| is_below(key, stored))
}

/// Whether the value of a key (with `[]` for places of lists) is what an accelerator takes where the key is left out.
pub fn is_left_out(key: &str, value: &Value) -> bool {
    is_below(key, DATA_GRADIENT) && value.as_str() == Some("run")
}

/// Whether a key is `section` or stands below it.
pub fn is_below(key: &str, section: &str) -> bool {
    let rest = key.strip_prefix(section);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}
