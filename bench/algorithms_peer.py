"""Runs of flow-train on `digits` in PyTorch: AWM, DPPO and TDM (and GRPO and DiffusionNFT), from the same weights, with the same prompts, noise and
hyper-parameters, scored by the same classifier; and the pairs of pictures that `offline-dpo` learns from.

    algorithms_peer.py train RUN --weights FILE [--to LINES] [--steps N] [--threads N]
        trains as the config in RUN says, the `run.json` that `flow-train train` wrote, and prints the lines of `run_peer.py`
    algorithms_peer.py compare RUN LINES [--iterations N]
        compares rewards, losses and gradient norms of the first iterations with the `metrics.jsonl` beside RUN
    algorithms_peer.py pairs RUN --weights FILE --to FOLDER [--images N]
        draws N pictures of each prompt of training with these weights, scores them, and writes the better of two and the worse, as PNG,
        with `pairs.jsonl`. Its prompts are words whose order is that of the tokens of `digits`, so that a model of either reads both

Legend: B samples of a micro-batch, N values of one latent.
"""

import argparse
import copy
import json
import math
import struct
import sys
import zlib
from pathlib import Path

import digits
import host_numerics
import run_peer
import torch
from philox import Draws
from run_peer import Peer, Sampler, log_probability

# Levels of TDM keep off the ends of a step; sizes and squares are not divided by less.
MARGIN, LEAST_SIZE, LEAST_SQUARE = 1e-6, 1e-6, 1e-6
# f32 sums in another order, through a backward pass and an optimizer step or two.
TOLERANCE = 2e-3
# Pairs differ by this at least.
LEAST_DIFFERENCE = 0.25


class DigitsPeer(Peer):
    data = digits
    known = Peer.known | {"data": "digits", "rewards": ["digit-classifier"], "algorithms": ("grpo", "nft", "awm", "dppo", "tdm")}

    def __init__(self, *parts):
        super().__init__(*parts)
        self.classifiers = {name: digits.Classifier(name, self.device) for name in digits.CLASSIFIERS}

    def measure(self, reward):
        return reward["weights"]

    def rewards(self, clean, prompts):
        return {name: classifier.rewards(clean, prompts) for name, classifier in self.classifiers.items()}

    def require(self, **wanted):
        """That settings of the algorithm are these, the only ones that are here."""
        for key, value in wanted.items():
            if self.algorithm[key] != value:
                host_numerics.refuse(f"`algorithm.{key}` {self.algorithm[key]!r}, only {value!r}")

    def bounded(self, advantages):
        bound = self.algorithm["advantage_clip"]
        return advantages.clamp(-bound, bound)

    def add_gradients(self, loss, share):
        (loss * share).backward()
        return loss.detach()


class AwmPeer(DigitsPeer):
    """Advantage-weighted matching; the policy that sampled is that of the beginning of the pass."""

    WEIGHTINGS = {
        "uniform": lambda error, sigma: -error,
        "sigma": lambda error, sigma: -sigma * error,
        "sigma-squared": lambda error, sigma: -(sigma**2) * error,
    }

    def __init__(self, *parts):
        super().__init__(*parts)
        self.require(kl_beta=0.0, old_policy_beta=0.0, off_policy=False, inner_epochs=1)
        if self.algorithm["weighting"] not in self.WEIGHTINGS:
            host_numerics.refuse(f"`algorithm.weighting` {self.algorithm['weighting']!r}")
        self.before = {}

    def log_prob(self, batch, position):
        sigma, draw = position
        noise = self.normals(self.seed, "forward_noise", batch["ids"], draw, self.values)
        x = (1.0 - sigma) * batch["clean"] + sigma * noise
        v = self.velocity(self.network, x, sigma, batch["tokens"])
        error = (v - (noise - batch["clean"])).square().mean(1)
        return self.WEIGHTINGS[self.algorithm["weighting"]](error, sigma)

    def update(self, batches, advantages, iteration):
        with torch.no_grad():
            positions = self.positions(iteration, 0)
            sites = [(batch, position) for batch in batches for position in positions]
            self.before = {(id(batch), position): self.log_prob(batch, position) for batch, position in sites}
        return super().update(batches, advantages, iteration)

    def backward(self, batch, advantages, position, share):
        advantages = self.bounded(advantages)
        ratio = torch.exp(self.log_prob(batch, position) - self.before[id(batch), position])
        low, high = self.algorithm["clip_range"]
        loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 + low, 1 + high)).mean()
        return self.add_gradients(loss, share)


class DppoPeer(DigitsPeer):
    """DPPO: rows that left the neighbourhood of the policy that sampled, and would go farther, do not count."""

    def __init__(self, *parts):
        super().__init__(*parts)
        self.require(mask="mean", step_weights="none")

    def positions(self, iteration, inner):
        return list(range(len(self.schedule.window(iteration))))

    @torch.no_grad()
    def sampler_step(self, network, step, purpose, seed, x, ids, tokens):
        mean = step.mean_x * x + step.mean_v * self.velocity(network, x, step.sigma, tokens)
        if step.noise == 0.0:
            return mean, None
        x_next = mean + step.noise * self.normals(seed, purpose, ids, step.index + 1, self.values)
        return x_next, (log_probability(step, x_next, mean), mean)

    def backward(self, batch, advantages, position, share):
        advantages = self.bounded(advantages)
        step, x, x_next, (old, mean_old) = batch["records"][position]
        mean = step.mean_x * x + step.mean_v * self.velocity(self.network, x, step.sigma, batch["tokens"])
        log_ratio = log_probability(step, x_next, mean) - old
        with torch.no_grad():
            ratio = log_ratio.exp()
            divergence = (mean - mean_old).square().mean(1) / (2.0 * step.noise**2)
            leaving = ((ratio > 1.0) & (advantages > 0.0)) | ((ratio < 1.0) & (advantages < 0.0))
            dropped = leaving & (divergence >= self.algorithm["mask_threshold"])
        # Chosen before the exponential: the ratio of a dropped row may be infinite.
        ratio = torch.where(dropped, torch.zeros_like(log_ratio), log_ratio).exp()
        loss = torch.where(dropped, torch.zeros_like(ratio), -advantages * ratio).mean()
        return self.add_gradients(loss, share)


class TdmPeer(DigitsPeer):
    """Trajectory distribution matching: a student of few steps, its frozen self under guidance, and a fake score."""

    def __init__(self, *parts):
        super().__init__(*parts)
        self.require(query_interval="trajectory", query_distribution="uniform", reference="snapshot")
        self.teacher = self.frozen_copy().network
        self.fake = copy.deepcopy(self.model)
        options, plan = self.config["optimizer"], self.algorithm["fake_score"]
        self.fake_parameters = list(self.fake.parameters())
        for parameter in self.fake_parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.fake_optimizer = torch.optim.AdamW(
            self.fake_parameters,
            lr=plan["learning_rate"],
            betas=tuple(plan["betas"]),
            eps=options["epsilon"],
            weight_decay=0.0,
            fused=True,
        )

    def keeps(self, step):
        return True

    def positions(self, iteration, inner):
        return [(index, index) for index in range(self.config["scheduler"]["steps"])]

    def at_rows(self, network, x, levels, tokens, guidance=1.0):
        """The velocity at noise levels of each row's own, [B, 1]."""
        v = network(x, levels[:, 0], tokens).float()
        if guidance == 1.0:
            return v
        empty = network(x, levels[:, 0], torch.full_like(tokens, digits.NULL)).float()
        return empty + guidance * (v - empty)

    def query(self, batch, step, draw, image, far):
        """Points around the student's image, as noisy as levels above the end of its step; and how much each counts for the fake score."""
        low, high = step.sigma + step.mean_v, step.sigma
        shares = [Draws(self.seed, "timesteps", sample, draw).uniform() for sample in batch["ids"].tolist()]
        levels = [low + (MARGIN + (1.0 - 2.0 * MARGIN) * share) * (high - low) for share in shares]
        kept = [(1.0 - s) / (1.0 - low) * low for s in levels]
        fresh = [math.sqrt(max(s * s - k * k, 0.0)) for s, k in zip(levels, kept)]
        column = lambda values: torch.tensor(values, dtype=torch.float32, device=self.device)[:, None]
        s = column(levels)
        xi = self.normals(self.seed, "forward_noise", batch["ids"], draw, self.values)
        noise = far * column([k / s for k, s in zip(kept, levels)]) + xi * column([f / s for f, s in zip(fresh, levels)])
        bound = math.log(self.algorithm["importance_clip"])
        importance = ((xi.square().mean(1) - noise.square().mean(1)) / 2.0).clamp(-bound, bound).exp()
        most = self.algorithm["signal_to_noise_clip"]
        ratios = column([min((1.0 - s) ** 2 / max(s * s, LEAST_SQUARE), most) for s in levels])[:, 0]
        return (1.0 - s) * image + s * noise, s, importance * ratios

    def points(self, batch, position):
        """The image that the student points at in a step, with its graph, and points around it."""
        index, draw = position
        step, x = batch["records"][index][:2]
        v = self.velocity(self.network, x, step.sigma, batch["tokens"])
        image = x - step.sigma * v
        with torch.no_grad():
            return image, self.query(batch, step, draw, image, image + v)

    def learn_fake(self, batches, positions, turn):
        """One optimizer step of the fake score."""
        most = self.config["optimizer"]["max_grad_norm"] or float("inf")
        share = 1.0 / (len(batches) * len(positions))
        for batch in batches:
            for index, draw in positions:
                with torch.no_grad():
                    image, (x, s, weights) = self.points(batch, (index, draw + len(positions) * (turn + 1)))
                v = self.at_rows(self.fake, x, s, batch["tokens"])
                loss = ((x - s * v - image).square().mean(1) * weights).mean()
                (loss * share).backward()
        torch.nn.utils.clip_grad_norm_(self.fake_parameters, most)
        self.fake_optimizer.step()
        self.fake_optimizer.zero_grad(set_to_none=False)

    def update(self, batches, advantages, iteration):
        together = self.config["optimizer"]["gradient_accumulation"] or len(batches)
        if together != len(batches):
            host_numerics.refuse("several student steps of a rollout of TDM")
        for turn in range(self.algorithm["fake_score"]["updates"]):
            self.learn_fake(batches, self.positions(iteration, 0), turn)
        self.algorithm.setdefault("inner_epochs", 1)
        return super().update(batches, advantages, iteration)

    def backward(self, batch, advantages, position, share):
        image, (x, s, _) = self.points(batch, position)
        tokens = batch["tokens"]
        guidance = self.algorithm["real_guidance_scale"] or 1.0
        with torch.no_grad():
            real = x - s * self.at_rows(self.teacher, x, s, tokens, guidance)
            fake = x - s * self.at_rows(self.fake, x, s, tokens)
            size = (image - real).abs().mean(1).clamp_min(LEAST_SIZE)
            target = image + real - fake
        square = (image - target).square()
        if self.algorithm["distance"] == "huber":
            threshold = self.algorithm["huber_threshold"]
            rows = (square / ((square + threshold**2).sqrt() + threshold)).mean(1)
        else:
            rows = square.mean(1) / 2.0
        return self.add_gradients((rows / size).mean(), share)


KINDS = {"awm": AwmPeer, "dppo": DppoPeer, "tdm": TdmPeer}


def config_of(run):
    return json.loads(Path(run).read_text())["config"]


def train(options):
    kind = KINDS.get(config_of(options.run)["algorithm"]["kind"], DigitsPeer)
    run_peer.train(options, kind)


def compare(options):
    """The twin's first iterations beside ours."""
    ours = [json.loads(line) for line in Path(options.run).with_name("metrics.jsonl").read_text().splitlines()]
    ours = {line["step"]: line for line in ours if line["kind"] == "train"}
    theirs = [json.loads(line) for line in Path(options.lines).read_text().splitlines()]
    theirs = {line["step"]: line for line in theirs if line["kind"] == "train"}
    far = {}
    for step in range(1, options.iterations + 1):
        for key in ("reward", "loss", "gradient_norm"):
            found, wanted = theirs[step][key], ours[step][key]
            # A loss of advantages that cancel is near 0, beside terms near 1.
            scale = 1.0 if key == "loss" else max(abs(wanted), 1e-12)
            far[f"{key} {step}"] = abs(found - wanted) / scale
    print(json.dumps(far))
    apart = {name: value for name, value in far.items() if not value <= TOLERANCE}
    if apart:
        raise SystemExit(f"PyTorch and flow-train disagree: {apart}")


def png(path, values):
    """A grey picture of 8 by 8 pixels from values between -1 and 1."""
    pixels = ((values.clamp(-1.0, 1.0) + 1.0) * 127.5).round().to(torch.uint8).view(digits.SIDE, digits.SIDE).tolist()

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", digits.SIDE, digits.SIDE, 8, 0, 0, 0, 0)
    rows = b"".join(b"\0" + bytes(row) for row in pixels)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def words_of(prompt):
    """Words that stand in the order of tokens when they are sorted."""
    return f"{'abc'[prompt.weight]} d{prompt.digit}"


@torch.no_grad()
def pairs(options):
    torch.set_num_threads(options.threads)
    peer = DigitsPeer(options.run, options.weights, "cpu", "f32", "eager")
    sampler = Sampler(peer, peer.model)
    scheduler = peer.config["scheduler"]
    steps = host_numerics.euler_steps(host_numerics.sigma_grid(scheduler["steps"], scheduler["shift"]))
    folder = Path(options.to)
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number, prompt in enumerate(peer.prompts):
        # Numbers that no rollout of a run has.
        ids = [2**40 + number * options.images + image for image in range(options.images)]
        prompts = [prompt] * options.images
        clean = peer.sample(sampler, ids, prompts, steps, ("initial_noise", "sde_noise"), peer.seed)["clean"]
        rewards = peer.rewards(clean, prompts)["built-in"]
        for first in range(0, options.images - 1, 2):
            better, worse = first, first + 1
            if rewards[better] < rewards[worse]:
                better, worse = worse, better
            if rewards[better] - rewards[worse] < LEAST_DIFFERENCE:
                continue
            names = [f"{number:02}-{first:03}-{name}.png" for name in ("better", "worse")]
            for name, image in zip(names, (better, worse)):
                png(folder / name, clean[image])
            lines.append({"prompt": words_of(prompt), "chosen": names[0], "rejected": names[1]})
    (folder / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(json.dumps({"pairs": len(lines), "images": len(peer.prompts) * options.images}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    trained = commands.add_parser("train")
    trained.add_argument("run")
    trained.add_argument("--weights", required=True)
    trained.add_argument("--to")
    trained.add_argument("--steps", type=int)
    trained.add_argument("--threads", type=int, default=1)
    # All that is left open of `run_peer.py`.
    trained.set_defaults(device="cpu", dtype="f32", mode="eager", tuned=False, attention="default")
    compared = commands.add_parser("compare")
    compared.add_argument("run")
    compared.add_argument("lines")
    compared.add_argument("--iterations", type=int, default=1)
    paired = commands.add_parser("pairs")
    paired.add_argument("run")
    paired.add_argument("--weights", required=True)
    paired.add_argument("--to", required=True)
    paired.add_argument("--images", type=int, default=200)
    paired.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    {"train": train, "compare": compare, "pairs": pairs}[options.command](options)


if __name__ == "__main__":
    sys.exit(main())
