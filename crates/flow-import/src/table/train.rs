//! Rules of `train` for single trainers: those that exist here, and the others.

use super::trainers::ON_DEVICE;
use crate::rule::Conversion::{
    Choice, Fraction, Guidance, Integer, Joint, Number, Range, Same, Switch, Symmetric,
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
