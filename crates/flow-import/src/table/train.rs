//! Rules of `train`: the keys of every trainer, those of the trainers that exist here, and those of the others.

use crate::rule::Conversion::{
    Choice, Fraction, Guidance, Integer, Joint, Limit, Number, Range, Same, Switch, Symmetric,
};
use crate::rule::{Join, Rule};

const CLIPPED: &[&str] = &["grpo", "grpo-guard", "awm", "dgpo"];
const WITH_ADVANTAGES: &[&str] = &["grpo", "grpo-guard", "dppo", "nft", "awm", "dgpo", "crd"];
const NFT: &[&str] = &["nft"];
/// Those of which a slower copy may sample.
const OLD_POLICY: &[&str] = &["nft", "awm"];
/// Those whose times are drawn by `time_sampling_strategy`.
const DRAWN: &[&str] = &["nft", "awm", "dgpo", "crd"];
const DPPO: &[&str] = &["dppo"];
const AWM: &[&str] = &["awm"];
const DGPO: &[&str] = &["dgpo"];
const CRD: &[&str] = &["crd"];
/// Those that take their loss at drawn times.
const AT_TIMES: &[&str] = &["nft", "awm", "dpo", "dgpo", "crd", "sft", "offline-dpo"];
/// Those that compare the better image of a pair with the other.
const WITH_PAIRS: &[&str] = &["dpo", "offline-dpo"];
/// Those whose times are drawn by `weighting_scheme`.
const WEIGHTED: &[&str] = &["dpo", "sft", "offline-dpo"];
const OPD: &[&str] = &["diffusion-opd"];
/// Those with a fake score.
const WITH_FAKE: &[&str] = &["dmd2", "tdm", "tdm-r1"];
const DMD2: &[&str] = &["dmd2"];
/// Those that match at every step.
const TDM: &[&str] = &["tdm", "tdm-r1"];
const REPLAYED: &str =
    "flow-train logs the difference of a replayed step from the stored one, and stops for none";
const MODEL_SIZE: &str =
    "pixels of an image or a frame, in whole patches of 16; left out, Flow-Factory takes 512";
const ON_DEVICE: &str = "in flow-train it lies where the weights lie";
const OVERLAP: &str = "rewards are computed on worker threads beside the generation, always";

pub(super) const COMMON: &[Rule] = &[
    Rule::new(
        "train.trainer_type",
        "algorithm.kind",
        Joint(Join::Algorithm),
        "`grpo`, `grpo-guard`, `dppo`, `nft`, `awm`, `dpo`, `dgpo`, `crd`, `sft`, `offline-dpo`, `diffusion-opd`, `dmd2`, `tdm` and `tdm-r1`; any other as it is, and flow-train refuses it",
    ),
    Rule::new(
        "train.resolution",
        "model.width, model.height",
        Joint(Join::Model),
        MODEL_SIZE,
    ),
    Rule::new("train.height", "model.height", Joint(Join::Model), MODEL_SIZE),
    Rule::new("train.width", "model.width", Joint(Join::Model), MODEL_SIZE),
    Rule::new(
        "train.max_epochs",
        "run.steps",
        Limit,
        "iterations; null, for ever, has no counterpart: give a number",
    ),
    Rule::new(
        "train.per_device_batch_size",
        "sampling.micro_batch",
        Joint(Join::Geometry),
        "images per call of the model",
    ),
    Rule::new(
        "train.gradient_step_per_epoch",
        "optimizer.gradient_accumulation",
        Joint(Join::Geometry),
        "accumulation such that there are as many optimizer steps per rollout; Flow-Factory's default is 2",
    ),
    Rule::new(
        "train.gradient_accumulation_steps",
        "optimizer.gradient_accumulation",
        Joint(Join::Geometry),
        "times the number of devices; `auto` follows `gradient_step_per_epoch`",
    ),
    Rule::detail("train.num_batches_per_epoch", "follows from the other numbers"),
    Rule::new(
        "train.group_size",
        "sampling.group_size",
        Joint(Join::Geometry),
        "images per prompt",
    ),
    Rule::new(
        "train.unique_sample_num_per_epoch",
        "sampling.prompts_per_step",
        Joint(Join::Geometry),
        "prompts per iteration",
    ),
    Rule::new(
        "train.num_inner_epochs",
        "algorithm.inner_epochs",
        Integer,
        "passes over the images of one rollout",
    ),
    Rule::new(
        "train.num_inference_steps",
        "scheduler.steps",
        Integer,
        "denoising steps of a rollout",
    )
    .default("10"),
    Rule::new(
        "train.guidance_scale",
        "sampling.guidance_scale, sampling.embedded_guidance_scale",
        Joint(Join::Guidance),
        "classifier-free guidance of rollouts; at 1 and below there is none; FLUX.1-dev is told the scale; left out, Flow-Factory \
         takes 3.5",
    ),
    Rule::new(
        "train.seed",
        "run.seed",
        Joint(Join::Seed),
        "seed of the run; Flow-Factory's default is 42",
    ),
    Rule::new(
        "train.learning_rate",
        "optimizer.learning_rate",
        Joint(Join::Optimizer),
        "learning rate of AdamW",
    )
    .default("1e-5"),
    Rule::new(
        "train.adam_weight_decay",
        "optimizer.weight_decay",
        Joint(Join::Optimizer),
        "decoupled weight decay",
    )
    .default("1e-4"),
    Rule::new(
        "train.adam_betas",
        "optimizer.betas",
        Joint(Join::Optimizer),
        "decays of the two moments",
    )
    .default("[0.9, 0.999]"),
    Rule::new(
        "train.adam_epsilon",
        "optimizer.epsilon",
        Joint(Join::Optimizer),
        "epsilon of AdamW",
    )
    .default("1e-8"),
    Rule::new(
        "train.max_grad_norm",
        "optimizer.max_grad_norm",
        Joint(Join::Optimizer),
        "gradients are scaled down to this norm",
    )
    .default("1.0"),
    Rule::new(
        "train.enable_gradient_checkpointing",
        "checkpointing.policy",
        Choice(&[("true", "full"), ("false", "none")]),
        "true becomes `full`: the inputs of each block are kept and the block is computed again",
    ),
    Rule::new(
        "train.offload_samples_to_cpu",
        "",
        Same(&["false"]),
        "samples lie where the weights lie, until their rewards are there",
    )
    .no_matter(),
    Rule::new(
        "train.ema_decay",
        "ema.enabled, ema.schedule, evaluation.weights",
        Joint(Join::Ema),
        "the decay, or its maximum; at 0 there is no average, otherwise evaluation uses it; Flow-Factory's default is \
         0.995",
    ),
    Rule::new(
        "train.ema_update_interval",
        "ema.update_every",
        Joint(Join::Ema),
        "iterations between updates; Flow-Factory's default is 10",
    ),
    Rule::new("train.ema_device", "", Same(&["cuda"]), ON_DEVICE).no_matter(),
    Rule::new(
        "train.ema_decay_schedule",
        "ema.schedule",
        Joint(Join::Ema),
        "`constant`, `power`, `linear`, `piecewise_linear`, `cosine`, `warmup_cosine`",
    ),
    of_schedule(
        "train.initial_decay",
        "the decay at the start of `linear`, `cosine` and `warmup_cosine`; Flow-Factory's default is 0",
    ),
    of_schedule(
        "train.warmup_steps",
        "iterations of the warm-up of `power`, `linear` and `warmup_cosine`; Flow-Factory's default is 10",
    ),
    of_schedule(
        "train.total_steps",
        "iterations of `cosine` and `warmup_cosine`; Flow-Factory's default is 1000",
    ),
    of_schedule(
        "train.flat_steps",
        "iterations of `piecewise_linear` with a decay of 0; Flow-Factory's default is 0",
    ),
    of_schedule(
        "train.ramp_rate",
        "rise of `piecewise_linear` per iteration after that; Flow-Factory's default is 0.001",
    ),
    Rule::new(
        "train.latent_storage_dtype",
        "",
        Same(&["fp32", "null"]),
        "latents of a trajectory are kept in f32, so that rollout and training see the same bits",
    ),
    Rule::nothing(
        "train.shuffle_samples",
        "a rollout is trained on in the batches in which it was made",
    ),
    Rule::detail(
        "train.use_kv_cache",
        "exact reuse is an accelerator's matter: see [acceleration]",
    ),
    Rule::detail("train.reward_optimization_overlap", OVERLAP),
    Rule::detail("train.reward_optimization_overlap_mode", OVERLAP),
    Rule::detail("train.reward_optimization_overlap_poll_interval", OVERLAP),
];

pub(super) const ALGORITHMS: &[Rule] = &[
    Rule::new(
        "train.global_std",
        "advantage.global_std",
        Joint(Join::Advantage),
        "divide by the standard deviation over all images; with `gdpo` in a last step, which is left out without it",
    )
    .default("true"),
    Rule::new(
        "train.advantage_aggregation",
        "advantage.aggregation",
        Joint(Join::Advantage),
        "how several rewards become one advantage",
    )
    .default("gdpo"),
    Rule::new(
        "train.clip_range",
        "algorithm.clip_range",
        Range,
        "range of the ratio; one number `c` is `[-c, c]`",
    )
    .kinds(CLIPPED)
    .default("[-1e-4, 1e-4]"),
    Rule::new(
        "train.adv_clip_range",
        "algorithm.advantage_clip",
        Symmetric,
        "range of advantages, which must be symmetric",
    )
    .kinds(WITH_ADVANTAGES)
    .default("5.0"),
    Rule::new(
        "train.kl_type",
        "algorithm.kl",
        Joint(Join::Kl),
        "`v-based` is `velocity`, `x-based` is `mean`; NFT, AWM, DGPO and CRD have velocities only",
    ),
    Rule::new(
        "train.kl_beta",
        "algorithm.kl, algorithm.kl_beta",
        Joint(Join::Kl),
        "factor of the KL term; above 0 the reference is the base below the adapters, or a snapshot",
    ),
    Rule::new(
        "train.kl_guidance_scale",
        "algorithm.kl",
        Joint(Join::Kl),
        "guidance of DPPO's reference; without it that of training",
    ),
    Rule::new("train.ref_param_device", "", Same(&["cuda"]), ON_DEVICE).no_matter(),
    Rule::new("train.nft_beta", "algorithm.beta", Number, "strength of the implicit guidance")
        .kinds(NFT)
        .default("1.0"),
    Rule::new(
        "train.off_policy",
        "algorithm.old_policy, algorithm.off_policy",
        Joint(Join::OldPolicy),
        "false: the policy that is trained samples (in NFT a rate of 0); true: the average samples, which is exact for the schedules \
         `piecewise_linear`, `constant` and `linear` from 0, updated every iteration",
    )
    .kinds(OLD_POLICY),
    Rule::new(
        "train.num_train_timesteps",
        "algorithm.train_timesteps.count",
        Integer,
        "times per image; 0 takes all in the range",
    )
    .kinds(AT_TIMES),
    Rule::new(
        "train.time_sampling_strategy",
        "algorithm.train_timesteps.strategy",
        Choice(&[
            ("uniform", "uniform"),
            ("logit_normal", "logit-normal"),
            ("discrete", "discrete"),
            ("discrete_with_init", "discrete-with-init"),
            ("discrete_wo_init", "discrete-without-init"),
        ]),
        "how training times are drawn",
    )
    .kinds(DRAWN),
    Rule::new(
        "train.time_shift",
        "algorithm.train_timesteps.shift",
        Number,
        "shift of drawn times",
    )
    .kinds(AT_TIMES),
    Rule::new(
        "train.timestep_range",
        "algorithm.train_timesteps.range, algorithm.step_range",
        Joint(Join::Distillation),
        "part of the path, from noise (0) to image (1); one number `f` is `[0, f]`; of diffusion-opd the steps of the rollout in it",
    ),
    Rule::new(
        "train.kl_mask_type",
        "algorithm.mask",
        Choice(&[("x-based", "mean"), ("v-based", "velocity")]),
        "how DPPO measures the divergence from the sampling policy",
    )
    .kinds(DPPO),
    Rule::new(
        "train.kl_mask_threshold",
        "algorithm.mask_threshold",
        Number,
        "divergence from which on DPPO drops rows",
    )
    .kinds(DPPO),
    Rule::new(
        "train.awm_weighting",
        "algorithm.weighting",
        Choice(&[
            ("Uniform", "uniform"),
            ("t", "sigma"),
            ("t**2", "sigma-squared"),
            ("huber", "huber"),
            ("ghuber", "generalised-huber"),
        ]),
        "how AWM makes a log-probability of an error",
    )
    .kinds(AWM),
    Rule::new(
        "train.ghuber_power",
        "algorithm.huber_power",
        Number,
        "exponent of `ghuber`",
    )
    .kinds(AWM),
    Rule::new(
        "train.ema_kl_beta",
        "algorithm.old_policy_beta",
        Number,
        "factor of the pull towards the average; flow-train's is a copy of its own, see `algorithm.old_policy`",
    )
    .kinds(AWM),
    Rule::new("train.beta", "algorithm.beta", Number, "strength of the preference in DPO").kinds(WITH_PAIRS),
    Rule::new(
        "train.weighting_scheme",
        "algorithm.train_timesteps.strategy",
        Choice(&[("logit_normal", "logit-normal"), ("uniform", "uniform")]),
        "how the times of DPO and SFT are drawn; flow-train draws several of DPO's in equal parts of the range",
    )
    .kinds(WEIGHTED),
    Rule::new(
        "train.logit_mean",
        "",
        Same(&["0", "0.0"]),
        "mean of the logit of times; flow-train's is 0",
    ),
    Rule::new(
        "train.logit_std",
        "",
        Same(&["1", "1.0"]),
        "standard deviation of the logit of times; flow-train's is 1",
    ),
    Rule::new(
        "train.dpo_beta",
        "algorithm.beta",
        Number,
        "strength of the preference in DGPO",
    )
    .kinds(DGPO),
    Rule::new(
        "train.use_shared_noise",
        "algorithm.shared_noise",
        Switch,
        "whether the images of a group have the same noise; flow-train's is drawn anew for each time, as in the official code",
    )
    .kinds(DGPO),
    Rule::new(
        "train.clip_dsm",
        "algorithm.clip_error",
        Switch,
        "whether DGPO holds images whose error is beyond `clip_range`",
    )
    .kinds(DGPO),
    Rule::new(
        "train.clip_kl",
        "algorithm.clip_kl",
        Switch,
        "whether DGPO leaves the pull of such images out",
    )
    .kinds(DGPO),
    Rule::new(
        "train.switch_ema_ref",
        "algorithm.old_samples_after",
        Integer,
        "optimizer steps after which DGPO's slower copy samples",
    )
    .kinds(DGPO),
    Rule::new(
        "train.use_ema_ref",
        "algorithm.against_old",
        Switch,
        "whether DGPO compares errors with those of the slower copy instead of the reference",
    )
    .kinds(DGPO),
    Rule::new(
        "train.ema_ref_max_decay",
        "algorithm.old_copy.hold",
        Number,
        "most of DGPO's slower copy that survives a step",
    )
    .kinds(DGPO),
    Rule::new(
        "train.ema_ref_ramp_rate",
        "algorithm.old_copy.rate",
        Number,
        "rise of that share per optimizer step",
    )
    .kinds(DGPO),
    Rule::new("train.ema_ref_device", "", Same(&["cuda"]), ON_DEVICE).no_matter(),
    Rule::new(
        "train.kl_cfg",
        "algorithm.reference_guidance",
        Guidance,
        "guidance of the reference; at 1 and below there is none, in CRD that of the rollout",
    )
    .kinds(&["dgpo", "crd"]),
    Rule::new("train.crd_beta", "algorithm.beta", Number, "factor of CRD's implicit reward").kinds(CRD),
    Rule::new(
        "train.crd_loss_type",
        "algorithm.loss",
        Choice(&[("mse", "mse"), ("bce", "bce")]),
        "how CRD compares the implicit reward with the reward",
    )
    .kinds(CRD),
    Rule::new(
        "train.use_old_for_loss",
        "algorithm.baseline",
        Choice(&[("true", "old"), ("false", "reference")]),
        "what CRD's implicit reward measures progress from: `old`, or the `reference`",
    )
    .kinds(CRD),
    Rule::new(
        "train.adaptive_logp",
        "algorithm.normalise_errors",
        Switch,
        "whether CRD divides errors by their size",
    )
    .kinds(CRD),
    Rule::new(
        "train.weight_temp",
        "algorithm.centre_weights, algorithm.centre_temperature",
        Joint(Join::Crd),
        "how much images count in CRD's centre: below 0 `uniform`, at 0 `signs`, above 0 `softmax`",
    )
    .kinds(CRD),
    Rule::new(
        "train.old_model_decay",
        "algorithm.old_copy",
        Joint(Join::Crd),
        "how CRD's copy follows that is measured from: `flat-start-rate-hold`, or one of Flow-Factory's presets",
    )
    .kinds(CRD),
    Rule::new(
        "train.sampling_model_decay",
        "algorithm.sampling_copy",
        Joint(Join::Crd),
        "how CRD's copy follows that samples, likewise",
    )
    .kinds(CRD),
    Rule::new(
        "train.reward_adaptive_kl",
        "algorithm.adaptive_kl",
        Switch,
        "whether CRD pulls better images more",
    )
    .kinds(CRD),
    Rule::new(
        "train.teachers",
        "algorithm.teachers",
        Joint(Join::Distillation),
        "the teachers of diffusion-opd: `path` is `adapter`; each prompt names its own in the place of `applicable_datasets`",
    ),
    Rule::new("train.teacher_param_device", "", Same(&["cuda"]), ON_DEVICE).no_matter(),
    Rule::new(
        "train.loss_target",
        "algorithm.loss_target",
        Choice(&[("xt", "mean"), ("v", "velocity"), ("x0", "image")]),
        "what diffusion-opd compares with a teacher",
    )
    .kinds(OPD),
    Rule::new(
        "train.self_normalize",
        "algorithm.self_normalise",
        Switch,
        "whether diffusion-opd divides a loss by the size of the difference",
    )
    .kinds(OPD),
    Rule::new(
        "train.ttur_fake_updates",
        "algorithm.fake_score.updates",
        Integer,
        "optimizer steps of the fake score before each of the student's",
    )
    .kinds(WITH_FAKE),
    Rule::new(
        "train.real_guidance_scale",
        "algorithm.real_guidance_scale",
        Guidance,
        "guidance of the frozen teacher; left out, that of the rollout",
    )
    .kinds(WITH_FAKE),
    Rule::new(
        "train.perturbation_timestep_range",
        "algorithm.perturbation_range",
        Fraction,
        "noise levels at which DMD2 compares teacher and fake score",
    )
    .kinds(DMD2),
    Rule::detail("train.replay_rtol", REPLAYED),
    Rule::detail("train.replay_atol", REPLAYED),
    Rule::new(
        "train.use_huber",
        "algorithm.distance",
        Choice(&[("true", "huber"), ("false", "square")]),
        "how TDM's student counts the distance from its target",
    )
    .kinds(TDM),
    Rule::new(
        "train.huber_c",
        "algorithm.huber_threshold",
        Number,
        "where `huber` goes over from a square to a line",
    )
    .kinds(TDM),
    Rule::new(
        "train.tdm_snr_gamma",
        "algorithm.signal_to_noise_clip",
        Number,
        "most that a row counts in the fake score's loss by its ratio of signal to noise",
    )
    .kinds(TDM),
    Rule::new(
        "train.tdm_importance_clip",
        "algorithm.importance_clip",
        Number,
        "most that a row counts in it by its importance",
    )
    .kinds(TDM),
    Rule::new(
        "train.tdm_query_interval",
        "algorithm.query_interval",
        Choice(&[("trajectory", "trajectory"), ("reverse", "reverse")]),
        "between which noise levels TDM looks at a step",
    )
    .kinds(TDM),
    Rule::new(
        "train.tdm_query_max_sigma",
        "algorithm.query_max_sigma",
        Number,
        "upper end of `reverse`",
    )
    .kinds(TDM),
    Rule::new(
        "train.tdm_query_distribution",
        "algorithm.query_distribution",
        Choice(&[
            ("actual_uniform", "uniform"),
            ("source_uniform", "source-uniform"),
            ("conditional_logit_normal", "logit-normal"),
        ]),
        "how TDM draws noise levels",
    )
    .kinds(TDM),
    Rule::new(
        "train.tdm_query_logit_mean",
        "algorithm.query_logit_mean",
        Number,
        "mean of the logit of levels of `conditional_logit_normal`",
    )
    .kinds(TDM),
    Rule::new(
        "train.tdm_query_logit_std",
        "algorithm.query_logit_std",
        Number,
        "standard deviation of that logit",
    )
    .kinds(TDM),
];

const fn of_schedule(from: &'static str, doc: &'static str) -> Rule {
    Rule::new(from, "ema.schedule", Joint(Join::Ema), doc)
}
