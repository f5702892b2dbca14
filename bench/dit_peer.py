"""One iteration of GRPO on all weights of DiT-XL's size in PyTorch, with random weights: the run `dit` of `bench/scaling.sh`.

    dit_peer.py [--iterations N] [--how ddp|fsdp2] …

A rollout of six steps without guidance, log-probabilities, a reward (a stub: the mean of the picture), advantages by group, and for each
micro-batch and three of the steps the clipped loss and its backward pass; then clipping of the norm and one step of AdamW. Weights, gradients and
moments are f32, the model computes in bf16, and its blocks are compiled.

Under torchrun each process has a GPU and `--pictures` of its own. `ddp`: `DistributedDataParallel`, whose gradients travel with the last
loss's backward pass (`no_sync` before). `fsdp2`: `fully_shard` of each block and of the whole; gradients are summed with the last loss, too.
The first process prints a line of JSON for each iteration, those before the timed ones included.
"""

import argparse
import contextlib
import json
import os
import time

import host_numerics
import torch
import torch.distributed as distributed
from grpo_peer import fill, log_probability
from models import Dit
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

# `DiT-XL/2` with 16 heads of 72 on 64 pixels by patches of 4: 256 tokens.
DIT_XL = {
    "latent": {"channels": 3, "height": 64, "width": 64},
    "patch": 4,
    "hidden": 1152,
    "layers": 28,
    "heads": 16,
    "qk_norm": True,
    "vocabulary": {"size": 18},
}
TINY = DIT_XL | {"hidden": 64, "layers": 2, "heads": 4}
TOKENS, GROUP, NOISE, STEPS, LEARNT = 4, 16, 0.7, 6, (0, 2, 4)
CLIP_RANGE, RATE, BETAS, EPSILON, MAX_NORM = 1e-3, 1e-4, (0.9, 0.999), 1e-8, 1.0


def sampler_step(x, v, noise, step):
    mean = step[1] * x + step[2] * v
    x_next = mean + step[3] * noise
    return x_next, log_probability(x_next, mean, step)


def clipped_loss(x, v, x_next, old, advantages, step):
    mean = step[1] * x + step[2] * v
    ratio = torch.exp(log_probability(x_next, mean, step) - old)
    return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - CLIP_RANGE, 1 + CLIP_RANGE)).mean()


class Iteration:
    def __init__(self, options, ranks):
        self.options, self.device, self.ranks = options, options.device, ranks
        self.is_sharded = options.how == "fsdp2" and ranks > 1
        settings = TINY if options.tiny else DIT_XL
        with torch.device(self.device):
            model = Dit(settings)
        fill(model)
        if not options.eager and self.is_sharded:
            # What gathers weights is around a compiled block and not inside.
            model.transformer_blocks = nn.ModuleList(torch.compile(block) for block in model.transformer_blocks)
        elif not options.eager:
            for block in model.transformer_blocks:
                block.compile()
        self.wrapped = self.spread(model)
        self.parameters = list(model.parameters())
        fused = self.device == "cuda"
        self.optimizer = torch.optim.AdamW(self.parameters, lr=RATE, betas=BETAS, eps=EPSILON, weight_decay=0.0, fused=fused)
        self.shape = tuple(settings["latent"].values())
        self.values = self.shape[0] * self.shape[1] * self.shape[2]
        self.tokens = torch.randint(0, 18, (options.micro_batch, TOKENS), device=self.device)
        sigmas = host_numerics.sigma_grid(STEPS, {"kind": "static", "value": 1.0})
        steps = host_numerics.euler_steps(sigmas)
        for index in LEARNT:
            steps[index] = host_numerics.stochastic("flow-sde", sigmas, steps[index], NOISE)
        numbers = [(s.sigma, s.mean_x, s.mean_v, s.noise, s.scale, s.offset) for s in steps]
        self.steps = list(torch.tensor(numbers, dtype=torch.float32, device=self.device))

    def spread(self, model):
        if self.is_sharded:
            from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            for block in model.transformer_blocks:
                fully_shard(block, mp_policy=policy)
            return fully_shard(model, mp_policy=policy)
        if self.ranks > 1:
            devices = [torch.cuda.current_device()] if self.device == "cuda" else None
            return nn.parallel.DistributedDataParallel(
                model, device_ids=devices, broadcast_buffers=False, gradient_as_bucket_view=True
            )
        return model

    @contextlib.contextmanager
    def before_the_last(self, is_last):
        """Gradients stay where they are until the last loss."""
        if self.is_sharded:
            self.wrapped.set_requires_gradient_sync(is_last)
            yield
        elif self.ranks > 1 and not is_last:
            with self.wrapped.no_sync():
                yield
        else:
            yield

    def velocity(self, x, sigma):
        mixed = contextlib.nullcontext() if self.is_sharded else torch.autocast(self.device, torch.bfloat16)
        cudnn = sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if self.device == "cuda" else contextlib.nullcontext()
        with mixed, cudnn:
            return self.wrapped(x, sigma.expand(len(x)), self.tokens).float()

    @torch.no_grad()
    def roll_out(self):
        x, records = torch.randn(self.options.micro_batch, self.values, device=self.device), []
        for index, step in enumerate(self.steps):
            x_next, log_prob = sampler_step(x, self.velocity(x, step[0]), torch.randn_like(x), step)
            if index in LEARNT:
                records.append((x, x_next, log_prob, step))
            x = x_next
        return x, records

    def update(self, batches, advantages):
        size, losses = self.options.micro_batch, []
        for index, records in enumerate(batches):
            losses += [(record, advantages[index * size : (index + 1) * size]) for record in records]
        for number, ((x, x_next, old, step), of_batch) in enumerate(losses):
            with self.before_the_last(number + 1 == len(losses)):
                loss = clipped_loss(x, self.velocity(x, step[0]), x_next, old, of_batch, step)
                (loss / len(losses)).backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, MAX_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.is_sharded)
        return (norm.full_tensor() if hasattr(norm, "full_tensor") else norm).item()

    def run(self):
        """One iteration; seconds of its parts."""
        wait = torch.cuda.synchronize if self.device == "cuda" else lambda: None
        wait()
        began = time.perf_counter()
        done = [self.roll_out() for _ in range(self.options.pictures // self.options.micro_batch)]
        rewards = torch.cat([x.mean(1) for x, _ in done]).tolist()
        settings = {"std_floor": 1e-6, "aggregation": "sum", "global_std": False}
        found = host_numerics.advantages(rewards, GROUP, settings)
        rolled = time.perf_counter()
        norm = self.update([records for _, records in done], torch.tensor(found, dtype=torch.float32, device=self.device))
        wait()
        ended = time.perf_counter()
        return {"iteration_s": ended - began, "rollout_s": rolled - began, "update_s": ended - rolled, "gradient_norm": norm}


def memory(device):
    """The most that tensors of this process had at once, and what PyTorch took for them."""
    if device != "cuda":
        return {}
    gib = 2.0**30
    return {"peak_gib": torch.cuda.max_memory_allocated() / gib, "reserved_gib": torch.cuda.max_memory_reserved() / gib}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=6, help="the first compile")
    parser.add_argument("--how", choices=("ddp", "fsdp2"), default="ddp")
    parser.add_argument("--pictures", type=int, default=128, help=f"a multiple of {GROUP} and of --micro-batch")
    parser.add_argument("--micro-batch", type=int, default=64)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--tiny", action="store_true", help="a few channels, to try the program")
    options = parser.parse_args()
    if options.pictures % GROUP or options.pictures % options.micro_batch:
        raise SystemExit(f"{options.pictures} pictures are no multiple of {GROUP} and {options.micro_batch}")
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if ranks > 1:
        if options.device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        distributed.init_process_group("nccl" if options.device == "cuda" else "gloo")
    # The same weights on all processes, and other noise on each.
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    import torch._inductor.config as inductor

    # As in `step_peer.py`: gives gradients that are not finite in PyTorch 2.11.
    if hasattr(inductor.triton, "mix_order_reduction"):
        inductor.triton.mix_order_reduction = False
    work = Iteration(options, ranks)
    torch.manual_seed(2 + rank)
    about = {"program": f"torch {torch.__version__}", "name": "dit-xl-grpo", "how": options.how, "ranks": ranks}
    for _ in range(options.iterations):
        done = work.run()
        if rank == 0:
            print(json.dumps(about | done | memory(options.device)), flush=True)
    if ranks > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
