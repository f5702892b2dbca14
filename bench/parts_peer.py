"""The parts of a pipeline beside the transformer in PyTorch, with random weights at their published sizes.

    parts_peer.py decode [--batch B] [--side PIXELS]   the decoder of `AutoencoderKL` (Stable Diffusion 3, FLUX.1)
    parts_peer.py t5 [--batch B] [--tokens S]          the encoder of T5-XXL v1.1, of `transformers`
    parts_peer.py shards FOLDER [--shards N]           writes FLUX.1's transformer in bf16, as diffusers does: 24 GB
    parts_peer.py load FOLDER                          its weights from the system's cache to the device

`load` prints a line for each way: `direct`, safetensors' own reading to the device, and `mapped`, `.to("cuda")` of mapped tensors;
`cargo run --release -p flow-trainer --example workload_speed -- time flux-1024 FOLDER load` reads the same. Each other prints a line of JSON for every mode: `eager`; `compile`, `torch.compile`; `tuned`, `max-autotune`, which replays CUDA
graphs. Convolutions are channels last, and cuDNN measures its algorithms. `cargo run --release -p flow-autoencoder --example
decode_speed` and `-p flow-text-encoder --example encode_speed` do the same work.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import interpolate, scaled_dot_product_attention, silu

WIDTHS = (512, 512, 256, 128)
COMPILED = {"compile": None, "tuned": "max-autotune"}


class Resnet(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, inputs, eps=1e-6), nn.GroupNorm(32, outputs, eps=1e-6)
        self.conv1, self.conv2 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x):
        h = self.conv1(silu(self.norm1(x)))
        return self.shortcut(x) + self.conv2(silu(self.norm2(h)))


class Attention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(32, channels, eps=1e-6)
        self.q, self.k, self.v, self.out = (nn.Linear(channels, channels) for _ in range(4))

    def forward(self, x):
        batch, channels, height, width = x.shape
        h = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = (linear(h).unsqueeze(1) for linear in (self.q, self.k, self.v))
        h = self.out(scaled_dot_product_attention(q, k, v).squeeze(1))
        return x + h.transpose(1, 2).reshape(batch, channels, height, width)


class Upsample(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return self.conv(interpolate(x, scale_factor=2.0, mode="nearest"))


class Decoder(nn.Sequential):
    def __init__(self):
        width = WIDTHS[0]
        parts = [nn.Conv2d(16, width, 3, padding=1), Resnet(width, width), Attention(width), Resnet(width, width)]
        for index, outputs in enumerate(WIDTHS):
            for _ in range(3):
                parts.append(Resnet(width, outputs))
                width = outputs
            if index + 1 < len(WIDTHS):
                parts.append(Upsample(width))
        parts += [nn.GroupNorm(32, width, eps=1e-6), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1)]
        super().__init__(*parts)


def decode(options):
    torch.manual_seed(1)
    model = Decoder().cuda().bfloat16().to(memory_format=torch.channels_last)
    side = options.side // 8
    x = torch.randn(options.batch, 16, side, side, device="cuda", dtype=torch.bfloat16)
    return model, (x.to(memory_format=torch.channels_last),)


def t5(options):
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=32128, d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64, feed_forward_proj="gated-gelu"
    )
    with torch.device("cuda"):
        model = T5EncoderModel(config).bfloat16()
    ids = torch.randint(0, 32100, (options.batch, options.tokens), device="cuda")
    return model.eval(), (ids,)


def write_shards(options):
    """Files of much the same size and the index that belongs to them."""
    from two_streams import Flux, flux1_dev

    with torch.device("meta"):
        shapes = {name: value.shape for name, value in Flux(flux1_dev(128)).state_dict().items()}
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    total, shards, size = sum(shape.numel() for shape in shapes.values()), [{}], 0
    for name, shape in shapes.items():
        if size >= total / options.shards * len(shards):
            shards.append({})
        shards[-1][name] = shape
        size += shape.numel()
    placed = {}
    for index, names in enumerate(shards):
        file = f"diffusion_pytorch_model-{index + 1:05}-of-{len(shards):05}.safetensors"
        tensors = {name: (torch.randn(shape, device="cuda") * 0.02).bfloat16().cpu() for name, shape in names.items()}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        placed |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": 2 * total}, "weight_map": placed}
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    print(json.dumps({"part": "shards", "files": len(shards), "bytes": 2 * total}))


def load(options):
    files = sorted(Path(options.folder).glob("*.safetensors"))
    if not files:
        raise SystemExit(f"no *.safetensors in {options.folder}; `parts_peer.py shards {options.folder}` writes some")
    size = sum(file.stat().st_size for file in files)
    ways = {
        "direct": lambda file: load_file(file, device="cuda"),
        "mapped": lambda file: {name: value.to("cuda") for name, value in load_file(file).items()},
    }
    torch.zeros(1, device="cuda")
    for file in files:
        # Into the system's cache.
        with file.open("rb", buffering=0) as opened:
            while opened.read(1 << 26):
                pass
    for name, way in ways.items():
        times = []
        for _ in range(options.loads):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            start = time.perf_counter()
            loaded = [way(file) for file in files]
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
            del loaded
        line = {"part": "load", "mode": name, "bytes": size, "median_ms": 1e3 * statistics.median(times)}
        line |= {"least_ms": 1e3 * min(times), "gb_per_s": size / min(times) / 1e9}
        print(json.dumps(line | about()), flush=True)


def about():
    peak = round(torch.cuda.max_memory_allocated() / 2**30, 3)
    return {"peak_gib": peak, "torch": torch.__version__, "device": torch.cuda.get_device_name()}


def milliseconds(call, repeats):
    for _ in range(5):
        call()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return times


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("decode", "t5", "shards", "load"))
    parser.add_argument("folder", nargs="?", help="of shards and load")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--modes", nargs="+", default=["eager", "compile", "tuned"])
    parser.add_argument("--shards", type=int, default=3)
    parser.add_argument("--loads", type=int, default=3)
    options = parser.parse_args()
    if options.part in ("shards", "load"):
        if options.folder is None:
            parser.error(f"{options.part} needs a FOLDER")
        {"shards": write_shards, "load": load}[options.part](options)
        return
    torch.backends.cudnn.benchmark = True
    model, inputs = {"decode": decode, "t5": t5}[options.part](options)
    for mode in options.modes:
        torch.cuda.reset_peak_memory_stats()
        called = torch.compile(model, mode=COMPILED[mode]) if mode in COMPILED else model
        times = milliseconds(lambda: called(*inputs), options.repeats)
        print(
            json.dumps(
                {
                    "part": options.part,
                    "mode": mode,
                    "batch": options.batch,
                    "size": options.side if options.part == "decode" else options.tokens,
                    "median_ms": round(statistics.median(times), 3),
                    "least_ms": round(min(times), 3),
                }
                | about()
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
