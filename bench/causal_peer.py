"""The decoder of Wan 2.1's and Qwen-Image's causal autoencoder (`AutoencoderKLWan`) in PyTorch, with random weights at its published size.

    causal_peer.py decode-causal [--batch B] [--height PIXELS] [--width PIXELS] [--frames F] [--modes eager compile tuned]
    causal_peer.py check-causal                        that it is the decoder of diffusers, in f32 on the CPU, small

Frames of the latent are decoded one at a time, as diffusers does it: each convolution in time remembers the last two frames that it read, and
those between stages leave out the first frame. What diffusers pads in rows and columns by a copy, the convolution pads. The compiler gets
the decoder of one frame, whose memory goes in and comes out. `--layout` is `channels-last`, `contiguous`, or `faster`: the one of the two
in which `eager` takes less time here. cuDNN measures its algorithms. A line of JSON is printed for each mode of `parts_peer.py`.
`cargo run --release -p flow-autoencoder --example decode_speed -- causal` does the same work.
"""

import argparse
import json
import statistics

import torch
from parts_peer import COMPILED, about, milliseconds
from torch import nn
from torch.nn.functional import interpolate, normalize, pad, scaled_dot_product_attention, silu

LAYOUTS = ("channels-last", "contiguous")
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
# Steps from stage to stage, from the latent's side: whether they double frames, too.
DOUBLED = (True, True, False)


class Memory:
    """Two frames for each convolution in time, in the order in which they are computed: `before` of the chunk before, if there
    was one, and `after` for the next."""

    def __init__(self, before):
        self.before, self.after = before, []

    def is_first(self):
        return self.before is None

    def extend(self, x):
        """`x` behind the frames that are remembered, and behind zeros where there were none."""
        joined = pad(x, (0, 0, 0, 0, 2, 0)) if self.is_first() else torch.cat([self.before[len(self.after)], x], 2)
        self.keep(joined)
        return joined

    def keep(self, joined):
        self.after.append(torch.cat([joined[:, :, -2:-1], joined[:, :, -1:]], 2))


class Causal(nn.Conv3d):
    def __init__(self, inputs, outputs, taps=(3, 3, 3)):
        super().__init__(inputs, outputs, taps, padding=(0, taps[1] // 2, taps[2] // 2))

    def forward(self, x, memory):
        return super().forward(memory.extend(x))


class Norm(nn.Module):
    def __init__(self, channels, axes):
        super().__init__()
        self.scale = channels**0.5
        self.gamma = nn.Parameter(torch.ones(channels, *[1] * axes))

    def forward(self, x):
        return normalize(x.float(), dim=1).to(x.dtype) * self.scale * self.gamma


class Resnet(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.norm1, self.norm2 = Norm(inputs, 3), Norm(outputs, 3)
        self.conv1, self.conv2 = Causal(inputs, outputs), Causal(outputs, outputs)
        self.conv_shortcut = nn.Conv3d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, memory):
        h = self.conv1(silu(self.norm1(x)), memory)
        h = self.conv2(silu(self.norm2(h)), memory)
        return h + self.conv_shortcut(x)


def pictures(x):
    """`[B, C, T, H, W]` as `[B T, C, H, W]`. A lone frame keeps its strides: others would do for it by which PyTorch does not know its
    layout."""
    return x.squeeze(2) if x.shape[2] == 1 else x.transpose(1, 2).flatten(0, 1)


def videos(x, batch):
    """The same back."""
    return x.unsqueeze(2) if x.shape[0] == batch else x.unflatten(0, (batch, -1)).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = Norm(channels, 2)
        self.to_qkv, self.proj = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        joint = self.to_qkv(self.norm(pictures(x)))
        # Attention that is fused reads channels that lie side by side.
        q, k, v = joint.flatten(2).transpose(1, 2).unsqueeze(1).contiguous().chunk(3, 3)
        attended = scaled_dot_product_attention(q, k, v).reshape(joint.shape[0], *joint.shape[2:], -1).permute(0, 3, 1, 2)
        return x + videos(self.proj(attended), x.shape[0])


class Middle(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.resnets = nn.ModuleList(Resnet(channels, channels) for _ in range(2))
        self.attentions = nn.ModuleList([Attention(channels)])

    def forward(self, x, memory):
        x = self.attentions[0](self.resnets[0](x, memory))
        return self.resnets[1](x, memory)


class Upsample(nn.Module):
    def __init__(self, channels, doubled):
        super().__init__()
        # The number is its name in diffusers.
        self.resample = nn.ModuleDict({"1": nn.Conv2d(channels, channels // 2, 3, padding=1)})
        self.time_conv = Causal(channels, 2 * channels, (3, 1, 1)) if doubled else None

    def forward(self, x, memory):
        if self.time_conv is not None:
            if memory.is_first():
                # Its memory begins behind the first frame.
                memory.keep(pad(torch.zeros_like(x), (0, 0, 0, 0, 1, 0)))
            else:
                x = self.time_conv(x, memory)
                # Halves of the channels are two frames, one behind the other.
                x = torch.cat([half for frame in x.split(1, 2) for half in frame.chunk(2, 1)], 2)
        return videos(self.resample["1"](interpolate(pictures(x), scale_factor=2.0, mode="nearest-exact")), x.shape[0])


class Stage(nn.Module):
    def __init__(self, inputs, outputs, doubled):
        super().__init__()
        self.resnets = nn.ModuleList(Resnet(inputs if index == 0 else outputs, outputs) for index in range(3))
        # `doubled` is None behind the last stage, which no step follows.
        self.upsamplers = nn.ModuleList([] if doubled is None else [Upsample(outputs, doubled)])

    def forward(self, x, memory):
        for part in (*self.resnets, *self.upsamplers):
            x = part(x, memory)
        return x


class Chunk(nn.Module):
    """The decoder of one frame of the latent."""

    def __init__(self, base, latent):
        super().__init__()
        widths = [4 * base, 4 * base, 2 * base, base]
        inputs = [widths[0], *(width // 2 for width in widths[:-1])]
        self.conv_in, self.mid_block = Causal(latent, widths[0]), Middle(widths[0])
        self.up_blocks = nn.ModuleList(Stage(*stage) for stage in zip(inputs, widths, (*DOUBLED, None)))
        self.norm_out, self.conv_out = Norm(base, 3), Causal(base, 3)

    def forward(self, x, before):
        memory = Memory(before)
        x = self.mid_block(self.conv_in(x, memory), memory)
        for stage in self.up_blocks:
            x = stage(x, memory)
        return self.conv_out(silu(self.norm_out(x)), memory), memory.after


class Decoder(nn.Module):
    def __init__(self, base=96, latent=16):
        super().__init__()
        self.post_quant_conv, self.decoder = nn.Conv3d(latent, latent, 1), Chunk(base, latent)

    def forward(self, x, chunk=None):
        """`chunk` is the compiled decoder of a frame, if there is one."""
        chunk, memory, found = self.decoder if chunk is None else chunk, None, []
        # Frames of one video may lie in memory of CUDA graphs until the next video.
        torch.compiler.cudagraph_mark_step_begin()
        for frame in self.post_quant_conv(x).split(1, 2):
            decoded, memory = chunk(frame, memory)
            found.append(decoded)
        return torch.cat(found, 2).clamp(-1.0, 1.0)


def laid(model, layout):
    """Its weights in a layout. What convolutions give lies as their weights do."""
    for parameter in model.parameters():
        is_last = layout == "channels-last" and parameter.dim() in CHANNELS_LAST
        parameter.data = parameter.data.contiguous(memory_format=CHANNELS_LAST[parameter.dim()] if is_last else torch.contiguous_format)
    return model


def latent_frames(options):
    if options.height % 8 or options.width % 8 or options.frames % 4 != 1 or min(options.height, options.width, options.frames, options.batch) < 1:
        raise SystemExit("--height and --width must be multiples of 8, --frames 1 and a multiple of 4 more, as 33, --batch at least 1")
    return 1 + options.frames // 4


def decode_causal(options):
    torch.manual_seed(1)
    frames = latent_frames(options)
    with torch.device("cuda"):
        model = Decoder().bfloat16()
    x = torch.randn(options.batch, 16, frames, options.height // 8, options.width // 8, device="cuda", dtype=torch.bfloat16)
    layout = options.layout
    if layout == "faster":
        least = {}
        for layout in LAYOUTS:
            laid(model, layout)
            least[layout] = min(milliseconds(lambda: model(x), 3))
        layout = min(least, key=least.get)
    laid(model, layout)
    for mode in options.modes:
        torch.compiler.reset()
        chunk = torch.compile(model.decoder, mode=COMPILED[mode], dynamic=False, fullgraph=True) if mode in COMPILED else None
        times = milliseconds(lambda: model(x, chunk), options.repeats)
        line = {"part": "decode-causal", "mode": mode, "layout": layout, "batch": options.batch, "size": [options.height, options.width]}
        line |= {"frames": options.frames, "median_ms": round(statistics.median(times), 3), "least_ms": round(min(times), 3)}
        print(json.dumps(line | about()), flush=True)


def check_causal():
    from diffusers import AutoencoderKLWan

    torch.manual_seed(1)
    with torch.device("meta"):
        shapes = [{name: value.shape for name, value in decoder(model)} for model in (Decoder(), AutoencoderKLWan())]
    if shapes[0] != shapes[1]:
        raise SystemExit("the published decoder of diffusers has other weights")
    theirs, ours = AutoencoderKLWan(base_dim=6, z_dim=4).eval(), Decoder(6, 4)
    for name, parameter in theirs.named_parameters():
        if name.endswith("gamma"):
            parameter.normal_(1.0, 0.3)
    ours.load_state_dict(dict(decoder(theirs)))
    latents = torch.randn(2, 4, 4, 5, 3)
    wanted = theirs.decode(latents).sample
    for layout in LAYOUTS:
        found = laid(ours, layout)(latents)
        apart = ((found - wanted).norm() / wanted.norm()).item()
        line = {"part": "check-causal", "layout": layout, "shape": list(found.shape), "relative_l2": apart, "largest": wanted.abs().max().item()}
        print(json.dumps(line))
        if not apart <= 1e-5:
            raise SystemExit("this decoder is not that of diffusers")


def decoder(model):
    """Weights by name, without an encoder's."""
    return [(name, value) for name, value in model.state_dict().items() if name.startswith(("decoder.", "post_quant_conv."))]


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("decode-causal", "check-causal"))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--height", type=int, default=240)
    parser.add_argument("--width", type=int, default=416)
    parser.add_argument("--frames", type=int, default=33)
    parser.add_argument("--layout", choices=("faster", *LAYOUTS), default="faster")
    parser.add_argument("--modes", nargs="+", default=["eager", "compile", "tuned"])
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    if options.part == "check-causal":
        check_causal()
        return
    torch.backends.cudnn.benchmark = True
    decode_causal(options)


if __name__ == "__main__":
    main()
