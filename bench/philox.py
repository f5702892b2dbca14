"""The random numbers of flow-train in PyTorch: Philox4x32-10, keyed by seed and purpose, addressed by sample and step.

A port of `crates/flow-rng`: the same uniform bits, and the same normal values up to the last bit of PyTorch's f64 logarithm
and sine, which rounding to f32 nearly always hides. `run_peer.py check` compares both.
"""

import functools
import math

import torch

# `flow_rng::Purpose`.
PURPOSES = {
    "initial_noise": 1,
    "sde_noise": 2,
    "prompts": 3,
    "window": 4,
    "evaluation": 7,
    "forward_noise": 9,
    "timesteps": 10,
    "data_split": 20,
    "scene": 21,
}
MASK = 0xFFFFFFFF
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10


def rounds(counter, key, multipliers=MULTIPLIERS):
    """Ten rounds on four words and two; Python's integers or tensors of int64, whose products wrap around."""
    a, b, c, d = counter
    for index in range(ROUNDS):
        if index > 0:
            key = [(word + step) & MASK for word, step in zip(key, KEY_STEPS)]
        left, right = a * multipliers[0], c * multipliers[1]
        # The mask after the shift makes it a logical one.
        a, b, c, d = (
            ((right >> 32) & MASK) ^ b ^ key[0],
            right & MASK,
            ((left >> 32) & MASK) ^ d ^ key[1],
            left & MASK,
        )
    return a, b, c, d


def words_of(seed):
    return [seed & MASK, seed >> 32]


class Draws:
    """The numbers at one address, one after the other."""

    def __init__(self, seed, purpose, sample, step):
        self.key = words_of(seed)
        self.address = [(PURPOSES[purpose] << 24) | step, sample & MASK, sample >> 32]
        self.block, self.waiting = 0, []

    def next_u32(self):
        if not self.waiting:
            self.waiting = list(rounds([self.block, *self.address], self.key))
            self.block += 1
        return self.waiting.pop(0)

    def next_u64(self):
        low = self.next_u32()
        return low | self.next_u32() << 32

    def uniform(self):
        return (self.next_u64() >> 11) / 2.0**53

    def below(self, bound):
        """Uniform in `0..bound` by rejection."""
        most = 2**64 - 1
        zone = most - most % bound
        while True:
            bits = self.next_u64()
            if bits < zone:
                return bits % bound

    def permutation(self, n):
        order = list(range(n))
        for last in range(n - 1, 0, -1):
            chosen = self.below(last + 1)
            order[last], order[chosen] = order[chosen], order[last]
        return order


def from_blocks(count, key, samples, constants):
    """Four standard normal values of each of `count` blocks, [B, 4 count] in f32. `constants`: the multipliers and the address,
    in int64 on the device, so that what is compiled serves every step; and because Triton counts blocks in int32, which has
    no room for the multipliers."""
    blocks = torch.arange(count, device=samples.device)[None]
    low, high = (samples & MASK)[:, None], (samples >> 32)[:, None]
    left, right, address = constants.unbind()
    words = rounds([blocks, address.expand_as(blocks), low, high], key, (left, right))
    pairs = []
    for first, second in (words[:2], words[2:]):
        # In (0, 1], so that the logarithm is finite.
        radius = (-2.0 * ((first.double() + 1.0) / 2.0**32).log()).sqrt()
        angle = math.tau * second.double() / 2.0**32
        pairs += [radius * angle.cos(), radius * angle.sin()]
    return torch.stack(pairs, dim=2).float().flatten(1)


def normals(seed, purpose, samples, step, values, draw=from_blocks):
    """Standard normal values [B, N] in f32 of the samples [B], whose ids are int64 on some device. `draw`: what computes them,
    for instance `from_blocks` compiled."""
    if values % 4:
        raise SystemExit(f"latents have {values} values; the peer draws multiples of 4")
    return draw(values // 4, words_of(seed), samples, constants_of(purpose, step, samples.device))


@functools.cache
def constants_of(purpose, step, device):
    """Made once, since a CUDA graph that is being recorded takes nothing from the host."""
    return torch.tensor([*MULTIPLIERS, (PURPOSES[purpose] << 24) | step], device=device)
