"""A whole run of flow-train in PyTorch: GRPO or DiffusionNFT on `shapes`, from the same weights, with the same prompts, noise
and hyper-parameters, measured on the same held-out prompts.

    run_peer.py check RUN FOLDER      compare with what flow-trainer's example `run_export` wrote to FOLDER: random numbers,
                                      prompts, the images of the first rollout, rewards, advantages
    run_peer.py train RUN --weights FILE [--to LINES]   train as the config in RUN says, and print a line of JSON per
                                                        iteration (`kind` "train") and per evaluation ("eval")
      --device cpu|cuda  --dtype f32|bf16  --threads N
      --mode eager|compile|graphs     as written; `torch.compile` of model and noise; and every step of a rollout, every loss
                                      with its backward pass and the optimizer's step recorded as CUDA graphs and replayed
      --tuned                         `torch.compile` with `max-autotune-no-cudagraphs`, which tries kernels for products
      --attention cudnn|default       the kernel of attention on a GPU: cuDNN's by name, or PyTorch's own choice
      --steps N                       iterations, if not the config's

RUN is the `run.json` that `flow-train train` wrote. In bf16 the weights, gradients and moments stay f32 and the model runs
under autocast; models that only sample have their linear layers in bf16, so that nothing is rounded anew at each call. `seconds` count from when the weights are on the device: compiling, evaluations and everything else included,
but an evaluation does not count into its own line. Legend: B samples of a micro-batch, N values of one latent.
"""

import argparse
import contextlib
import copy
import functools
import json
import math
import sys
import time
from pathlib import Path

try:
    import torch
    from safetensors.torch import load_file
except ImportError as error:
    raise SystemExit(f"{error}; this program needs torch and safetensors (pip install torch numpy safetensors)")

import host_numerics
import philox
import scenes
from models import Dit
from replay import Replays
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

# Agreement asked for. Pixels and advantages: relative L2 of f32 results that are sums in another order. Normal values: the
# share that may differ, all by one unit in the last place. Rewards: the share of images that may stand on a threshold.
TOLERANCE = 1e-4
DIFFERING_NORMALS = 1e-5
DIFFERING_REWARDS = 0.01
MODES = ("eager", "compile", "graphs")


class Peer:
    """Everything that a run is made of, from the config in `run.json`."""

    # Where prompts come from, and what this program knows of.
    data = scenes
    known = {"data": "shapes", "rewards": ["shapes-rules"], "algorithms": ("grpo", "nft"), "architecture": "dit"}

    def __init__(self, run, weights, device, dtype, mode, tuned=False):
        self.config = config = json.loads(Path(run).read_text())["config"]
        self.device, self.dtype, self.mode = device, dtype, mode
        self.compiling = "max-autotune-no-cudagraphs" if tuned else None
        self.refuse_what_is_missing()
        self.seed, self.sampling = config["run"]["seed"], config["sampling"]
        self.algorithm = config["algorithm"]
        self.samples = self.sampling["prompts_per_step"] * self.sampling["group_size"]
        self.schedule = host_numerics.Schedule(config["scheduler"])
        everything = self.data.prompts()
        self.prompts = [prompt for prompt in everything if not prompt.is_held_out]
        held_out = [prompt for prompt in everything if prompt.is_held_out]
        count = min(config["evaluation"]["prompts"], len(held_out))
        self.held_out = [held_out[index * len(held_out) // count] for index in range(count)]
        per_step = self.sampling["prompts_per_step"]
        self.order = host_numerics.PromptOrder(len(self.prompts), per_step, self.seed)
        self.shape, model = self.network_of(config["model"], weights)
        self.values = math.prod(self.shape)
        self.model = model.to(device)
        self.network, self.normals = self.compiled(self.model), philox.normals
        if mode != "eager":
            self.normals = functools.partial(philox.normals, draw=torch.compile(philox.from_blocks, dynamic=False))
        self.sampler = Sampler(self, self.model)
        is_old = self.algorithm["kind"] == "nft"
        self.old = self.frozen_copy() if is_old else None
        # What `kl_beta` pulls towards: the weights as they are now.
        is_pulled = is_old and self.algorithm["kl_beta"] > 0.0
        self.reference = self.frozen_copy() if is_pulled else None
        options = config["optimizer"]
        self.parameters = list(self.model.parameters())
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.replays = Replays([parameter.grad for parameter in self.parameters]) if mode == "graphs" else None
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=torch.tensor(options["learning_rate"], device=device),
            betas=tuple(options["betas"]),
            eps=options["epsilon"],
            weight_decay=0.0,
            fused=True,
            capturable=mode == "graphs",
        )
        self.clipped_step = None
        self.updates = 0

    def network_of(self, settings, weights):
        """The shape of latents and the model, of `[model]`, with the weights of a file."""
        dit = settings["dit"]
        shape = (dit["latent_channels"], dit["height"], dit["width"])
        own = {key: dit[key] for key in ("patch", "hidden", "layers", "heads", "mlp_ratio", "qk_norm", "position")}
        own["latent"] = dict(zip(("channels", "height", "width"), shape))
        own["vocabulary"] = {"size": dit["conditioning"]["vocabulary"]}
        model = Dit(own)
        model.load_state_dict(load_file(weights), strict=True)
        return shape, model

    def refuse_what_is_missing(self):
        config = self.config
        allowed = {
            "architecture": (config["model"]["architecture"], self.known["architecture"]),
            "experts": (config["model"].get("dit", {}).get("moe", {}).get("experts", 0), 0),
            "fine-tuning": (config["model"]["finetune"], "full"),
            "data": (config["data"]["kind"], self.known["data"]),
            "guidance": (config["sampling"]["guidance_scale"], 1.0),
            "initial noise": (config["sampling"]["initial_noise"], "per_sample"),
            "weight decay": (config["optimizer"]["weight_decay"], 0.0),
            "storage of moments": (config["optimizer"]["moments"], "f32"),
            "rewards": ([reward["kind"] for reward in config["rewards"]], self.known["rewards"]),
            "average": (config["ema"]["enabled"], False),
            "pull": (config["algorithm"].get("kl", {}).get("kind", "none"), "none"),
            "reference of NFT": (config["algorithm"].get("reference", "snapshot"), "snapshot"),
            "advantage mode": (config["algorithm"].get("advantage_mode", "all"), "all"),
        }
        for what, (found, wanted) in allowed.items():
            if found != wanted:
                host_numerics.refuse(f"{what} {found!r}, only {wanted!r}")
        if config["algorithm"]["kind"] not in self.known["algorithms"]:
            host_numerics.refuse(f"algorithm `{config['algorithm']['kind']}`")

    def compiled(self, model):
        return model if self.mode == "eager" else torch.compile(model, dynamic=False, mode=self.compiling)

    def frozen_copy(self):
        """The weights as they are now, and what samples with them."""
        model = copy.deepcopy(self.model).requires_grad_(False)
        return Sampler(self, model)

    def velocity(self, network, x, sigma, tokens):
        """In f32, whatever the model computes in. `sigma`: a number, or a tensor of one."""
        sigma = torch.full((x.shape[0],), sigma, device=self.device) if isinstance(sigma, float) else sigma.expand(x.shape[0])
        is_bf16 = self.dtype == "bf16"
        autocast = torch.autocast(self.device, torch.bfloat16) if is_bf16 else contextlib.nullcontext()
        with autocast:
            return network(x, sigma, tokens).float()

    def replayed(self, key, function, *inputs):
        return function(*inputs) if self.replays is None else self.replays(key, function, *inputs)

    def tokens(self, prompts):
        return torch.tensor([prompt.tokens for prompt in prompts], device=self.device)

    @torch.no_grad()
    def sample(self, sampler, ids, prompts, steps, purposes, seed):
        """Final latents and stochastic steps; `purposes` are those of the first latents and of added noise."""
        ids = torch.tensor(ids, device=self.device)
        tokens = self.tokens(prompts)
        x, records = self.normals(seed, purposes[0], ids, 0, self.values), []
        for step in steps:
            # Everything that a graph has for good.
            key = ("sample", id(sampler), step, purposes, seed, x.shape[0])
            take = functools.partial(self.sampler_step, sampler.network, step, purposes[1], seed)
            x_next, log_p = self.replayed(key, take, x, ids, tokens)
            if self.keeps(step):
                records.append((step, x, x_next, log_p))
            x = x_next
        return {"ids": ids, "tokens": tokens, "records": records, "clean": x}

    def keeps(self, step):
        """Whether a loss is taken at a step of a rollout."""
        return step.noise != 0.0

    @torch.no_grad()
    def sampler_step(self, network, step, purpose, seed, x, ids, tokens):
        """The next latents, and their log-probability where the step is stochastic."""
        mean = step.mean_x * x + step.mean_v * self.velocity(network, x, step.sigma, tokens)
        if step.noise == 0.0:
            return mean, mean.new_zeros(())
        x_next = mean + step.noise * self.normals(seed, purpose, ids, step.index + 1, self.values)
        return x_next, log_probability(step, x_next, mean)

    def roll_out(self, iteration):
        """Micro-batches and prompts of an iteration."""
        group, size = self.sampling["group_size"], self.sampling["micro_batch"]
        drawn = [self.prompts[index] for index in self.order.draw(iteration) for _ in range(group)]
        first = iteration * self.samples
        steps = self.schedule.steps(iteration)
        sampler = self.sampler if self.old is None else self.old
        sampler.follow()
        purposes = ("initial_noise", "sde_noise")
        batches = []
        for start in range(0, self.samples, size):
            ids = list(range(first + start, first + start + size))
            prompts = drawn[start : start + size]
            batches.append(self.sample(sampler, ids, prompts, steps, purposes, self.seed))
        return batches, drawn

    def measure(self, reward):
        """What `rewards` calls a reward of the config."""
        return reward.get("mode", "mean")

    def rewards(self, clean, prompts):
        return scenes.rules(clean.view(-1, *self.shape), scenes.wanted(prompts, self.device))

    def advantages(self, batches, drawn):
        """Rewards and advantages of an iteration."""
        clean = torch.cat([batch["clean"] for batch in batches])
        rewards = self.rewards(clean, drawn)[self.measure(self.config["rewards"][0])].tolist()
        found = host_numerics.advantages(rewards, self.sampling["group_size"], self.config["advantage"])
        return rewards, torch.tensor(found, dtype=torch.float32, device=self.device)

    def positions(self, iteration, inner):
        """Where the loss of each micro-batch is taken: recorded steps, or times with the numbers of their noise."""
        if self.algorithm["kind"] == "grpo":
            return list(range(len(self.schedule.window(iteration))))
        times = host_numerics.loss_times(self.algorithm["train_timesteps"], self.seed, iteration, inner)
        return [(sigma, inner * len(times) + draw) for draw, sigma in enumerate(times)]

    def backward(self, batch, advantages, position, share):
        """Adds `share` of the gradients of a loss to those that are there; the loss."""
        bound = self.algorithm["advantage_clip"]
        advantages = advantages.clamp(-bound, bound)
        if self.algorithm["kind"] == "grpo":
            step, x, x_next, old = batch["records"][position]
            key, inputs = ("grpo", step, share), (x, x_next, old, batch["tokens"], advantages)
            loss = functools.partial(self.grpo_loss, step)
        else:
            sigma, draw = position
            sigma = torch.tensor(sigma, device=self.device)
            key, inputs = ("nft", draw, share), (batch["clean"], batch["ids"], batch["tokens"], advantages, sigma)
            loss = functools.partial(self.nft_loss, draw)

        def with_gradients(*inputs):
            found = loss(*inputs)
            (found * share).backward()
            return found.detach()

        return self.replayed(key, with_gradients, *inputs)

    def grpo_loss(self, step, x, x_next, old, tokens, advantages):
        mean = step.mean_x * x + step.mean_v * self.velocity(self.network, x, step.sigma, tokens)
        ratio = torch.exp(log_probability(step, x_next, mean) - old)
        low, high = self.algorithm["clip_range"]
        return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 + low, 1 + high)).mean()

    def nft_loss(self, draw, clean, ids, tokens, advantages, sigma):
        b = self.algorithm["beta"]
        noise = self.normals(self.seed, "forward_noise", ids, draw, self.values)
        x = (1.0 - sigma) * clean + sigma * noise
        with torch.no_grad():
            v_old = self.velocity(self.old.network, x, sigma, tokens)
        v = self.velocity(self.network, x, sigma, tokens)

        def error(velocity):
            difference = x - sigma * velocity - clean
            weight = difference.detach().abs().mean(1).clamp_min(1e-5)
            return difference.square().mean(1) / weight

        clip = self.algorithm["advantage_clip"]
        rho = (advantages / (2.0 * clip) + 0.5).clamp(0.0, 1.0)
        positive, negative = error(b * v + (1.0 - b) * v_old), error((1.0 + b) * v_old - b * v)
        loss = (rho * positive + (1.0 - rho) * negative).mean() * (clip / b)
        if self.reference is None:
            return loss
        with torch.no_grad():
            v_reference = self.velocity(self.reference.network, x, sigma, tokens)
        return loss + self.algorithm["kl_beta"] * (v - v_reference).square().mean()

    def update(self, batches, advantages, iteration):
        """Every pass over the rollout; mean loss and the last gradient norm."""
        size, losses, norm = self.sampling["micro_batch"], [], None
        together = self.config["optimizer"]["gradient_accumulation"] or len(batches)
        for inner in range(self.algorithm["inner_epochs"]):
            positions = self.positions(iteration, inner)
            share = 1.0 / (together * len(positions))
            for first in range(0, len(batches), together):
                for index in range(first, first + together):
                    of_batch = advantages[index * size : (index + 1) * size]
                    for position in positions:
                        losses.append(self.backward(batches[index], of_batch, position, share))
                norm = self.optimizer_step()
        return torch.stack(losses).mean().item(), norm.item()

    def optimizer_step(self):
        """Clips, steps and clears the gradients; their norm."""
        options = self.config["optimizer"]
        self.updates += 1
        rise = min(self.updates / options["warmup_steps"], 1.0) if options["warmup_steps"] else 1.0
        for group in self.optimizer.param_groups:
            group["lr"].fill_(options["learning_rate"] * rise * self.rate_share(options))
        if self.replays is None or self.updates == 1:
            # The first step makes the moments, which a graph needs the places of.
            return self.clip_and_step()
        if self.clipped_step is None:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                norm = self.clip_and_step()
            self.clipped_step = graph, norm
        graph, norm = self.clipped_step
        graph.replay()
        return norm.clone()

    def clip_and_step(self):
        most = self.config["optimizer"]["max_grad_norm"] or float("inf")
        norm = nn.utils.clip_grad_norm_(self.parameters, most)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        return norm

    def rate_share(self, options):
        """What the schedule leaves of the learning rate after the warm-up."""
        schedule = options.get("schedule", {"kind": "constant"})
        first = max(options["warmup_steps"], 1)
        if schedule["kind"] == "constant":
            return 1.0
        progress = min(max(self.updates - first, 0) / max(schedule["steps"] + 1 - first, 1), 1.0)
        falling = 1.0 - progress if schedule["kind"] == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
        return schedule["to"] + (1.0 - schedule["to"]) * falling

    @torch.no_grad()
    def follow(self, iteration):
        """Lets the old sampling weights follow."""
        if self.old is None:
            return
        share = 1.0 - host_numerics.old_policy_decay(self.algorithm["old_policy"], iteration + 1)
        torch._foreach_lerp_(list(self.old.model.parameters()), self.parameters, share)

    def evaluate(self):
        """Mean of each evaluation reward over held-out prompts, with fixed noise and deterministic steps."""
        settings = self.config["evaluation"]
        steps = settings["steps"] or self.config["scheduler"]["steps"]
        steps = host_numerics.euler_steps(host_numerics.sigma_grid(steps, self.config["scheduler"]["shift"]))
        prompts = [prompt for prompt in self.held_out for _ in range(settings["images_per_prompt"])]
        size, found = self.sampling["micro_batch"], []
        self.sampler.follow()
        for first in range(0, len(prompts), size):
            part = prompts[first : first + size]
            ids = list(range(first, first + len(part)))
            purposes = ("evaluation", "evaluation")
            done = self.sample(self.sampler, ids, part, steps, purposes, settings["seed"])
            found.append(self.rewards(done["clean"], part))
        mean = lambda measure: torch.cat([rewards[measure] for rewards in found]).double().mean().item()
        named = self.config["eval_rewards"] or self.config["rewards"]
        return {reward["name"]: mean(self.measure(reward)) for reward in named}


class Sampler:
    """What samples with the weights of `model`: itself, or in bf16 a copy whose linear layers are rounded once."""

    def __init__(self, peer, model):
        self.model = self.sampled = model
        if peer.dtype == "bf16":
            self.sampled = copy.deepcopy(model).requires_grad_(False)
            for layer in self.sampled.modules():
                if isinstance(layer, nn.Linear):
                    layer.to(torch.bfloat16)
        self.network = peer.network if self.sampled is peer.model else peer.compiled(self.sampled)

    @torch.no_grad()
    def follow(self):
        """Takes the weights as they are."""
        if self.sampled is not self.model:
            torch._foreach_copy_(list(self.sampled.parameters()), list(self.model.parameters()))


def log_probability(step, x_next, mean):
    return step.offset - step.scale * (x_next - mean).square().mean(1)


def memory(device):
    """The most that PyTorch has taken of a GPU so far, in GiB: in use, and held by its allocator, graphs included."""
    if device != "cuda":
        return {}
    most = {"peak_gib": torch.cuda.max_memory_allocated(), "reserved_gib": torch.cuda.max_memory_reserved()}
    return {key: taken / 2**30 for key, taken in most.items()}


def train(options, kind=Peer):
    torch.set_num_threads(options.threads)
    # Products of f32 operands, where there are any, as tensor cores do them: what one would do in PyTorch.
    torch.set_float32_matmul_precision("high" if options.dtype == "bf16" else "highest")
    peer = kind(options.run, options.weights, options.device, options.dtype, options.mode, options.tuned)
    config, wait = peer.config, torch.cuda.synchronize if options.device == "cuda" else lambda: None
    with contextlib.ExitStack() as files:
        to = files.enter_context(open(options.to, "w")) if options.to else None
        if options.device == "cuda" and options.attention == "cudnn":
            files.enter_context(sdpa_kernel(SDPBackend.CUDNN_ATTENTION))

        def say(line):
            text = json.dumps(line)
            print(text, flush=True)
            if to:
                print(text, file=to, flush=True)

        name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
        about = {"program": f"torch {torch.__version__}", "mode": options.mode, "device": name, "dtype": options.dtype}
        about |= {"tuned": options.tuned, "attention": options.attention}
        say({"kind": "about", "algorithm": config["algorithm"]["kind"]} | about)
        wait()
        start = time.perf_counter()

        def at(step):
            wait()
            seconds = time.perf_counter() - start
            return {"step": step, "images": step * peer.samples, "seconds": seconds}

        def evaluate(step):
            line = {"kind": "eval"} | at(step)
            say(line | {"reward": peer.evaluate()})

        steps, every = options.steps or config["run"]["steps"], config["evaluation"]["every"]
        evaluate(0)
        for iteration in range(steps):
            batches, drawn = peer.roll_out(iteration)
            rewards, advantages = peer.advantages(batches, drawn)
            loss, norm = peer.update(batches, advantages, iteration)
            peer.follow(iteration)
            done = iteration + 1
            reward = sum(rewards) / len(rewards)
            say({"kind": "train"} | at(done) | {"reward": reward, "loss": loss, "gradient_norm": norm} | memory(options.device))
            if every and (done % every == 0 or done == steps):
                evaluate(done)


def distance(found, wanted):
    found, wanted = found.double().flatten(), wanted.double().flatten()
    return ((found - wanted).norm() / wanted.norm().clamp_min(1e-30)).item()


def check(options):
    folder = Path(options.folder)
    wanted = load_file(folder / "wanted.safetensors")
    peer = Peer(options.run, folder / "weights.safetensors", "cpu", "f32", "eager")
    far, limits = {}, {}

    def compare(name, value, limit):
        far[name], limits[name] = value, limit

    words = philox.Draws(peer.seed, "sde_noise", 2**40 + 3, 5)
    found = torch.tensor([words.next_u32() for _ in range(wanted["words"].numel())])
    compare("random bits that differ", (found != wanted["words"]).double().mean().item(), 0.0)
    ids = torch.tensor([0, 1, 2**40 + 3])
    normals = philox.normals(peer.seed, "sde_noise", ids, 5, wanted["normals"].shape[1])
    compare("normal values that differ", (normals != wanted["normals"]).double().mean().item(), DIFFERING_NORMALS)
    compare("normal values", distance(normals, wanted["normals"]), 1e-7)
    batches, drawn = peer.roll_out(0)
    tokens = peer.tokens(drawn)
    compare("prompts that differ", (tokens != wanted["tokens"]).any(1).double().mean().item(), 0.0)
    clean = torch.cat([batch["clean"] for batch in batches])
    compare("images of the first rollout", distance(clean, wanted["clean"]), TOLERANCE)
    # On the very same images, so that nothing but the rules is compared.
    for mode, rewards in peer.rewards(wanted["clean"], drawn).items():
        apart = (rewards - wanted[f"rewards.{mode}"]).abs() > 1e-5
        compare(f"rewards that differ, {mode}", apart.double().mean().item(), 0.0)
    # And on pictures at the edge of the rules: noise, and scenes with noise.
    rows = wanted["edge.prompts"].long()
    for mode, rewards in scenes.rules(wanted["edge.images"], rows).items():
        apart = (rewards - wanted[f"edge.rewards.{mode}"]).abs() > 1e-5
        compare(f"rewards of edge cases that differ, {mode}", apart.double().mean().item(), DIFFERING_REWARDS)
    given = wanted[f"rewards.{peer.config['rewards'][0].get('mode', 'mean')}"].tolist()
    options_of = peer.config["advantage"]
    advantages = host_numerics.advantages(given, peer.sampling["group_size"], options_of)
    compare("advantages", distance(torch.tensor(advantages), wanted["advantages"]), 1e-6)
    print(json.dumps({"far": far, "limits": limits}))
    apart = {name: value for name, value in far.items() if not value <= limits[name]}
    if apart:
        raise SystemExit(f"PyTorch and flow-train disagree: {apart}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    checked = commands.add_parser("check")
    checked.add_argument("run")
    checked.add_argument("folder")
    trained = commands.add_parser("train")
    trained.add_argument("run")
    trained.add_argument("--weights", required=True)
    trained.add_argument("--to")
    trained.add_argument("--steps", type=int)
    trained.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    trained.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    trained.add_argument("--mode", choices=MODES, default="eager")
    trained.add_argument("--tuned", action="store_true")
    trained.add_argument("--attention", choices=("cudnn", "default"), default="cudnn")
    trained.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.command == "check":
        check(options)
    else:
        train(options)


if __name__ == "__main__":
    sys.exit(main())
