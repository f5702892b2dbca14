"""The workloads of `workload_speed` (flow-trainer's example) in PyTorch, from the same weights and inputs; and the steps of
`policy_speed` (flow-checkpoint's).

    step_peer.py check FOLDER            compare with what `workload_speed export NAME FOLDER --tiny` wrote, in f32 on the CPU
    step_peer.py time FOLDER PART [...]  print a line of JSON; PART is forward, step or rollout
      --mode eager|cudnn|compile|tuned|graphs|tuned-graphs
                                         eager with PyTorch's own choice of attention; eager with cuDNN's; `torch.compile` with
                                         cuDNN's, of the whole model where it is small and of each block else; the same with
                                         `max-autotune-no-cudagraphs`; either with the whole part, its backward pass and the
                                         optimizer included, recorded as one CUDA graph and replayed
      --checkpoint none|full|attn_only   what backward keeps of a block: what it needs; its inputs; and attention's output
      --device cpu|cuda  --dtype f32|bf16  --repeats N
      --trained-in f32|bf16              precision of trained parameters, their gradients and moments, if not that of --dtype:
                                         f32 is what trainers call mixed precision, and what flow-train does
      --deterministic                    only algorithms that give the same bits every time, as flow-train's do; cuDNN's and
                                         FlashAttention's backward passes add up in any order without it

    step_peer.py serve FOLDER            answer each line of JSON by one, for `cargo xtask bench checkpoint`:
      {"do": "about"}                              versions and device
      {"do": "check", "mode": M, "checkpoint": C}  loss and norm of the gradients of a step without the optimizer
      {"do": "time", …, "repeats": N}              its seconds, and the peak of memory
      --device cpu|cuda  --dtype f32|bf16  --threads N

A training step is forward, loss, backward and fused AdamW, parameters, moments and gradients in the given precision; with
parameters in f32 beside bf16 the model runs under autocast. The loss is the mean squared distance to a target, under guidance
Flow-GRPO's at one recorded step. Only torch, numpy and safetensors are needed.
"""

import argparse
import contextlib
import functools
import json
import math
import os
import resource
import statistics
import sys
import time
from pathlib import Path

try:
    import torch
    from safetensors.torch import load_file
except ImportError as error:
    raise SystemExit(f"{error}; this program needs torch and safetensors (pip install torch numpy safetensors)")

import two_streams
from models import ARCHITECTURES, add_adapters, place
from replay import recorded
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

ARCHITECTURES = ARCHITECTURES | two_streams.ARCHITECTURES
# Of weights that are made: `common/made.rs` of flow-trainer's examples has the same.
MADE_STRIDE, MADE_VECTOR, MADE_MATRIX = 7919, 0.02, 0.5
# Agreement asked for: relative L2 of f32 results that are sums in another order.
TOLERANCE = 1e-5
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
MODES = ("eager", "cudnn", "compile", "tuned", "graphs", "tuned-graphs")
# How each mode compiles.
COMPILED = {"compile": None, "graphs": None, "tuned": "max-autotune-no-cudagraphs", "tuned-graphs": "max-autotune-no-cudagraphs"}
REPLAYED = ("graphs", "tuned-graphs")
# Blocks up to which a whole model is compiled at once; what compiling takes grows with it.
WHOLE = 12
ATTENTION = (
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)


def attention_operations():
    found = [getattr(torch.ops.aten, name).default for name in ATTENTION if hasattr(torch.ops.aten, name)]
    if not found:
        raise SystemExit(f"this PyTorch ({torch.__version__}) has none of the operations {', '.join(ATTENTION)}")
    return found


@functools.cache
def saving_attention():
    """One object for all blocks, so that what is compiled for one serves the others."""
    saved = set(attention_operations())
    policy = lambda _, op, *args, **kwargs: (
        CheckpointPolicy.MUST_SAVE if op in saved else CheckpointPolicy.PREFER_RECOMPUTE
    )
    return functools.partial(create_selective_checkpoint_contexts, policy)


class Checkpointed(nn.Module):
    """A block of which backward keeps the inputs, and attention's results if `saves_attention`."""

    def __init__(self, block, saves_attention):
        super().__init__()
        self.block = block
        self.options = {"context_fn": saving_attention()} if saves_attention else {}

    def forward(self, *inputs):
        return checkpoint(self.block, *inputs, use_reentrant=False, preserve_rng_state=False, **self.options)


class Work:
    def __init__(
        self, folder, device="cpu", dtype=torch.float32, mode="eager", policy="none", trained_in=None, outside=False
    ):
        self.folder = Path(folder)
        about = self.about = json.loads((self.folder / "workload.json").read_text())
        self.device, self.dtype, self.mode = device, dtype, mode
        self.trained_in = trained_in or dtype
        self.given = load_file(self.folder / "given.safetensors")
        table = self.given.pop("weights.table", None)
        # Names of weights that no file holds, because of their size.
        to_make = about.get("weights")
        weights = load_file(self.folder / "weights.safetensors") if to_make is None else to_make
        # Values are made below, so nothing is drawn here.
        with torch.device("meta"):
            model = ARCHITECTURES[about["architecture"]](about["settings"])
        lora = about["lora"]
        if lora:
            end = ".lora_A.weight"
            names = [name.removesuffix(end) for name in weights if name.endswith(end)]
            with torch.device("meta"):
                add_adapters(model, names, lora["rank"], lora["alpha"] / lora["rank"])
        if to_make is not None:
            weights = self.made_weights(model, to_make, table)
        missing, unexpected = model.load_state_dict(weights, strict=False, assign=True)
        if missing or unexpected:
            raise SystemExit(f"weights do not fit: missing {missing[:5]}, unexpected {unexpected[:5]}")
        self.make_tables(model)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not lora or ".lora_" in name)
        model = self.model = place(model, device, dtype, self.trained_in)
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        self.blocks = [block for stack in model.stacks for block in getattr(model, stack)]
        self.is_whole, self.checkpoints_outside = len(self.blocks) <= WHOLE, outside
        self.arranged = {}
        self.arrange(mode, policy)

        self.steps = [self.given.pop(f"step.{index}").tolist() for index in range(about["steps"])]
        for name, value in self.given.items():
            is_read = name.removeprefix("null_") in ("text", "pooled")
            self.given[name] = value.to(device, dtype if is_read else None)
        if about.get("tokens"):
            self.given["tokens"] = torch.tensor(about["tokens"], device=device)
        self.scale = about["guidance_scale"]
        self.optimizer = None
        self.learning_rate = about["learning_rate"]

    def arrange(self, mode, policy):
        """Runs the blocks as `mode` and `policy` say from now on. Parameters and what was compiled stay."""
        self.mode, model = mode, self.model
        if (mode, policy) not in self.arranged:
            blocks = self.blocks
            checkpointed = lambda block: Checkpointed(block, policy == "attn_only")
            # A policy that looks at single operations has to stand inside of what is compiled.
            is_outside = self.checkpoints_outside and policy == "full"
            if policy != "none" and not is_outside:
                blocks = [checkpointed(block) for block in blocks]
            if mode in COMPILED and not self.is_whole:
                blocks = [torch.compile(block, mode=COMPILED[mode]) for block in blocks]
            if policy != "none" and is_outside:
                blocks = [checkpointed(block) for block in blocks]
            self.arranged[mode, policy] = blocks
        rest = list(self.arranged[mode, policy])
        for stack in model.stacks:
            count = len(getattr(model, stack))
            setattr(model, stack, nn.ModuleList(rest[:count]))
            del rest[:count]
        compiles_whole = mode in COMPILED and self.is_whole
        self.network = torch.compile(model, mode=COMPILED[mode]) if compiles_whole else model

    def made_weights(self, model, names, table):
        """The values that `workload_speed --made` gives to weights of these `names`, made on the device: stretches of one table,
        scaled. What is frozen is rounded at once."""
        shapes = {name: value.shape for name, value in model.named_parameters()}
        table, made = table.to(self.device), {}
        for index, name in enumerate(names):
            shape = shapes.get(name, (0,))
            count, first = math.prod(shape), index * MADE_STRIDE % len(table)
            values = torch.cat([table[first:], table[:first]]).repeat(-(-count // len(table)))[:count].view(shape)
            if len(shape) == 1:
                values = values * MADE_VECTOR + (1.0 if name.endswith(".weight") else 0.0)
            else:
                values = values * (MADE_MATRIX / math.sqrt(shape[1]))
            is_trained = not self.about["lora"] or ".lora_" in name
            made[name] = values.to(self.trained_in if is_trained else self.dtype)
        return made

    def make_tables(self, model):
        """Buffers that no file holds, on the CPU in f32."""
        with torch.device("cpu"):
            fresh = dict(self.tables_of(self.about))
        for name, value in fresh.items():
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, value)

    @staticmethod
    def tables_of(about):
        # One block is enough to make the tables, and cheap.
        settings = dict(about["settings"])
        for key in ("layers", "num_layers", "num_single_layers"):
            if key in settings:
                settings[key] = 1
        if about["architecture"] == "mmdit":
            settings["dual_attention_layers"], settings["pos_embed_max_size"] = [], 1
        model = ARCHITECTURES[about["architecture"]](settings)
        stored = model.state_dict().keys()
        return [(name, value) for name, value in model.named_buffers() if name not in stored]

    def condition(self, prefix):
        names = ("tokens", "text", "pooled", "guidance")
        return [self.given[prefix + name] for name in names if prefix + name in self.given]

    def attention(self):
        if self.mode == "eager" or self.device == "cpu":
            return contextlib.nullcontext()
        return sdpa_kernel(SDPBackend.CUDNN_ATTENTION)

    def call(self, x, sigma, condition):
        with self.precision():
            return self.network(x, sigma, *condition).float()

    def precision(self):
        if self.trained_in == self.dtype:
            return contextlib.nullcontext()
        return torch.autocast(self.device, self.dtype)

    def velocity(self, x, sigma):
        """Guided, if the workload is."""
        condition = self.condition("")
        if self.scale == 1.0:
            return self.call(x, sigma, condition)
        both = [torch.cat(pair) for pair in zip(condition, self.condition("null_"))]
        v, empty = self.call(x.repeat(2, 1), sigma.repeat(2), both).chunk(2)
        return empty + (v - empty) * self.scale

    @torch.no_grad()
    def forward(self):
        with self.attention():
            return self.call(self.given["x"], self.given["sigma"], self.condition(""))

    @torch.no_grad()
    def roll_out(self):
        x = self.given["initial_noise"]
        with self.attention():
            for index, (sigma, mean_x, mean_v, level, log_scale, offset) in enumerate(self.steps):
                mean = mean_x * x + mean_v * self.velocity(x, self.levels(sigma, x))
                if level == 0.0:
                    x = mean
                    continue
                x_next = mean + level * self.given[f"noise.{index}"]
                self.log_prob = -(x_next - mean).square().mean(1) * log_scale + offset
                x = x_next
        return x

    def levels(self, sigma, x):
        return torch.full((x.shape[0],), sigma, device=x.device)

    def loss(self):
        """The loss, its gradients left at the parameters."""
        for parameter in self.trained:
            parameter.grad = None
        given = self.given
        with self.attention():
            if self.scale == 1.0:
                v = self.call(given["x"], given["sigma"], self.condition(""))
                loss = (v - given["target"]).square().mean(1).mean()
            else:
                sigma, mean_x, mean_v, _, log_scale, offset = self.steps[self.about["recorded"]]
                x, x_next = given["x"], given["record.x_next"]
                mean = mean_x * x + mean_v * self.velocity(x, self.levels(sigma, x))
                log_prob = -(x_next - mean).square().mean(1) * log_scale + offset
                ratio = torch.exp(log_prob - given["record.log_prob"])
                low, high = self.about["clip_range"]
                advantages = given["advantages"]
                loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 + low, 1 + high)).mean()
            loss.backward()
        return loss.detach()

    def step(self):
        loss = self.loss()
        self.update()
        return loss

    def update(self):
        if self.optimizer is None:
            options = dict(lr=self.learning_rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
            capturable = self.mode in REPLAYED
            self.optimizer = torch.optim.AdamW(self.trained, fused=True, capturable=capturable, **options)
        self.optimizer.step()

    def leave_out(self):
        """Takes gradients that are not finite from the update; their parameters' names."""
        with torch.no_grad():
            finite = torch.stack([gradient(parameter).isfinite().all() for parameter in self.trained]).tolist()
        for parameter, is_finite in zip(self.trained, finite):
            if not is_finite:
                parameter.grad = None
        return [name for name, is_finite in zip(self.names, finite) if not is_finite]


def distance(found, wanted):
    found, wanted = found.double().flatten(), wanted.double().flatten()
    return ((found - wanted).norm() / wanted.norm().clamp_min(1e-30)).item()


def gradient(parameter):
    """Zeros where nobody reads what the parameter makes, as in the last block of Qwen-Image's text."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def check(folder):
    work = Work(folder)
    wanted = load_file(work.folder / "wanted.safetensors")
    far = {
        "velocity": distance(work.forward(), wanted["velocity"]),
        "clean": distance(work.roll_out(), wanted["clean"]),
    }
    before = [parameter.detach().clone() for parameter in work.trained]
    of_wanted = lambda name, parameter: wanted.get(f"gradient.{name}", torch.zeros_like(parameter))
    for policy in ("none", "full", "attn_only"):
        # A checkpoint policy changes no value, so each has to agree.
        of_policy = Work(folder, policy=policy)
        far[f"loss, {policy}"] = distance(of_policy.loss(), wanted["loss"])
        gradients = torch.cat([gradient(parameter).flatten() for parameter in of_policy.trained])
        theirs = torch.cat([of_wanted(name, parameter).flatten() for name, parameter in zip(work.names, work.trained)])
        far[f"gradients, {policy}"] = distance(gradients, theirs)
    # The first step of AdamW is the sign of the gradient, so where a gradient is near 0 it is a coin's: weights that got
    # a gradient well above rounding are compared, on the scale of the weights.
    work.step()
    ours, theirs = [], []
    for name, parameter, start in zip(work.names, work.trained, before):
        size = of_wanted(name, parameter).abs()
        clear = size > 1e-3 * size.max()
        ours.append((parameter.detach() - start)[clear])
        theirs.append((wanted[f"stepped.{name}"] - start)[clear])
    change = (torch.cat(ours) - torch.cat(theirs)).norm() / torch.cat([b.flatten() for b in before]).norm()
    far["optimizer"] = change.item()
    print(json.dumps({"workload": work.about["workload"], "relative_l2": far, "tolerance": TOLERANCE}))
    apart = {name: value for name, value in far.items() if not value <= TOLERANCE}
    if apart:
        raise SystemExit(f"PyTorch and flow-train disagree: {apart}")


def traced(part, wait):
    """Launches and times of every kernel of one run, in place."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        part()
        wait()
    kernels = {}
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            calls, us = kernels.get(event.name, (0, 0.0))
            kernels[event.name] = (calls + 1, us + event.time_range.elapsed_us())
    rows = [{"name": name, "calls": calls, "us": us} for name, (calls, us) in kernels.items()]
    rows.sort(key=lambda row: -row["us"])
    sum_of = lambda key: sum(row[key] for row in rows)
    return {"launches": sum_of("calls"), "kernels_ms": sum_of("us") / 1e3, "kernels": rows}


def time_part(options):
    is_cuda = options.device == "cuda"
    if options.trace and not is_cuda:
        raise SystemExit("`--trace` lists the kernels of a CUDA device")
    if options.mode in ("cudnn", *REPLAYED) and not is_cuda:
        raise SystemExit(f"mode `{options.mode}` is for CUDA devices")
    if is_cuda and not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no CUDA device")
    if options.deterministic:
        # What cuBLAS asks for; read when its first handle is made.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    trained_in = options.trained_in or options.dtype
    work = Work(
        options.folder,
        options.device,
        DTYPES[options.dtype],
        options.mode,
        options.checkpoint,
        DTYPES[trained_in],
        options.checkpoint_outside,
    )
    if not options.mixed_reductions:
        import torch._inductor.config as inductor

        # Of PyTorch 2.11; other versions may not have it.
        if hasattr(inductor.triton, "mix_order_reduction"):
            inductor.triton.mix_order_reduction = False
    # Small, so that each run is of much the same data: a GPU's clock depends on what its data draw.
    work.learning_rate = work.about["timed_learning_rate"] if options.learning_rate is None else options.learning_rate
    part = {"forward": work.forward, "rollout": work.roll_out, "step": work.step}[options.part]
    wait = torch.cuda.synchronize if is_cuda else lambda: None
    # A weight that is not finite spreads, and a GPU that computes with such numbers draws less and clocks higher: Wan's step at 31,200
    # tokens took 1,875 ms with them and 2,200 without. So what has such gradients gets no update; they are taken out between
    # two measurements of time, which are added.
    left_out = []
    if options.part == "step":
        work.loss()
        left_out = work.leave_out()
    if options.mode in REPLAYED:
        if left_out:
            raise SystemExit(f"gradients of {left_out[:5]} are not finite, and a recorded step leaves none out")
        # Gradients of the calls before would stay beside those of the graph.
        for parameter in work.trained:
            parameter.grad = None
        graph, of_replay = recorded(part)

        def part():
            graph.replay()
            return of_replay

    def timed():
        start = time.perf_counter()
        done = work.loss() if left_out else part()
        wait()
        ms = (time.perf_counter() - start) * 1e3
        if left_out:
            work.leave_out()
            start = time.perf_counter()
            work.update()
            wait()
            ms += (time.perf_counter() - start) * 1e3
        return ms, done

    first = timed()[1].float()
    result = first.item() if options.part == "step" else first.square().mean().sqrt().item()
    for _ in range(2):
        timed()
    if is_cuda:
        torch.cuda.reset_peak_memory_stats()
    about = {
        "program": f"torch {torch.__version__}",
        "workload": work.about["workload"],
        "part": options.part,
        "mode": options.mode,
        "checkpoint": options.checkpoint,
        "device": torch.cuda.get_device_name() if is_cuda else "cpu",
        "dtype": options.dtype,
        "trained_in": trained_in,
        "deterministic": options.deterministic,
        "checkpoint_outside": options.checkpoint_outside,
        "mixed_reductions": options.mixed_reductions,
        "batch": len(work.given["x"]),
    }
    if options.trace:
        print(json.dumps(about | traced(part, wait)))
        return
    found, began = [], time.perf_counter()
    while len(found) < options.repeats and (not found or time.perf_counter() - began < options.limit):
        ms, last = timed()
        found.append(ms)
    last_loss = last.item() if options.part == "step" else None
    found.sort()
    at = lambda share: found[round((len(found) - 1) * share)]
    peak = torch.cuda.max_memory_allocated() if is_cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10
    print(
        json.dumps(
            about
            | {
                "loss" if options.part == "step" else "root_mean_square": result,
                "gradients_not_finite": left_out,
                # JSON has no NaN.
                "last_loss": last_loss if last_loss is None or math.isfinite(last_loss) else None,
                "median_ms": statistics.median(found),
                "least_ms": found[0],
                "p10_ms": at(0.1),
                "p90_ms": at(0.9),
                "samples": len(found),
                "peak_gib": peak / 2**30,
                # What PyTorch took from the driver for it.
                "reserved_gib": torch.cuda.max_memory_reserved() / 2**30 if is_cuda else None,
            }
        )
    )


def serve(options):
    """Answers lines. Between answers no gradient and no cached memory is kept, since others use the device, too."""
    is_cuda = options.device == "cuda"
    if is_cuda and not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no CUDA device")
    torch.set_num_threads(options.threads)
    work = Work(options.folder, options.device, DTYPES[options.dtype])
    wait = torch.cuda.synchronize if is_cuda else lambda: None

    def release():
        for parameter in work.trained:
            parameter.grad = None
        if is_cuda:
            torch.cuda.empty_cache()

    def answer(question):
        if question["do"] == "about":
            device = torch.cuda.get_device_name() if is_cuda else "cpu"
            return {"torch": torch.__version__, "cuda": torch.version.cuda, "device": device}
        mode, policy = question["mode"], question["checkpoint"]
        if mode not in MODES[:3] or policy not in ("none", "full", "attn_only"):
            return {"error": f"no mode `{mode}` or policy `{policy}`"}
        work.arrange(mode, policy)
        if question["do"] == "check":
            loss = work.loss().item()
            squares = [gradient(parameter).double().square().sum() for parameter in work.trained]
            norm = torch.stack(squares).sum().sqrt().item()
            far = [name for name, square in zip(work.names, squares) if not square.isfinite()]
            # JSON has no NaN.
            found = {"loss": loss, "gradient_norm": norm if math.isfinite(norm) else None}
            return found | {"not_finite": far}
        # The first step after a pause fills caches.
        work.loss()
        wait()
        if is_cuda:
            torch.cuda.reset_peak_memory_stats()
        seconds = []
        for _ in range(question["repeats"]):
            start = time.perf_counter()
            work.loss()
            wait()
            seconds.append(time.perf_counter() - start)
        return {"seconds": seconds, "peak_bytes": torch.cuda.max_memory_allocated() if is_cuda else None}

    for line in sys.stdin:
        try:
            found = answer(json.loads(line))
        except torch.OutOfMemoryError:
            found = {"out_of_memory": True}
        release()
        print(json.dumps(found), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check").add_argument("folder")
    timed = commands.add_parser("time")
    timed.add_argument("folder")
    timed.add_argument("part", choices=("forward", "step", "rollout"))
    timed.add_argument("--mode", choices=MODES, default="eager")
    timed.add_argument("--checkpoint", choices=("none", "full", "attn_only"), default="none")
    timed.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    timed.add_argument("--dtype", choices=tuple(DTYPES), default="bf16")
    timed.add_argument("--trained-in", choices=tuple(DTYPES))
    timed.add_argument("--deterministic", action="store_true")
    timed.add_argument("--checkpoint-outside", action="store_true", help="checkpoints compiled blocks; without it, what is checkpointed is compiled")
    timed.add_argument("--mixed-reductions", action="store_true", help="sums over rows and columns in one compiled kernel, PyTorch's default")
    timed.add_argument("--learning-rate", type=float, help="of the updates; the folder's timed_learning_rate if none is given")
    timed.add_argument("--trace", action="store_true", help="instead of times: every kernel of one run")
    timed.add_argument("--repeats", type=int, default=9)
    timed.add_argument("--limit", type=float, default=math.inf, help="seconds after which no further measurement begins")
    served = commands.add_parser("serve")
    served.add_argument("folder")
    served.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    served.add_argument("--dtype", choices=tuple(DTYPES), default="f32")
    served.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.command == "check":
        check(options.folder)
    elif options.command == "serve":
        serve(options)
    else:
        time_part(options)


if __name__ == "__main__":
    sys.exit(main())
