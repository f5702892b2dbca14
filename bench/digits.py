"""The prompts of the data set `digits` and the reward `digit-classifier`, in PyTorch.

Ports of `flow-data/src/digits.rs` and `flow-rewards/src/classifier`: the same ids, tokens and held-out prompts, and the same small
network with the weights that come with flow-rewards.

Legend: B images, N values of one latent (64), C channels.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

SIDE = 8
WEIGHTS = ("thin", "medium", "bold")
# The weight of each digit that reinforcement learning does not see.
HELD_OUT = (0, 1, 2, 0, 1, 2, 0, 1, 2, 1)
# Token ids: pad, null, then the words: weights, then numerals.
NULL, FIRST_WORD = 1, 2
CLASSIFIERS = {"built-in": "digits-classifier", "judge": "digits-judge"}
ASSETS = Path(__file__).resolve().parent.parent / "crates/flow-rewards/assets"


@dataclass(frozen=True)
class Prompt:
    digit: int
    weight: int

    @property
    def text(self):
        return f"{WEIGHTS[self.weight]} {self.digit}"

    @property
    def tokens(self):
        return [FIRST_WORD + self.weight, FIRST_WORD + len(WEIGHTS) + self.digit]

    @property
    def is_held_out(self):
        return HELD_OUT[self.digit] == self.weight


def prompts():
    """Every prompt in the order of the ids."""
    return [Prompt(digit, weight) for digit in range(10) for weight in range(len(WEIGHTS))]


class Classifier:
    """How surely images read as digits: two convolutions and a linear layer."""

    def __init__(self, name, device="cpu"):
        weights = load_file(ASSETS / f"{CLASSIFIERS[name]}.safetensors")
        # Kernels are [3, 3, in, out]; the linear layer takes rows, columns, channels in this order.
        self.weights = {key: value.float().to(device) for key, value in weights.items()}
        for layer in ("conv1", "conv2"):
            self.weights[f"{layer}.weight"] = self.weights[f"{layer}.weight"].permute(3, 2, 0, 1).contiguous()

    @torch.no_grad()
    def probabilities(self, clean):
        """Of the ten digits, [B, 10], of images [B, N]."""
        of = self.weights
        x = clean.clamp(-1.0, 1.0).view(-1, 1, SIDE, SIDE)
        x = F.relu(F.conv2d(x, of["conv1.weight"], of["conv1.bias"], padding=1))
        x = F.relu(F.conv2d(x, of["conv2.weight"], of["conv2.bias"], stride=2, padding=1))
        return (x.permute(0, 2, 3, 1).flatten(1) @ of["linear.weight"] + of["linear.bias"]).softmax(1)

    def rewards(self, clean, prompts):
        """The probability of the digit that each prompt asks for, [B]."""
        digits = torch.tensor([prompt.digit for prompt in prompts], device=clean.device)
        return self.probabilities(clean).gather(1, digits[:, None])[:, 0]
