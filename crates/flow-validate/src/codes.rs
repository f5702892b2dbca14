//! The stable codes of this crate's diagnostics, and of all others: each with its rule, its rationale and an example.
//!
//! Codes of the config itself stand in [`flow_config::codes`]. Those of `[runtime.options]` are explained here, since a
//! runtime's crate knows options and no configs.

pub use flow_config::codes::Explanation;

macro_rules! codes {
    ($($name:ident = $code:literal, $rule:literal;)+) => {
        $(#[doc = $rule] pub const $name: &str = $code;)+
    };
}

codes! {
    UNKNOWN_SLOT = "acceleration::unknown-slot", "A slot other than `shared` and `rollout`. In a config this is an unknown key; a program that asks about an entry of its own is told so.";
    NOT_FOR_SHARED = "acceleration::not-for-shared", "An accelerator of stage `rollout` in the slot `shared`.";
    RATIO_NOT_EXACT = "acceleration::ratio-not-exact", "A warning: a lossy accelerator in the slot `shared` of a coupled trainer.";
    OTHER_POLICY = "acceleration::other-policy", "A warning: an accelerator that stores frozen weights in fewer bits, or multiplies trained ones so.";
    NOT_FOR_ROLLOUT = "acceleration::not-for-rollout", "An accelerator of stage `both` in the slot `rollout`.";
    NO_PARADIGM = "acceleration::no-paradigm", "A lossy accelerator in the slot `rollout` of a trainer that declares no paradigm. Those of flow-train declare one; an algorithm of your own may not.";
    LOSSY_ROLLOUT_OF_COUPLED = "acceleration::lossy-rollout-of-coupled", "An accelerator in the slot `rollout` of a coupled trainer that is lossy in all steps.";
    LOSSY_OUTSIDE_WINDOW = "acceleration::lossy-outside-window", "A warning: an accelerator in the slot `rollout` of a coupled trainer that is lossy outside the SDE window.";
    LOSSY_ROLLOUT = "acceleration::lossy-rollout", "A warning: a lossy accelerator in the slot `rollout` of a decoupled or distilling trainer.";
    NOTHING_OUTSIDE_WINDOW = "acceleration::nothing-outside-window", "An accelerator that works outside the SDE window only, where no two steps in a row are outside it. A warning, or an error with `acceleration.strict`.";
    UNKNOWN = "acceleration::unknown-accelerator", "A name that no accelerator of this program has.";
    REMOVED = "acceleration::removed", "A name that was an accelerator once, or is one elsewhere.";
    BAD_PARAMETERS = "acceleration::bad-parameters", "Parameters that the accelerator's own type does not take, for a reason that its JSON schema does not state. What the schema states has the codes of other keys, such as `unknown-key` and `out-of-range`.";
    REFUSED = "acceleration::refused", "An accelerator that cannot do what it is asked for with this model, plan or device.";
    DUPLICATE = "acceleration::duplicate", "A slot that has an accelerator twice.";
    CONFLICT = "acceleration::conflict", "Two accelerators of which one declares that it cannot work beside the other.";
    ORDER = "acceleration::order", "An accelerator that must stand after another of its slot, and stands before it.";
    UNUSABLE = "acceleration::unusable", "An entry that cannot be put in force for a reason that has no code of its own.";
    NO_CHECKPOINTING = "checkpointing::unavailable", "A policy of activation checkpointing that this build, or pretraining, does not have.";
    CHECKPOINTING_IGNORED = "checkpointing::ignored", "A policy of activation checkpointing for a model that announces no regions.";
    NO_REGION = "checkpointing::no-region", "A pattern of `checkpointing.save` that names no region and no result of the model, or is no pattern.";
    BUDGET_TOO_SMALL = "checkpointing::budget-too-small", "A budget below what weights, gradients and the optimizer's moments take, whatever is computed again.";
    TOO_MUCH_MEMORY = "memory::too-much", "An estimate of what the run keeps in memory at one time that is above the device's memory.";
    NO_DEVICE = "device::unavailable", "A device that this build or this machine does not have. The message says which of the two: `--features cuda` puts NVIDIA GPUs into a build, and a driver makes one answer (`flow-train doctor` looks for what is missing).";
    NO_BF16 = "device::no-bf16", "`device.dtype = \"bf16\"` where the device has no such matrix products.";
    NEEDS_BF16_GPU = "optimizer::needs-bf16-gpu", "`optimizer.weights` or `optimizer.gradients` in bf16 where no GPU computes in bf16.";
    LANES = "distributed::lanes", "Processes, lanes and micro-batches of an update that do not divide each other.";
    NOT_ON_SEVERAL = "distributed::refused", "A part of the config that is not right on several processes, or not there yet.";
    MANY_THREADS = "device::many-threads", "A warning: more than four worker threads for each processor.";
    NO_KERNEL = "device::no-kernel", "A model whose attention no kernel of the device computes, or a named attention backend that declines it.";
    SLOW_KERNELS = "device::slow-kernels", "A warning: settings with which a GPU computes by its portable kernels, without tensor cores.";
    LARGE_LEARNING_RATE = "optimizer::large-learning-rate", "A warning: `optimizer.learning_rate` of 0.1 or more.";
    NO_WEIGHTS = "files::no-weights", "The file that `model.weights` names is not there.";
    BAD_WEIGHTS = "files::bad-weights", "The file that `model.weights` names cannot be read, or holds other weights than the model.";
    OTHER_MODEL = "files::other-model", "The config describes another model than the weights or the adapter it names, which say so in `config.json` or in their metadata.";
    ADAPTERS = "model::adapters", "Adapters that the model cannot have, for instance a target that no layer matches.";
    REWARD_REFUSED = "rewards::refused", "A reward that cannot be built, for instance since its file is not there.";
    SETUP_REFUSED = "setup::refused", "A part of the run that cannot be built for a reason that has no code of its own.";
}

/// Every code of any diagnostic with its explanation: those of the config, then ours.
pub fn all_codes() -> impl Iterator<Item = &'static Explanation> {
    flow_config::codes::ALL.iter().chain(OURS)
}

/// What is behind a code, or `None` if no diagnostic has it.
pub fn explain(code: &str) -> Option<&'static Explanation> {
    all_codes().find(|known| known.code == code)
}

const OURS: &[Explanation] = &[
    Explanation {
        code: UNKNOWN_SLOT,
        rule: "A slot other than `shared` and `rollout`. In a config this is an unknown key; a program that asks about an entry of its own is told so.",
        why: "A slot says in which stages an accelerator is in force; there are two.",
        wrong: "Entry { slot: \"evaluation\".into(), .. }",
        right: "Entry { slot: \"shared\".into(), .. }",
    },
    Explanation {
        code: NOT_FOR_SHARED,
        rule: "An accelerator of stage `rollout` in the slot `shared`.",
        why: "It has no backward, or keeps state between the steps of a trajectory. In training it would compute wrong gradients or none.",
        wrong: "[algorithm]\nkind = \"nft\"\n\n[[acceleration.shared]]\nname = \"feature_cache\"\nparams = { policy = \"first_block\" }",
        right: "[algorithm]\nkind = \"nft\"\n\n[[acceleration.rollout]]\nname = \"feature_cache\"\nparams = { policy = \"first_block\" }",
    },
    Explanation {
        code: RATIO_NOT_EXACT,
        rule: "A warning: a lossy accelerator in the slot `shared` of a coupled trainer.",
        why: "A coupled trainer divides the probability of a step in training by that in the rollout. Before the first update both come from the same weights, and any difference is an error of computation.",
        wrong: "[[acceleration.shared]]\nname = \"an_accelerator_that_is_lossy\"",
        right: "[[acceleration.shared]]\nname = \"attention_backend\"\nparams = { backend = \"reference\" }",
    },
    Explanation {
        code: OTHER_POLICY,
        rule: "A warning: an accelerator that stores frozen weights in fewer bits, or multiplies trained ones so.",
        why: "Rollout and training compute with the same stored weights, so ratios stay exactly 1. But those are not the weights of the file: the run begins with another policy, and adapters that are trained on it fit it best.",
        wrong: "[model]\nfinetune = \"lora\"\n\n[[acceleration.shared]]\nname = \"low_precision\"\nparams = { compute = \"storage\", format = \"fp8\" }",
        right: "[model]\nfinetune = \"lora\"",
    },
    Explanation {
        code: NOT_FOR_ROLLOUT,
        rule: "An accelerator of stage `both` in the slot `rollout`.",
        why: "Were it in force in one stage only, rollout and training would compute with different kernels, and even a lossless accelerator would not give the same bits in both.",
        wrong: "[[acceleration.rollout]]\nname = \"attention_backend\"\nparams = { backend = \"reference\" }",
        right: "[[acceleration.shared]]\nname = \"attention_backend\"\nparams = { backend = \"reference\" }",
    },
    Explanation {
        code: NO_PARADIGM,
        rule: "A lossy accelerator in the slot `rollout` of a trainer that declares no paradigm. Those of flow-train declare one; an algorithm of your own may not.",
        why: "Whether a changed rollout corrupts the gradients depends on what the loss reads of it.",
        wrong: "TrainerKind { name: \"mine\".into(), paradigm: None }",
        right: "TrainerKind { name: \"mine\".into(), paradigm: Some(Paradigm::Decoupled) }",
    },
    Explanation {
        code: LOSSY_ROLLOUT_OF_COUPLED,
        rule: "An accelerator in the slot `rollout` of a coupled trainer that is lossy in all steps.",
        why: "The importance ratio would be biased from the first update on, and the gradients wrong, without any sign of it in the reward for a while.",
        wrong: "[scheduler]\nwindow = { kind = \"list\", steps = [0] }\n\n[[acceleration.rollout]]\nname = \"feature_cache\"\nparams = { policy = \"first_block\", scope = \"all_steps\" }",
        right: "[scheduler]\nwindow = { kind = \"list\", steps = [0] }\n\n[[acceleration.rollout]]\nname = \"feature_cache\"\nparams = { policy = \"first_block\", scope = \"outside_sde_window\" }",
    },
    Explanation {
        code: LOSSY_OUTSIDE_WINDOW,
        rule: "A warning: an accelerator in the slot `rollout` of a coupled trainer that is lossy outside the SDE window.",
        why: "A deterministic step has no log-probability, so no term of the loss belongs to it. What is kept between steps is dropped where a stochastic step comes, so each of those is computed exactly as in training; but the latents that enter and leave the window are not those of the exact sampler.",
        wrong: "[scheduler]\nwindow = { kind = \"list\", steps = [0] }\n\n[[acceleration.rollout]]\nname = \"feature_cache\"\nparams = { policy = \"first_block\", scope = \"outside_sde_window\" }",
        right: "[scheduler]\nwindow = { kind = \"list\", steps = [0] }",
    },
    Explanation {
        code: LOSSY_ROLLOUT,
        rule: "A warning: a lossy accelerator in the slot `rollout` of a decoupled or distilling trainer.",
        why: "The loss stays correct for the samples it gets, but they come from a slightly different distribution.",
        wrong: "[algorithm]\nkind = \"nft\"\n\n[scheduler]\ndynamics = \"ode\"\n\n[[acceleration.rollout]]\nname = \"feature_cache\"\nparams = { policy = \"first_block\" }",
        right: "[algorithm]\nkind = \"nft\"\n\n[scheduler]\ndynamics = \"ode\"",
    },
    Explanation {
        code: NOTHING_OUTSIDE_WINDOW,
        rule: "An accelerator that works outside the SDE window only, where no two steps in a row are outside it. A warning, or an error with `acceleration.strict`.",
        why: "What it keeps of a step is dropped at each stochastic one, so it can only ever answer a deterministic step that follows another. With the window `all` there is one such step, the last.",
        wrong: "[scheduler]\nwindow = { kind = \"all\" }\n\n[[acceleration.rollout]]\nname = \"feature_cache\"\nparams = { policy = \"first_block\", scope = \"outside_sde_window\" }",
        right: "[scheduler]\nwindow = { kind = \"all\" }",
    },
    Explanation {
        code: UNKNOWN,
        rule: "A name that no accelerator of this program has.",
        why: "A program knows the accelerators that it registered and no others; a misspelt one must not be left out.",
        wrong: "[[acceleration.shared]]\nname = \"atention_backend\"\nparams = { backend = \"reference\" }",
        right: "[[acceleration.shared]]\nname = \"attention_backend\"\nparams = { backend = \"reference\" }",
    },
    Explanation {
        code: REMOVED,
        rule: "A name that was an accelerator once, or is one elsewhere.",
        why: "A name that people know gets an answer and not a guess.",
        wrong: "[algorithm]\nkind = \"nft\"\n\n[[acceleration.rollout]]\nname = \"cache_dit\"",
        right: "[algorithm]\nkind = \"nft\"\n\n[[acceleration.rollout]]\nname = \"feature_cache\"\nparams = { policy = \"first_block\", threshold = 0.08 }",
    },
    Explanation {
        code: BAD_PARAMETERS,
        rule: "Parameters that the accelerator's own type does not take, for a reason that its JSON schema does not state. What the schema states has the codes of other keys, such as `unknown-key` and `out-of-range`.",
        why: "An unknown or unreadable parameter would be ignored in silence.",
        wrong: "[[acceleration.shared]]\nname = \"an_accelerator_of_your_own\"\nparams = { from = 3, to = 2 }",
        right: "[[acceleration.shared]]\nname = \"an_accelerator_of_your_own\"\nparams = { from = 2, to = 3 }",
    },
    Explanation {
        code: REFUSED,
        rule: "An accelerator that cannot do what it is asked for with this model, plan or device.",
        why: "An accelerator that would do nothing, or not what it was asked for, says so before the run.",
        wrong: "[[acceleration.shared]]\nname = \"attention_backend\"\nparams = { backend = \"cpu\" }",
        right: "[[acceleration.shared]]\nname = \"attention_backend\"\nparams = { backend = \"reference\" }",
    },
    Explanation {
        code: DUPLICATE,
        rule: "A slot that has an accelerator twice.",
        why: "The second entry would wrap or replace the first, and nobody could say which parameters are in force.",
        wrong: "[[acceleration.shared]]\nname = \"attention_backend\"\nparams = { backend = \"reference\" }\n\n[[acceleration.shared]]\nname = \"Attention_Backend\"\nparams = { backend = \"cpu\" }",
        right: "[[acceleration.shared]]\nname = \"attention_backend\"\nparams = { backend = \"reference\" }",
    },
    Explanation {
        code: CONFLICT,
        rule: "Two accelerators of which one declares that it cannot work beside the other.",
        why: "Together they would compute something else than either promises.",
        wrong: "[[acceleration.shared]]\nname = \"one\"\n\n[[acceleration.shared]]\nname = \"another_that_excludes_it\"",
        right: "[[acceleration.shared]]\nname = \"one\"",
    },
    Explanation {
        code: ORDER,
        rule: "An accelerator that must stand after another of its slot, and stands before it.",
        why: "Entries are applied in the order of the list. One that records or replays what others do must come after them.",
        wrong: "[[acceleration.shared]]\nname = \"graph_capture\"\n\n[[acceleration.shared]]\nname = \"attention_backend\"\nparams = { backend = \"reference\" }",
        right: "[[acceleration.shared]]\nname = \"attention_backend\"\nparams = { backend = \"reference\" }",
    },
    Explanation {
        code: UNUSABLE,
        rule: "An entry that cannot be put in force for a reason that has no code of its own.",
        why: "It must not be left out in silence.",
        wrong: "[[acceleration.shared]]\nname = \"an_accelerator_that_fails\"",
        right: "[acceleration]\nshared = []",
    },
    Explanation {
        code: NO_CHECKPOINTING,
        rule: "A policy of activation checkpointing that this build, or pretraining, does not have.",
        why: "A run that was planned with it would take more memory than planned.",
        wrong: "[checkpointing]\npolicy = \"full\"",
        right: "[checkpointing]\npolicy = \"none\"",
    },
    Explanation {
        code: CHECKPOINTING_IGNORED,
        rule: "A policy of activation checkpointing for a model that announces no regions.",
        why: "A policy says of each region what is kept and what is computed again; without regions it says nothing, and all is kept.",
        wrong: "[model]\narchitecture = \"one_without_regions\"\n\n[checkpointing]\npolicy = \"full\"",
        right: "[checkpointing]\npolicy = \"none\"",
    },
    Explanation {
        code: NO_REGION,
        rule: "A pattern of `checkpointing.save` that names no region and no result of the model, or is no pattern.",
        why: "A pattern that names nothing keeps nothing, and all would be computed again without a word.",
        wrong: "[checkpointing]\npolicy = \"regions\"\nsave = [\"atention\"]",
        right: "[checkpointing]\npolicy = \"regions\"\nsave = [\"attention\"]",
    },
    Explanation {
        code: BUDGET_TOO_SMALL,
        rule: "A budget below what weights, gradients and the optimizer's moments take, whatever is computed again.",
        why: "Recomputation saves activations alone. A budget that is large enough for the rest and yet too small is found when the planner has measured; it then names the smallest that would do.",
        wrong: "[checkpointing]\npolicy = \"budget\"\npeak_gib = 0.001",
        right: "[checkpointing]\npolicy = \"budget\"\npeak_gib = 4.0",
    },
    Explanation {
        code: TOO_MUCH_MEMORY,
        rule: "An estimate of what the run keeps in memory at one time that is above the device's memory.",
        why: "The run would be killed by the operating system, perhaps hours after its start. The estimate counts weights, gradients, moments, copies, trajectories and the activations of one micro-batch, and leaves out what libraries and data take. What is surely needed, without the activations, is an error. With them it is a warning: operations that share inputs or are fused keep fewer.",
        wrong: "[model.dit]\nhidden = 65536\nlayers = 1024",
        right: "[model.dit]\nhidden = 64\nlayers = 6",
    },
    Explanation {
        code: NO_DEVICE,
        rule: "A device that this build or this machine does not have. The message says which of the two: `--features cuda` puts NVIDIA GPUs into a build, and a driver makes one answer (`flow-train doctor` looks for what is missing).",
        why: "Nothing falls back to another device: a run on the processor in place of a GPU would take weeks without a word.",
        wrong: "[device]\nkind = \"cuda\"",
        right: "[device]\nkind = \"cpu\"",
    },
    Explanation {
        code: NO_BF16,
        rule: "`device.dtype = \"bf16\"` where the device has no such matrix products.",
        why: "Emulating them would be slower than f32, which is no reason to ask for them.",
        wrong: "[device]\ndtype = \"bf16\"",
        right: "[device]\ndtype = \"f32\"",
    },
    Explanation {
        code: NEEDS_BF16_GPU,
        rule: "`optimizer.weights` or `optimizer.gradients` in bf16 where no GPU computes in bf16.",
        why: "Kernels of the processor, and those that compute in f32, read weights and write gradients in f32; nothing would become smaller.",
        wrong: "[optimizer]\nweights = \"bf16\"",
        right: "[optimizer]\nweights = \"f32\"",
    },
    Explanation {
        code: LARGE_LEARNING_RATE,
        rule: "A warning: `optimizer.learning_rate` of 0.1 or more.",
        why: "A step of AdamW changes each weight by about the learning rate, whatever the gradient is (Kingma and Ba 2014, arXiv:1412.6980, section 2.1), and weights of a transformer are of the size of 0.1 and less: the first steps replace the model.",
        wrong: "[optimizer]\nlearning_rate = 1.0",
        right: "[optimizer]\nlearning_rate = 1e-4",
    },
    Explanation {
        code: LANES,
        rule: "Processes, lanes and micro-batches of an update that do not divide each other.",
        why: "A process sums whole lanes, and a lane whole micro-batches. Lanes of unequal size would be summed in an order that depends on the number of processes.",
        wrong: "[sampling]\nprompts_per_step = 8\ngroup_size = 8\nmicro_batch = 16\n[distributed]\nlanes = 3",
        right: "[sampling]\nprompts_per_step = 8\ngroup_size = 8\nmicro_batch = 16\n[distributed]\nlanes = 4",
    },
    Explanation {
        code: NOT_ON_SEVERAL,
        rule: "A part of the config that is not right on several processes, or not there yet.",
        why: "What a run computes and writes must not depend on the number of processes. `flow-train check --ranks N` says beforehand what does.",
        wrong: "# on two processes\n[audit]\ndrift_groups = 2",
        right: "# on two processes\n[audit]\ndrift_groups = 0",
    },
    Explanation {
        code: MANY_THREADS,
        rule: "A warning: more than four worker threads for each processor.",
        why: "Threads then take turns, and a run is many times slower. Results do not depend on their number.",
        wrong: "[device]\nthreads = 4096",
        right: "[device]\nthreads = 0",
    },
    Explanation {
        code: NO_KERNEL,
        rule: "A model whose attention no kernel of the device computes, or a named attention backend that declines it.",
        why: "It is asked for before anything starts, for the model's shapes and the device, so that no run stops at its first call.",
        wrong: "[device]\nkind = \"cuda\"\n[model.dit]\nhidden = 1024\nheads = 2",
        right: "[device]\nkind = \"cuda\"\n[model.dit]\nhidden = 1024\nheads = 16",
    },
    Explanation {
        code: SLOW_KERNELS,
        rule: "A warning: settings with which a GPU computes by its portable kernels, without tensor cores: `device.dtype = \"f32\"`, heads, layers or adapters whose channels are no multiple of 8, a GPU before compute capability 8.0.",
        why: "Results are right, and several times slower than the device can. The manifest `run.json` names the kernels that answered.",
        wrong: "[device]\nkind = \"cuda\"\ndtype = \"f32\"",
        right: "[device]\nkind = \"cuda\"\ndtype = \"bf16\"",
    },
    Explanation {
        code: NO_WEIGHTS,
        rule: "The file that `model.weights` names is not there.",
        why: "A config that is right starts nothing without it. The path starts from the folder of the config.",
        wrong: "[model]\nweights = \"no-such-file.safetensors\"",
        right: "[model]\nweights = \"../assets/digits-dit.safetensors\"",
    },
    Explanation {
        code: BAD_WEIGHTS,
        rule: "The file that `model.weights` names cannot be read, or holds other weights than the model.",
        why: "Weights are neither skipped nor reshaped: a model with some of them missing would start from noise.",
        wrong: "[model]\nweights = \"an-mmdit.safetensors\"\narchitecture = \"dit\"",
        right: "[model]\nweights = \"a-dit.safetensors\"\narchitecture = \"dit\"",
    },
    Explanation {
        code: OTHER_MODEL,
        rule: "The config describes another model than the weights or the adapter it names, which say so in `config.json` or in their metadata.",
        why: "Heads, positions and the like change what weights compute, and no shape shows it. A key that the config leaves out is taken from the weights.",
        wrong: "[model]\nweights = \"of-4-heads\"\narchitecture = \"mmdit\"\n\n[model.mmdit]\nnum_attention_heads = 8\nattention_head_dim = 8",
        right: "[model]\nweights = \"of-4-heads\"\narchitecture = \"mmdit\"",
    },
    Explanation {
        code: ADAPTERS,
        rule: "Adapters that the model cannot have, for instance a target that no layer matches.",
        why: "A pattern without a layer would train less than was asked for.",
        wrong: "[model]\nfinetune = \"lora\"\n\n[lora]\ntargets = [\"*.atention.*\"]",
        right: "[model]\nfinetune = \"lora\"\n\n[lora]\ntargets = [\"*.attn.*\"]",
    },
    Explanation {
        code: REWARD_REFUSED,
        rule: "A reward that cannot be built, for instance since its file is not there.",
        why: "It is tried before the run, and not after the first rollout.",
        wrong: "[[rewards]]\nkind = \"digit-classifier\"\nweights = \"no-such-file.safetensors\"",
        right: "[[rewards]]\nkind = \"digit-classifier\"\nweights = \"built-in\"",
    },
    Explanation {
        code: SETUP_REFUSED,
        rule: "A part of the run that cannot be built for a reason that has no code of its own.",
        why: "`check` builds every part and drops it, so that what only its maker knows is found before the run too.",
        wrong: "flow-train check CONFIG",
        right: "flow-train check CONFIG",
    },
    Explanation {
        code: "runtime::unknown-option",
        rule: "A name that is no option of Burn or CubeCL.",
        why: "The runtimes pass over names that they do not know.",
        wrong: "[runtime.options]\n\"cubecl.streaming.polcy\" = \"single\"",
        right: "[runtime.options]\n\"cubecl.streaming.policy\" = \"single\"",
    },
    Explanation {
        code: "runtime::nested-table",
        rule: "A table where the name of an option in quotes was meant.",
        why: "In TOML a dotted name without quotes is a table in a table.",
        wrong: "[runtime.options]\ncubecl.streaming.policy = \"single\"",
        right: "[runtime.options]\n\"cubecl.streaming.policy\" = \"single\"",
    },
    Explanation {
        code: "runtime::wrong-type",
        rule: "An option with a value of another type.",
        why: "Values are not converted.",
        wrong: "[runtime.options]\n\"cubecl.memory.logger.stderr\" = \"yes\"",
        right: "[runtime.options]\n\"cubecl.memory.logger.stderr\" = true\n\"cubecl.memory.logger.level\" = \"basic\"",
    },
    Explanation {
        code: "runtime::out-of-range",
        rule: "A number outside the range of its option, or a text that is too short or too long.",
        why: "The runtimes clamp such values or fail at the first kernel.",
        wrong: "[runtime.options]\n\"cubecl.streaming.max_streams\" = 0",
        right: "[runtime.options]\n\"cubecl.streaming.max_streams\" = 4",
    },
    Explanation {
        code: "runtime::unknown-choice",
        rule: "A word that is not among those an option takes.",
        why: "The runtimes take their default for it.",
        wrong: "[runtime.options]\n\"cubecl.compilation.check_mode\" = \"always\"",
        right: "[runtime.options]\n\"cubecl.compilation.check_mode\" = \"enforce\"",
    },
    Explanation {
        code: "runtime::bad-text",
        rule: "A text with characters that its option cannot take.",
        why: "It becomes the name of a file or of a folder.",
        wrong: "[runtime.options]\n\"cubecl.memory.logger.file\" = \"a\\u0000b\"",
        right: "[runtime.options]\n\"cubecl.memory.logger.file\" = \"memory.log\"\n\"cubecl.memory.logger.level\" = \"basic\"",
    },
    Explanation {
        code: "runtime::missing-feature",
        rule: "An option that nothing in this build reads. The message names the feature with which `flow-train` is to be built.",
        why: "It would have no effect.",
        wrong: "[device]\nkind = \"cuda\"\n\n[runtime.options]\n\"cubecl.compilation.cache\" = true",
        right: "$ cargo build --release --features kernel-cache",
    },
    Explanation {
        code: "runtime::never-read",
        rule: "An entry of Burn's or CubeCL's configuration that no build of `flow-train` reads: tuning, throughput, fusion, remote devices.",
        why: "It would have no effect. Kernels are chosen by tables and never by timing, which would give other bits from run to run.",
        wrong: "[runtime.options]\n\"cubecl.autotune.level\" = \"full\"",
        right: "[runtime.options]",
    },
    Explanation {
        code: "runtime::wrong-device",
        rule: "An option that the runtime of this device does not read.",
        why: "It would have no effect.",
        wrong: "[device]\nkind = \"cpu\"\n\n[runtime.options]\n\"cubecl.streaming.max_streams\" = 4",
        right: "[device]\nkind = \"cuda\"\n\n[runtime.options]\n\"cubecl.streaming.max_streams\" = 4",
    },
    Explanation {
        code: "runtime::per-task-streams",
        rule: "A warning: streams per task, which act like streams per thread here.",
        why: "flow-train runs no asynchronous tasks.",
        wrong: "[runtime.options]\n\"cubecl.streaming.policy\" = \"per-task\"",
        right: "[runtime.options]\n\"cubecl.streaming.policy\" = \"single\"",
    },
    Explanation {
        code: "runtime::single-stream",
        rule: "A warning: a number of streams where one stream takes all the work.",
        why: "The policy `single` does not read it.",
        wrong: "[runtime.options]\n\"cubecl.streaming.policy\" = \"single\"\n\"cubecl.streaming.max_streams\" = 4",
        right: "[runtime.options]\n\"cubecl.streaming.policy\" = \"single\"",
    },
    Explanation {
        code: "runtime::enforced-memory-variable-shapes",
        rule: "A warning: enforced persistent memory where shapes vary.",
        why: "It keeps one buffer for each size that occurs, so memory may run out.",
        wrong: "[runtime.options]\n\"cubecl.memory.persistent_memory\" = \"enforced\"",
        right: "[runtime.options]\n\"cubecl.memory.persistent_memory\" = \"enabled\"",
    },
    Explanation {
        code: "runtime::no-records",
        rule: "A warning: an option of recorded sessions where none are kept.",
        why: "The level `off` writes no session.",
        wrong: "[runtime.options]\n\"cubecl.environment.records.level\" = \"off\"\n\"cubecl.environment.records.keep_sessions\" = 4",
        right: "[runtime.options]\n\"cubecl.environment.records.level\" = \"off\"",
    },
    Explanation {
        code: "runtime::logger-without-sink",
        rule: "A warning: a logger with a level and nowhere to write to.",
        why: "A level says how much, a sink says where to; the default is nowhere.",
        wrong: "[runtime.options]\n\"cubecl.memory.logger.level\" = \"full\"",
        right: "[runtime.options]\n\"cubecl.memory.logger.level\" = \"full\"\n\"cubecl.memory.logger.stderr\" = true",
    },
    Explanation {
        code: "runtime::sink-without-level",
        rule: "A warning: a logger with a sink and nothing to write.",
        why: "The default level is `disabled`.",
        wrong: "[runtime.options]\n\"cubecl.memory.logger.stderr\" = true",
        right: "[runtime.options]\n\"cubecl.memory.logger.level\" = \"full\"\n\"cubecl.memory.logger.stderr\" = true",
    },
    Explanation {
        code: "runtime::append-without-file",
        rule: "A warning: `append` of a logger that writes to no file.",
        why: "Only files are appended to.",
        wrong: "[runtime.options]\n\"cubecl.memory.logger.append\" = true",
        right: "[runtime.options]\n\"cubecl.memory.logger.append\" = true\n\"cubecl.memory.logger.file\" = \"memory.log\"\n\"cubecl.memory.logger.level\" = \"full\"",
    },
    Explanation {
        code: "runtime::capture-variable-shapes",
        rule: "A warning: the accelerator `graph_capture` in a run whose batches vary in size: the last one of an evaluation is smaller.",
        why: "It records each size by itself, which takes time and memory.",
        wrong: "[[acceleration.shared]]\nname = \"graph_capture\"\n[sampling]\nmicro_batch = 32\n[evaluation]\nprompts = 10\nimages_per_prompt = 4",
        right: "[[acceleration.shared]]\nname = \"graph_capture\"\n[sampling]\nmicro_batch = 32\n[evaluation]\nprompts = 8\nimages_per_prompt = 4",
    },
];
