"""The models of flow-train whose blocks have two streams in PyTorch: FLUX.1 and Qwen-Image.

As in `models.py`, weight names are diffusers' (0.42.1: `FluxTransformer2DModel`, `QwenImageTransformer2DModel`), and so are values.
Latents are packed here, two rows and two columns of all channels to a token, which diffusers' pipelines do outside of the model.

Legend: B batch, S tokens of the picture, L tokens of the text, D channels, H heads, N values of one latent.
"""

import torch
import torch.nn.functional as F
from models import (
    NORM_EPSILON,
    FeedForward,
    JointAttention,
    Modulation,
    TextProjection,
    TimestepEmbedder,
    attend,
    gelu,
    normed,
    rotary_tables,
    rotated,
)
from torch import nn

PACKING = 2


def pack(x, latent):
    """[B, N] to [B, S, 4 C]."""
    channels, height, width = latent
    x = x.view(-1, channels, height // PACKING, PACKING, width // PACKING, PACKING)
    return x.permute(0, 2, 4, 1, 3, 5).reshape(x.shape[0], -1, channels * PACKING * PACKING)


def unpack(x, latent):
    channels, height, width = latent
    x = x.view(-1, height // PACKING, width // PACKING, channels, PACKING, PACKING)
    return x.permute(0, 3, 1, 4, 2, 5).reshape(x.shape[0], -1)


class ListedModulation(nn.ModuleList):
    """A modulation in Qwen-Image's place for it: behind an activation, which the model applies once for all."""

    def __init__(self, hidden, chunks):
        super().__init__([nn.Identity(), nn.Linear(hidden, chunks * hidden)])
        self.chunks = chunks

    def forward(self, c):
        return self[1](c)[:, None, :].chunk(self.chunks, dim=2)


class TwoStreamBlock(nn.Module):
    """`names`: of the picture's and the text's modulation, and of their feed-forward parts."""

    def __init__(self, hidden, heads, modulation, names, text_is_last):
        super().__init__()
        self.names, self.text_is_last = names, text_is_last
        for name in names[:2]:
            setattr(self, name, modulation(hidden, 6))
        self.attn = JointAttention(hidden, heads, True, True)
        for name in names[2:]:
            setattr(self, name, FeedForward(hidden, 4 * hidden))

    def forward(self, x, text, c, cos, sin):
        modulation, text_modulation, ff, text_ff = (getattr(self, name) for name in self.names)
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = modulation(c)
        text_shift, text_scale, text_gate, text_mlp_shift, text_mlp_scale, text_mlp_gate = text_modulation(c)
        of_text = normed(text) * (1 + text_scale) + text_shift
        attended, text_attended = self.attn(normed(x) * (1 + scale) + shift, of_text, (cos, sin))
        x = x + gate * attended
        x = x + mlp_gate * ff(normed(x) * (1 + mlp_scale) + mlp_shift)
        if self.text_is_last:
            # Nobody reads the text any more.
            return x, text
        text = text + text_gate * text_attended
        text = text + text_mlp_gate * text_ff(normed(text) * (1 + text_mlp_scale) + text_mlp_shift)
        return x, text


class DenseGradient(torch.autograd.Function):
    """The same values; their gradient is copied where it is a part of a wider tensor.

    PyTorch 2.11 keeps cuDNN's plans of attention's backward pass by the layouts of queries, keys and values alone
    (`MHAParams`, aten/src/ATen/native/cudnn/MHA.cpp). The gradient of a single block's attention is a part of rows five times as wide,
    that of a two-stream block is not, and all else of the two is alike: so one would be read by the other's plan, beyond its end.
    """

    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return gradient.contiguous()


class SingleAttention(nn.Module):
    """Without a projection of its output: the block's last layer is one for attention and feed-forward part."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(hidden, hidden) for _ in range(3))
        self.norm_q, self.norm_k = (nn.RMSNorm(hidden // heads, eps=NORM_EPSILON) for _ in range(2))

    def forward(self, x, rotary):
        split = lambda y: y.unflatten(2, (self.heads, -1))
        q, k = self.norm_q(split(self.to_q(x))), self.norm_k(split(self.to_k(x)))
        return DenseGradient.apply(attend(rotated(q, *rotary), rotated(k, *rotary), split(self.to_v(x))))


class SingleBlock(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.norm = Modulation(hidden, 3)
        self.proj_mlp = nn.Linear(hidden, 4 * hidden)
        self.proj_out = nn.Linear(5 * hidden, hidden)
        self.attn = SingleAttention(hidden, heads)

    def forward(self, x, c, cos, sin):
        shift, scale, gate = self.norm(c)
        h = normed(x) * (1 + scale) + shift
        return x + gate * self.proj_out(torch.cat([self.attn(h, (cos, sin)), gelu(self.proj_mlp(h))], dim=2))


class TimeTextGuidance(nn.Module):
    def __init__(self, hidden, pooled, has_guidance):
        super().__init__()
        self.timestep_embedder = TimestepEmbedder(hidden)
        self.guidance_embedder = TimestepEmbedder(hidden) if has_guidance else None
        self.text_embedder = TextProjection(pooled, hidden, F.silu)

    def forward(self, sigma, pooled, guidance):
        c = self.timestep_embedder(sigma)
        if self.guidance_embedder is not None:
            c = c + self.guidance_embedder(guidance)
        return c + self.text_embedder(pooled)


class Flux(nn.Module):
    stacks = ("transformer_blocks", "single_transformer_blocks")

    def __init__(self, settings):
        super().__init__()
        settings = {"guidance_embeds": False, "axes_dims_rope": (16, 56, 56)} | settings
        heads, channels = settings["num_attention_heads"], settings["in_channels"]
        hidden = heads * settings["attention_head_dim"]
        self.latent = (channels // PACKING**2, settings["latent_height"], settings["latent_width"])
        pooled, has_guidance = settings["pooled_projection_dim"], settings["guidance_embeds"]
        self.time_text_embed = TimeTextGuidance(hidden, pooled, has_guidance)
        self.context_embedder = nn.Linear(settings["joint_attention_dim"], hidden)
        self.x_embedder = nn.Linear(channels, hidden)
        names = ("norm1", "norm1_context", "ff", "ff_context")
        double = (TwoStreamBlock(hidden, heads, Modulation, names, False) for _ in range(settings["num_layers"]))
        self.transformer_blocks = nn.ModuleList(double)
        single = (SingleBlock(hidden, heads) for _ in range(settings["num_single_layers"]))
        self.single_transformer_blocks = nn.ModuleList(single)
        self.norm_out = Modulation(hidden, 2)
        self.proj_out = nn.Linear(hidden, channels)
        lengths = (1, self.latent[1] // PACKING, self.latent[2] // PACKING)
        cos, sin = rotary_tables([axis // 2 for axis in settings["axes_dims_rope"]], lengths)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x, sigma, text, pooled, guidance=None):
        """Velocity [B, N] at latents [B, N], noise levels [B], text [B, L, D], pooled text [B, D], guidance scales [B]."""
        c = F.silu(self.time_text_embed(sigma, pooled, guidance))
        h = self.x_embedder(pack(x, self.latent).to(c.dtype))
        text = self.context_embedder(text)
        # The text stands at the origin, where nothing turns.
        still = (text.shape[1], 1, self.cos.shape[2])
        cos, sin = torch.cat([self.cos, self.cos.new_ones(still)]), torch.cat([self.sin, self.sin.new_zeros(still)])
        for block in self.transformer_blocks:
            h, text = block(h, text, c, cos, sin)
        tokens = h.shape[1]
        h = torch.cat([h, text], dim=1)
        for block in self.single_transformer_blocks:
            h = block(h, c, cos, sin)
        scale, shift = self.norm_out(c)
        return unpack(self.proj_out(normed(h[:, :tokens]) * (1 + scale) + shift), self.latent)


class ScaledLast(TimestepEmbedder):
    """The angle multiplied by 1000 behind the frequency, as Qwen-Image's embedding rounds it."""

    def forward(self, sigma):
        angle = (sigma[:, None] * self.frequencies) * 1000.0
        sinusoid = torch.cat([angle.cos(), angle.sin()], dim=1).to(self.linear_1.weight.dtype)
        return self.linear_2(F.silu(self.linear_1(sinusoid)))


class QwenTime(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.timestep_embedder = ScaledLast(hidden)

    def forward(self, sigma):
        return self.timestep_embedder(sigma)


def qwen_tables(positions, axes):
    """Cosines and sines [S, 1, D / 2] at positions [S, 3], in f32 throughout as in `QwenEmbedRope.rope_params`."""
    angles = []
    for axis, channels in enumerate(axes):
        frequencies = 1.0 / torch.pow(10000, torch.arange(0, channels, 2).to(torch.float32).div(channels))
        angles.append(torch.outer(positions[:, axis], frequencies))
    angles = torch.cat(angles, dim=1)[:, None]
    return angles.cos(), angles.sin()


class QwenImage(nn.Module):
    stacks = ("transformer_blocks",)
    # What its published pipeline reads at the most is 1024.
    most_text = 1024

    def __init__(self, settings):
        super().__init__()
        settings = {"axes_dims_rope": (16, 56, 56)} | settings
        heads, channels, layers = settings["num_attention_heads"], settings["in_channels"], settings["num_layers"]
        hidden, width = heads * settings["attention_head_dim"], settings["joint_attention_dim"]
        self.latent = (settings["out_channels"], settings["latent_height"], settings["latent_width"])
        self.time_text_embed = QwenTime(hidden)
        self.txt_norm = nn.RMSNorm(width, eps=NORM_EPSILON)
        self.txt_in, self.img_in = nn.Linear(width, hidden), nn.Linear(channels, hidden)
        names = ("img_mod", "txt_mod", "img_mlp", "txt_mlp")
        last = layers - 1
        blocks = (TwoStreamBlock(hidden, heads, ListedModulation, names, index == last) for index in range(layers))
        self.transformer_blocks = nn.ModuleList(blocks)
        self.norm_out = Modulation(hidden, 2)
        self.proj_out = nn.Linear(hidden, channels)
        # The picture is centred at the origin, the text on the diagonal behind its edge.
        rows, columns = (side // PACKING for side in self.latent[1:])
        centred = lambda length: torch.arange(length) + (length // 2 - length)
        row, column = torch.meshgrid(centred(rows), centred(columns), indexing="ij")
        picture = torch.stack([torch.zeros_like(row), row, column], dim=2).flatten(0, 1)
        text = (torch.arange(self.most_text) + max(rows, columns) // 2)[:, None].expand(-1, 3)
        self.axes, positions = settings["axes_dims_rope"], torch.cat([picture, text])
        cos, sin = qwen_tables(positions, self.axes)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x, sigma, text):
        """Velocity [B, N] at latents [B, N], noise levels [B], text [B, L, D], all of whose tokens are attended to."""
        c = F.silu(self.time_text_embed(sigma))
        h = self.img_in(pack(x, self.latent).to(c.dtype))
        text = self.txt_in(self.txt_norm(text))
        tokens = h.shape[1] + text.shape[1]
        cos, sin = self.cos[:tokens], self.sin[:tokens]
        for block in self.transformer_blocks:
            h, text = block(h, text, c, cos, sin)
        scale, shift = self.norm_out(c)
        return unpack(self.proj_out(normed(h) * (1 + scale) + shift), self.latent)


def flux1_dev(side):
    """`transformer/config.json` of FLUX.1-dev, for latents of `side` by `side`: an eighth of the picture's side."""
    return {
        "latent_height": side,
        "latent_width": side,
        "in_channels": 64,
        "num_layers": 19,
        "num_single_layers": 38,
        "attention_head_dim": 128,
        "num_attention_heads": 24,
        "joint_attention_dim": 4096,
        "pooled_projection_dim": 768,
        "guidance_embeds": True,
    }


ARCHITECTURES = {"flux": Flux, "qwen-image": QwenImage}
