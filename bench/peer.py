"""The same work in PyTorch: the DiT of a job, its rollout, its loss with backward pass, its optimizer step.

    peer.py check FOLDER                          compare with what `step_speed export` wrote to FOLDER
    peer.py time FOLDER REPEATS MODE THREADS      print milliseconds as JSON; MODE is `eager` or `compile`

Written as one would write it in PyTorch: `F.scaled_dot_product_attention`, `F.layer_norm`, `F.linear`, fused AdamW.
Weight names are those of flow-train (and of diffusers, where a part exists there).

Legend: B batch, S tokens, D channels, H heads, C latent channels, P side of a patch, N values of one latent.
"""

import json
import math
import resource
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

NORM_EPSILON = 1e-6
TIMESTEP_CHANNELS = 256
# Agreement asked for: relative L2 of f32 results that are sums in another order.
TOLERANCE = 1e-5


def sincos_2d(width, rows, columns):
    """Fixed positions [S, D]: first half of the channels the column, second half the row."""
    quarter = width // 4
    frequencies = 10000.0 ** (-torch.arange(quarter, dtype=torch.float64) / quarter)

    def encode(position):
        angle = position[:, None].double() * frequencies
        return torch.cat([angle.sin(), angle.cos()], dim=1)

    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return torch.cat([encode(column.flatten()), encode(row.flatten())], dim=1).float()


class TimestepEmbedder(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.linear_1 = nn.Linear(TIMESTEP_CHANNELS, hidden)
        self.linear_2 = nn.Linear(hidden, hidden)
        half = TIMESTEP_CHANNELS // 2
        frequencies = torch.exp(-math.log(10000.0) * torch.arange(half, dtype=torch.float32) / half)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, sigma):
        angle = (sigma * 1000.0)[:, None] * self.frequencies
        return self.linear_2(F.silu(self.linear_1(torch.cat([angle.cos(), angle.sin()], dim=1))))


class TimeEmbed(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.timestep_embedder = TimestepEmbedder(hidden)

    def forward(self, sigma):
        return self.timestep_embedder(sigma)


class PatchEmbed(nn.Module):
    def __init__(self, channels, patch, hidden):
        super().__init__()
        self.proj = nn.Conv2d(channels, hidden, patch, stride=patch)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class Modulation(nn.Module):
    """The linear layer behind an adaptive norm; gives `chunks` tensors [B, 1, D]."""

    def __init__(self, hidden, chunks):
        super().__init__()
        self.linear = nn.Linear(hidden, chunks * hidden)
        self.chunks = chunks

    def forward(self, c):
        return self.linear(c)[:, None, :].chunk(self.chunks, dim=2)


class Attention(nn.Module):
    def __init__(self, hidden, heads, qk_norm):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(hidden, hidden)
        self.to_k = nn.Linear(hidden, hidden)
        self.to_v = nn.Linear(hidden, hidden)
        self.to_out = nn.ModuleList([nn.Linear(hidden, hidden)])
        norm = (lambda: nn.RMSNorm(hidden // heads, eps=NORM_EPSILON)) if qk_norm else nn.Identity
        self.norm_q, self.norm_k = norm(), norm()

    def forward(self, x):
        split = lambda y: y.unflatten(2, (self.heads, -1)).transpose(1, 2)
        q, k, v = split(self.to_q(x)), split(self.to_k(x)), split(self.to_v(x))
        out = F.scaled_dot_product_attention(self.norm_q(q), self.norm_k(k), v)
        return self.to_out[0](out.transpose(1, 2).flatten(2))


class Up(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.proj = nn.Linear(hidden, inner)

    def forward(self, x):
        return F.gelu(self.proj(x), approximate="tanh")


class FeedForward(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.net = nn.ModuleList([Up(hidden, inner), nn.Identity(), nn.Linear(inner, hidden)])

    def forward(self, x):
        return self.net[2](self.net[0](x))


def normed(x):
    return F.layer_norm(x, x.shape[-1:], eps=NORM_EPSILON)


class Block(nn.Module):
    def __init__(self, hidden, heads, inner, qk_norm):
        super().__init__()
        self.norm1 = Modulation(hidden, 6)
        self.attn = Attention(hidden, heads, qk_norm)
        self.ff = FeedForward(hidden, inner)

    def forward(self, x, c):
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = self.norm1(c)
        x = x + gate * self.attn(normed(x) * (1 + scale) + shift)
        return x + mlp_gate * self.ff(normed(x) * (1 + mlp_scale) + mlp_shift)


class Dit(nn.Module):
    def __init__(self, settings):
        super().__init__()
        if settings["position"] != "sincos":
            raise SystemExit(f"the peer knows position `sincos`, not `{settings['position']}`")
        latent, hidden, self.patch = settings["latent"], settings["hidden"], settings["patch"]
        self.latent = (latent["channels"], latent["height"], latent["width"])
        self.grid = (latent["height"] // self.patch, latent["width"] // self.patch)
        self.pos_embed = PatchEmbed(self.latent[0], self.patch, hidden)
        self.time_embed = TimeEmbed(hidden)
        self.token_embed = nn.Embedding(settings["vocabulary"]["size"], hidden)
        inner = round(hidden * settings["mlp_ratio"])
        blocks = (Block(hidden, settings["heads"], inner, settings["qk_norm"]) for _ in range(settings["layers"]))
        self.transformer_blocks = nn.ModuleList(blocks)
        self.norm_out = Modulation(hidden, 2)
        self.proj_out = nn.Linear(hidden, self.patch * self.patch * self.latent[0])
        self.register_buffer("positions", sincos_2d(hidden, *self.grid), persistent=False)

    def forward(self, x, sigma, tokens):
        """Velocity [B, N] at latents [B, N], noise levels [B], tokens [B, L]."""
        batch, (rows, columns), (channels, height, width) = x.shape[0], self.grid, self.latent
        c = F.silu(self.time_embed(sigma) + self.token_embed(tokens).sum(1))
        h = self.pos_embed(x.view(batch, channels, height, width)) + self.positions
        for block in self.transformer_blocks:
            h = block(h, c)
        scale, shift = self.norm_out(c)
        h = self.proj_out(normed(h) * (1 + scale) + shift)
        h = h.view(batch, rows, columns, self.patch, self.patch, channels)
        return h.permute(0, 5, 1, 3, 2, 4).reshape(batch, -1)


class Job:
    def __init__(self, folder):
        self.folder = Path(folder)
        self.settings = json.loads((self.folder / "job.json").read_text())
        if self.settings["architecture"] != "dit":
            raise SystemExit(f"the peer knows `dit`, not `{self.settings['architecture']}`")
        self.given = load_file(self.folder / "given.safetensors")
        self.model = Dit(self.settings["settings"])
        self.model.load_state_dict(load_file(self.folder / "weights.safetensors"), strict=True)
        self.network = self.model
        self.steps = [self.given[f"step.{i}"].tolist() for i in range(self.settings["steps"])]
        self.scales = {"": 1.0, "_guided": self.settings["guidance_scale"]}
        self.optimizer = None

    def velocity(self, x, sigma, scale):
        tokens = self.given["tokens"]
        sigma = torch.full((x.shape[0],), sigma)
        if scale == 1.0:
            return self.network(x, sigma, tokens)
        both = torch.cat([tokens, self.given["null_tokens"]])
        v, empty = self.network(x.repeat(2, 1), sigma.repeat(2), both).chunk(2)
        return empty + (v - empty) * scale

    @torch.inference_mode()
    def roll_out(self, scale, replay):
        """Final latents; `replay` uses the noise of flow-train instead of fresh noise."""
        given = self.given["initial_noise"]
        x = given if replay else torch.randn_like(given)
        records = []
        for index, (sigma, mean_x, mean_v, level, log_scale, offset) in enumerate(self.steps):
            v = self.velocity(x, sigma, scale)
            mean = mean_x * x + mean_v * v
            if level == 0.0:
                x = mean
                continue
            noise = self.given[f"noise.{index}"] if replay else torch.randn_like(x)
            x_next = mean + level * noise
            log_prob = -(x_next - mean).square().mean(1) * log_scale + offset
            records.append((x, x_next, mean, log_prob))
            x = x_next
        return x

    def loss(self, suffix):
        given = lambda name: self.given[f"record{suffix}.{name}"]
        sigma, mean_x, mean_v, _, log_scale, offset = self.steps[int(given("step"))]
        x, x_next = given("x"), given("x_next")
        mean = mean_x * x + mean_v * self.velocity(x, sigma, self.scales[suffix])
        log_prob = -(x_next - mean).square().mean(1) * log_scale + offset
        ratio = torch.exp(log_prob - given("log_prob"))
        low, high = self.settings["clip_range"]
        advantages = self.given["advantages"]
        return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 + low, 1 + high)).mean()

    def unit(self, suffix):
        self.model.zero_grad(set_to_none=True)
        loss = self.loss(suffix)
        loss.backward()
        return loss.detach()

    def optimizer_step(self):
        settings = self.settings
        if self.optimizer is None:
            decay = dict(lr=settings["learning_rate"], betas=settings["betas"], eps=settings["epsilon"])
            self.optimizer = torch.optim.AdamW(self.model.parameters(), weight_decay=0.0, fused=True, **decay)
        if settings["max_grad_norm"] > 0:
            nn.utils.clip_grad_norm_(self.model.parameters(), settings["max_grad_norm"])
        self.optimizer.step()


def distance(found, wanted):
    return ((found.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(1e-30)).item()


def check(folder):
    job = Job(folder)
    wanted = load_file(job.folder / "wanted.safetensors")
    far = {}

    def compare(name, found):
        far[name] = distance(found, wanted[name].view(found.shape))

    names = [name for name, _ in job.model.named_parameters()]
    for suffix, scale in job.scales.items():
        compare(f"clean{suffix}", job.roll_out(scale, replay=True))
        compare(f"loss{suffix}", job.unit(suffix))
        gradients = torch.cat([parameter.grad.flatten() for parameter in job.model.parameters()])
        theirs = torch.cat([wanted[f"gradient{suffix}.{name}"].flatten() for name in names])
        far[f"gradients{suffix}"] = distance(gradients, theirs)
    job.unit("")
    before = {name: parameter.detach().clone() for name, parameter in job.model.named_parameters()}
    job.optimizer_step()
    # The first step of AdamW is the sign of the gradient, so where a gradient is near 0 it is a coin's: weights that
    # got a gradient well above rounding are compared.
    ours, theirs = [], []
    for name, parameter in job.model.named_parameters():
        gradient = wanted[f"gradient.{name}"].abs()
        clear = gradient > 1e-3 * gradient.max()
        ours.append((parameter.detach() - before[name])[clear])
        theirs.append((wanted[f"stepped.{name}"] - before[name])[clear])
    # A difference of weights keeps only some of their digits, so it is compared on the scale of the weights.
    change = (torch.cat(ours) - torch.cat(theirs)).norm() / torch.cat([b.flatten() for b in before.values()]).norm()
    far["optimizer"] = change.item()
    print(json.dumps({"relative_l2": far, "tolerance": TOLERANCE}))
    apart = {name: value for name, value in far.items() if not value <= TOLERANCE}
    if apart:
        raise SystemExit(f"PyTorch and flow-train disagree: {apart}")


def measure(repeats, work):
    work()
    work()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        found.append((time.perf_counter() - start) * 1e3)
    return found


def time_all(folder, repeats, mode, threads):
    torch.set_num_threads(threads)
    job = Job(folder)
    if mode == "compile":
        job.network = torch.compile(job.model)
    found = {}
    for suffix, scale in job.scales.items():
        found[f"rollout{suffix}"] = measure(repeats, lambda: job.roll_out(scale, replay=False))
        found[f"unit{suffix}"] = measure(repeats, lambda: job.unit(suffix))
    found["optimizer"] = measure(repeats, job.optimizer_step)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"program": f"torch {torch.__version__} {mode}", "wall_ms": found, "peak_gib": peak}))


def main():
    match sys.argv[1:]:
        case ["check", folder]:
            check(folder)
        case ["time", folder, repeats, mode, threads] if mode in ("eager", "compile"):
            time_all(folder, int(repeats), mode, int(threads))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
