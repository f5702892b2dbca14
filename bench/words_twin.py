"""The words job in PyTorch: GRPO or DiffusionNFT as `configs/words-*.toml` have them, from the same weights, with the same prompts, noise and
hyper-parameters, and the same reader by ONNX Runtime.

    words_twin.py train RUN --weights FILE --models FOLDER [--to LINES] [--steps N] [--threads N] [--device cpu|cuda]
        [--dtype f32|bf16] [--mode eager|compile|graphs]
        trains as the config in RUN says, the `run.json` that `flow-train train` wrote, and prints the lines of `run_peer.py`
    words_twin.py compare RUN LINES [--iterations N]
        compares the first evaluation and the first iterations with the `metrics.jsonl` beside RUN
    words_twin.py curve LINES… --to FOLDER
        writes the means of several seeds as `twin.jsonl`, which `words_runs.py picture --twin` draws beside ours

FOLDER is that of `flow-train fetch words`. Rewards are read behind the rollout by `--threads` threads. Legend: B images, N values of a latent.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import host_numerics
import numpy as np
import run_peer
import torch
import words_data
import words_peer
import words_read
from algorithms import lines_of, mean_curve
from models import Mmdit
from run_peer import Peer
from safetensors.torch import load_file
from torch import nn

# Of means over an iteration's pictures and of norms: a letter of one picture may be read in another way.
TOLERANCE = 1e-2


@dataclass(frozen=True)
class Prompt:
    """`tokens` is the word's number, by which its encoded caption is found."""

    word: str
    tokens: int

    @property
    def is_held_out(self):
        return self.tokens % words_data.HELD_OUT_OF == words_data.HELD_OUT_OF - 1


class Words:
    """The data set with its defaults."""

    COUNT, SEED = 4000, 0

    @classmethod
    def prompts(cls):
        return [Prompt(word, number) for number, word in enumerate(words_data.made_up(cls.COUNT, cls.SEED))]


class Captioned(nn.Module):
    """The transformer, with the encoded captions of all words."""

    def __init__(self, settings, states, pooled):
        super().__init__()
        self.model = Mmdit(settings)
        self.register_buffer("states", states, persistent=False)
        self.register_buffer("pooled", pooled, persistent=False)

    def forward(self, x, sigma, captions):
        return self.model(x, sigma, self.states[captions], self.pooled[captions])


class WordsPeer(Peer):
    data = Words
    known = Peer.known | {"data": "words", "rewards": ["ocr"], "architecture": "mmdit"}

    def __init__(self, run, weights, device, dtype, mode, tuned, models, threads):
        if device != words_peer.DEVICE:
            host_numerics.refuse(f"other device than {words_peer.DEVICE} here; CUDA_VISIBLE_DEVICES= hides the GPUs")
        self.models = models
        super().__init__(run, weights, device, dtype, mode, tuned)
        data = self.config["data"]
        if (data["words"], data["seed"]) != (Words.COUNT, Words.SEED):
            host_numerics.refuse("words but those of `data.words = 4000`, `data.seed = 0`")
        # A judge is another program's.
        self.config["eval_rewards"] = [reward for reward in self.config["eval_rewards"] if reward["kind"] == "ocr"]
        reward = self.config["rewards"][0]
        if reward.get("detect", True) or self.measure(reward) != "distance":
            host_numerics.refuse("rewards `ocr` but those of lines (`detect = false`) by distance")
        self.autoencoder = words_peer.Taesd(models / "taesd3")
        width = reward.get("min_width", words_read.MIN_WIDTH)
        self.reader = words_read.Reader(models / "ocr" / words_read.MODEL, width, threads)

    def network_of(self, settings, weights):
        files = (self.models / "minilm" / name for name in ("model.safetensors", "vocab.txt"))
        encoder = words_peer.MiniLm(words_data.of_captions(*(file.read_bytes() for file in files)))
        mmdit = settings["mmdit"]
        captioned = Captioned(mmdit, *encoder.encode([prompt.word for prompt in Words.prompts()]))
        captioned.model.load_state_dict({name: value.float() for name, value in load_file(weights).items()}, strict=True)
        return captioned.model.latent, captioned

    def measure(self, reward):
        return reward.get("mode", "distance")

    def rewards(self, clean, prompts):
        """Flow-GRPO's reward, and 1 where exactly the word is read; of latents [B, N]."""
        texts = self.reader.read(self.autoencoder.decode(clean))
        both = zip(texts, prompts, strict=True)
        scores = [(words_read.reward(text, prompt.word), text.replace(" ", "").lower() == prompt.word) for text, prompt in both]
        distance, exact = torch.tensor(np.array(scores, np.float32)).T
        return {"distance": distance, "exact": exact}


def train(options):
    kind = lambda *parts: WordsPeer(*parts, models=options.models, threads=options.threads)
    run_peer.train(options, kind)


def compare(options):
    """The twin's beginning beside ours."""
    found = {(line["kind"], line["step"]): line for line in lines_of(options.lines) if "step" in line}
    wanted = {(line["kind"], line["step"]): line for line in lines_of(options.run.with_name("metrics.jsonl"))}
    far = {}
    for name, value in found["eval", 0]["reward"].items():
        far[f"evaluation, {name}"] = abs(value - wanted["eval", 0][f"reward/{name}"])
    for step in range(1, options.iterations + 1):
        for key in ("reward", "loss", "gradient_norm"):
            theirs, ours = found["train", step][key], wanted["train", step][key]
            # A loss of advantages that cancel is near 0, beside terms near 1.
            far[f"{key} {step}"] = abs(theirs - ours) / (max(abs(ours), 1e-12) if key == "gradient_norm" else 1.0)
    print(json.dumps(far))
    apart = {name: value for name, value in far.items() if not value <= TOLERANCE}
    if apart:
        raise SystemExit(f"PyTorch and flow-train disagree: {apart}")


def curve(options):
    """Means over seeds, as `cargo xtask bench run --curve` reads them."""
    evaluations = lambda path: [line for line in lines_of(path) if line["kind"] == "eval"]
    rows = [{"curve": [line | {"reward": line["reward"]["read"]} for line in evaluations(path)]} for path in options.lines]
    # Runs that were stopped have as many evaluations as they came to.
    shortest = min(len(row["curve"]) for row in rows)
    rows = [{"curve": row["curve"][:shortest]} for row in rows]
    points = [{"kind": "eval"} | point | {"reward": {"read": point["reward"]}} for point in mean_curve(rows)]
    options.to.mkdir(parents=True, exist_ok=True)
    (options.to / "twin.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    trained = commands.add_parser("train")
    trained.add_argument("run", type=Path)
    trained.add_argument("--weights", required=True)
    trained.add_argument("--models", type=Path, required=True)
    trained.add_argument("--to")
    trained.add_argument("--steps", type=int)
    trained.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    trained.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    trained.add_argument("--mode", choices=run_peer.MODES, default="eager")
    trained.add_argument("--threads", type=int, default=2)
    trained.set_defaults(tuned=False, attention="default")
    compared = commands.add_parser("compare")
    compared.add_argument("run", type=Path)
    compared.add_argument("lines", type=Path)
    compared.add_argument("--iterations", type=int, default=1)
    drawn = commands.add_parser("curve")
    drawn.add_argument("lines", nargs="+", type=Path)
    drawn.add_argument("--to", type=Path, required=True)
    options = parser.parse_args()
    {"train": train, "compare": compare, "curve": curve}[options.command](options)


if __name__ == "__main__":
    sys.exit(main())
