"""Ours and PyTorch's, row by row, within a time limit, for a GPU machine without Rust: our programs are brought built.

    fast.py --list
    fast.py --rows flux-512 qwen-image-1024 --programs FOLDER --to FILE [--limit SECONDS] [--each SECONDS] [--only ours|peers]

FOLDER holds those of our programs that the rows need (examples and program of a release build with CUDA): `workload_speed` for models
and `load`, `decode_speed` for `decode-…`, `encode_speed` for `t5`, `flow-train` and `full_size_folder` for `grpo`, `flow-train` for `audit-…`, `matmul_device` and
`xtask` for `products`, `reward_speed` for `rewards`. `low-MODEL` is a model with its frozen weights in FP8, 8 and 4 bits beside itself in bf16. FILE gets a line of JSON for each
measurement, besides what the programs write themselves: the row, who ran, the seconds the process took, and its end if that was not 0. A
process is ended after `--each` seconds, and none begins after `--limit`. Rows of a model compare losses: their programs make the same
weights and inputs. Every line has the peak of memory: `peak_gib` is what our pools took and the most that PyTorch's tensors had at once,
`driver_gib` and `reserved_gib` what was taken from the driver. Training keeps attention's results alone (`attn_only`).
"""

import argparse
import functools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BENCH = Path(__file__).resolve().parent
PYTHON = sys.executable


class Row:
    """What runs for a row: preparations, and contenders by name, each a command."""

    def __init__(self, work, name):
        self.prepared, self.ours, self.peers = [], {}, {}
        # What is found out once a contender has ended, by its name: a function that gives lines.
        self.after = {}
        getattr(self, name.split("-")[0])(work, name)

    def model(self, work, name, batch=()):
        ours, folder = str(work.programs / "workload_speed"), work.scratch / "".join([name, *batch])
        threads = ["--threads", str(os.cpu_count())]
        self.prepared = [[ours, "export", name, str(folder), "--made", *batch, *threads]]
        peer = [PYTHON, str(BENCH / "step_peer.py"), "time", str(folder)]
        for part, checkpoint in work.of(("forward", "none"), ("step", "attn_only")):
            options = ["--device", "cuda", "--checkpoint", checkpoint, "--repeats", str(work.repeats)]
            for captured in ([["--capture"]] if work.captured else [[], ["--capture"]]):
                key = " ".join([part, *captured])
                self.ours[key] = [ours, "time", name, str(folder), part, "--made", *batch, *threads, *options, *captured]
            trained = ["--trained-in", "f32"] if part == "step" else []
            for mode in work.modes:
                command = [*peer, part, "--mode", mode, *trained, *options, "--limit", str(work.each / 3)]
                self.peers[f"{part} {mode}"] = command

    flux = qwen = wan = model

    def low(self, work, name):
        """A model as it is, and with frozen matrices in each low precision; PyTorch in bf16."""
        name = name.removeprefix("low-")
        ours, folder = str(work.programs / "workload_speed"), str(work.scratch / name)
        # The other has buffers, which only a file gives.
        made = [] if name == "sd35-medium" else ["--made"]
        threads = ["--threads", str(os.cpu_count())]
        if not Path(folder, "given.safetensors").exists():
            self.prepared = [[ours, "export", name, folder, *(made or ["--store", "bf16"]), *threads]]
        options = ["--device", "cuda", "--repeats", str(work.repeats)]
        first = "rollout" if name == "sd35-medium" else "forward"
        peer = [PYTHON, str(BENCH / "step_peer.py"), "time", folder]
        for part, checkpoint in work.of((first, "none"), ("step", "attn_only")):
            parted = [*options, "--checkpoint", checkpoint]
            for precision in work.precisions:
                # Without a gradient it is `fp8`.
                if part == first and precision == "fp8-data-gradient":
                    continue
                low = ["--low-precision", precision] if precision != "bf16" else []
                command = [ours, "time", name, folder, part, *made, *threads, *parted, *low, "--capture"]
                self.ours[f"{part} {precision}"] = command
            trained = ["--trained-in", "f32"] if part == "step" else []
            for mode in work.modes:
                command = [*peer, part, "--mode", mode, *trained, *parted, "--limit", str(work.each / 3)]
                self.peers[f"{part} {mode}"] = command

    def audit(self, work, name):
        """Whole runs with weights in each low precision: whether ratios are 1, memory, seconds of the parts of an iteration."""
        config, model, channels = AUDITED[name.removeprefix("audit-")]
        weights, runs = work.scratch / f"{model}-shape", work.scratch / "runs"
        if not (weights / "diffusion_pytorch_model.safetensors.index.json").exists():
            shards = [PYTHON, str(BENCH / "parts_peer.py"), "shards", str(weights), "--model", model]
            self.prepared = [[*shards, "--in-channels", str(channels)]]
        for precision in work.precisions:
            run = f"{name}-{precision}-{work.checkpointing}"
            if not work.dry:
                shutil.rmtree(runs / run, ignore_errors=True)
            settings = [f'model.weights="{weights}"', f'run.dir="{runs}"', f'run.name="{run}"', "run.steps=4"]
            settings += [f"checkpointing.policy={work.checkpointing}", f"acceleration.shared={accelerators(precision)}"]
            # Pictures of noise break all rules alike, and of no advantage nothing is learnt.
            settings += ['rewards=[{ kind = "target-colour", rgb = [0.5, 0.5, 0.5] }]']
            command = [str(work.programs / "flow-train"), "train", str(BENCH.parent / config), "--quiet"]
            self.ours[run] = command + [part for setting in settings for part in ("--set", setting)]
            self.after[run] = functools.partial(told, runs / run)

    def products(self, work, name):
        """Products of codes: whether they are right, and times beside `torch._scaled_mm`."""
        ours = str(work.programs / "matmul_device")
        for group in ("codes", *(f"fp8 {sums} table" for sums in ("promoted", "fast"))):
            self.ours[f"check {group}"] = [ours, "check", *group.split()]
        # Cases of codes come behind all others; see the example's `timing::cases` and `fp8::cases`.
        compared = [str(work.programs / "xtask"), "bench", "gemm", "--program", ours, "--python", PYTHON, "--cases", "54-73"]
        self.ours["beside PyTorch"] = [*compared, "--rounds", "2", "--to", str(work.scratch / "products")]

    def sweep(self, work, name):
        """Products of codes by each kind of tiles."""
        self.ours["sweep"] = [str(work.programs / "matmul_device"), "sweep", "fp8"]

    def one(self, work, name):
        """FLUX.1 with a batch of one at 512 pixels."""
        self.model(work, "flux-512", ["--batch", "1"])

    def decode(self, work, name):
        side = name.split("-")[1]
        if side == "wan":
            self.decode_frames(work)
            return
        batch = {"512": "8", "1024": "1"}[side]
        self.ours["decode"] = [str(work.programs / "decode_speed"), "kl", side, "1", batch, "cuda"]
        sizes = ["--batch", batch, "--side", side, "--repeats", str(work.repeats)]
        self.peers["decode"] = [PYTHON, str(BENCH / "parts_peer.py"), "decode", *sizes, "--modes", *of_parts(work.modes)]

    def decode_frames(self, work):
        """The causal decoder of Wan 2.1 and Qwen-Image."""
        ours = [str(work.programs / "decode_speed"), "causal"]
        self.ours["decode"] = [*ours, "240x416", "33", "1", "cuda"]
        # Few pixels and frames, beside the processor.
        self.ours["decode, compared"] = [*ours, "64", "5", "1", "cuda", "compare"]
        sizes = ["--batch", "1", "--height", "240", "--width", "416", "--frames", "33", "--repeats", str(work.repeats)]
        self.peers["decode"] = [PYTHON, str(BENCH / "causal_peer.py"), "decode-causal", *sizes, "--modes", *of_parts(work.modes)]

    def grpo(self, work, name):
        for mode in work.modes:
            command = [PYTHON, str(BENCH / "grpo_peer.py"), "--mode", mode, "--limit", str(work.each * 0.7)]
            self.peers[f"iteration {mode}"] = command
        if work.small is None:
            return
        folder, runs = work.scratch / "sd35", work.scratch / "runs"
        if not (folder / "transformer/diffusion_pytorch_model.safetensors").exists():
            self.prepared = [[str(work.programs / "full_size_folder"), str(work.small), str(folder), "sd35-medium"]]
        if not work.dry:
            shutil.rmtree(runs, ignore_errors=True)
        settings = [f'model.path="{folder}"', f'run.dir="{runs}"', "run.steps=5", "sampling.prompts_per_step=2", "sampling.group_size=8"]
        # Neither evaluation nor checkpoints in between; a reward that costs nothing, as the peer's is a stub.
        settings += ["optimizer.gradient_accumulation=2", "evaluation.every=0", "checkpoints.every=0"]
        settings += ['rewards=[{ kind = "target-colour", rgb = [0.5, 0.5, 0.5] }]']
        command = [str(work.programs / "flow-train"), "train", str(BENCH.parent / "configs/sd35-medium-grpo.toml")]
        self.ours["iteration"] = command + [part for setting in settings for part in ("--set", setting)]
        self.after["iteration"] = lambda: iterations(runs / "sd35-medium-grpo/timing.jsonl")

    def t5(self, work, name):
        self.ours["encode"] = [str(work.programs / "encode_speed"), "cuda", "16", "256"]
        # Few layers of few tokens, beside the processor.
        self.ours["encode, compared"] = [str(work.programs / "encode_speed"), "cuda", "2", "77", "2", "compare"]
        sizes = ["--batch", "16", "--tokens", "256"]
        self.peers["encode"] = [PYTHON, str(BENCH / "parts_peer.py"), "t5", *sizes, "--modes", *of_parts(work.modes)]

    def rewards(self, work, name):
        """Rewards of pretrained networks, in bf16 on the device, and beside PyTorch."""
        fixtures = str(BENCH.parent / "crates/flow-rewards-models/tests/fixtures")
        for reward, network in REWARDS.items():
            folder = str(work.scratch / network)
            ours = [str(work.programs / "reward_speed"), reward, "16", str(work.repeats), "--folder", folder, "--fixtures", fixtures]
            for kernels in ("cuda-bf16", "cuda-bf16-fused"):
                self.ours[f"{reward} {kernels}"] = [*ours, "--device", "cuda", "--dtype", "bf16", "--kernels", kernels]
            peer = [PYTHON, str(BENCH / "reward_peer.py"), reward, "--folder", folder, "--repeats", str(work.repeats)]
            self.peers[reward] = [*peer, "--modes", *of_parts(work.modes)]

    def load(self, work, name):
        peer, folder = [PYTHON, str(BENCH / "parts_peer.py")], str(work.scratch / "shards")
        if not Path(folder, "diffusion_pytorch_model.safetensors.index.json").exists():
            self.prepared = [[*peer, "shards", folder]]
        self.peers["load"] = [*peer, "load", folder]
        ours = [str(work.programs / "workload_speed"), "time", "flux-1024", folder, "load"]
        self.ours["load"] = [*ours, "--device", "cuda", "--repeats", "2", "--threads", str(os.cpu_count())]


# Of frozen weights: as they are, or as `workload_speed --low-precision` has them.
PRECISIONS = ("bf16", "fp8", "fp8-data-gradient", "storage-fp8", "storage-nf4", "storage-int8")
# Rewards, and the networks that they have.
REWARDS = {
    "clip-score": "clip-vit-l-14",
    "aesthetic": "clip-vit-l-14",
    "pickscore": "clip-vit-h-14",
    "hpsv2": "clip-vit-h-14",
    "imagereward": "imagereward",
}
# Config, model of `parts_peer.py shards`, channels that come in.
AUDITED = {
    "sd35": ("configs/sd35-shape-h100.toml", "sd35-medium", 3),
    "flux": ("bench/flux-shape.toml", "flux1-dev", 12),
}
LOW_ROWS = ("products", "sweep", "low-sd35-medium", "low-flux-512", "audit-sd35", "audit-flux")
ROWS = ("decode-512", "decode-1024", "decode-wan", "t5", "flux-512", "one", "flux-1024", "qwen-image-1024", "wan-lora", "grpo", "load", "rewards", *LOW_ROWS)


def of_parts(modes):
    """Those of `modes` that `parts_peer.py` and its like have."""
    return [mode for mode in modes if mode in ("eager", "compile", "tuned")] or ["compile"]


def accelerators(precision):
    """`acceleration.shared` with frozen weights in a precision of `PRECISIONS`, as TOML."""
    entries = ['{ name = "fused_kernels", params = { mode = "full" } }', '{ name = "graph_capture" }']
    if precision != "bf16":
        compute = "storage" if precision.startswith("storage-") else "fp8"
        storage = precision.removeprefix("storage-").removesuffix("-data-gradient")
        gradient = ', data_gradient = "fp8"' if precision.endswith("-data-gradient") else ""
        params = f'{{ compute = "{compute}", format = "{storage}"{gradient} }}'
        entries.append(f'{{ name = "low_precision", params = {params} }}')
    return f"[{', '.join(entries)}]"


def told(run):
    """A line for each iteration, then what the summary says of ratios and memory."""
    yield from iterations(run / "timing.jsonl")
    if (run / "summary.json").exists():
        summary = json.loads((run / "summary.json").read_text())
        yield {key: summary.get(key) for key in ("audit", "peak_memory_gib", "images_per_s")}


def iterations(timing):
    """A line for each iteration of a run of ours: its seconds, and what lay on the device."""
    rows = {}
    for line in timing.read_text().splitlines() if timing.exists() else []:
        record = json.loads(line)
        rows.setdefault(record.pop("step"), {}).update(record)
    for step, row in rows.items():
        parts = [row.get(part) for part in ("rollout_s", "rewards_s", "update_s")]
        if None not in parts:
            yield {"step": step, "iteration_s": sum(parts)} | {key: value for key, value in row.items() if key != "kind"}


class Work:
    def __init__(self, options):
        self.programs, self.scratch, self.small = options.programs, options.scratch, options.small
        self.modes, self.repeats, self.each, self.only = options.modes, options.repeats, options.each, options.only
        self.captured, self.dry, self.precisions = options.captured, options.dry, options.precisions
        self.checkpointing = options.checkpointing
        self.parts = options.parts
        self.ends, self.to = time.monotonic() + options.limit, options.to

    def of(self, *parts):
        """Those that were asked for; each begins with its name."""
        return [part for part in parts if self.parts is None or part[0] in self.parts]

    def say(self, line):
        print(json.dumps(line), flush=True)
        if self.to:
            with self.to.open("a") as file:
                print(json.dumps(line), file=file)

    def run(self, row, who, command):
        """Whether it ended well. Every line of JSON that it writes is a measurement."""
        if self.dry:
            print(shlex.join(command))
            return True
        left = min(self.each, self.ends - time.monotonic())
        if left < 15:
            self.say({"row": row, "who": who, "left_out": "no time was left"})
            return False
        began = time.monotonic()
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
        try:
            text, _ = started.communicate(timeout=left)
            end = started.returncode
        except subprocess.TimeoutExpired:
            # With what it started: compilers of PyTorch's.
            os.killpg(started.pid, signal.SIGKILL)
            text, end = started.communicate()[0], "out of time"
        for line in text.splitlines():
            try:
                found = json.loads(line)
            except json.JSONDecodeError:
                found = {"text": line}
            self.say({"row": row, "who": who} | (found if isinstance(found, dict) else {"text": line}))
        self.say({"row": row, "who": who, "process_s": round(time.monotonic() - began, 1), "end": end})
        return end == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="names of the rows")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--programs", type=Path, default=Path("programs"))
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "fast", help="for what is written: 24 GB for `load`, 17 GB for `grpo`; what is there is not written again")
    parser.add_argument("--small", type=Path, help="a small folder of SD3's pipeline, for our part of `grpo`, as test-support's example `small_folder` writes it")
    parser.add_argument("--modes", nargs="+", default=["compile"], help="of PyTorch: compile, tuned, graphs, tuned-graphs, eager")
    parser.add_argument("--parts", nargs="+", choices=("forward", "rollout", "step"), help="of models, for what a run before left out; all if none are given")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS), help="of frozen weights, for `low-…` and `audit-…`")
    parser.add_argument("--checkpointing", choices=("attn-only", "full"), default="attn-only", help="of `audit-…`")
    parser.add_argument("--captured", action="store_true", help="of our models only what is recorded and replayed")
    parser.add_argument("--only", choices=("ours", "peers"))
    parser.add_argument("--dry", action="store_true", help="print the commands")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--limit", type=float, default=560, help="seconds of all")
    parser.add_argument("--each", type=float, default=200, help="seconds of a process")
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    if options.list:
        print("\n".join(ROWS))
        return
    work = Work(options)
    work.scratch.mkdir(parents=True, exist_ok=True)
    for name in options.rows:
        row = Row(work, name)
        prepared = all(work.run(name, "prepare", command) for command in row.prepared)
        contenders = {} if options.only == "peers" else row.ours
        contenders = contenders | ({} if options.only == "ours" else {f"PyTorch {key}": it for key, it in row.peers.items()})
        for who, command in contenders.items():
            if prepared or name == "grpo" and who.startswith("PyTorch"):
                work.run(name, who, command)
                for line in row.after.get(who, list)():
                    work.say({"row": name, "who": who} | line)


if __name__ == "__main__":
    main()
