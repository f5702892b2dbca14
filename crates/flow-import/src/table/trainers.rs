//! Rules of `train`: the keys that every trainer has.

use crate::rule::Conversion::{Choice, Integer, Joint, Limit, Same};
use crate::rule::{Join, Rule};

const MODEL_SIZE: &str =
    "pixels of an image or a frame, in whole patches of 16; left out, Flow-Factory takes 512";
pub(super) const ON_DEVICE: &str = "in flow-train it lies where the weights lie";
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

const fn of_schedule(from: &'static str, doc: &'static str) -> Rule {
    Rule::new(from, "ema.schedule", Joint(Join::Ema), doc)
}
