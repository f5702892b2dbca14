"""The parts of a pipeline beside the transformer in PyTorch, with random weights at their published sizes.

    parts_peer.py decode [--batch B] [--side PIXELS]   the decoder of `AutoencoderKL` (Stable Diffusion 3, FLUX.1)
    parts_peer.py t5 [--batch B] [--tokens S]          the encoder of T5-XXL v1.1
    parts_peer.py check-t5                             that it is the encoder of `transformers`, in f32 on the CPU, small
    parts_peer.py shards FOLDER [--shards N]           writes FLUX.1's transformer in bf16, as diffusers does: 24 GB; with --model
                                                       sd35-medium that of Stable Diffusion 3.5 medium, 5 GB; with dit-xl the model
                                                       of `dit_peer.py`, 1.3 GB, of --layers N with fewer blocks
    parts_peer.py load FOLDER                          its weights from the system's cache to the device

`load` prints a line for each way: `direct`, safetensors' own reading to the device, and `mapped`, `.to("cuda")` of mapped tensors;
`cargo run --release -p flow-trainer --example workload_speed -- time flux-1024 FOLDER load` reads the same. Each other prints a line of JSON for every mode: `eager`; `compile`, `torch.compile`; `tuned`, `max-autotune`, which replays CUDA
graphs. Convolutions are channels last, and cuDNN measures its algorithms. T5's attention is PyTorch's fused one, which the encoder of
`transformers` has as an option (`sdpa`); the bias of relative positions is made once for all layers. `cargo run --release -p flow-autoencoder --example
decode_speed` and `-p flow-text-encoder --example encode_speed` do the same work.
"""

import argparse
import json
import math
import statistics
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import gelu, interpolate, scaled_dot_product_attention, silu

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


class T5Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * (x * scale).to(self.weight.dtype)


class T5Block(nn.Module):
    """Names of the parts are not those of `transformers`; their order is."""

    def __init__(self, width, inner, heads, channels):
        super().__init__()
        self.channels = channels
        linear = lambda inputs, outputs: nn.Linear(inputs, outputs, bias=False)
        self.q, self.k, self.v = (linear(width, heads * channels) for _ in range(3))
        self.o, self.norm = linear(heads * channels, width), T5Norm(width)
        self.gate, self.up, self.down = linear(width, inner), linear(width, inner), linear(inner, width)
        self.norm2 = T5Norm(width)

    def forward(self, x, bias):
        h = self.norm(x)
        split = lambda y: y.unflatten(2, (-1, self.channels)).transpose(1, 2)
        attended = scaled_dot_product_attention(split(self.q(h)), split(self.k(h)), split(self.v(h)), bias, scale=1.0)
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(gelu(self.gate(h), approximate="tanh") * self.up(h))


class T5Encoder(nn.Module):
    def __init__(self, vocabulary=32128, width=4096, inner=10240, heads=64, channels=64, layers=24):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(32, heads)
        self.blocks = nn.ModuleList(T5Block(width, inner, heads, channels) for _ in range(layers))
        self.norm = T5Norm(width)

    def forward(self, ids):
        x, at = self.table(ids), torch.arange(ids.shape[1], device=ids.device)
        bias = self.positions(t5_buckets(at[None, :] - at[:, None])).permute(2, 0, 1)[None].contiguous()
        for block in self.blocks:
            x = block(x, bias)
        return self.norm(x)


def t5_buckets(distance, half=16, most=128):
    """`T5Attention._relative_position_bucket`, bidirectional, of 32 buckets."""
    exact, away = half // 2, distance.abs()
    beyond = exact + (torch.log(away.float() / exact) / math.log(most / exact) * (half - exact)).long()
    return (distance > 0).long() * half + torch.where(away < exact, away, beyond.clamp(max=half - 1))


def t5(options):
    torch.manual_seed(1)
    with torch.device("cuda"):
        model = T5Encoder().bfloat16()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0.0, 0.02)
    ids = torch.randint(0, 32100, (options.batch, options.tokens), device="cuda")
    return model.eval(), (ids,)


def check_t5():
    from transformers import T5Config, T5EncoderModel

    sizes = dict(vocab_size=99, d_model=24, d_kv=8, d_ff=40, num_layers=2, num_heads=3)
    theirs = T5EncoderModel(T5Config(**sizes, feed_forward_proj="gated-gelu")).eval()
    ours = T5Encoder(99, 24, 40, 3, 8, 2)
    for parameter in theirs.parameters():
        parameter.normal_(0.0, 0.3)
    given = theirs.state_dict()
    block = lambda layer, part: f"encoder.block.{layer}.layer.{part}.weight"
    parts = {name: f"0.SelfAttention.{name}" for name in "qkvo"} | {"norm": "0.layer_norm", "norm2": "1.layer_norm"}
    parts |= {"gate": "1.DenseReluDense.wi_0", "up": "1.DenseReluDense.wi_1", "down": "1.DenseReluDense.wo"}
    taken = {f"blocks.{layer}.{name}.weight": given[block(layer, part)] for layer in range(2) for name, part in parts.items()}
    taken |= {"table.weight": given["shared.weight"], "norm.weight": given["encoder.final_layer_norm.weight"]}
    taken["positions.weight"] = given[block(0, "0.SelfAttention.relative_attention_bias")]
    ours.load_state_dict(taken)
    ids = torch.randint(0, 99, (2, 150))
    found, wanted = ours(ids), theirs(ids).last_hidden_state
    apart = ((found - wanted).norm() / wanted.norm()).item()
    print(json.dumps({"part": "check-t5", "relative_l2": apart}))
    if not apart <= 1e-5:
        raise SystemExit("this encoder is not that of transformers")


def published(options):
    """A model without values. `--in-channels` is for latents of another kind, as those of `bench/flux-shape.toml`."""
    from models import Dit, Mmdit
    from two_streams import Flux, flux1_dev

    other = {} if options.in_channels is None else {"in_channels": options.in_channels}
    with torch.device("meta"):
        if options.model == "dit-xl":
            from dit_peer import DIT_XL

            return Dit(DIT_XL if options.layers is None else DIT_XL | {"layers": options.layers})
        if options.model == "flux1-dev":
            return Flux(flux1_dev(128) | other)
        from grpo_peer import SD35_MEDIUM

        return Mmdit(SD35_MEDIUM | other)


def drawn(name, shape):
    value = torch.randn(shape, device="cuda") * 0.02
    is_scale = len(shape) == 1 and "norm" in name and name.endswith(".weight")
    return (value + 1.0 if is_scale else value).bfloat16().cpu()


def write_shards(options):
    """Files of much the same size and the index that belongs to them. What scales a norm is around 1."""
    shapes = {name: value.shape for name, value in published(options).state_dict().items()}
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
        tensors = {name: drawn(name, shape) for name, shape in names.items()}
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
    reserved = round(torch.cuda.max_memory_reserved() / 2**30, 3)
    return {"peak_gib": peak, "reserved_gib": reserved, "torch": torch.__version__, "device": torch.cuda.get_device_name()}


def milliseconds(call, repeats):
    for _ in range(5):
        call()
    # What trying algorithms took is not counted.
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
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
    parser.add_argument("part", choices=("decode", "t5", "check-t5", "shards", "load"))
    parser.add_argument("folder", nargs="?", help="of shards and load")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--modes", nargs="+", default=["eager", "compile", "tuned"])
    parser.add_argument("--shards", type=int, default=3)
    parser.add_argument("--model", choices=("flux1-dev", "sd35-medium", "dit-xl"), default="flux1-dev")
    parser.add_argument("--layers", type=int, help="of dit-xl; 28 if none are given")
    parser.add_argument("--in-channels", type=int, help="of the model; its own if none are given")
    parser.add_argument("--loads", type=int, default=3)
    options = parser.parse_args()
    if options.part in ("shards", "load"):
        if options.folder is None:
            parser.error(f"{options.part} needs a FOLDER")
        {"shards": write_shards, "load": load}[options.part](options)
        return
    if options.part == "check-t5":
        check_t5()
        return
    torch.backends.cudnn.benchmark = True
    model, inputs = {"decode": decode, "t5": t5}[options.part](options)
    for mode in options.modes:
        torch.compiler.reset()
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
