"""One iteration of GRPO on a pipeline of SD3.5 medium's sizes in PyTorch, with random weights: `configs/sd35-medium-grpo.toml` with two
prompts of eight pictures, which is what `bench/results/2026-11-26/published-folder-h100.md` measured of flow-train.

    grpo_peer.py [--iterations N] [--mode eager|compile|tuned|graphs|tuned-graphs] [--checkpoint none|attn_only] …

In the order of Flow-Factory's `trainers/grpo.py`: embeddings of prompts from a cache; a rollout under guidance, both branches in one
batch, with log-probabilities; the autoencoder's decoder; a reward (a stub: the mean of the picture); advantages by group; and for every
micro-batch and recorded step the clipped loss and its backward pass, then clipping of the norm, one step of AdamW, and the average.
The last step of a rollout has no noise in flow-train, so 9 of 10 are learnt from; `--learnt 10` takes noise and a loss there too.

Blocks of the transformer are compiled one by one, as `step_peer.py` does; the decoder and the steps of the sampler as a whole. `graphs`
also records a step of the rollout and a loss with its backward pass. It prints a line of JSON for the iterations before the last ones,
which compile, and one for each that was timed.

Under torchrun each process has a GPU and `--pictures` of its own; gradients are averaged by one all-reduce before the norm, which is what
`DistributedDataParallel` does of units that are accumulated (`no_sync`), without its buckets. The first process prints.
"""

import argparse
import contextlib
import json
import math
import os
import statistics
import time

import host_numerics
import torch
import torch.distributed as distributed
from models import Mmdit, add_adapters, place
from parts_peer import Decoder
from replay import Replays
from step_peer import COMPILED, DTYPES, MODES, REPLAYED, Checkpointed
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

# `transformer/config.json` of stable-diffusion-3.5-medium, latents of 512 pixels.
SD35_MEDIUM = {
    "num_layers": 24,
    "num_attention_heads": 24,
    "attention_head_dim": 64,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 2048,
    "patch_size": 2,
    "in_channels": 16,
    "sample_size": 128,
    "pos_embed_max_size": 384,
    "dual_attention_layers": list(range(13)),
    "qk_norm": "rms_norm",
    "latent_height": 64,
    "latent_width": 64,
}
TINY = SD35_MEDIUM | {
    "num_layers": 3,
    "num_attention_heads": 3,
    "attention_head_dim": 8,
    "joint_attention_dim": 10,
    "pooled_projection_dim": 7,
    "pos_embed_max_size": 8,
    "dual_attention_layers": [0, 1],
    "latent_height": 4,
    "latent_width": 6,
}
TARGETS = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
# 77 tokens of CLIP and 256 of T5.
TEXT = 333
# Of the config.
RANK, ALPHA, GUIDANCE, NOISE, SHIFT = 32, 64.0, 4.5, 0.7, 3.0
CLIP_RANGE, ADVANTAGE_CLIP, EMA_DECAY, EMA_EVERY, GROUP = (-1e-4, 1e-4), 5.0, 0.9, 8, 8
RATE, BETAS, EPSILON, DECAY, MAX_NORM = 3e-4, (0.9, 0.999), 1e-8, 1e-4, 1.0
# `scaling_factor` and `shift_factor` of the autoencoder.
LATENT_SCALE, LATENT_SHIFT = 1.5305, 0.0609


def fill(model):
    """Random values where the weights lie: around 1 what scales a norm, small vectors, matrices by their width; no effect of adapters."""
    for name, value in model.named_parameters():
        with torch.no_grad():
            if ".lora_B" in name:
                value.zero_()
            elif value.dim() > 1:
                value.normal_(0.0, 0.5 / math.sqrt(value[0].numel()))
            else:
                value.normal_(1.0 if "norm" in name and name.endswith("weight") else 0.0, 0.02)


def log_probability(x_next, mean, step):
    return -(x_next - mean).square().mean(1) * step[4] + step[5]


def sampler_step(x, v, empty, noise, step):
    """The next latents and their log-probabilities; `step` holds sigma and the step's other five numbers."""
    mean = step[1] * x + step[2] * (empty + (v - empty) * GUIDANCE)
    x_next = mean + step[3] * noise
    return x_next, log_probability(x_next, mean, step)


def clipped_loss(x, v, empty, x_next, old, advantages, step):
    mean = step[1] * x + step[2] * (empty + (v - empty) * GUIDANCE)
    ratio = torch.exp(log_probability(x_next, mean, step) - old)
    low, high = CLIP_RANGE
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 + low, 1 + high)).mean()
    return loss, (ratio.detach() - 1.0).abs().max()


class Iteration:
    def __init__(self, options):
        self.options, self.device = options, options.device
        is_cuda = options.device == "cuda"
        self.wait = torch.cuda.synchronize if is_cuda else lambda: None
        settings = (TINY if options.tiny else SD35_MEDIUM) | ({"in_channels": 3} if options.pixels else {})
        self.dtype, trained_in = DTYPES[options.dtype], DTYPES[options.trained_in]
        self.is_mixed = trained_in != self.dtype
        with torch.device(self.device):
            model = Mmdit(settings)
            names = [n for n, layer in model.named_modules() if isinstance(layer, nn.Linear) and n.endswith(TARGETS)]
            add_adapters(model, names, RANK, ALPHA / RANK)
            decoder = Decoder()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(".lora_" in name)
        self.model = place(model, self.device, self.dtype, trained_in)
        fill(self.model)
        decoder = decoder.to(self.dtype).to(memory_format=torch.channels_last).requires_grad_(False)
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.average = [parameter.detach().float().clone() for parameter in self.trained]
        how = lambda part: torch.compile(part, mode=COMPILED[options.mode]) if options.mode in COMPILED else part
        # max-autotune of the decoder's convolutions has not come to an end in 100 s.
        whole = lambda part: torch.compile(part) if options.mode in COMPILED else part
        blocks = list(model.transformer_blocks)
        checkpointed = [Checkpointed(block, True) for block in blocks] if options.checkpoint == "attn_only" else blocks
        self.sampling = nn.ModuleList(how(block) for block in blocks)
        self.learning = nn.ModuleList(how(block) for block in checkpointed)
        self.decoder, self.sampler_step, self.clipped_loss = whole(decoder), whole(sampler_step), whole(clipped_loss)
        self.optimizer = torch.optim.AdamW(
            self.trained, lr=RATE, betas=BETAS, eps=EPSILON, weight_decay=DECAY, fused=True
        )
        for parameter in self.trained:
            parameter.grad = torch.zeros_like(parameter)
        self.replays = Replays([parameter.grad for parameter in self.trained]) if options.mode in REPLAYED else None
        self.shape = (settings["in_channels"], settings["latent_height"], settings["latent_width"])
        self.values = math.prod(self.shape)
        self.steps = self.schedule()
        prompts = options.pictures // GROUP
        draw = lambda *shape: torch.randn(*shape, device=self.device).to(self.dtype)
        # What the text encoders gave, kept from before; the last row is the empty prompt.
        self.text = draw(prompts + 1, 5 if options.tiny else TEXT, settings["joint_attention_dim"])
        self.pooled = draw(prompts + 1, settings["pooled_projection_dim"])
        self.updates = 0

    def schedule(self):
        """Of each step: sigma, what the mean takes of latents and velocity, noise, scale and offset of the log-probability."""
        sigmas = host_numerics.sigma_grid(self.options.steps, {"kind": "static", "value": SHIFT})
        steps = host_numerics.euler_steps(sigmas)
        for index in range(self.options.learnt):
            steps[index] = host_numerics.stochastic("flow-sde", sigmas, steps[index], NOISE)
        numbers = [(s.sigma, s.mean_x, s.mean_v, s.noise, s.scale, s.offset) for s in steps]
        return list(torch.tensor(numbers, dtype=torch.float32, device=self.device))

    def attention(self):
        return sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if self.device == "cuda" else contextlib.nullcontext()

    def branches(self, x, sigma, text, pooled):
        """Velocities with and without the prompt, in f32."""
        precision = torch.autocast(self.device, self.dtype) if self.is_mixed else contextlib.nullcontext()
        with precision, self.attention():
            v = self.model(x.repeat(2, 1), sigma.expand(2 * len(x)), text, pooled)
        return v.float().chunk(2)

    def condition(self, rows):
        """Text and pooled text of both branches; `rows` are the prompts of a micro-batch."""
        empty = torch.full_like(rows, len(self.text) - 1)
        both = torch.cat([rows, empty])
        return self.text[both], self.pooled[both]

    def replayed(self, key, function, *inputs):
        return function(*inputs) if self.replays is None else self.replays(key, function, *inputs)

    def taken(self, x, text, pooled, step):
        """A step of the rollout."""
        noise = torch.randn_like(x)
        return self.sampler_step(x, *self.branches(x, step[0], text, pooled), noise, step)

    @torch.no_grad()
    def roll_out(self, condition):
        self.model.transformer_blocks = self.sampling
        x, records = torch.randn(self.options.micro_batch, self.values, device=self.device), []
        for index, step in enumerate(self.steps):
            x_next, log_prob = self.replayed("taken", self.taken, x, *condition, step)
            if index < self.options.learnt:
                records.append((x, x_next, log_prob, step))
            x = x_next
        return x, records

    @torch.no_grad()
    def decode(self, x):
        if self.options.pixels:
            return x.view(-1, *self.shape).clamp(-1, 1)
        latents = (x.view(-1, *self.shape) / LATENT_SCALE + LATENT_SHIFT).to(self.dtype)
        return self.decoder(latents.to(memory_format=torch.channels_last)).float().clamp(-1, 1)

    def learn(self, x, x_next, old, advantages, text, pooled, step, share):
        """Adds a share of the gradients of a loss to those that are there; the largest deviation of a ratio from 1."""

        def with_gradients(x, x_next, old, advantages, text, pooled, step):
            v, empty = self.branches(x, step[0], text, pooled)
            loss, deviation = self.clipped_loss(x, v, empty, x_next, old, advantages, step)
            (loss * share).backward()
            return deviation

        return self.replayed("learn", with_gradients, x, x_next, old, advantages, text, pooled, step)

    def update(self, batches, advantages):
        self.model.transformer_blocks = self.learning
        size = self.options.micro_batch
        share, deviations = 1.0 / (len(batches) * self.options.learnt), []
        for index, (condition, records) in enumerate(batches):
            of_batch = advantages[index * size : (index + 1) * size].clamp(-ADVANTAGE_CLIP, ADVANTAGE_CLIP)
            for x, x_next, old, step in records:
                deviations.append(self.learn(x, x_next, old, of_batch, *condition, step, share))
        self.average_gradients()
        norm = nn.utils.clip_grad_norm_(self.trained, MAX_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        self.updates += 1
        if self.updates % EMA_EVERY == 0:
            with torch.no_grad():
                torch._foreach_lerp_(self.average, [parameter.float() for parameter in self.trained], 1.0 - EMA_DECAY)
        return torch.stack(deviations).max().item(), norm.item()

    def average_gradients(self):
        """The mean over all processes."""
        if not distributed.is_initialized():
            return
        gradients = [parameter.grad for parameter in self.trained]
        flat = torch.cat([gradient.view(-1) for gradient in gradients])
        distributed.all_reduce(flat)
        flat /= distributed.get_world_size()
        sizes = [gradient.numel() for gradient in gradients]
        torch._foreach_copy_(gradients, [part.view_as(of) for part, of in zip(flat.split(sizes), gradients)])

    def run(self):
        """One iteration; seconds of its parts."""
        size, seconds, before = self.options.micro_batch, {}, time.perf_counter()

        def ended(part):
            nonlocal before
            self.wait()
            now = time.perf_counter()
            seconds[part], before = now - before, now

        batches, clean = [], []
        for first in range(0, self.options.pictures, size):
            rows = torch.arange(first, first + size, device=self.device) // GROUP
            condition = self.condition(rows)
            x, records = self.roll_out(condition)
            clean.append(x)
            batches.append((condition, records))
        ended("rollout_s")
        pictures = [self.decode(x) for x in clean]
        ended("decode_s")
        rewards = torch.cat([picture.mean((1, 2, 3)) for picture in pictures]).tolist()
        settings = {"std_floor": 1e-6, "aggregation": "sum", "global_std": False}
        found = host_numerics.advantages(rewards, GROUP, settings)
        advantages = torch.tensor(found, dtype=torch.float32, device=self.device)
        del pictures
        ended("reward_s")
        deviation, norm = self.update(batches, advantages)
        ended("update_s")
        return {"iteration_s": sum(seconds.values())} | seconds | {"largest_ratio_deviation": deviation, "gradient_norm": norm}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=5, help="that are timed")
    parser.add_argument("--warm-up", type=int, default=2, help="iterations before, which compile")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which no further iteration begins")
    parser.add_argument("--pictures", type=int, default=16, help=f"a multiple of {GROUP} and of --micro-batch")
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--learnt", type=int, help="steps with noise and a loss; all but the last if not given")
    parser.add_argument("--mode", choices=[mode for mode in MODES if mode != "cudnn"], default="compile")
    parser.add_argument("--checkpoint", choices=("none", "attn_only"), default="attn_only")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="bf16")
    parser.add_argument("--trained-in", choices=tuple(DTYPES), default="f32", help="of adapters and their moments")
    parser.add_argument("--pixels", action="store_true", help="three channels and no decoder, as `configs/sd35-shape-h100.toml`")
    parser.add_argument("--tiny", action="store_true", help="a few channels and tokens, to try the program")
    options = parser.parse_args()
    if options.pictures % GROUP or options.pictures % options.micro_batch:
        raise SystemExit(f"{options.pictures} pictures are no multiple of {GROUP} and {options.micro_batch}")
    options.learnt = options.steps - 1 if options.learnt is None else options.learnt
    if not 1 <= options.learnt <= options.steps:
        raise SystemExit(f"--learnt {options.learnt} is not between 1 and {options.steps}")
    is_cuda = options.device == "cuda"
    if options.mode in REPLAYED and not is_cuda:
        raise SystemExit(f"mode `{options.mode}` is for CUDA devices")
    began = time.perf_counter()
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if ranks > 1:
        if is_cuda:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        distributed.init_process_group("nccl" if is_cuda else "gloo")
    # The same weights on all processes, and other noise on each.
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    import torch._inductor.config as inductor

    # As in `step_peer.py`: gives gradients that are not finite in PyTorch 2.11.
    if hasattr(inductor.triton, "mix_order_reduction"):
        inductor.triton.mix_order_reduction = False
    work = Iteration(options)
    torch.manual_seed(2 + rank)
    about = {"program": f"torch {torch.__version__}", "name": "sd35-medium-grpo"}
    about |= {key: getattr(options, key) for key in ("mode", "checkpoint", "dtype", "trained_in", "pictures", "learnt")}
    about["device"] = torch.cuda.get_device_name() if is_cuda else "cpu"
    about["ranks"] = ranks
    say = lambda line: print(json.dumps(line), flush=True) if rank == 0 else None
    for _ in range(options.warm_up):
        done = work.run()
        say(about | {"is_warm_up": True} | done)
    if is_cuda:
        torch.cuda.reset_peak_memory_stats()
    found = []
    # The limit is of one process: several must come to the same end.
    is_over = lambda: ranks == 1 and time.perf_counter() - began >= options.limit
    while len(found) < options.iterations and not (found and is_over()):
        found.append(work.run())
        say(about | {"is_warm_up": False} | found[-1])
    seconds = [row["iteration_s"] for row in found]
    summary = {"median_ms": statistics.median(seconds) * 1e3, "least_ms": min(seconds) * 1e3, "samples": len(found)}
    if is_cuda:
        gib = 2.0**30
        summary |= {"peak_gib": torch.cuda.max_memory_allocated() / gib, "reserved_gib": torch.cuda.max_memory_reserved() / gib}
    say(about | summary)
    if ranks > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
