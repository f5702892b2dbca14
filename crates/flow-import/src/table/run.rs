//! Rules of everything but `train`.

use crate::rule::Conversion::{Choice, Integer, Joint, Number, Path, Same, Text};
use crate::rule::{Join, Rule};

const ON_DEVICE: &str =
    "what starts the processes of flow-train says this: `flow-train launch`, torchrun and the like";

pub(super) const TOP: &[Rule] = &[
    Rule::new(
        "launcher",
        "",
        Same(&["accelerate"]),
        "flow-train trains on one process unless `flow-train launch`, torchrun or the like starts several",
    )
    .no_matter(),
    Rule::detail("config_file", "accelerate's own config, which flow-train does not need"),
    Rule::new(
        "num_processes",
        "sampling.micro_batch, optimizer.gradient_accumulation",
        Joint(Join::Geometry),
        "one device does the work of all in turn: images per optimizer step stay the same, through accumulation",
    ),
    Rule::detail("main_process_port", ON_DEVICE),
    Rule::detail("num_machines", ON_DEVICE),
    Rule::detail("machine_rank", ON_DEVICE),
    Rule::detail("main_process_ip", ON_DEVICE),
    Rule::new(
        "mixed_precision",
        "device.dtype",
        Choice(&[("no", "f32"), ("bf16", "bf16")]),
        "type of the operands of matrix products; there is \"f32\" and \"bf16\" (on a processor the latter needs \
         AVX512_BF16)",
    )
    .default("bf16"),
    Rule::new(
        "optimizers",
        "optimizer",
        Joint(Join::Optimizer),
        "a list of one map: its `learning_rate`, `weight_decay`, `betas`, `eps` and `max_grad_norm` are \
         taken before those of `train`; several maps have no counterpart, since flow-train has one optimizer",
    ),
    Rule::new(
        "seed",
        "run.seed",
        Joint(Join::Seed),
        "taken where `train.seed` is left out; Flow-Factory itself reads `train.seed` only",
    ),
];

pub(super) const MODEL: &[Rule] = &[
    Rule::new(
        "model.model_type",
        "model.architecture",
        Joint(Join::Model),
        "of `sd3`, `sd3-5`, `flux1`, `qwen-image` and `wan2_t2v` (unless it is Wan 2.2) the diffusers folder says what there is to \
         say; without a folder they become `mmdit`, `flux`, `qwen-image` and `wan`; any other stands in the TOML as it is, and flow-train refuses it",
    ),
    Rule::new(
        "model.model_name_or_path",
        "model.path, model.weights",
        Joint(Join::Model),
        "a local folder is `model.path` as it is; a name on a hub, `owner/name`, becomes `name`, the folder that `flow-train fetch \
         owner/name` makes; a path that ends with `.safetensors` or `.index.json` becomes `model.weights`; left out with `flux1`, \
         Flow-Factory takes black-forest-labs/FLUX.1-dev",
    ),
    Rule::new(
        "model.finetune_type",
        "model.finetune",
        Choice(&[("full", "full"), ("lora", "lora")]),
        "which weights are trained",
    ),
    Rule::new(
        "model.master_weight_dtype",
        "",
        Same(&["fp32", "float32"]),
        "flow-train keeps master weights in f32; `optimizer.weights` says otherwise",
    ),
    Rule::new(
        "model.target_components",
        "",
        Same(&["transformer", "[transformer]"]),
        "flow-train trains the transformer and nothing else",
    ),
    Rule::new(
        "model.target_modules",
        "lora.targets",
        Joint(Join::LoraTargets),
        "`all` is `*`, `default` the modules of Flow-Factory's adapter of SD3, FLUX.1, Qwen-Image and Wan; a module `to_q` is the pattern `*.to_q` \
         on the dotted names of linears; with `finetune_type: full` all but `all` are kept: flow-train trains every weight",
    ),
    Rule::new("model.lora_rank", "lora.rank", Integer, "rank of the adapters"),
    Rule::new(
        "model.lora_alpha",
        "lora.alpha",
        Number,
        "scale of the adapters; left out, both take twice the rank",
    ),
    Rule::nothing(
        "model.resume_path",
        "a run goes on by `flow-train train CONFIG --resume latest`; to start from other weights, set model.weights, and model.adapter \
         to start from a LoRA",
    ),
    Rule::detail(
        "model.resume_type",
        "a run goes on by `flow-train train CONFIG --resume latest`, with its full state",
    ),
    Rule::new(
        "model.attn_backend",
        "acceleration.shared",
        Joint(Join::Acceleration),
        "the old key for an `attention_backend` entry, which stands first in `acceleration.shared`",
    ),
];

const NO_PREPROCESSING: &str = "before a run flow-train encodes the prompts that it does not find encoded, and keeps them (`text.cache`)";

pub(super) const DATA: &[Rule] = &[
    Rule::new(
        "data.dataset_dir",
        "data.kind, data.path, data.test_path",
        Joint(Join::Prompts),
        "`kind = \"prompts\"` with `train.txt` and `test.txt` of the folder; `train.jsonl` and `test.jsonl` where the YAML names a \
         folder of images, videos or sound, to which only a `.jsonl` refers",
    ),
    Rule::new(
        "data.datasets",
        "data.path",
        Joint(Join::Prompts),
        "flow-train reads one file of prompts; kept for people to put several into one",
    ),
    Rule::detail("data.cache_dir", NO_PREPROCESSING),
    Rule::nothing(
        "data.image_dir",
        "there are no models that are conditioned on images",
    ),
    Rule::nothing(
        "data.video_dir",
        "there are no models that are conditioned on videos",
    ),
    Rule::nothing(
        "data.audio_dir",
        "there are no models that are conditioned on sound",
    ),
    Rule::detail("data.preprocessing_batch_size", NO_PREPROCESSING),
    Rule::detail("data.dataloader_num_workers", NO_PREPROCESSING),
    Rule::new("data.enable_preprocess", "", Same(&["false"]), NO_PREPROCESSING).no_matter(),
    Rule::new("data.force_reprocess", "", Same(&["false"]), NO_PREPROCESSING).no_matter(),
    Rule::nothing(
        "data.max_dataset_size",
        "Flow-Factory trains on that many prompts of the file at most, the first ones; flow-train on all: leave the others out of \
         the file",
    ),
    Rule::detail("data.preprocess_parallelism", NO_PREPROCESSING),
    Rule::new(
        "data.sampler_type",
        "",
        Same(&[
            "auto",
            "distributed_k_repeat",
            "group_contiguous",
            "group_distributed",
            "group_tiled",
        ]),
        "how a group is spread over devices; on one device every sampler gives whole groups",
    )
    .no_matter(),
];

pub(super) const SCHEDULER: &[Rule] = &[
    Rule::new(
        "scheduler.dynamics_type",
        "scheduler.dynamics",
        Joint(Join::Dynamics),
        "how a step goes from one sigma to the next",
    ),
    Rule::new(
        "scheduler.noise_level",
        "scheduler.noise_level",
        Number,
        "strength of the noise, eta",
    ),
    Rule::new(
        "scheduler.num_sde_steps",
        "scheduler.window",
        Joint(Join::Window),
        "how many random steps are drawn in an iteration: a window of kind `random`, or `all` or `list` where all are \
         taken; Flow-Factory's default is 1",
    ),
    Rule::new(
        "scheduler.sde_steps",
        "scheduler.window",
        Joint(Join::Window),
        "the steps they are drawn from; left out, every step but the last",
    ),
    Rule::new(
        "scheduler.seed",
        "scheduler.window",
        Joint(Join::Window),
        "seed of the draw; the numbers drawn differ from Flow-Factory's",
    ),
    Rule::new(
        "scheduler.shift",
        "scheduler.shift",
        Joint(Join::Model),
        "shift of sigmas of the schedulers of SD3 and FLUX.1-schnell; left out, both take the checkpoint's",
    ),
    Rule::new(
        "scheduler.flow_shift",
        "scheduler.shift",
        Joint(Join::Model),
        "shift of sigmas of Wan's scheduler; left out, both take the checkpoint's",
    ),
];

const MODEL_SIZE: &str =
    "evaluation takes the size and the frames of training: the same at the value of `train`";

pub(super) const EVAL: &[Rule] = &[
    Rule::new("eval.resolution", "", Joint(Join::Evaluation), MODEL_SIZE),
    Rule::new("eval.height", "", Joint(Join::Evaluation), MODEL_SIZE),
    Rule::new("eval.width", "", Joint(Join::Evaluation), MODEL_SIZE),
    Rule::new("eval.num_frames", "", Joint(Join::Evaluation), MODEL_SIZE),
    Rule::detail(
        "eval.per_device_batch_size",
        "evaluation takes batches of sampling.micro_batch",
    ),
    Rule::new("eval.seed", "evaluation.seed", Integer, "seed of the noise"),
    Rule::new(
        "eval.guidance_scale",
        "evaluation.guidance_scale",
        Joint(Join::Evaluation),
        "guidance of evaluation; left out, Flow-Factory takes 3.5 and flow-train the one of training; FLUX.1-dev is told the scale \
         of training in evaluation too",
    ),
    Rule::new(
        "eval.num_inference_steps",
        "evaluation.steps",
        Joint(Join::Evaluation),
        "denoising steps; left out, Flow-Factory takes 30 and flow-train those of training",
    ),
    Rule::new(
        "eval.eval_freq",
        "evaluation.every",
        Integer,
        "iterations between evaluations",
    ),
];

pub(super) const REWARDS: &[Rule] = &[
    Rule::new(
        "rewards",
        "rewards",
        Joint(Join::Rewards),
        "one map or a list; `PickScore`, `PickScore_Rank`, `CLIP` and `OCR` are the same rewards here, whose files the verdict names; \
         Flow-Factory's clients of servers are `remote`; a reward model named `jpeg_compressibility` is converted; others are kept",
    ),
    Rule::new(
        "eval_rewards",
        "eval_rewards",
        Joint(Join::Rewards),
        "as `rewards`",
    ),
];

pub(super) const LOG: &[Rule] = &[
    Rule::new("log.run_name", "run.name", Text, "name of the run"),
    Rule::detail(
        "log.project",
        "runs are folders below run.dir; there are no projects",
    ),
    Rule::new(
        "log.logging_backend",
        "logging.tensorboard",
        Joint(Join::Logging),
        "`tensorboard` is flow-train's default, `none` turns it off, services have no counterpart; metrics.jsonl and \
         report.html are always written",
    ),
    Rule::new(
        "log.save_dir",
        "run.dir",
        Path,
        "directory that holds the runs, without `~`",
    ),
    Rule::new(
        "log.save_freq",
        "checkpoints.every",
        Integer,
        "iterations between checkpoints; flow-train keeps the newest two unless checkpoints.keep says otherwise",
    ),
    Rule::detail(
        "log.save_model_only",
        "a checkpoint holds the full state, from which a run resumes bit for bit; the weights are saved apart as well",
    ),
    Rule::new(
        "log.verbose",
        "",
        Same(&["true"]),
        "flow-train prints a line per iteration; logging.every makes them rarer",
    )
    .no_matter(),
];

pub(super) const ACCELERATION: &[Rule] = &[
    Rule::new(
        "acceleration.shared",
        "acceleration.shared",
        Joint(Join::Acceleration),
        "`attention_backend`: the default backend is left out, others are to be chosen from flow-train's; \
         `torch_compile`: no entry, `fused_kernels` is the nearest",
    ),
    Rule::new(
        "acceleration.rollout",
        "acceleration.rollout",
        Joint(Join::Acceleration),
        "`diffusers_cache`: `feature_cache` with `policy` and its parameters; `cache_dit`, which Flow-Factory removed: \
         `feature_cache` with `policy = \"first_block\"`, `threshold = 0.08`",
    ),
];
