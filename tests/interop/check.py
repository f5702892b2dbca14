"""Loads what flow-train wrote in diffusers and peft, compares outputs, and leaves their files for flow-train.

Usage: check.py FOLDER FIXTURES, where FOLDER is that of `interop write`, FIXTURES that of flow-models' tests.
Everything in f32 on the CPU. A file that loads without effect fails: the outputs must be those of flow-train, which differ from
the base model's.
"""

import inspect
import json
import sys
from pathlib import Path

import torch
from diffusers.utils import logging
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    WanPipeline,
    WanTransformer3DModel,
)
from diffusers.loaders.single_file_utils import convert_sd3_transformer_checkpoint_to_diffusers
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file, save_file

# Relative Euclidean distance that f32 rounding may cause between two implementations.
TOLERANCE = 1e-5
MODELS = {"sd3-lora": (SD3Transformer2DModel, StableDiffusion3Pipeline), "wan-lora": (WanTransformer3DModel, WanPipeline)}


def distance(a, b):
    return ((a - b).double().norm() / b.double().norm()).item()


class Exchange:
    def __init__(self, name, folder, fixtures):
        self.name, self.folder = name, folder / name
        self.model_class, self.pipeline_class = MODELS[name]
        io = load_file(fixtures / name / "io.safetensors")
        self.inputs = {key[3:]: value for key, value in io.items() if key.startswith("in.")}
        self.expected = load_file(self.folder / "velocities.safetensors")

    def base(self):
        return self.model_class.from_pretrained(self.folder / "base").eval()

    def pipeline(self, transformer):
        """A pipeline of the transformer alone: what load_lora_weights needs."""
        parts = {name: None for name in inspect.signature(self.pipeline_class.__init__).parameters if name != "self"}
        optional = {key: value for key, value in parts.items() if key not in ("boundary_ratio", "expand_timesteps")}
        optional.update(transformer=transformer, scheduler=FlowMatchEulerDiscreteScheduler())
        return self.pipeline_class(**optional)

    def output(self, model):
        with torch.no_grad():
            return model(**self.inputs, return_dict=False)[0]

    def compare(self, what, model, expected="adapted"):
        found = distance(self.output(model), self.expected[expected])
        print(f"{self.name}: {what}: {found:.1e}")
        if not found <= TOLERANCE:
            sys.exit(f"{self.name}: {what} gives another output than flow-train")

    def ours(self):
        adapter = self.folder / "adapter"
        if distance(self.expected["adapted"], self.expected["base"]) < 1e-3:
            sys.exit("the adapters change nothing, so nothing would be seen")
        self.compare("from_pretrained of the base model", self.base(), "base")
        self.compare("from_pretrained of merged weights", self.model_class.from_pretrained(self.folder / "weights"))
        average = self.model_class.from_pretrained(self.folder / "weights", variant="average")
        self.compare("from_pretrained of a variant", average, "base")

        pipeline = self.pipeline(self.base())
        pipeline.load_lora_weights(adapter)
        self.compare("load_lora_weights of the folder", pipeline.transformer)
        pipeline = self.pipeline(self.base())
        pipeline.load_lora_weights(adapter / "pytorch_lora_weights.safetensors")
        self.compare("load_lora_weights of the file", pipeline.transformer)
        # Readers that know of no metadata.
        state = load_file(adapter / "pytorch_lora_weights.safetensors")
        pipeline = self.pipeline(self.base())
        pipeline.load_lora_weights(dict(state))
        self.compare("load_lora_weights of bare tensors", pipeline.transformer)

        model = self.base()
        model.load_lora_adapter(adapter, weight_name="pytorch_lora_weights.safetensors")
        self.compare("load_lora_adapter", model)
        model = self.base()
        model.load_lora_adapter(adapter, weight_name="adapter_model.safetensors", prefix="base_model.model")
        self.compare("load_lora_adapter of peft's layout", model)
        self.compare("PeftModel.from_pretrained", PeftModel.from_pretrained(self.base(), str(adapter)))
        if self.name == "wan-lora":
            pipeline = self.pipeline(self.base())
            pipeline.load_lora_weights(adapter, weight_name="lora_kohya.safetensors")
            self.compare("load_lora_weights of kohya's layout", pipeline.transformer)
        else:
            self.compare("kohya's layout on the original checkpoint", self.merged_in_original_names(adapter))

    def merged_in_original_names(self, adapter):
        """Adds the adapters of kohya's layout to the checkpoint under its original names, and converts that back."""
        model = self.base()
        checkpoint = original_sd3(model)
        file = load_file(adapter / "lora_kohya.safetensors")
        weights = {"lora_unet_" + key[: -len(".weight")].replace(".", "_"): key for key in checkpoint if key.endswith(".weight")}
        layers = {key.split(".")[0] for key in file}
        for layer in layers:
            down, up = file[f"{layer}.lora_down.weight"], file[f"{layer}.lora_up.weight"]
            scale = file[f"{layer}.alpha"].item() / down.shape[0]
            checkpoint[weights[layer]] = checkpoint[weights[layer]] + scale * up @ down
        model.load_state_dict(convert_sd3_transformer_checkpoint_to_diffusers(checkpoint))
        return model

    def theirs(self):
        targets = ["to_q", "to_v", "to_out.0"]
        common = dict(r=3, lora_alpha=5, target_modules=targets, init_lora_weights=False)

        torch.manual_seed(1)
        pipeline = self.pipeline(self.base())
        pipeline.transformer.add_adapter(LoraConfig(**common))
        layers = get_peft_model_state_dict(pipeline.transformer)
        metadata = pipeline.transformer.peft_config["default"].to_dict()
        place = self.place("diffusers")
        self.pipeline_class.save_lora_weights(
            place / "lora", transformer_lora_layers=layers, transformer_lora_adapter_metadata=metadata
        )
        self.keep(place, pipeline.transformer)

        for name, changes in {
            "peft": {},
            "peft-rank-stabilized": {"use_rslora": True},
            "peft-patterns": {"rank_pattern": {"attn.to_q": 2, "attn1.to_q": 2}, "alpha_pattern": {"to_v": 9}},
        }.items():
            torch.manual_seed(2)
            model = get_peft_model(self.base(), LoraConfig(**{**common, **changes})).eval()
            place = self.place(name)
            model.save_pretrained(place / "lora")
            self.keep(place, model)

        # A whole model, in shards.
        torch.manual_seed(3)
        model = self.base()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
        place = self.place("model-in-shards")
        model.save_pretrained(place / "model", max_shard_size="100KB")
        self.keep(place, model)

    def place(self, name):
        place = self.folder / "theirs" / name
        place.mkdir(parents=True)
        return place

    def keep(self, place, model):
        save_file({"out": self.output(model).contiguous()}, place / "out.safetensors")


def original_sd3(model):
    """The model's weights under Stability AI's names: what the converter undoes."""
    state = model.state_dict()
    blocks = model.config.num_layers
    result = {"pos_embed": state["pos_embed.pos_embed"]}

    def put(theirs, *ours, swap=False):
        for ending in ("weight", "bias"):
            tensors = [state[f"{name}.{ending}"] for name in ours]
            if swap:
                first, second = tensors[0].chunk(2)
                tensors = [second, first]
            result[f"{theirs}.{ending}"] = torch.cat(tensors) if len(tensors) > 1 else tensors[0]

    put("x_embedder.proj", "pos_embed.proj")
    for theirs, ours in (("t_embedder", "timestep_embedder"), ("y_embedder", "text_embedder")):
        put(f"{theirs}.mlp.0", f"time_text_embed.{ours}.linear_1")
        put(f"{theirs}.mlp.2", f"time_text_embed.{ours}.linear_2")
    put("context_embedder", "context_embedder")
    put("final_layer.linear", "proj_out")
    put("final_layer.adaLN_modulation.1", "norm_out.linear", swap=True)
    for index in range(blocks):
        ours, theirs = f"transformer_blocks.{index}", f"joint_blocks.{index}"
        last = index == blocks - 1
        sample, context = f"{theirs}.x_block", f"{theirs}.context_block"
        put(f"{sample}.attn.qkv", *(f"{ours}.attn.to_{one}" for one in "qkv"))
        put(f"{context}.attn.qkv", *(f"{ours}.attn.add_{one}_proj" for one in "qkv"))
        put(f"{sample}.attn.proj", f"{ours}.attn.to_out.0")
        put(f"{sample}.adaLN_modulation.1", f"{ours}.norm1.linear")
        put(f"{context}.adaLN_modulation.1", f"{ours}.norm1_context.linear", swap=last)
        put(f"{sample}.mlp.fc1", f"{ours}.ff.net.0.proj")
        put(f"{sample}.mlp.fc2", f"{ours}.ff.net.2")
        if not last:
            put(f"{context}.attn.proj", f"{ours}.attn.to_add_out")
            put(f"{context}.mlp.fc1", f"{ours}.ff_context.net.0.proj")
            put(f"{context}.mlp.fc2", f"{ours}.ff_context.net.2")
        norms = [("x_block", "attn", "norm_q", "norm_k"), ("context_block", "attn", "norm_added_q", "norm_added_k")]
        if f"{ours}.attn2.to_q.weight" in state:
            put(f"{sample}.attn2.qkv", *(f"{ours}.attn2.to_{one}" for one in "qkv"))
            put(f"{sample}.attn2.proj", f"{ours}.attn2.to_out.0")
            norms.append(("x_block", "attn2", "norm_q", "norm_k"))
        for part, attention, query, key in norms:
            for name, norm in (("ln_q", query), ("ln_k", key)):
                result[f"{theirs}.{part}.{attention}.{name}.weight"] = state[f"{ours}.{attention}.{norm}.weight"]
    return {key: value.clone() for key, value in result.items()}


def main():
    folder, fixtures = map(Path, sys.argv[1:])
    logging.set_verbosity_error()
    torch.use_deterministic_algorithms(True)
    for name in MODELS:
        exchange = Exchange(name, folder, fixtures)
        exchange.ours()
        exchange.theirs()


if __name__ == "__main__":
    main()
