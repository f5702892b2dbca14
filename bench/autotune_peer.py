"""Whether `max-autotune` of `torch.compile` finds faster products than cuBLAS's, at the sizes of published models: what mode `tuned` of `step_peer.py`
can gain. Compiling a whole model in that mode measures some twenty kernels for each of its products, which takes minutes; here it is done for the
largest ones alone.

    autotune_peer.py [--limit SECONDS] [--repeats N] [NAME …]     a line of JSON for each product

`forward` is `x Wᵀ`, `data-gradient` `dY W`, in bf16. Times are medians of CUDA events over several calls at once, so that the host has no share in them.
"""

import argparse
import json
import statistics
import time

import torch
from torch.nn.functional import linear

# Rows, output and input channels. Rows are tokens of all pictures of a call.
PRODUCTS = {
    "flux-single-up": (6144, 12288, 3072),
    "flux-single-out": (6144, 3072, 15360),
    "flux-projection": (6144, 3072, 3072),
    "flux-double-up": (4096, 12288, 3072),
    "flux-double-down": (4096, 3072, 12288),
    "wan-projection": (14040, 1536, 1536),
    "wan-up": (14040, 8960, 1536),
    "wan-down": (14040, 1536, 8960),
    "sd35-up": (8192, 6144, 1536),
    "sd35-down": (8192, 1536, 6144),
    "t5-up": (4096, 10240, 4096),
    "t5-down": (4096, 4096, 10240),
}
PARTS = {"forward": linear, "data-gradient": torch.matmul}
AT_ONCE, WARM_UP_S = 20, 0.3


def median_us(call, repeats):
    call()
    begin = time.monotonic()
    # A GPU that waited has another clock than one that multiplied.
    while time.monotonic() - begin < WARM_UP_S:
        call()
        torch.cuda.synchronize()
    samples = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(AT_ONCE):
            call()
        end.record()
        end.synchronize()
        samples.append(1e3 * start.elapsed_time(end) / AT_ONCE)
    return round(statistics.median(samples), 1)


def measured(name, part, repeats):
    rows, outputs, inputs = PRODUCTS[name]
    made = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
    left, weight = made(rows, inputs if part == "forward" else outputs), made(outputs, inputs)
    tuned = torch.compile(PARTS[part], mode="max-autotune-no-cudagraphs")
    cublas_us = median_us(lambda: PARTS[part](left, weight), repeats)
    tuned_us = median_us(lambda: tuned(left, weight), repeats)
    return {"product": name, "part": part, "m_n_k": [rows, outputs, inputs], "cublas_us": cublas_us, "tuned_us": tuned_us}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PRODUCTS))
    parser.add_argument("--limit", type=float, default=600)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(PRODUCTS))
    if unknown:
        parser.error(f"no product is called {unknown[0]}; there are {', '.join(PRODUCTS)}")
    torch.manual_seed(0)
    ends = time.monotonic() + options.limit
    for part in PARTS:
        for name in options.names or PRODUCTS:
            if time.monotonic() > ends:
                raise SystemExit(f"ended at {part} of {name}: {options.limit:.0f} s are over")
            line = measured(name, part, options.repeats) | {"torch": torch.__version__, "device": torch.cuda.get_device_name(0)}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
