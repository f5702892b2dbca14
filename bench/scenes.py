"""The prompts of the data set `shapes` and the reward `shapes-rules`, in PyTorch.

Ports of `flow-data/src/shapes/prompts.rs` and `flow-rewards/src/shapes`: the same ids, tokens and held-out combinations, the
same rules on images. All images of a batch are looked at at once, so that on a GPU no image waits for the host.

Legend: B images, S side in pixels, M objects of all images together.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

COLOURS = ("red", "green", "blue", "yellow", "magenta", "cyan")
SHAPES = ("circle", "square", "triangle")
POSITIONS = ("left", "right", "top", "bottom")
# The colour that is held out, by count and shape.
HELD_OUT = (("red", "green", "blue"), ("yellow", "magenta", "cyan"), ("blue", "yellow", "red"))
# Token ids: pad, null, then the words.
FIRST_WORD = 2
BACKGROUND, FULL = -0.8, 1.6
LEAST_STRENGTH, LEAST_AREA, MOST_AREA = 0.5, 0.01, 0.3
LEAST_COSINE, LEAST_OVERLAP, LEAST_OFFSET = 0.9, 0.7, 0.08
SUBSAMPLES = 4
# Sums over the pixels of this many objects at a time: the finer grid of a template takes memory.
OBJECTS_AT_ONCE = 256
# From the background to each colour.
DIRECTIONS = [[FULL * on for on in channels] for channels in
              ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1))]  # fmt: skip


@dataclass(frozen=True)
class Prompt:
    count: int
    colour: int
    shape: int
    position: int | None

    @property
    def tokens(self):
        colours, shapes = FIRST_WORD + 3, FIRST_WORD + 3 + len(COLOURS)
        place = 0 if self.position is None else shapes + len(SHAPES) + self.position
        return [FIRST_WORD + self.count - 1, colours + self.colour, shapes + self.shape, place]

    @property
    def is_held_out(self):
        return HELD_OUT[self.count - 1][self.shape] == COLOURS[self.colour]


def prompts():
    """Every prompt in the order of the ids."""
    places = [(count, None) for count in (1, 2, 3)] + [(1, position) for position in range(len(POSITIONS))]
    kinds = [(colour, shape) for colour in range(len(COLOURS)) for shape in range(len(SHAPES))]
    return [Prompt(count, *kind, position) for count, position in places for kind in kinds]


def wanted(prompts, device):
    """Count, colour, shape and position (-1 without one) of prompts, [B, 4]."""
    rows = [[p.count, p.colour, p.shape, -1 if p.position is None else p.position] for p in prompts]
    return torch.tensor(rows, device=device)


def components(mask):
    """A label per pixel [B, S, S]: the number of the first pixel of its 4-connected component; S² where there is none."""
    batch, side, _ = mask.shape
    none = float(side * side)
    labels = torch.arange(side * side, device=mask.device).view(1, side, side).float().expand(batch, -1, -1)
    labels = torch.where(mask, labels, none)
    while True:
        before = labels
        # A component of the data set is at most some thirty pixels across.
        for _ in range(32):
            near = F.pad(labels, (1, 1, 1, 1), value=none)
            least = torch.minimum(near[:, :-2, 1:-1], near[:, 2:, 1:-1])
            least = torch.minimum(least, torch.minimum(near[:, 1:-1, :-2], near[:, 1:-1, 2:]))
            labels = torch.where(mask, torch.minimum(labels, least), none)
        if torch.equal(before, labels):
            return labels.long()


def coverages(shape, x, y, radius, side):
    """The share of each pixel [M, S, S] that a painted shape covers, from 4 x 4 samples; `x`, `y` and `radius` are [M]."""
    at = (torch.arange(side * SUBSAMPLES, device=x.device) + 0.5) / SUBSAMPLES
    dx, dy = at[None, None, :] - x[:, None, None], at[None, :, None] - y[:, None, None]
    r = radius[:, None, None]
    if shape == "circle":
        inside = dx * dx + dy * dy <= r * r
    elif shape == "square":
        half = r * (math.sqrt(math.pi) / 2.0)
        inside = (dx.abs() <= half) & (dy.abs() <= half)
    else:
        edge = r * math.sqrt(4.0 * math.pi / math.sqrt(3.0))
        height = edge * (math.sqrt(3.0) / 2.0)
        from_tip = dy + height * 2.0 / 3.0
        inside = (dy <= height / 3.0) & (from_tip >= 0.0) & (dx.abs() <= edge / 2.0 * from_tip / height)
    return inside.float().view(-1, side, SUBSAMPLES, side, SUBSAMPLES).mean((2, 4))


def describe(offsets, is_object, pixels):
    """Colour, shape (-1 for none), x, y and area [M] of objects, whose pixels are [M, S, S]; offsets are [M, 3, S, S]."""
    side = pixels.shape[-1]
    directions = torch.tensor(DIRECTIONS, device=pixels.device)
    sums = (offsets * pixels[:, None]).sum((2, 3))
    cosines = sums @ directions.T / (sums.norm(dim=1)[:, None] * directions.norm(dim=1))
    best, colour = cosines.max(1)
    has_colour = best > LEAST_COSINE
    # With the pixels of the anti-aliased edge, which are below the threshold.
    around = F.max_pool2d(pixels[:, None].float(), 3, 1, 1)[:, 0] > 0
    with_edge = pixels | (around & ~is_object)
    direction = directions[colour]
    along = torch.einsum("mchw,mc->mhw", offsets, direction) / direction.square().sum(1)[:, None, None]
    strength = offsets.amax(1).clamp_min(0.0) / FULL
    share = torch.where(has_colour[:, None, None], along, strength).clamp(0.0, 1.0) * with_edge
    area = share.sum((1, 2))
    middle = torch.arange(side, device=pixels.device) + 0.5
    x, y = (share.sum(1) * middle).sum(1) / area, (share.sum(2) * middle).sum(1) / area
    radius = (area / math.pi).sqrt()
    overlaps = []
    for shape in SHAPES:
        template = coverages(shape, x, y, radius, side)
        shared = torch.minimum(share, template).sum((1, 2))
        overlaps.append(shared / (area + template.sum((1, 2)) - shared))
    overlap, shape = torch.stack(overlaps, 1).max(1)
    is_named = pixels.sum((1, 2)) <= MOST_AREA * side * side
    colour = torch.where(has_colour & is_named, colour, -1)
    shape = torch.where((overlap >= LEAST_OVERLAP) & is_named, shape, -1)
    return colour, shape, x / side, y / side, area


@torch.no_grad()
def rules(images, wanted):
    """How right images [B, 3, S, S] are: the mean of the parts, and 1 where all are right; both [B]. `wanted` is [B, 4]."""
    batch, _, side, _ = images.shape
    offsets = images.clamp(-1.0, 1.0) - BACKGROUND
    is_object = offsets.amax(1) / FULL > LEAST_STRENGTH
    labels = components(is_object)
    sizes = torch.zeros(batch, side * side + 1, device=images.device)
    sizes.scatter_add_(1, labels.flatten(1), torch.ones_like(labels, dtype=sizes.dtype).flatten(1))
    image, label = (sizes[:, :-1] >= LEAST_AREA * side * side).nonzero(as_tuple=True)
    found = []
    for image_part, label_part in zip(image.split(OBJECTS_AT_ONCE), label.split(OBJECTS_AT_ONCE)):
        pixels = labels[image_part] == label_part[:, None, None]
        found.append(describe(offsets[image_part], is_object[image_part], pixels))
    colour, shape, x, y, area = (torch.cat(parts) for parts in zip(*found)) if found else [images.new_zeros(0)] * 5
    count = lambda which: torch.zeros(batch, device=images.device).index_add_(0, image, which.float())
    objects = count(torch.ones_like(area))
    share = lambda which: count(which) / objects.clamp_min(1.0)
    asked_count, asked_colour, asked_shape, asked_position = wanted.T
    nameless = count((colour < 0) & (shape < 0))
    counted = ((objects == asked_count) & (nameless == 0)).float()
    parts = [counted, share(colour == asked_colour[image]), share(shape == asked_shape[image])]
    # The largest object of each image.
    largest = torch.full((batch,), -1.0, device=images.device).scatter_reduce_(0, image, area, "amax")
    dx, dy = x - 0.5, y - 0.5
    place = asked_position[image].clamp_min(0)
    along = torch.stack([-dx, dx, -dy, dy], 0).gather(0, place[None])[0]
    across = torch.where(place < 2, dy, dx).abs()
    is_there = (along >= LEAST_OFFSET) & (along > across) & (area == largest[image])
    placed = (count(is_there) > 0).float()
    has_position = asked_position >= 0
    total = sum(parts) + placed * has_position
    mean = total / (3.0 + has_position.float())
    everything = torch.stack(parts).eq(1.0).all(0) & (placed.eq(1.0) | ~has_position)
    return {"mean": mean, "all": everything.float()}
