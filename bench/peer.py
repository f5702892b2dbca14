"""The same work in PyTorch: the DiT of a job, its rollout, its loss with backward pass, its optimizer step.

    peer.py check FOLDER                          compare with what `step_speed export` wrote to FOLDER
    peer.py time FOLDER REPEATS MODE THREADS      print milliseconds as JSON; MODE is `eager` or `compile`

The model is that of `models.py`; the optimizer is PyTorch's fused AdamW. Legend: B batch, N values of one latent.
"""

import json
import resource
import sys
import time
from pathlib import Path

import torch
from models import Dit
from safetensors.torch import load_file
from torch import nn

# Agreement asked for: relative L2 of f32 results that are sums in another order.
TOLERANCE = 1e-5


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
