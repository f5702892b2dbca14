//! Configs of algorithms: between them and the other seeds every key and every variant is used.

/// Documents for one algorithm after another.
pub const SEEDS: &[&str] = &[
    r#"
config_version = 1
[algorithm]
kind = "dppo"
mask = "velocity"
mask_threshold = 1e-5
step_weights = "noise"
kl = { kind = "divergence", beta = 0.04 }
"#,
    r#"
config_version = 1
[algorithm]
kind = "awm"
weighting = "generalised-huber"
huber_power = 0.25
clip_range = [-1e-5, 1e-5]
old_policy_beta = 0.1
off_policy = true
old_policy = { flat = 0, rate = 0.02, hold = 0.9 }
train_timesteps = { count = 2, strategy = "uniform" }
"#,
    r#"
config_version = 1
[algorithm]
kind = "dpo"
beta = 500
train_timesteps = { count = 2, range = [0, 0.9] }
"#,
    r#"
config_version = 1
[algorithm]
kind = "dgpo"
beta = 2000
against_old = true
reference_guidance = 4.5
kl_beta = 1e-3
clip_kl = true
old_copy = { rate = 0.002, hold = 0.5 }
old_samples_after = 50
train_timesteps = { count = 2, range = [0, 0.9] }
"#,
    r#"
config_version = 1
[algorithm]
kind = "crd"
loss = "bce"
baseline = "reference"
normalise_errors = false
centre = "group"
centre_weights = "softmax"
centre_temperature = 0.5
kl_beta = 0.2
adaptive_kl = false
reference_guidance = 3
sampling_copy = { flat = 10, start = 0.5, hold = 0.9 }
train_timesteps = { count = 2, strategy = "logit-normal" }
"#,
    r#"
config_version = 1
[algorithm]
kind = "sft"
train_timesteps = { count = 2, strategy = "uniform", shift = 2, range = [0.1, 0.9] }
[sampling]
group_size = 1
prompts_per_step = 8
micro_batch = 8
[sampling.branching]
kind = "none"
"#,
    r#"
config_version = 1
[algorithm]
kind = "diffusion-opd"
loss_target = "image"
self_normalise = true
step_range = [0, 0.75]
inner_epochs = 2
[[algorithm.teachers]]
name = "sketch"
adapter = "sketch.safetensors"
guidance_scale = 4.5
[[algorithm.teachers]]
name = "photo"
weights = "photo"
[scheduler]
dynamics = "ode"
"#,
    r#"
config_version = 1
[algorithm]
kind = "offline-dpo"
beta = 500
reference = "snapshot"
train_timesteps = { count = 3, strategy = "logit-normal" }
[sampling]
group_size = 2
prompts_per_step = 8
micro_batch = 4
[data]
kind = "preferences"
path = "pairs.jsonl"
prompt_key = "text"
chosen_key = "better"
rejected_key = "worse"
test_count = 3
seed = 5
width = 8
height = 8
grey = true
words = true
"#,
    r#"
config_version = 1
[algorithm]
kind = "dmd2"
reference = "snapshot"
real_guidance_scale = 4.5
perturbation_range = [0.05, 0.95]
fake_score = { updates = 3, learning_rate = 3e-4, betas = [0, 0.999] }
[scheduler]
dynamics = "ode"
"#,
    r#"
config_version = 1
[algorithm]
kind = "tdm"
real_guidance_scale = 4.5
distance = "square"
signal_to_noise_clip = 3
importance_clip = 10
query_interval = "reverse"
query_max_sigma = 1
query_distribution = "logit-normal"
query_logit_mean = 0.5
query_logit_std = 1.5
fake_score = { updates = 1 }
[scheduler]
dynamics = "ode"
"#,
    r#"
config_version = 1
[algorithm]
kind = "tdm-r1"
reference = "snapshot"
real_guidance_scale = 4.5
tdm_weight = 0.4
cfg_reward_scale = 4.5
advantage_clip = 4
distance = "huber"
huber_threshold = 1e-2
signal_to_noise_clip = 3
importance_clip = 10
query_interval = "reverse"
query_max_sigma = 0.99
query_distribution = "source-uniform"
[algorithm.fake_score]
updates = 1
learning_rate = 2e-4
betas = [0.1, 0.99]
[algorithm.surrogate]
learning_rate = 1e-4
betas = [0.8, 0.99]
preference_beta = 10
reference_beta = 0.01
reference_threshold = 0.1
clip_range = 0.01
slow_decay_min = 0.01
slow_decay_max = 0.4
time_weighting = false
[scheduler]
dynamics = "ode"
"#,
    r#"
config_version = 1
[algorithm]
kind = "gardo"
clip_range = [-1e-5, 1e-5]
advantage_clip = 4
diversity = "unlike"
judges = ["small"]
kl_beta = 0.07
inner_epochs = 2
step_weights = "diffusion"
[algorithm.gate]
suspects = "underrated"
share = 0.2
share_range = [0.1, 0.3]
rate = 0.2
window = 10
[algorithm.renewal]
divergence = 1e-4
iterations = 5
[[rewards]]
kind = "digit-classifier"
weights = "built-in"
[[rewards]]
kind = "jpeg-compressibility"
name = "small"
weight = 0
[[rewards]]
kind = "diversity-in-group"
name = "unlike"
weight = 0
side = 4
[[eval_rewards]]
kind = "clip-diversity"
path = "clip"
batch_size = 4
device = "run"
"#,
];
