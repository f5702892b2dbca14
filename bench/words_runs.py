"""The words job over seeds and settings, on GPUs and on pairs of cores at once, in the background of other commands.

    words_runs.py start cpu --cores 40-63 [--seconds 900]            runs pinned to two cores each, as many as there are cores for
    words_runs.py start gpu --cards 0,1 --cores 0-39 [--seconds N]   runs on GPUs, which share the cores
    words_runs.py collect [--to FOLDER]                              a line of JSON for each evaluation, and an archive of what runs wrote
    words_runs.py picture --lines FILE [--to FOLDER]                 draws the lines of `collect`, means over three seeds
    words_runs.py stop                                               SIGTERM to what was started: it ends with its iteration, and is saved

Three seeds of `configs/words-nft.toml` and `configs/words-grpo.toml`, then variants of the first: what reaches 0.95 in the shortest time. `--only` names runs,
`list` lists them, with those in FP8 (`nft-fp8-1`) and those of `configs/shapes-nft-h100.toml` and `configs/shapes-grpo-h100.toml` (`shapes-nft-1`,
`shapes-nft-fp8-1`), which are run only if they are named; shapes need a GPU and weights in `runs/weights`, of `flow-train pretrain configs/shapes-grpo-h100.toml`. `--weights` begins
from others than the configs', `--set` holds for all runs (`optimizer.schedule={ kind = "constant" }`: NFT's rate stays); with `--name` before the names of runs, runs of several weights lie side by
side. `--judge` adds what Tesseract reads to each evaluation (`tesseract_judge.py` says what it needs); `words_judge.py` asks it about weights afterwards. Environment: FT, the program. The models
(`flow-train fetch words`) and `assets/words-mmdit.safetensors` lie where the configs have them; runs go to `--folder`. `start` comes back at once:
every run is a session of its own, so a command that ends, or a machine's tool that ends what a command left, does not end it.
"""

import argparse
import json
import os
import shlex
import signal
import statistics
import subprocess
import tarfile
import tempfile
from pathlib import Path

from algorithms import mean_curve

REPOSITORY = Path(__file__).resolve().parent.parent
WANTED = 0.95
# Of an iteration: `sampling.prompts_per_step` times `sampling.group_size`.
IMAGES = 192
MACHINES = {"gpu": "GPU", "cpu": "two cores"}
NARROW = ("rewards.0", "eval_rewards.0", "eval_rewards.1")
JUDGE = REPOSITORY / "crates/flow-rewards-remote/examples/tesseract_judge.py"
SMALL_GROUPS = ("sampling.prompts_per_step=8", "sampling.group_size=12", "optimizer.gradient_accumulation=1")
SIX_STEPS = ("scheduler.steps=6",)
FASTER = ("optimizer.learning_rate=4e-4", "optimizer.warmup_steps=10")
times = lambda count: (f"algorithm.train_timesteps.count={count}",)
# By name: config, seed, settings. Those of a variant are of seed 1.
RUNS = {f"{kind}-{seed}": (kind, seed, ()) for seed in (1, 2, 3) for kind in ("nft", "grpo")}
VARIANTS = {
    "fast": SMALL_GROUPS + SIX_STEPS + FASTER + times(2),
    "fast-large": SIX_STEPS + FASTER + times(1),
    "small-groups": SMALL_GROUPS,
    "rate-4e-4": FASTER,
    "one-time": times(1),
    "six-steps": SIX_STEPS,
    "two-times": times(2),
    "rate-1e-4": ("optimizer.learning_rate=1e-4",),
}
RUNS |= {name: ("nft", 1, settings) for name, settings in VARIANTS.items()}
# What is run unless runs are named.
USUAL = list(RUNS)
FP8 = '{ name = "low_precision", params = { compute = "fp8", format = "fp8" } }'
# Those that the configs of shapes have.
OF_SHAPES = '{ name = "fused_kernels", params = { mode = "full" } }, { name = "graph_capture" }'
# Iterations until most is learnt.
SHORT = {"shapes-grpo": ("run.steps=200",), "shapes-nft": ("run.steps=100",)}
for kind in ("nft", "grpo", *SHORT):
    before = f"{OF_SHAPES}, " if kind in SHORT else ""
    of_fp8 = (f"acceleration.shared=[{before}{FP8}]",)
    for seed in (1, 2, 3):
        if kind in SHORT:
            RUNS[f"{kind}-{seed}"] = (kind, seed, SHORT[kind])
        RUNS[f"{kind}-fp8-{seed}"] = (kind, seed, SHORT.get(kind, ()) + of_fp8)


def numbers(text):
    """`0,3` or `40-63`."""
    first, _, last = text.partition("-")
    return list(range(int(first), int(last) + 1)) if last else [int(number) for number in text.split(",")]


def config_of(kind):
    return f"configs/{kind}-h100.toml" if kind in SHORT else f"configs/words-{kind}.toml"


def judge_settings():
    """Tesseract as the third of the configs' `eval_rewards`."""
    asked = {"kind": "command", "name": "tesseract", "command": ["python3", str(JUDGE)], "processes": 2}
    return [f"eval_rewards.2.{key}={json.dumps(value)}" for key, value in asked.items()]


def command(options, name, run, cores, device):
    kind, seed, settings = RUNS[name]
    settings = [f"run.dir={options.folder / 'runs'}", f"run.name={run}", f"run.seed={seed}", *device, *settings, *options.set]
    settings += [f"model.weights={options.weights.resolve()}"] if options.weights else []
    settings += judge_settings() if options.judge and kind not in SHORT else []
    if options.min_width and kind not in SHORT:
        settings += [f"{reward}.min_width={options.min_width}" for reward in NARROW]
    pinned = ["taskset", "-c", ",".join(map(str, cores)), "timeout", str(options.seconds)]
    train = [options.program, "train", str(REPOSITORY / config_of(kind)), "--quiet", "--on-exists", "overwrite"]
    return pinned + train + [word for setting in settings for word in ("--set", setting)]


def jobs(options):
    """Name, command and GPU of each run."""
    names = options.only or USUAL
    if options.device == "cpu":
        pairs = list(zip(options.cores[::2], options.cores[1::2]))
        for name, pair in zip(names, pairs):
            # An evaluation reads two times 160 pictures.
            settings = ["device.kind=cpu", "device.threads=2", "evaluation.every=20"]
            run = f"{options.name}cpu-{name}"
            yield run, command(options, name, run, pair, settings), ""
        return
    # They share the cores and wait for one another at times, so together they have more threads than there are cores.
    threads = max(2, min(len(options.cores), 3 * len(options.cores) // len(names)))
    for index, name in enumerate(names):
        card = options.cards[index % len(options.cards)]
        settings = ["device.kind=cuda", "device.dtype=bf16", f"device.threads={threads}"]
        run = f"{options.name}gpu-{name}"
        yield run, command(options, name, run, options.cores, settings), str(card)


def start(options):
    (options.folder / "logs").mkdir(parents=True, exist_ok=True)
    for run, words, card in jobs(options):
        if options.dry:
            print(f"CUDA_VISIBLE_DEVICES={card} {shlex.join(words)}")
            continue
        with (options.folder / "logs" / f"{run}.log").open("w") as log:
            environment = os.environ | {"CUDA_VISIBLE_DEVICES": card}
            started = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
        with (options.folder / "started").open("a") as file:
            file.write(f"{started.pid} {run}\n")
    print(json.dumps({"started": [run for run, _, _ in jobs(options)]}))


def stop(options):
    for line in (options.folder / "started").read_text().splitlines():
        try:
            # `timeout` passes it on.
            os.kill(int(line.split()[0]), signal.SIGTERM)
        except ProcessLookupError:
            continue


def records(file):
    """Of a file that may end in the middle of a line."""
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def evaluations(run):
    """A line for each evaluation: what was read, and seconds until then, those of evaluations apart."""
    trained, evaluated = {}, {}
    for record in records(run / "timing.jsonl"):
        if "update_s" in record:
            trained[record["step"]] = record["rollout_s"] + record["rewards_s"] + record["update_s"]
        if "evaluation_s" in record:
            evaluated[record["step"]] = record["evaluation_s"]
    until = lambda seconds, step: round(sum(value for at, value in seconds.items() if at <= step), 1)
    for record in records(run / "metrics.jsonl"):
        if record["kind"] != "eval":
            continue
        step = record["step"]
        found = {key: value for key, value in record.items() if key.startswith("reward/")}
        yield {"run": run.name, "step": step, "train_s": until(trained, step), "evaluation_s": until(evaluated, step)} | found


def median_iteration(run):
    """The median seconds of an iteration without its evaluation; none of a run without any."""
    trained = [record for record in records(run / "timing.jsonl") if "update_s" in record]
    seconds = [record["rollout_s"] + record["rewards_s"] + record["update_s"] for record in trained]
    return round(statistics.median(seconds), 3) if seconds else None


def keep_weights(source, target):
    """Copies weights, in bf16: half the bytes of a run's."""
    import torch
    from safetensors.torch import load_file, save_file

    save_file({name: value.to(torch.bfloat16).contiguous() for name, value in load_file(source).items()}, target)


def collect(options):
    options.to.mkdir(parents=True, exist_ok=True)
    runs = sorted(path for path in (options.folder / "runs").glob("*") if path.is_dir())
    with (options.to / "words.jsonl").open("w") as file:
        for run in runs:
            found = list(evaluations(run))
            for line in found:
                print(json.dumps(line), file=file)
            reward = next((key for line in found for key in ("reward/read", "reward/rules") if key in line), None)
            reached = next((line["train_s"] for line in found if line[reward] >= WANTED), None)
            audit = {}
            if (run / "summary.json").exists():
                audit = json.loads((run / "summary.json").read_text()).get("audit")
            steps = max((record["step"] for record in records(run / "timing.jsonl")), default=0)
            values = lambda key: [round(line[key], 3) for line in found if key in line]
            line = {"run": run.name, "iterations": steps, "read": values(reward), "seconds_to_0.95": reached, "audit": audit}
            line["iteration_s"] = median_iteration(run)
            judged = values("reward/tesseract")
            line |= {"tesseract": judged} if judged else {}
            print(json.dumps(line), file=file)
            print(json.dumps(line))
    for name in options.keep:
        keep_weights(options.folder / "runs" / name / "weights/final.safetensors", options.to / f"{name}.safetensors")
    with tarfile.open(options.to / "words.tar.xz", "w:xz") as archive:
        for run in runs:
            pictures = sorted(run.glob("images/eval-*.png"))
            files = [run / name for name in ("metrics.jsonl", "timing.jsonl", "summary.json")] + pictures[:1] + pictures[-1:]
            for file in dict.fromkeys(files):
                if file.exists():
                    archive.add(file, file.relative_to(options.folder))
        if (options.folder / "logs").exists():
            archive.add(options.folder / "logs", "logs")


def seed_curve(records):
    """The evaluations of a run of `configs/words-*.toml` as `cargo xtask bench run --curve` reads them: seconds until an evaluation begins."""
    evaluated = 0
    for record in records:
        yield {"images": record["step"] * IMAGES, "seconds": record["train_s"] + evaluated, "reward": record["reward/read"]}
        evaluated = record["evaluation_s"]


def picture(options):
    """Means of three seeds: NFT and GRPO on each machine, or the curves that are asked for, against pictures and seconds."""
    found = [record for record in records(options.lines) if "step" in record]
    usual = [f"{kind.upper()}, {MACHINES[device]}={options.name}{device}-{kind}" for device in MACHINES for kind in ("nft", "grpo")]
    command = [*shlex.split(options.xtask), "bench", "run", "--reward", "read", "--goal", str(WANTED)]
    command += ["--to", str(options.to.resolve()), "--name", "words"]
    command += [word for label in options.images_only for word in ("--images-only", label)]
    with tempfile.TemporaryDirectory() as folder:
        for curve in options.curve or usual:
            label, _, name = curve.rpartition("=")
            runs = [f"{name}-{seed}" for seed in (1, 2, 3)]
            rows = [{"curve": list(seed_curve([record for record in found if record["run"] == run]))} for run in runs]
            lines = [{"kind": "eval"} | point | {"reward": {"read": point["reward"]}} for point in mean_curve(rows)]
            path = Path(folder) / f"{name}.jsonl"
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            command += ["--curve", f"{label}={path}"]
        for twin in options.twin:
            label, _, path = twin.rpartition("=")
            command += ["--curve", f"{label}={Path(path).resolve()}"]
        subprocess.run(command, cwd=REPOSITORY, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("start", "collect", "picture", "stop", "list"))
    parser.add_argument("device", nargs="?", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "words", help="of runs and logs")
    parser.add_argument("--cores", type=numbers, default=numbers(f"0-{os.cpu_count() - 1}"))
    parser.add_argument("--cards", type=numbers, default=[0])
    parser.add_argument("--only", nargs="+", choices=list(RUNS))
    parser.add_argument("--seconds", type=int, default=900, help="after which a run is told to end")
    parser.add_argument("--weights", type=Path, help="that runs begin from; without it those of the configs")
    parser.add_argument("--judge", action="store_true", help="evaluations are read by Tesseract, too")
    parser.add_argument("--keep", nargs="+", default=[], metavar="RUN", help="runs whose final weights `collect` copies, in bf16; needs PyTorch")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every run")
    parser.add_argument("--name", default="", help="before the names of runs, as `long-`")
    parser.add_argument("--min-width", type=int, default=0, help="columns of a line that is read; 0 for the config's")
    parser.add_argument("--to", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--lines", type=Path, help="what `picture` draws: lines of `collect`")
    parser.add_argument("--curve", action="append", default=[], metavar="LABEL=RUNS", help="instead, of runs RUNS-1 to RUNS-3, as `fall-gpu-nft`")
    parser.add_argument("--images-only", action="append", default=[], metavar="LABEL", help="a curve that is not drawn against seconds")
    parser.add_argument("--twin", action="append", default=[], metavar="LABEL=FILE", help="other curves, those of `words_twin.py curve`")
    parser.add_argument("--xtask", default="cargo xtask", help="what draws")
    parser.add_argument("--dry", action="store_true", help="print the commands of `start`")
    options = parser.parse_args()
    options.program = os.environ.get("FT", "flow-train")
    if options.what == "list":
        print("\n".join(RUNS))
    else:
        {"start": start, "collect": collect, "picture": picture, "stop": stop}[options.what](options)


if __name__ == "__main__":
    main()
