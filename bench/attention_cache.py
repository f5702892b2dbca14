"""In which order should blocks of attention start? A model of an H100, for `crates/flow-attention-cube/src/launch_order.rs`.

    attention_cache.py [--cache-mb 28]

prints, for S 8192 with 2 samples of 16 heads, what blocks read from memory and how much longer their grid takes than its work, for orders
in which 1 to 8 heads take turns and for the shares of the work that come late, of all heads.

The cache is fully associative and evicts what was used longest ago. With 28 MB it gives what `ncu` counted on 2026-11-25 to 5 %: forward,
D128, eight heads taking turns, packed 295 MB (302 counted), window 243 (248), causal 365 (354); without a mask 201 (202). A tile takes one
step, a block some besides, whether its tiles come from the cache or not: so the two numbers are not times, but what times hang on.
"""

import argparse
import heapq
from collections import OrderedDict
from dataclasses import dataclass

ROWS, BATCH, HEADS = 8192, 2, 16
SEQUENCES = [0, 1000, 3000, 3500, 6000, 8192]
WINDOW = 1024
MULTIPROCESSORS = 132


@dataclass(frozen=True)
class Kernel:
    """Rows that stay and rows that pass; operands that stay, and that are written; blocks on a multiprocessor; steps of a block besides."""

    name: str
    rows: int
    columns: int
    stay: int
    written: int
    blocks: int
    steps: int


def kernels(head_dim):
    rows = 64 if head_dim == 64 else 128
    each = (3, 2, 3) if head_dim == 64 else (1, 1, 1)
    return [
        Kernel("forward", rows, 128, 1, 1, each[0], 4),
        Kernel("keys", rows, 64, 2, 2, each[1], 6),
        Kernel("queries", rows, 64, 3, 1, each[2], 6),
    ]


def sees(query, key):
    """Whether a block of 128 queries sees one of 128 keys, as in `gpu_speed`'s case of 30 % of blocks."""
    return (query * 64 + key) * 7919 % 10 < 3


def passing(mask, kernel, block):
    """Numbers of the tiles that pass a block."""
    first, behind = block * kernel.rows, (block + 1) * kernel.rows
    columns = kernel.columns
    if mask == "blocks":
        stays = first // 128
        passes = [tile * columns // 128 for tile in range(ROWS // columns)]
        if kernel.name == "keys":
            return [tile for tile, query in enumerate(passes) if sees(query, stays)]
        return [tile for tile, key in enumerate(passes) if sees(stays, key)]
    if mask == "causal":
        ends = (first, ROWS) if kernel.name == "keys" else (0, behind)
    elif mask == "window":
        ends = (max(0, first - WINDOW), min(ROWS, behind + 1 + WINDOW))
    else:
        of = [(a, b) for a, b in zip(SEQUENCES, SEQUENCES[1:]) if a < behind and first < b]
        ends = (of[0][0], of[-1][1])
    return list(range(ends[0] // columns, -(-ends[1] // columns)))


def order(lists, together, late_share):
    """Blocks of (sample, head, rows) as `GridHeads::order` has them, but for its limit on how long what comes late may be."""
    blocks = sorted(range(len(lists)), key=lambda block: -len(lists[block]))
    late, tiles = [], 0
    for block in reversed(blocks):
        tiles += len(lists[block])
        if tiles > late_share * sum(map(len, lists)):
            break
        late.insert(0, block)
    early = blocks[: len(blocks) - len(late)]
    for sample in range(BATCH):
        for first in range(0, HEADS, together):
            for block in early:
                yield from ((sample, head, block) for head in range(first, min(HEADS, first + together)))
        for block in late:
            yield from ((sample, head, block) for head in range(HEADS))


class Cache:
    def __init__(self, room):
        self.room, self.used, self.read, self.held = room, 0, 0, OrderedDict()

    def touch(self, what, size, from_memory=True):
        if what in self.held:
            self.held.move_to_end(what)
            return
        self.read += size if from_memory else 0
        self.held[what] = size
        self.used += size
        while self.used > self.room:
            self.used -= self.held.popitem(last=False)[1]


def run(mask, kernel, head_dim, together, late_share, room):
    """Megabytes from memory, and the grid's steps over those of its work."""
    lists = [passing(mask, kernel, block) for block in range(ROWS // kernel.rows)]
    row_bytes, slots = 2 * head_dim, MULTIPROCESSORS * kernel.blocks
    cache, turns, end = Cache(room), order(lists, together, late_share), 0.0
    heap = [(0.0, slot, None, 0) for slot in range(slots)]
    while heap:
        time, slot, block, at = heapq.heappop(heap)
        if block is None:
            block = next(turns, None)
            if block is None:
                end = max(end, time)
                continue
            for operand in range(kernel.stay):
                cache.touch(("stays", operand, block), kernel.rows * row_bytes)
            heapq.heappush(heap, (time + kernel.steps / 2, slot, block, 0))
            continue
        sample, head, rows = block
        if at < len(lists[rows]):
            for operand in range(2):
                cache.touch((operand, sample, head, lists[rows][at]), kernel.columns * row_bytes)
            heapq.heappush(heap, (time + 1, slot, block, at + 1))
        else:
            for operand in range(kernel.written):
                cache.touch(("written", operand, block), kernel.rows * row_bytes, from_memory=False)
            heapq.heappush(heap, (time + kernel.steps / 2, slot, None, 0))
    work = sum(len(tiles) + kernel.steps for tiles in lists) * BATCH * HEADS / slots
    return cache.read / 1e6, end / work


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--cache-mb", type=float, default=28.0)
    room = options.parse_args().cache_mb * 1e6
    for head_dim in (128, 64):
        for kernel in kernels(head_dim):
            for mask in ("packed", "window", "causal", "blocks"):
                print(f"D{head_dim} {kernel.name} {mask}")
                for together in (1, 2, 4, 8):
                    found = [run(mask, kernel, head_dim, together, late, room) for late in (0, 1 / 16, 1 / 8, 1 / 4)]
                    print(f"  {together} heads  " + "  ".join(f"{read:4.0f} MB {long:.3f}" for read, long in found), flush=True)


if __name__ == "__main__":
    main()
