"""The parts of a pipeline beside the transformer in PyTorch, with random weights at their published sizes.

    parts_peer.py decode [--batch B] [--side PIXELS]   the decoder of `AutoencoderKL` (Stable Diffusion 3, FLUX.1)
    parts_peer.py t5 [--batch B] [--tokens S]          the encoder of T5-XXL v1.1, of `transformers`

Each prints a line of JSON for every mode: `eager`; `compile`, `torch.compile`; `tuned`, `max-autotune`, which replays CUDA
graphs. Convolutions are channels last, and cuDNN measures its algorithms. `cargo run --release -p flow-autoencoder --example
decode_speed` and `-p flow-text-encoder --example encode_speed` do the same work.
"""

import argparse
import json
import statistics

import torch
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
    parser.add_argument("part", choices=("decode", "t5"))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--modes", nargs="+", default=["eager", "compile", "tuned"])
    options = parser.parse_args()
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
                    "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 3),
                    "torch": torch.__version__,
                    "device": torch.cuda.get_device_name(),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
