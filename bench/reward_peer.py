"""Rewards of pretrained networks in PyTorch, with random weights at their published sizes, beside `reward_speed`.

    reward_peer.py clip-score|aesthetic|pickscore|hpsv2|imagereward [--folder DIR] [--images B] [--modes eager compile tuned]

The networks are those of `transformers`, in bf16, with PyTorch's fused attention where they offer it (`sdpa`). CLIP's weights are read from
DIR if `reward_speed --folder DIR` wrote them; else, and for ImageReward, which is a BLIP of another name for each weight, they are made
here. Images are noise of 512 pixels a side with one prompt, which is encoded once a call as ours is; ImageReward's BERT reads it for each
image. The scores come back to the host. A line of JSON is printed for each mode and each way to make pixels: `pillow`, on the processor,
as published rewards have it (where Pillow is installed); `device`, PyTorch's filter with antialiasing on the GPU; and `none`, the network
alone. Needs no network and, besides these, numpy only.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy
import torch
from torch import nn
from torch.nn.functional import interpolate, normalize
from transformers import BlipTextConfig, BlipVisionConfig, CLIPConfig, CLIPModel
from transformers.models.blip.modeling_blip import BlipVisionModel
from transformers.models.blip.modeling_blip_text import BlipTextModel

try:
    from PIL import Image
except ImportError:
    Image = None

SEEN, SIDE, PROMPT_TOKENS = 224, 512, 35
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
COMPILED = {"compile": None, "tuned": "max-autotune"}
MANIFESTS = Path(__file__).resolve().parent.parent / "crates/flow-rewards-models/tests/fixtures/manifests"
LARGE, HUGE = "clip-vit-l-14.json", "pickscore-vit-h-14.json"
MANIFEST = {"clip-score": LARGE, "aesthetic": LARGE, "pickscore": HUGE, "hpsv2": HUGE}


def head(features):
    """The five layers of LAION's predictor and of ImageReward."""
    widths = (features, 1024, 128, 64, 16, 1)
    return nn.Sequential(*(nn.Linear(*pair) for pair in zip(widths, widths[1:])))


class Clip(nn.Module):
    """The cosine between images and the prompt, or the aesthetic score of images."""

    def __init__(self, reward, folder, device):
        super().__init__()
        if folder and (folder / "model.safetensors").exists():
            self.clip = CLIPModel.from_pretrained(folder, dtype=torch.bfloat16, local_files_only=True).to(device)
        else:
            config = json.loads((MANIFESTS / MANIFEST[reward]).read_text())["config"]
            with torch.device(device):
                self.clip = CLIPModel(CLIPConfig(**config)).bfloat16()
        self.head = head(self.clip.config.projection_dim).to(device).bfloat16() if reward == "aesthetic" else None
        text = self.clip.config.text_config
        ids = torch.randint(3, min(1000, text.vocab_size - 2), (1, text.max_position_embeddings), device=device)
        # What is pooled is the first end token or, of old configs, the one with the largest number.
        ids[:, -1] = text.vocab_size - 1 if text.eos_token_id == 2 else text.eos_token_id
        self.register_buffer("ids", ids)

    def forward(self, pixels):
        images = self.clip.visual_projection(self.clip.vision_model(pixel_values=pixels).pooler_output)
        images = normalize(images.float(), dim=-1)
        if self.head is not None:
            return self.head(images.bfloat16()).float()[:, 0]
        text = self.clip.text_projection(self.clip.text_model(input_ids=self.ids).pooler_output)
        return (images * normalize(text.float(), dim=-1)).sum(-1)


class ImageReward(nn.Module):
    def __init__(self, device):
        super().__init__()
        vision = BlipVisionConfig(hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16, image_size=SEEN, patch_size=16, layer_norm_eps=1e-6)
        text = BlipTextConfig(vocab_size=30524, hidden_size=768, encoder_hidden_size=1024, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12, max_position_embeddings=512)
        with torch.device(device):
            self.vision = BlipVisionModel(vision).bfloat16()
            self.text = BlipTextModel(text, add_pooling_layer=False).bfloat16()
            self.head = head(768).bfloat16()
            self.register_buffer("ids", torch.randint(3, 1000, (1, PROMPT_TOKENS)))

    def forward(self, pixels):
        seen = self.vision(pixel_values=pixels).last_hidden_state
        ids = self.ids.expand(len(pixels), -1)
        everything = torch.ones_like(ids)
        all_seen = torch.ones(seen.shape[:2], dtype=torch.long, device=seen.device)
        read = self.text(ids, attention_mask=everything, encoder_hidden_states=seen, encoder_attention_mask=all_seen, use_cache=False)
        return self.head(read.last_hidden_state[:, 0]).float()[:, 0]


def pillow(images, mean, std):
    """As `CLIPImageProcessor` on the processor: 8-bit values, a bicubic filter, one image after another."""
    made = []
    for image in images:
        bytes_hwc = ((image + 1) * 127.5).round().clip(0, 255).astype(numpy.uint8).transpose(1, 2, 0)
        small = Image.fromarray(bytes_hwc).resize((SEEN, SEEN), Image.Resampling.BICUBIC)
        made.append(numpy.asarray(small, dtype=numpy.float32).transpose(2, 0, 1) / 255)
    return (torch.from_numpy(numpy.stack(made)).to(mean.device) - mean) / std


def on_device(images, mean, std):
    unit = ((images + 1) * 127.5).round().clamp(0, 255) / 255
    return (interpolate(unit, size=(SEEN, SEEN), mode="bicubic", antialias=True, align_corners=False) - mean) / std


def seconds(call, repeats):
    for _ in range(5):
        call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reward", choices=(*MANIFEST, "imagereward"))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--modes", nargs="+", choices=("eager", *COMPILED), default=["eager", "compile"])
    parser.add_argument("--device", default="cuda", help="`cpu` is for a look whether it runs")
    options = parser.parse_args()
    torch.manual_seed(1)
    on_gpu = options.device == "cuda"
    began = time.perf_counter()
    device = options.device
    model = (ImageReward(device) if options.reward == "imagereward" else Clip(options.reward, options.folder, device)).eval()
    if on_gpu:
        torch.cuda.synchronize()
    load_s = time.perf_counter() - began
    mean, std = (torch.tensor(of, device=device).view(3, 1, 1) for of in (MEAN, STD))
    host = numpy.random.default_rng(1).uniform(-1, 1, (options.images, 3, SIDE, SIDE)).astype(numpy.float32)
    images = torch.from_numpy(host).to(device)
    pixels = on_device(images, mean, std)
    ways = {"device": lambda: on_device(images, mean, std), "none": lambda: pixels}
    if Image is not None:
        ways = {"pillow": lambda: pillow(host, mean, std)} | ways
    for mode in options.modes:
        torch.compiler.reset()
        called = torch.compile(model, mode=COMPILED[mode]) if mode in COMPILED else model
        for way, make in ways.items():
            # Scores on the host are the end of a call.
            times = seconds(lambda: called(make().bfloat16()).cpu(), options.repeats)
            line = {"reward": options.reward, "program": "PyTorch", "mode": mode, "pixels": way, "dtype": "bf16", "side": SIDE}
            line |= {"images": options.images, "load_s": round(load_s, 3), "images_per_s": [options.images / each for each in times]}
            line |= {"median_images_per_s": options.images / statistics.median(times), "torch": torch.__version__}
            if on_gpu:
                line |= {"peak_gib": torch.cuda.max_memory_allocated() / 2**30, "device": torch.cuda.get_device_name()}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
