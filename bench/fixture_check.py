"""Compares the models of the peers with what diffusers recorded: outputs and the gradients of all weights, in f32 on the CPU.

    fixture_check.py [FOLDER]     FOLDER: `crates/flow-models/tests/fixtures` (the default, from the repository's root)

Only torch and safetensors are needed; the recordings are those that flow-models' own tests read.
"""

import json
import sys
from pathlib import Path

import torch
from models import Mmdit
from safetensors.torch import load_file
from two_streams import Flux, QwenImage, pack, unpack

# Relative L2 of f32 results that are sums in another order. FLUX.1 embeds a guidance scale at 3500 radians, where the last bit of a
# frequency, in which exponential functions of processors differ, is seen.
TOLERANCES = {"sd3-tiny": 1e-5, "flux-tiny": 5e-5, "qwen-image-tiny": 1e-5}
# Rows and columns of tokens, which no config says.
GRIDS = {"flux-tiny": (Flux, 4, 6), "qwen-image-tiny": (QwenImage, 4, 6)}
# Folders of the networks that others have, too.
NETWORKS = {"flux-tiny": "flux-lora", "qwen-image-tiny": "qwen-image-lora"}
CONDITION = ("encoder_hidden_states", "pooled_projections", "guidance")


def distance(found, wanted):
    return ((found - wanted).double().norm() / wanted.double().norm().clamp_min(1e-30)).item()


def inputs_and_model(name, network, recorded):
    """The model, its latents, and how its velocity is compared."""
    settings = json.loads((network / "config.json").read_text())
    given = recorded["in.hidden_states"]
    if name == "sd3-tiny":
        settings["latent_height"], settings["latent_width"] = given.shape[2:]
        return Mmdit(settings), given.flatten(1), 1000.0, lambda v: v.view(given.shape)
    model, rows, columns = GRIDS[name]
    model = model(settings | {"latent_height": 2 * rows, "latent_width": 2 * columns})
    return model, unpack(given, model.latent), 1.0, lambda v: pack(v, model.latent)


def check(name, folder):
    recorded = load_file(folder / "io.safetensors")
    network = folder.parent / NETWORKS.get(name, name)
    model, x, of_timestep, compared = inputs_and_model(name, network, recorded)
    weights = {}
    for shard in sorted(network.glob("diffusion_pytorch_model*.safetensors")):
        weights |= load_file(shard)
    model.load_state_dict(weights, strict=True)
    condition = [recorded[f"in.{key}"] for key in CONDITION if f"in.{key}" in recorded]
    velocity = compared(model(x, recorded["in.timestep"] / of_timestep, *condition))
    velocity.backward(recorded["grad_out"])
    far = {"output": distance(velocity, recorded["out"])}
    for key, parameter in model.named_parameters():
        wanted = recorded.get(f"grad_param.{key}")
        if wanted is None or not wanted.any():
            # Nobody reads what this weight makes.
            continue
        far[key] = distance(parameter.grad, wanted)
    key = max(far, key=far.get)
    print(f"{name}: {len(far)} tensors compared, the output at {far['output']:.1e}, the farthest, {key}, at {far[key]:.1e}")
    return far[key] <= TOLERANCES[name]


def main():
    fixtures = Path(sys.argv[1] if len(sys.argv) > 1 else "crates/flow-models/tests/fixtures")
    torch.manual_seed(0)
    agreed = [check(name, fixtures / name) for name in ("sd3-tiny", *GRIDS)]
    if not all(agreed):
        raise SystemExit("the peers' models are not those of diffusers")


if __name__ == "__main__":
    main()
