//! Configs that, with those of algorithms, use every key and every variant; what the property tests change.

/// Documents that, with those of algorithms, use every section and every variant.
pub const SEEDS: &[&str] = &[
    r#"
config_version = 1
preset = "digits-dit"
eval_rewards = []
[run]
name = "a"
seed = 9223372036854775807
dir = "runs"
steps = 10
on_exists = "new"
[device]
kind = "cuda"
index = 1
dtype = "bf16"
threads = 2
[model]
architecture = "dit"
weights = "w.safetensors"
finetune = "lora"
[model.dit]
latent_channels = 1
height = 8
width = 8
patch = 2
hidden = 96
layers = 4
heads = 4
mlp_ratio = 4
qk_norm = true
position = "rope"
moe = { experts = 8, top_k = 2, inner = 64, shared = 0, normalize = true }
[model.dit.conditioning]
kind = "class"
classes = 10
[lora]
rank = 8
alpha = 16.0
targets = ["*.attention.*"]
seed = 3
[data]
kind = "digits"
image_size = 8
[pretrain]
steps = 1000
batch = 8
learning_rate = 1e-3
warmup = 3
label_noise = 0.4
condition_dropout = 0.1
ema_decay = 0.9
output = "o"
output_dtype = "bf16"
[pretrain.classifier]
enabled = true
channels = 4
[[rewards]]
kind = "digit-classifier"
weights = "c"
mode = "log-probability"
weight = -1
[[rewards]]
kind = "rank-in-group"
name = "ranked"
reward = "jpeg-compressibility"
params = { quality = 80 }

[[rewards]]
kind = "jpeg-compressibility"
name = "small"
quality = 80
[[rewards]]
kind = "target-colour"
rgb = [0, 0.5, 1]
[scheduler]
dynamics = "cps"
steps = 4
noise_level = [0.5, 0.5, 0.5, 0.5]
[scheduler.shift]
kind = "dynamic"
base_tokens = 10
max_tokens = 20
base_shift = -0.5
[scheduler.window]
kind = "list"
steps = [0, 2]
[sampling]
group_size = 4
prompts_per_step = 2
micro_batch = 8
guidance_scale = 4.5
[algorithm]
kind = "grpo-guard"
clip_range = [-1e-4, 0.5]
advantage_clip = 5
inner_epochs = 1
reweight = false
[algorithm.kl]
kind = "velocity"
beta = 0.1
reference = "lora-off"
[advantage]
aggregation = "sum"
global_std = false
std_floor = 1e-6
[optimizer]
learning_rate = 1
betas = [0.0, 0.99]
schedule = { kind = "cosine", steps = 7, to = 0.5 }
[ema]
enabled = true
update_every = 2
[ema.schedule]
kind = "warmup-cosine"
warmup = 3
[evaluation]
every = 5
steps = 3
guidance_scale = 2.5
weights = "ema"
[evaluation.grid]
rows = 2
[checkpoints]
every = 0
keep = 0
[logging]
tensorboard = false
[audit]
on_policy = "warn"
[watch]
every = 2
window = 6
least_fall = 0.25
judges = []
[exploration]
candidates = 8
keep = "spread"
steps = 2
dynamics = "deterministic"
accelerators = { name = "feature_cache", params = { policy = "taylorseer" } }
[[acceleration.shared]]
name = "fused_kernels"
[acceleration.shared.params]
deep = { a = [1, "x", 2.5, true] }
[checkpointing]
policy = "attn-only"
[runtime.options]
"a.b" = 1
"#,
    r#"
config_version = 1
[model]
architecture = "wan"
wan = { latent_frames = 5, latent_height = 16, latent_width = 24, patch_size = 2, in_channels = 4, num_layers = 2, attention_head_dim = 24, num_attention_heads = 2, ffn_dim = 144, text_dim = 16, freq_dim = 32, cross_attn_norm = false }
[distributed]
lanes = 4
shard = "weights"
[text]
kind = "words"
tokens = 20
seed = 3
[optimizer]
schedule = { kind = "linear", steps = 20 }
"#,
    r#"
config_version = 1
[model]
path = "model"
variant = "bf16"
width = 512
height = 384
frames = 1
architecture = "mmdit"
[model.mmdit]
latent_height = 48
latent_width = 64
[text]
kind = "encoders"
tokens = 128
micro_batch = 4
negative_prompt = "blurred"
cache = "prompts"
[data]
kind = "prompts"
path = "prompts.jsonl"
key = "caption"
test_fraction = 0.25
seed = 2
[scheduler]
sigma_min = 0.003
shift_terminal = 0.02
[sampling]
embedded_guidance_scale = 2.5
"#,
    r#"
config_version = 1
[model]
architecture = "mmdit"
autoencoder = "taesd3"
[model.mmdit]
latent_height = 4
latent_width = 8
in_channels = 16
joint_attention_dim = 384
pooled_projection_dim = 384
[text]
kind = "bert"
path = "minilm"
tokens = 16
micro_batch = 8
negative_prompt = "blurred"
[data]
kind = "words"
width = 48
height = 24
words = 400
images = 1000
seed = 2
"#,
    r#"
config_version = 1
[model]
architecture = "mmdit"
[model.mmdit]
sample_size = 32
num_layers = 2
dual_attention_layers = [0]
[text]
kind = "file"
path = "prompts.safetensors"
[optimizer]
schedule = { kind = "constant" }
[data]
kind = "shapes"
image_size = 32
images = 100
seed = 3
pretrain_on_held_out = false
[[rewards]]
kind = "shapes-rules"
mode = "all"
[[eval_rewards]]
kind = "shapes-rules"
[[eval_rewards]]
kind = "remote"
servers = ["http://localhost:8000"]
headers_from = { Authorization = "REWARD_TOKEN" }
[[eval_rewards]]
kind = "geneval"
servers = ["http://localhost:8000"]
mode = "strict"
[[eval_rewards]]
kind = "vlm-judge"
servers = ["http://localhost:8000/v1"]
model = "qwen"
question = "Does this image show \"{prompt}\"? Answer yes or no."
mode = "number"
answers = { Yes = 1.0, No = 0.0 }
range = [0, 5]
temperature = 0.5
samples = 2
compare = true
opponents = 4
bad_answers = "ask-again"
api_key_from = "JUDGE_KEY"
[[eval_rewards]]
kind = "command"
command = ["python3", "scorer.py"]
processes = 2
[[eval_rewards]]
kind = "clip-score"
path = "clip"
score = "logits"
preprocessing = "tensor-bilinear"
[[eval_rewards]]
kind = "pickscore"
path = "pickscore"
device = "run"
[[eval_rewards]]
kind = "aesthetic"
path = "clip"
head = "head.pth"
[[eval_rewards]]
kind = "hpsv2"
path = "hpsv2.pt"
tokenizer = "clip"
[[eval_rewards]]
kind = "imagereward"
path = "ImageReward.pt"
tokenizer = "bert"
[[eval_rewards]]
kind = "ocr"
path = "ocr"
mode = "log-probability"
detect = false
[scheduler]
dynamics = "ode"
noise_level = 0.5
[scheduler.shift]
kind = "static"
value = 3
[scheduler.window]
kind = "random"
count = 2
from = [1, 2, 3]
[algorithm]
kind = "nft"
beta = 0.5
advantage_mode = "one-only"
kl_beta = 0.1
reference = "snapshot"
[algorithm.old_policy]
flat = 75
rate = 0.0075
hold = 0.999
[algorithm.train_timesteps]
count = 4
strategy = "discrete-without-init"
shift = 3.0
range = [0, 0.5]
[ema.schedule]
kind = "piecewise-linear"
flat = 0
[acceleration]
strict = true
rollout = { name = "feature_cache", params = { policy = "first_block" } }
[checkpointing]
policy = "none"
"#,
    r#"
config_version = 1
[model.dit.conditioning]
kind = "tokens"
vocabulary = 9
max_tokens = 2
[scheduler.window]
kind = "sliding"
size = 3
stride = 1
hold = 2
[algorithm]
kind = "grpo"
[ema.schedule]
kind = "power"
warmup = 10
[checkpointing]
policy = "regions"
save = ["attention:attention", "mlp"]
"#,
    r#"
config_version = 1
[data]
kind = "images"
path = "pictures"
test_count = 2
width = 64
height = 48
[data.buckets]
step = 32
min_side = 256
sizes = [[512, 512], [448, 576]]
[sampling]
sizes = [[64, 48], [48, 64]]
sizes_of_prompts = true
[scheduler.window]
kind = "all"
[ema.schedule]
kind = "linear"
initial = 0.5
decay = 0.9
steps = 10
[checkpointing]
policy = "full"
split = true
"#,
    r#"
config_version = 1
[scheduler.after_window]
kind = "euler"
[scheduler.window]
kind = "sliding"
size = 3
hold = 20
hold_decay = "linear"
hold_least = 5
"#,
    r#"
config_version = 1
[scheduler]
steps = 12
[scheduler.window]
kind = "contiguous"
size = 3
range = [1, 7]
seed = 5
[scheduler.after_window]
kind = "dpm-solver"
share = 0.5
"#,
    r#"
config_version = 1
[scheduler.window]
kind = "random"
count = 2
[sampling]
group_size = 8
micro_batch = 4
initial_noise = "per_group"
staleness = 1
[sampling.branching]
kind = "one-step"
[algorithm]
kind = "grpo"
step_weights = "noise"
"#,
    r#"
config_version = 1
[scheduler.window]
kind = "contiguous"
size = 5
range = [0, 5]
[sampling]
group_size = 12
micro_batch = 6
[sampling.branching]
kind = "one-step-per-group"
[algorithm]
kind = "grpo"
clip_range = [-1e-3, 1e-3]
step_weights = "inverse-gradient"
"#,
    r#"
config_version = 1
[scheduler.window]
kind = "list"
steps = [0, 1, 2, 3, 4]
[sampling]
group_size = 9
micro_batch = 12
initial_noise = "per_group"
[sampling.branching]
kind = "tree"
splits = [0, 3]
children = 3
fusion = "path-probability"
leaves = "extremes"
extremes = 2
untrained_steps = [4]
untrained_hold = 30
untrained_least = 1
"#,
    "config_version = 1\n[ema.schedule]\nkind = \"cosine\"\nsteps = 7\n[checkpointing]\npolicy = \"budget\"\npeak_gib = 1.5\n",
    "config_version = 1\n[ema.schedule]\nkind = \"constant\"\ndecay = 0.5\n[checkpointing]\npolicy = \"block-skip\"\nevery = 3\n",
    "config_version = 1\n[checkpointing]\npolicy = \"every-nth-linear\"\nn = 3\n",
];
