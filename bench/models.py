"""The models of flow-train in PyTorch: DiT, SD3's MMDiT and Wan, text to video. FLUX.1 and Qwen-Image are in `two_streams.py`.

Written as one would write them in PyTorch: `F.scaled_dot_product_attention`, `F.layer_norm`, `F.linear`. Weight names are
those of flow-train, which are diffusers' where an architecture exists there; values are its values. Parameters may be
of any precision; tables of positions and frequencies stay f32.

Legend: B batch, S tokens, D channels, H heads, C latent channels, P side of a patch, N values of one latent.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

NORM_EPSILON = 1e-6
TIMESTEP_CHANNELS = 256


def sincos_2d(width, rows, columns):
    """Fixed positions [S, D]: first half of the channels the column, second half the row."""
    quarter = width // 4
    frequencies = 10000.0 ** (-torch.arange(quarter, dtype=torch.float64) / quarter)

    def encode(position):
        angle = position[:, None].double() * frequencies
        return torch.cat([angle.sin(), angle.cos()], dim=1)

    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return torch.cat([encode(column.flatten()), encode(row.flatten())], dim=1).float()


class TimestepEmbedder(nn.Module):
    def __init__(self, hidden, channels=TIMESTEP_CHANNELS):
        super().__init__()
        self.linear_1 = nn.Linear(channels, hidden)
        self.linear_2 = nn.Linear(hidden, hidden)
        half = channels // 2
        frequencies = torch.exp(-math.log(10000.0) * torch.arange(half, dtype=torch.float32) / half)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, sigma):
        angle = (sigma * 1000.0)[:, None] * self.frequencies
        # Sines of angles up to 1000 in f32, whatever the weights' precision.
        sinusoid = torch.cat([angle.cos(), angle.sin()], dim=1).to(self.linear_1.weight.dtype)
        return self.linear_2(F.silu(self.linear_1(sinusoid)))


class TimeEmbed(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.timestep_embedder = TimestepEmbedder(hidden)

    def forward(self, sigma):
        return self.timestep_embedder(sigma)


class PatchEmbed(nn.Module):
    def __init__(self, channels, patch, hidden):
        super().__init__()
        self.proj = nn.Conv2d(channels, hidden, patch, stride=patch)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class Modulation(nn.Module):
    """The linear layer behind an adaptive norm; gives `chunks` tensors [B, 1, D]."""

    def __init__(self, hidden, chunks):
        super().__init__()
        self.linear = nn.Linear(hidden, chunks * hidden)
        self.chunks = chunks

    def forward(self, c):
        return self.linear(c)[:, None, :].chunk(self.chunks, dim=2)


def attend(q, k, v):
    """[B, S, H, D] in, [B, S, H * D] out."""
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return out.transpose(1, 2).flatten(2)


def rotary_tables(pairs, lengths):
    """Cosines and sines [S, 1, D / 2] in f32 of tokens on a grid of `lengths`; `pairs` of the channels turn with each axis."""
    angles = []
    for axis, (length, count) in enumerate(zip(lengths, pairs)):
        frequencies = 10000.0 ** (-torch.arange(count, dtype=torch.float64) / count)
        shape = [1] * len(lengths) + [count]
        shape[axis] = length
        angle = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
        angles.append(angle.view(shape).expand(*lengths, count))
    angles = torch.cat(angles, dim=-1).flatten(0, -2)[:, None]
    return angles.cos().float(), angles.sin().float()


def rotated(x, cos, sin):
    a, b = x.unflatten(3, (-1, 2)).unbind(4)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=4).flatten(3).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, hidden, heads, qk_norm):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(hidden, hidden)
        self.to_k = nn.Linear(hidden, hidden)
        self.to_v = nn.Linear(hidden, hidden)
        self.to_out = nn.ModuleList([nn.Linear(hidden, hidden)])
        norm = (lambda: nn.RMSNorm(hidden // heads, eps=NORM_EPSILON)) if qk_norm else nn.Identity
        self.norm_q, self.norm_k = norm(), norm()

    def forward(self, x, rotary=()):
        split = lambda y: y.unflatten(2, (self.heads, -1))
        q, k, v = split(self.to_q(x)), split(self.to_k(x)), split(self.to_v(x))
        q, k = self.norm_q(q), self.norm_k(k)
        if rotary:
            q, k = rotated(q, *rotary), rotated(k, *rotary)
        return self.to_out[0](attend(q, k, v))


class Up(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.proj = nn.Linear(hidden, inner)

    def forward(self, x):
        return F.gelu(self.proj(x), approximate="tanh")


class FeedForward(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.net = nn.ModuleList([Up(hidden, inner), nn.Identity(), nn.Linear(inner, hidden)])

    def forward(self, x):
        return self.net[2](self.net[0](x))


def normed(x):
    return F.layer_norm(x, x.shape[-1:], eps=NORM_EPSILON)


class Block(nn.Module):
    def __init__(self, hidden, heads, inner, qk_norm):
        super().__init__()
        self.norm1 = Modulation(hidden, 6)
        self.attn = Attention(hidden, heads, qk_norm)
        self.ff = FeedForward(hidden, inner)

    def forward(self, x, c, *rotary):
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = self.norm1(c)
        x = x + gate * self.attn(normed(x) * (1 + scale) + shift, rotary)
        return x + mlp_gate * self.ff(normed(x) * (1 + mlp_scale) + mlp_shift)


class Dit(nn.Module):
    stacks = ("transformer_blocks",)

    def __init__(self, settings):
        super().__init__()
        settings = {"position": "sincos", "mlp_ratio": 4.0, "qk_norm": False, "vocabulary": None} | settings
        if settings.get("moe"):
            raise SystemExit("the peer has no mixture of experts")
        latent, hidden, self.patch = settings["latent"], settings["hidden"], settings["patch"]
        self.latent = (latent["channels"], latent["height"], latent["width"])
        self.grid = (latent["height"] // self.patch, latent["width"] // self.patch)
        self.pos_embed = PatchEmbed(self.latent[0], self.patch, hidden)
        self.time_embed = TimeEmbed(hidden)
        vocabulary = settings["vocabulary"]
        self.token_embed = nn.Embedding(vocabulary["size"], hidden) if vocabulary else None
        inner = round(hidden * settings["mlp_ratio"])
        blocks = (Block(hidden, settings["heads"], inner, settings["qk_norm"]) for _ in range(settings["layers"]))
        self.transformer_blocks = nn.ModuleList(blocks)
        self.norm_out = Modulation(hidden, 2)
        self.proj_out = nn.Linear(hidden, self.patch * self.patch * self.latent[0])
        if settings["position"] == "rope":
            quarter = hidden // settings["heads"] // 4
            tables = dict(zip(("cos", "sin"), rotary_tables((quarter, quarter), self.grid)))
        else:
            tables = {"positions": sincos_2d(hidden, *self.grid)}
        for name, table in tables.items():
            self.register_buffer(name, table, persistent=False)
        self.is_rotary = "cos" in tables

    def forward(self, x, sigma, tokens=None):
        """Velocity [B, N] at latents [B, N], noise levels [B], tokens [B, L] if there is a vocabulary."""
        batch, (rows, columns), (channels, height, width) = x.shape[0], self.grid, self.latent
        c = self.time_embed(sigma)
        if self.token_embed is not None:
            c = c + self.token_embed(tokens).sum(1)
        c = F.silu(c)
        h = self.pos_embed(x.view(batch, channels, height, width).to(c.dtype))
        rotary = (self.cos, self.sin) if self.is_rotary else ()
        if not self.is_rotary:
            h = h + self.positions.to(c.dtype)
        for block in self.transformer_blocks:
            h = block(h, c, *rotary)
        scale, shift = self.norm_out(c)
        h = self.proj_out(normed(h) * (1 + scale) + shift)
        h = h.view(batch, rows, columns, self.patch, self.patch, channels)
        return h.permute(0, 5, 1, 3, 2, 4).reshape(batch, -1)


class TextProjection(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, inputs, hidden, activation):
        super().__init__()
        self.linear_1 = nn.Linear(inputs, hidden)
        self.linear_2 = nn.Linear(hidden, hidden)
        self.activation = activation

    def forward(self, x):
        return self.linear_2(self.activation(self.linear_1(x)))


def gelu(x):
    return F.gelu(x, approximate="tanh")


class TimeTextEmbed(nn.Module):
    def __init__(self, hidden, pooled):
        super().__init__()
        self.timestep_embedder = TimestepEmbedder(hidden)
        self.text_embedder = TextProjection(pooled, hidden, F.silu)

    def forward(self, sigma, pooled):
        return self.timestep_embedder(sigma) + self.text_embedder(pooled)


class JointAttention(nn.Module):
    def __init__(self, hidden, heads, qk_norm, has_context_out):
        super().__init__()
        self.heads = heads
        for name in ("to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj"):
            setattr(self, name, nn.Linear(hidden, hidden))
        self.to_out = nn.ModuleList([nn.Linear(hidden, hidden)])
        self.to_add_out = nn.Linear(hidden, hidden) if has_context_out else None
        norm = (lambda: nn.RMSNorm(hidden // heads, eps=NORM_EPSILON)) if qk_norm else nn.Identity
        self.norm_q, self.norm_k, self.norm_added_q, self.norm_added_k = norm(), norm(), norm(), norm()

    def forward(self, x, context, rotary=()):
        split = lambda y: y.unflatten(2, (self.heads, -1))
        q = torch.cat([self.norm_q(split(self.to_q(x))), self.norm_added_q(split(self.add_q_proj(context)))], dim=1)
        k = torch.cat([self.norm_k(split(self.to_k(x))), self.norm_added_k(split(self.add_k_proj(context)))], dim=1)
        v = torch.cat([split(self.to_v(x)), split(self.add_v_proj(context))], dim=1)
        if rotary:
            q, k = rotated(q, *rotary), rotated(k, *rotary)
        x_out, context_out = attend(q, k, v).split([x.shape[1], context.shape[1]], dim=1)
        context_out = None if self.to_add_out is None else self.to_add_out(context_out)
        return self.to_out[0](x_out), context_out


class JointBlock(nn.Module):
    def __init__(self, settings, index):
        super().__init__()
        heads, qk_norm = settings["num_attention_heads"], bool(settings["qk_norm"])
        hidden = heads * settings["attention_head_dim"]
        carries = index + 1 < settings["num_layers"]
        dual = index in settings["dual_attention_layers"]
        self.norm1 = Modulation(hidden, 9 if dual else 6)
        self.norm1_context = Modulation(hidden, 6 if carries else 2)
        self.attn = JointAttention(hidden, heads, qk_norm, carries)
        self.attn2 = Attention(hidden, heads, qk_norm) if dual else None
        self.ff = FeedForward(hidden, 4 * hidden)
        self.ff_context = FeedForward(hidden, 4 * hidden) if carries else None

    def forward(self, x, context, c):
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate, *dual = self.norm1(c)
        modulation = self.norm1_context(c)
        # The last block modulates its context as an output layer does: scale first.
        context_shift, context_scale = modulation[:2] if self.ff_context is not None else modulation[::-1]
        x_normed = normed(x)
        x_attended, context_attended = self.attn(
            x_normed * (1 + scale) + shift, normed(context) * (1 + context_scale) + context_shift
        )
        x = x + gate * x_attended
        if self.attn2 is not None:
            dual_shift, dual_scale, dual_gate = dual
            x = x + dual_gate * self.attn2(x_normed * (1 + dual_scale) + dual_shift)
        x = x + mlp_gate * self.ff(normed(x) * (1 + mlp_scale) + mlp_shift)
        if self.ff_context is not None:
            _, _, gate, mlp_shift, mlp_scale, mlp_gate = modulation
            context = context + gate * context_attended
            context = context + mlp_gate * self.ff_context(normed(context) * (1 + mlp_scale) + mlp_shift)
        return x, context


class Mmdit(nn.Module):
    stacks = ("transformer_blocks",)

    def __init__(self, settings):
        super().__init__()
        settings = {"dual_attention_layers": [], "qk_norm": None} | settings
        hidden = settings["num_attention_heads"] * settings["attention_head_dim"]
        height = settings.get("latent_height") or settings["sample_size"]
        width = settings.get("latent_width") or settings["sample_size"]
        self.patch, channels = settings["patch_size"], settings["in_channels"]
        self.latent, self.grid = (channels, height, width), (height // self.patch, width // self.patch)
        self.pos_embed = PatchEmbed(channels, self.patch, hidden)
        self.side = settings["pos_embed_max_size"]
        self.pos_embed.register_buffer("pos_embed", torch.zeros(1, self.side**2, hidden))
        self.time_text_embed = TimeTextEmbed(hidden, settings["pooled_projection_dim"])
        self.context_embedder = nn.Linear(settings["joint_attention_dim"], hidden)
        self.transformer_blocks = nn.ModuleList(JointBlock(settings, index) for index in range(settings["num_layers"]))
        self.norm_out = Modulation(hidden, 2)
        self.proj_out = nn.Linear(hidden, self.patch * self.patch * channels)

    def forward(self, x, sigma, text, pooled):
        """Velocity [B, N] at latents [B, N], noise levels [B], text [B, L, D], pooled text [B, D]."""
        batch, (rows, columns), (channels, height, width) = x.shape[0], self.grid, self.latent
        c = F.silu(self.time_text_embed(sigma, pooled))
        top, left = (self.side - rows) // 2, (self.side - columns) // 2
        table = self.pos_embed.pos_embed.view(1, self.side, self.side, -1)
        table = table[:, top : top + rows, left : left + columns].flatten(1, 2)
        h = self.pos_embed(x.view(batch, channels, height, width).to(c.dtype)) + table.to(c.dtype)
        context = self.context_embedder(text)
        for block in self.transformer_blocks:
            h, context = block(h, context, c)
        scale, shift = self.norm_out(c)
        h = self.proj_out(normed(h) * (1 + scale) + shift)
        h = h.view(batch, rows, columns, self.patch, self.patch, channels)
        return h.permute(0, 5, 1, 3, 2, 4).reshape(batch, -1)


class WanAttention(nn.Module):
    """Queries and keys normalised over all heads at once."""

    def __init__(self, hidden, heads, epsilon):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(hidden, hidden) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(hidden, hidden)])
        self.norm_q, self.norm_k = (nn.RMSNorm(hidden, eps=epsilon) for _ in range(2))

    def forward(self, x, context, rotary):
        split = lambda y: y.unflatten(2, (self.heads, -1))
        q, k = split(self.norm_q(self.to_q(x))), split(self.norm_k(self.to_k(context)))
        if rotary is not None:
            q, k = rotated(q, *rotary), rotated(k, *rotary)
        return self.to_out[0](attend(q, k, split(self.to_v(context))))


class WanBlock(nn.Module):
    def __init__(self, settings):
        super().__init__()
        heads, epsilon = settings["num_attention_heads"], settings["eps"]
        hidden = heads * settings["attention_head_dim"]
        self.epsilon = epsilon
        self.scale_shift_table = nn.Parameter(torch.zeros(1, 6, hidden))
        self.attn1 = WanAttention(hidden, heads, epsilon)
        self.attn2 = WanAttention(hidden, heads, epsilon)
        self.norm2 = nn.LayerNorm(hidden, eps=epsilon) if settings["cross_attn_norm"] else nn.Identity()
        self.ffn = FeedForward(hidden, settings["ffn_dim"])

    def forward(self, x, time, text, cos, sin):
        # Added up in f32, as in diffusers, and rounded once.
        modulation = (time.float() + self.scale_shift_table.float()).to(x.dtype)
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = modulation.chunk(6, dim=1)
        normed = lambda x: F.layer_norm(x, x.shape[-1:], eps=self.epsilon)
        h = normed(x) * (1 + scale) + shift
        x = x + gate * self.attn1(h, h, (cos, sin))
        x = x + self.attn2(self.norm2(x), text, None)
        return x + mlp_gate * self.ffn(normed(x) * (1 + mlp_scale) + mlp_shift)


class WanCondition(nn.Module):
    def __init__(self, settings, hidden):
        super().__init__()
        self.time_embedder = TimestepEmbedder(hidden, settings["freq_dim"])
        self.time_proj = nn.Linear(hidden, 6 * hidden)
        self.text_embedder = TextProjection(settings["text_dim"], hidden, gelu)


class Wan(nn.Module):
    stacks = ("blocks",)

    def __init__(self, settings):
        super().__init__()
        settings = {"cross_attn_norm": True, "eps": NORM_EPSILON} | settings
        heads, head_dim = settings["num_attention_heads"], settings["attention_head_dim"]
        hidden, channels, self.epsilon = heads * head_dim, settings["in_channels"], settings["eps"]
        frames, height, width = (settings[f"latent_{axis}"] for axis in ("frames", "height", "width"))
        _, self.patch, _ = settings["patch_size"]
        self.latent, self.grid = (channels, frames, height, width), (frames, height // self.patch, width // self.patch)
        patch = (1, self.patch, self.patch)
        self.patch_embedding = nn.Conv3d(channels, hidden, patch, stride=patch)
        self.condition_embedder = WanCondition(settings, hidden)
        self.blocks = nn.ModuleList(WanBlock(settings) for _ in range(settings["num_layers"]))
        self.scale_shift_table = nn.Parameter(torch.zeros(1, 2, hidden))
        self.proj_out = nn.Linear(hidden, self.patch * self.patch * channels)
        # A third of the pairs for rows, for columns, and the rest for frames.
        third = head_dim // 6
        cos, sin = rotary_tables((head_dim // 2 - 2 * third, third, third), self.grid)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x, sigma, text):
        """Velocity [B, N] at latents [B, N], noise levels [B], text [B, L, D]."""
        batch, (frames, rows, columns), channels = x.shape[0], self.grid, self.latent[0]
        embedder = self.condition_embedder
        time = embedder.time_embedder(sigma)
        projected = embedder.time_proj(F.silu(time)).unflatten(1, (6, -1))
        text = embedder.text_embedder(text)
        h = self.patch_embedding(x.view(batch, *self.latent).to(time.dtype)).flatten(2).transpose(1, 2)
        for block in self.blocks:
            h = block(h, projected, text, self.cos, self.sin)
        shift, scale = (time[:, None].float() + self.scale_shift_table.float()).to(h.dtype).chunk(2, dim=1)
        h = self.proj_out(F.layer_norm(h, h.shape[-1:], eps=self.epsilon) * (1 + scale) + shift)
        h = h.view(batch, frames, rows, columns, self.patch, self.patch, channels)
        return h.permute(0, 6, 1, 2, 4, 3, 5).reshape(batch, -1)


ARCHITECTURES = {"dit": Dit, "mmdit": Mmdit, "wan": Wan}


class LoraLinear(nn.Linear):
    """A linear layer with an adapter; the names of its parts are flow-train's."""

    def __init__(self, linear, rank, scale):
        super().__init__(linear.in_features, linear.out_features)
        self.lora_A = nn.Linear(linear.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, linear.out_features, bias=False)
        self.scale = scale

    def forward(self, x):
        return super().forward(x) + self.scale * self.lora_B(self.lora_A(x))


def add_adapters(model, names, rank, scale):
    """Gives the linear layers called `names` adapters."""
    for name in names:
        parent, _, child = name.rpartition(".")
        parent = model.get_submodule(parent)
        setattr(parent, child, LoraLinear(getattr(parent, child), rank, scale))


def place(model, device, dtype, trained_in=None):
    """Parameters on `device` in `dtype`, those with gradients in `trained_in`; tables stay f32."""
    model.to(device)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(trained_in or dtype if parameter.requires_grad else dtype)
    return model
