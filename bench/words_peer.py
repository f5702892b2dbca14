"""Pretraining of `configs/words-grpo.toml` in PyTorch: what `flow-train pretrain` does, from the files of `words_data.py`.

    words_peer.py FOLDER OUT SECONDS [key=value …] [--variant NAME key=value …] …

FOLDER has `words.npz.xz`, `minilm.npz.xz` and TAESD3's two halves (`taesd3_encoder.safetensors`, `taesd3_decoder.safetensors`, or `.xz` of them). Keys before
the first `--variant` hold for all; `SETTINGS` lists them with what they are in the config. Variants train side by side in one process: on a GPU a
step is one CUDA graph, and each variant replays its own on a stream of its own, so that ten small models together fill the device.
Training ends after its steps, or after SECONDS; then and at each checkpoint the averaged weights write held-out words.

OUT gets `NAME-STEP.npz` (pictures `[n, 32, 64, 3]` as bytes, and the words asked for; `words_read.py` reads them), `NAME.csv` (mean losses) and
`checkpoints.jsonl`: the loss of fixed pictures under their own captions and under those of other words, which tells how much a model obeys.

Legend: B batch, L tokens of text, D channels of text, N values of a latent.
"""

import json
import lzma
import os
import sys
import time
from pathlib import Path

# Each stream wants a queue of its own.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

import host_numerics
import numpy as np
import torch
import torch.nn.functional as F
import words_data
from models import Mmdit, sincos_2d
from torch import nn

SETTINGS = {
    "steps": 6000,
    "batch": 128,
    "rate": 1e-3,
    "warmup": 300,
    "ema": 0.999,
    "dropout": 0.1,
    # Share of wrong captions, and how they are wrong: they ask for another `word` of the same length, or one `letter` is another.
    "noise": 0.4,
    "wrong": "word",
    # Of the model.
    "layers": 6,
    "heads": 2,
    "head_dim": 64,
    "qk_norm": 1,
    # A layer norm before the projection of text, and learned positions behind it.
    "context_norm": 0,
    "text_positions": 0,
    # Of the data: letters of words, fonts by their numbers, and whether words stand in the middle.
    "letters": "3-6",
    "fonts": "012345",
    "centred": 0,
    "seed": 0,
    # Of sampling.
    "samples": 240,
    "guidance": 1.0,
    "checkpoints": 4,
    # Fewer steps where these do not fit into the time.
    "fit": 0,
    "compile": 0,
}
LATENT, CHANNELS, SAMPLING_STEPS, PROBED = (16, 4, 8), 384, 16, 512
BETAS, EPSILON, MAX_NORM = (0.9, 0.999), 1e-8, 1.0
# One-letter variants of a word.
MISSPELT = 8
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Taesd:
    """TAESD3, from the names of its author's files: `crates/flow-autoencoder/src/tiny.rs`."""

    def __init__(self, folder):
        self.halves = {}
        for half in ("encoder", "decoder"):
            plain, packed = folder / f"taesd3_{half}.safetensors", folder / f"taesd3_{half}.safetensors.xz"
            arrays = words_data.safetensors(plain.read_bytes() if plain.exists() else lzma.decompress(packed.read_bytes()))
            self.halves[half] = {name: torch.tensor(array, device=DEVICE) for name, array in arrays.items()}

    def run(self, half, x):
        weights = self.halves[half]
        for place in range(20):
            weight, bias = weights.get(f"{place}.weight"), weights.get(f"{place}.bias")
            if f"{place}.conv.0.weight" in weights:
                h = x
                for inner in (0, 2, 4):
                    name = f"{place}.conv.{inner}"
                    h = F.conv2d(h, weights[f"{name}.weight"], weights[f"{name}.bias"], padding=1)
                    h = F.relu(h + x if inner == 4 else h)
                x = h
            elif weight is not None:
                changes_size = bias is None
                if changes_size and half == "decoder":
                    x = F.interpolate(x, scale_factor=2, mode="nearest")
                stride = 2 if changes_size and half == "encoder" else 1
                x = F.conv2d(x, weight, bias, stride=stride, padding=1)
                # Behind the decoder's first convolution.
                x = F.relu(x) if half == "decoder" and place == 1 else x
        return x

    @torch.no_grad()
    def encode(self, grey):
        """Latents [B, N] of pictures [B, H, W] from 0 to 1."""
        return torch.cat([self.run("encoder", part[:, None].expand(-1, 3, -1, -1)).flatten(1) for part in grey.split(1000)])

    @torch.no_grad()
    def decode(self, latents):
        """Pictures [B, H, W, 3] as bytes of latents [B, N]."""
        z = (latents.view(-1, *LATENT) / 3.0).tanh() * 3.0
        rgb = torch.cat([self.run("decoder", part) for part in z.split(500)]).clamp(0.0, 1.0)
        return (rgb * 255.0).round().byte().permute(0, 2, 3, 1).cpu().numpy()


class MiniLm:
    """BERT's encoder: `crates/flow-text-encoder/src/bert`."""

    HEADS, LAYERS, EPSILON = 12, 6, 1e-12

    def __init__(self, arrays):
        arrays = dict(arrays)
        scales = {name: arrays.pop(f"{name}.scale") for name in list(arrays) if f"{name}.scale" in arrays}
        self.weights = {
            name: torch.tensor(array.astype(np.float32) * scales.get(name, 1.0), device=DEVICE) for name, array in arrays.items()
        }

    def linear(self, name, x):
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def norm(self, name, x):
        return F.layer_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], self.EPSILON)

    @torch.no_grad()
    def states(self, tokens):
        """States [B, L, D], zeros where there is no token, and their means [B, D] of numbers of tokens [B, L]."""
        table = lambda name: self.weights[f"embeddings.{name}_embeddings.weight"]
        kept = tokens > 0
        mask = torch.zeros(kept.shape, device=DEVICE).masked_fill(~kept, -torch.inf)[:, None, None]
        x = table("word")[tokens] + table("position")[: tokens.shape[1]] + table("token_type")[0]
        x = self.norm("embeddings.LayerNorm", x)
        split = lambda y: y.unflatten(2, (self.HEADS, -1)).transpose(1, 2)
        for index in range(self.LAYERS):
            layer = f"encoder.layer.{index}"
            q, k, v = (split(self.linear(f"{layer}.attention.self.{name}", x)) for name in ("query", "key", "value"))
            attended = F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)
            x = self.norm(f"{layer}.attention.output.LayerNorm", x + self.linear(f"{layer}.attention.output.dense", attended))
            inner = F.gelu(self.linear(f"{layer}.intermediate.dense", x))
            x = self.norm(f"{layer}.output.LayerNorm", x + self.linear(f"{layer}.output.dense", inner))
        x = x * kept[..., None]
        return x, x.sum(1) / kept.sum(1, keepdim=True)

    def encode(self, words):
        tokens = torch.tensor([words_data.caption_tokens(word) for word in words], device=DEVICE)
        states, pooled = zip(*(self.states(part) for part in tokens.split(2000)))
        return torch.cat(states), torch.cat(pooled)


def misspelt(word, random):
    """`word` with one letter that is another vowel or consonant."""
    place = random.integers(len(word))
    kind = words_data.VOWELS if word[place] in words_data.VOWELS else words_data.CONSONANTS
    return word[:place] + random.choice([letter for letter in kind if letter != word[place]]) + word[place + 1 :]


def centred(grey):
    """Pictures [B, H, W] with their ink moved to the middle by whole pixels."""
    for axis in (1, 2):
        length = grey.shape[axis]
        has_ink = (grey < 0.5).any(3 - axis).int()
        first, last = has_ink.argmax(1), length - 1 - has_ink.flip(1).argmax(1)
        shift = (length - 1 - first - last) // 2
        index = (torch.arange(length, device=grey.device) - shift[:, None]) % length
        index = index[:, :, None] if axis == 1 else index[:, None, :]
        grey = grey.gather(axis, index.expand_as(grey))
    return grey


class Data:
    """Pictures as latents, and captions as states of text. Captions are numbered: the words, the empty one, then the misspelt ones."""

    def __init__(self, folder, has_misspelt):
        arrays = words_data.load(folder / "words.npz.xz")
        self.autoencoder = Taesd(folder)
        self.words = [word.decode() for word in arrays["words"]]
        self.held_out = arrays["held_out"]
        self.fonts = arrays["font"]
        self.shown = torch.tensor(arrays["shown"].astype(np.int64), device=DEVICE)
        self.grey = torch.tensor(arrays["grey_nwh"], device=DEVICE).transpose(1, 2).float() / (words_data.LEVELS - 1)
        self.lengths = np.array([len(word) for word in self.words])
        self.encoded = {}
        random = np.random.default_rng(0)
        wrong = [misspelt(word, random) for word in self.words for _ in range(MISSPELT)] if has_misspelt else []
        self.empty = len(self.words)
        self.states, self.pooled = MiniLm(words_data.load(folder / "minilm.npz.xz")).encode([*self.words, "", *wrong])
        self.letters = torch.tensor(self.lengths, device=DEVICE)
        # Row by length: words that are not held out, as often over as it takes to fill the row.
        rows = [np.flatnonzero((self.lengths == length) & ~self.held_out) for length in range(words_data.LONGEST + 1)]
        most = max(len(row) for row in rows)
        self.of_length = torch.tensor(np.stack([np.resize(row if len(row) else [0], most) for row in rows]), device=DEVICE)
        self.counts = torch.tensor([max(len(row), 1) for row in rows], device=DEVICE)

    def latents(self, is_centred):
        if is_centred not in self.encoded:
            self.encoded[is_centred] = self.autoencoder.encode(centred(self.grey) if is_centred else self.grey)
        return self.encoded[is_centred]

    def lengths_of(self, settings):
        first, last = map(int, settings["letters"].split("-"))
        return range(first, last + 1)

    def pictures_of(self, settings):
        """Numbers of the pictures with these letters and fonts."""
        lengths = self.lengths[self.shown.cpu().numpy()]
        fonts = [int(font) for font in str(settings["fonts"])]
        return torch.tensor(np.flatnonzero(np.isin(lengths, self.lengths_of(settings)) & np.isin(self.fonts, fonts)), device=DEVICE)

    def held_out_of(self, settings):
        """Numbers of as many held-out words as are sampled, of each length in turn."""
        rows = [np.flatnonzero((self.lengths == length) & self.held_out) for length in self.lengths_of(settings)]
        share = -(-settings["samples"] // len(rows))
        return torch.tensor(np.concatenate([np.resize(row, share) for row in rows])[: settings["samples"]], device=DEVICE)

    def other_words(self, words, uniform):
        """Of each word another one of its length that is not held out; `uniform` [B] draws it."""
        letters = self.letters[words]
        counts = self.counts[letters]
        place = (uniform * counts).long()
        other = self.of_length[letters, place]
        return torch.where(other == words, self.of_length[letters, (place + 1) % counts], other)


class Positions(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(1, tokens, width))

    def forward(self, x):
        return x + self.table


def network(settings):
    """The model of the config, with the initial values of `crates/flow-models`."""
    hidden = settings["heads"] * settings["head_dim"]
    model = Mmdit({
        "sample_size": 8,
        "latent_height": LATENT[1],
        "latent_width": LATENT[2],
        "patch_size": 1,
        "in_channels": LATENT[0],
        "num_layers": settings["layers"],
        "num_attention_heads": settings["heads"],
        "attention_head_dim": settings["head_dim"],
        "joint_attention_dim": CHANNELS,
        "pooled_projection_dim": CHANNELS,
        "pos_embed_max_size": 8,
        "qk_norm": settings["qk_norm"],
    })
    torch.manual_seed(settings["seed"])
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.zeros_(module.bias)
            if name.startswith("time_text_embed"):
                nn.init.normal_(module.weight, std=0.02)
            elif "norm1" in name or name in ("norm_out.linear", "proj_out"):
                nn.init.zeros_(module.weight)
            else:
                nn.init.xavier_uniform_(module.weight.data.view(len(module.weight), -1))
    model.pos_embed.pos_embed.copy_(sincos_2d(hidden, 8, 8)[None])
    before = [nn.LayerNorm(CHANNELS, elementwise_affine=False)] if settings["context_norm"] else []
    behind = [Positions(words_data.CAPTION_TOKENS, hidden)] if settings["text_positions"] else []
    if before or behind:
        model.context_embedder = nn.Sequential(*before, model.context_embedder, *behind)
    return model.to(DEVICE)


class Variant:
    """A pretraining under way. Everything of a step is on the device, so that a graph can replay it."""

    def __init__(self, name, settings, data, out):
        self.name, self.settings, self.data, self.out = name, settings, data, out
        self.model, self.averaged = network(settings), network(settings).requires_grad_(False)
        self.parameters, self.averages = list(self.model.parameters()), list(self.averaged.parameters())
        self.latents, self.pictures = data.latents(bool(settings["centred"])), data.pictures_of(settings)
        self.batches, self.done = len(self.pictures) // settings["batch"], 0
        zeros = lambda *shape, dtype=torch.float32: torch.zeros(shape, dtype=dtype, device=DEVICE)
        self.step, self.rate, self.order = zeros(1, dtype=torch.int64), zeros(), zeros(len(self.pictures), dtype=torch.int64)
        self.losses = zeros(settings["steps"] + 1)
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=self.rate, betas=BETAS, eps=EPSILON, weight_decay=0.0, fused=True, capturable=DEVICE == "cuda"
        )
        self.random = torch.Generator(DEVICE).manual_seed(settings["seed"])
        self.stream = torch.cuda.Stream() if DEVICE == "cuda" else None
        self.graph = None
        self.total = zeros()
        self.end_after(settings["steps"])
        fixed = torch.Generator(DEVICE).manual_seed(1)
        self.asked = data.held_out_of(settings)
        self.start = torch.randn(len(self.asked), self.latents.shape[1], generator=fixed, device=DEVICE)
        self.probe_noise = torch.randn(PROBED, self.latents.shape[1], generator=fixed, device=DEVICE)
        probed = data.shown[self.pictures[:PROBED]]
        self.probe_others = data.other_words(probed, torch.rand(len(probed), generator=fixed, device=DEVICE))
        if settings["compile"]:
            self.model.compile()

    def end_after(self, steps):
        """Sets the number of steps, over which the learning rate falls."""
        self.steps, count = steps, self.settings["checkpoints"]
        self.checkpoints = {round(steps * (index + 1) / count) for index in range(count)}
        self.total.fill_(steps)

    def uniform(self):
        return torch.rand(self.settings["batch"], generator=self.random, device=DEVICE)

    def captions(self, words):
        """Numbers of captions [B] of pictures of `words`: some are wrong on purpose, some empty."""
        if self.settings["wrong"] == "letter":
            wrong = self.data.empty + 1 + MISSPELT * words + (self.uniform() * MISSPELT).long()
        else:
            wrong = self.data.other_words(words, self.uniform())
        shown = torch.where(self.uniform() < self.settings["noise"], wrong, words)
        return shown.masked_fill(self.uniform() < self.settings["dropout"], self.data.empty)

    def velocity(self, model, x, sigma, captions):
        return model(x, sigma, self.data.states[captions], self.data.pooled[captions])

    def learn(self):
        """One step: `pretrain.rs`."""
        settings, size = self.settings, self.settings["batch"]
        strata = torch.arange(size, device=DEVICE)
        rows = self.order[self.step % self.batches * size + strata]
        data = self.latents[rows]
        captions = self.captions(self.data.shown[rows])
        sigma = torch.special.ndtri(((strata + self.uniform()) / size).clamp(1e-6, 1.0 - 1e-6)).sigmoid()
        noise = torch.randn(data.shape, generator=self.random, device=DEVICE)
        x = data + (noise - data) * sigma[:, None]
        self.optimizer.zero_grad(set_to_none=True)
        loss = F.mse_loss(self.velocity(self.model, x, sigma, captions), noise - data)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, MAX_NORM, foreach=True)
        step = self.step[0].float()
        cosine = 0.1 + 0.45 * (1.0 + (torch.pi * step / self.total).cos())
        self.rate.copy_(settings["rate"] * cosine * ((step + 1.0) / settings["warmup"]).clamp(max=1.0))
        self.optimizer.step()
        with torch.no_grad():
            share = 1.0 - ((1.0 + step) / (10.0 + step)).clamp(max=settings["ema"])
            moved = torch._foreach_sub(self.parameters, self.averages)
            torch._foreach_mul_(moved, share)
            torch._foreach_add_(self.averages, moved)
            self.losses.index_copy_(0, self.step, loss.detach().view(1))
            self.step += 1

    def shuffle(self):
        order = torch.randperm(len(self.pictures), device=DEVICE)
        self.order.copy_(self.pictures[order])

    def advance(self):
        """Queues a step, if there is one left, and samples if a checkpoint is there."""
        if self.done >= self.steps:
            return
        with torch.cuda.stream(self.stream) if self.stream else torch.enable_grad():
            if self.done % self.batches == 0:
                self.shuffle()
            if self.graph is not None:
                self.graph.replay()
            else:
                self.learn()
            self.done += 1
            if self.done in self.checkpoints:
                self.checkpoint()

    def capture(self):
        """Takes a few steps as they are, then records one."""
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        for _ in range(3):
            self.advance()
        if DEVICE == "cpu":
            return
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.random)
        with torch.cuda.graph(graph, stream=self.stream):
            self.learn()
        # Recording ran nothing.
        self.graph = graph

    @torch.no_grad()
    def sample(self):
        """Latents [n, N] of the words asked for: Euler steps of the averaged weights."""
        x, scale = self.start, self.settings["guidance"]
        sigmas = host_numerics.sigma_grid(SAMPLING_STEPS, {"kind": "static", "value": 1.0})
        for here, there in zip(sigmas, sigmas[1:]):
            sigma = torch.full((len(x),), here, device=DEVICE)
            v = self.velocity(self.averaged, x, sigma, self.asked)
            if scale != 1.0:
                empty = self.velocity(self.averaged, x, sigma, torch.full_like(self.asked, self.data.empty))
                v = empty + scale * (v - empty)
            x = x + v * (there - here)
        return x

    @torch.no_grad()
    def probe(self):
        """Mean losses of fixed pictures under their own captions and under those of other words."""
        rows = self.pictures[:PROBED]
        data, noise, words = self.latents[rows], self.probe_noise[: len(rows)], self.data.shown[rows]
        sigma = (torch.arange(len(rows), device=DEVICE) + 0.5) / len(rows)
        x = data + (noise - data) * sigma[:, None]
        loss = lambda captions: F.mse_loss(self.velocity(self.averaged, x, sigma, captions), noise - data).item()
        return loss(words), loss(self.probe_others)

    def checkpoint(self):
        pictures = self.data.autoencoder.decode(self.sample())
        asked = np.array([self.data.words[word] for word in self.asked.tolist()], "S6")
        np.savez_compressed(self.out / f"{self.name}-{self.done}.npz", pictures=pictures, words=asked)
        own, other = self.probe()
        losses = self.losses[: self.done].cpu()
        parts = [(50 * index, part.mean().item()) for index, part in enumerate(losses.split(50))]
        (self.out / f"{self.name}.csv").write_text("step,loss\n" + "".join(f"{step},{loss:.6f}\n" for step, loss in parts))
        line = {"variant": self.name, "step": self.done, "loss": parts[-1][1], "loss_own": own, "loss_other": other}
        with open(self.out / "checkpoints.jsonl", "a") as file:
            print(json.dumps(line), file=file)
        print(json.dumps(line), flush=True)


def write_ceiling(data, out):
    """Real pictures through the autoencoder, as if they had been sampled."""
    rows = torch.arange(min(240, len(data.shown)), device=DEVICE)
    pictures = data.autoencoder.decode(data.latents(False)[rows])
    asked = np.array([data.words[word] for word in data.shown[rows].tolist()], "S6")
    np.savez_compressed(out / "ceiling-0.npz", pictures=pictures, words=asked)


def parsed(arguments):
    """Settings by the names of variants."""
    common, variants, current = {}, {}, None
    while arguments:
        argument = arguments.pop(0)
        if argument == "--variant":
            name = arguments.pop(0)
            current = variants[name] = {}
            continue
        key, _, value = argument.partition("=")
        if key not in SETTINGS:
            raise SystemExit(f"there is no key `{key}`; there are {', '.join(SETTINGS)}")
        (common if current is None else current)[key] = type(SETTINGS[key])(value)
    return {name: SETTINGS | common | own for name, own in (variants or {"config": {}}).items()}


def fit(variants, seconds, say):
    """Measures some rounds, and cuts the steps of those variants that would not end in `seconds`."""
    rounds, wait = (100, torch.cuda.synchronize) if DEVICE == "cuda" else (1, lambda: None)
    wait()
    began = time.perf_counter()
    for _ in range(rounds):
        for variant in variants:
            variant.advance()
    wait()
    round_s = (time.perf_counter() - began) / rounds
    # A tenth is for samples.
    most = rounds + int(0.9 * (seconds - rounds * round_s) / round_s)
    say(f"a step of all {len(variants)} variants takes {1e3 * round_s:.2f} ms; {most} fit")
    for variant in variants:
        if variant.settings["fit"] and variant.steps > most > variant.done:
            variant.end_after(most)
    # The variants' streams do not wait for this one.
    wait()


def main():
    began = time.perf_counter()
    folder, out, seconds, *arguments = sys.argv[1:]
    folder, out = Path(folder), Path(out)
    out.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    say = lambda text: print(f"{time.perf_counter() - began:7.1f} s  {text}", flush=True)
    settings = parsed(arguments)
    data = Data(folder, any(own["wrong"] == "letter" for own in settings.values()))
    write_ceiling(data, out)
    latents = data.latents(False)
    say(f"{len(latents)} latents, mean {latents.mean():.3f}, deviation {latents.std():.3f}; {len(data.states)} captions")
    running = []
    for name, own in settings.items():
        try:
            variant = Variant(name, own, data, out)
            variant.capture()
            running.append(variant)
            say(f"{name}: {sum(parameter.numel() for parameter in variant.parameters)} weights, {len(variant.pictures)} pictures")
        except Exception as error:
            say(f"{name} is left out: {type(error).__name__}: {error}")
    fit(running, float(seconds) - (time.perf_counter() - began), say)
    rounds = 0
    while running and time.perf_counter() - began < float(seconds):
        for variant in running:
            variant.advance()
        running = [variant for variant in running if variant.done < variant.steps]
        rounds += 1
        if rounds % 50 == 0 and DEVICE == "cuda":
            torch.cuda.synchronize()
        if rounds % 500 == 0:
            losses = ", ".join(f"{v.name} {v.losses[max(v.done - 100, 0) : v.done].mean().item():.4f}" for v in running)
            say(f"round {rounds}: {losses}")
    for variant in running:
        with torch.cuda.stream(variant.stream) if variant.stream else torch.enable_grad():
            variant.checkpoint()
    say("done")


if __name__ == "__main__":
    main()
