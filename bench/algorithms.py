"""Every algorithm and its variants on `digits`: the gain on held-out prompts over some seeds, seconds, memory, audit; and PyTorch twins.

    algorithms.py run --program FILE [--to FOLDER] [--jobs N] [--seeds 1,2,3] [--steps 60] [--only NAME,…] [--python FILE]
        runs what is not done yet, one thread a run and N runs beside one another, each on a core of its own, and appends a row a run to
        FOLDER/rows.jsonl. A row that is there with the same settings is not run again, so a stopped command is given once more.
        With `--python`, a Python with torch and safetensors, the PyTorch twins of `algorithms_peer.py` follow, and `offline-dpo`
        has the pairs that it learns from
    algorithms.py table [--to FOLDER]
        writes FOLDER/algorithms.md from the rows, and per family the curves of its algorithms: FOLDER/curves/FAMILY/NAME.jsonl
    algorithms.py pictures [--to FOLDER] [--xtask COMMAND]
        draws them, FOLDER/algorithms-FAMILY.svg, by `cargo xtask bench run --curve`
    algorithms.py list
        names the algorithms with their settings

All have the same weights and held-out prompts, and sample the same number of images for training. An interval is of the seeds: the mean gain plus and minus
Student's t at 97.5 % with one degree of freedom less than seeds, times the deviation of the gains (n - 1) over the root of their number.
Evaluations have the same noise in every run.
"""

import argparse
import contextlib
import hashlib
import json
import math
import os
import queue
import shlex
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WEIGHTS = ROOT / "assets/digits-dit.safetensors"
GRPO, NFT = "configs/digits-grpo.toml", "configs/digits-nft.toml"
REWARD, JUDGE = "reads-as-digit", "judge"
PARTS = ("exploration_s", "rollout_s", "rewards_s", "acquire_s", "update_s")
EVERY = 10
# What a Python needs for the twins and for pairs: torch, safetensors, and the classifiers of flow-rewards.
NEEDED = "import sys; sys.path.insert(0, 'bench'); import digits; [digits.Classifier(name) for name in digits.CLASSIFIERS]"
# 97.5 % points of Student's t by degrees of freedom.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
# Every run: nothing is kept but its end, and nothing is drawn.
COMMON = ["device.threads=1", "checkpoints.every=0", "checkpoints.keep=1", "logging.html_report=false", "logging.tensorboard=false"]


@dataclass(frozen=True)
class Variant:
    """A row of the table: a config and what is set in it."""

    name: str
    family: str
    paradigm: str
    settings: list = field(default_factory=list)
    config: str = GRPO
    # What is shown beside the name.
    note: str = ""
    has_twin: bool = False


CLIP = "clip_range=[-1e-3,1e-3]"
TIMES = 'train_timesteps={count=4,strategy="uniform",shift=1.0,range=[0.0,0.95]}'
SLIDING = 'scheduler.window={kind="sliding",size=4,hold=9}'
PER_GROUP = 'sampling.initial_noise="per_group"'
WHOLE = "optimizer.gradient_accumulation=0"
# Rewards that GARDO asks: the one that is trained, a second classifier that judges, and how unlike the others of its group an image is.
GARDO_REWARDS = (
    'rewards=[{kind="digit-classifier",name="reads-as-digit",weights="built-in"},'
    '{kind="digit-classifier",name="second",weights="judge",weight=0},'
    '{kind="diversity-in-group",name="unlike",side=8,weight=0}]'
)
FEW_STEPS = ["scheduler.steps=4", WHOLE]
FAKE = "fake_score={{updates={},learning_rate=1e-3,betas=[0.0,0.999]}}"
GUIDANCE = "5.0"


def grpo(name, family, note, *settings):
    return Variant(name, family, "coupled", list(settings), note=note)


def nft(name, note, rest=""):
    algorithm = f'algorithm={{kind="nft",beta=1.0,advantage_clip=5.0,{TIMES}{rest}}}'
    return Variant(name, "nft", "decoupled", [algorithm], NFT, note)


def decoupled(name, algorithm, *settings, note="", has_twin=False):
    return Variant(name, "decoupled", "decoupled", [f"algorithm={{{algorithm},{TIMES}}}", *settings], NFT, note, has_twin)


def distilled(name, algorithm, *settings, note="4 steps", has_twin=False):
    return Variant(name, "distillation", "distillation", [f"algorithm={{{algorithm}}}", *settings], NFT, note, has_twin)


def variants():
    pulls = f'{{kind="gardo",judges=["second"],diversity="unlike",{CLIP}}}'
    yield grpo("grpo", "coupled", "")
    yield grpo("grpo-guard", "coupled", "", f'algorithm={{kind="grpo-guard",{CLIP}}}')
    yield Variant("dppo", "coupled", "coupled", ['algorithm={kind="dppo",mask_threshold=1e-5}'], has_twin=True)
    yield grpo("gardo", "coupled", "judged by a second classifier", f"algorithm={pulls}", GARDO_REWARDS)
    for weights in ("noise", "diffusion", "inverse-interval", "inverse-gradient"):
        yield grpo(f"grpo-{weights}", "step-weights", f"`step_weights = \"{weights}\"`", f'algorithm.step_weights="{weights}"')
    yield grpo("grpo-fast", "windows", "window of 2 steps", 'scheduler.window={kind="contiguous",size=2,range=[0,8]}')
    yield grpo("mixgrpo", "windows", "sliding window of 4", SLIDING)
    flash = 'scheduler.after_window={kind="dpm-solver",share=0.6}'
    yield grpo("mixgrpo-flash", "windows", "the same, fewer steps behind it", SLIDING, flash)
    yield grpo(
        "tempflow",
        "branches",
        "one stochastic step an image",
        'scheduler.window={kind="contiguous",size=4,range=[0,8]}',
        PER_GROUP,
        'sampling.branching={kind="one-step"}',
        "sampling.micro_batch=4",
        "optimizer.gradient_accumulation=20",
        'algorithm.step_weights="noise"',
    )
    yield grpo(
        "flash-grpo",
        "branches",
        "one stochastic step a group",
        'scheduler.window={kind="contiguous",size=8,range=[0,8]}',
        'sampling.branching={kind="one-step-per-group"}',
        "sampling.micro_batch=16",
        "optimizer.gradient_accumulation=5",
        'algorithm.step_weights="inverse-gradient"',
    )
    yield grpo(
        "branchgrpo",
        "branches",
        "tree of 16 leaves",
        'scheduler.window={kind="list",steps=[0,2,4,6]}',
        PER_GROUP,
        'sampling.branching={kind="tree",splits=[0,2,4,6]}',
        "sampling.micro_batch=16",
        "optimizer.gradient_accumulation=5",
    )
    yield grpo("exploration", "branches", "16 of 48 candidates", "exploration={candidates=48,steps=4}")
    yield grpo("staleness", "branches", "an update behind", "sampling.staleness=1", "algorithm.clip_range=[-5e-3,5e-3]")
    yield nft("nft", "")
    yield nft("nft-held", "slower old policy", ",old_policy={flat=0,rate=0.02,hold=0.7}")
    for mode in ("positive-only", "negative-only", "one-only", "binary"):
        yield nft(f"nft-{mode}", f"`advantage_mode = \"{mode}\"`", f',advantage_mode="{mode}"')
    yield decoupled("awm", 'kind="awm",clip_range=[-1e-2,1e-2]', has_twin=True)
    pairs = ["sampling.prompts_per_step=20", "sampling.group_size=8", WHOLE]
    yield decoupled("dpo", 'kind="dpo",beta=200', *pairs, note="20 groups of 8")
    yield decoupled("dgpo", 'kind="dgpo"')
    yield decoupled("crd", 'kind="crd",reference_guidance=1.0')
    teacher = f'teachers=[{{name="guided",weights="WEIGHTS",guidance_scale={GUIDANCE}}}]'
    yield distilled("diffusion-opd", f'kind="diffusion-opd",loss_target="velocity",{teacher}', note="10 steps, a guided teacher")
    few = [*FEW_STEPS, "optimizer.learning_rate=6e-4"]
    yield distilled("dmd2", f'kind="dmd2",real_guidance_scale={GUIDANCE},{FAKE.format(3)}', *few)
    yield distilled("tdm", f'kind="tdm",real_guidance_scale={GUIDANCE},{FAKE.format(2)}', *few, has_twin=True)
    surrogate = "surrogate={preference_beta=10}"
    query = 'query_interval="reverse",query_distribution="source-uniform",fake_score={updates=1}'
    scales = f"real_guidance_scale={GUIDANCE},cfg_reward_scale={GUIDANCE}"
    few = [*FEW_STEPS, "optimizer.learning_rate=3e-4"]
    yield distilled("tdm-r1", f'kind="tdm-r1",{scales},{query},{surrogate}', *few)
    rows = ["sampling.prompts_per_step=160", "sampling.group_size=1", "sampling.micro_batch=40"]
    yield Variant("sft", "data", "from the data set", ['algorithm={kind="sft"}', *rows], NFT, "right captions")
    yield Variant(
        "offline-dpo",
        "data",
        "from the data set",
        [
            'algorithm={kind="offline-dpo",beta=200,train_timesteps={count=4}}',
            'data={kind="preferences",path="PAIRS/pairs.jsonl",test_fraction=0.0,width=8,height=8,grey=true,words=true}',
            'rewards=[{kind="jpeg-compressibility"}]',
            'eval_rewards=[{kind="jpeg-compressibility"}]',
            "evaluation.every=0",
            "sampling.prompts_per_step=80",
            "sampling.group_size=2",
            "sampling.micro_batch=40",
            WHOLE,
        ],
        NFT,
        "pairs of its own pictures",
    )


VARIANTS = list(variants())


def settings_of(variant, options):
    """What is set in a run, apart from its name, folder and seed."""
    steps = [f"run.steps={options.steps}", f"evaluation.every={min(EVERY, options.steps)}"]
    return COMMON + steps + variant.settings


def key_of(name, seed, settings, twin):
    text = json.dumps([name, seed, settings, twin])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Job:
    variant: Variant
    seed: int
    settings: tuple
    is_twin: bool = False

    @property
    def key(self):
        return key_of(self.variant.name, self.seed, list(self.settings), self.is_twin)

    @property
    def run_name(self):
        return f"{self.variant.name}-{self.seed}-{key_of(self.variant.name, self.seed, list(self.settings), False)[:6]}"

    @property
    def label(self):
        return f"{self.variant.name}, seed {self.seed}" + (", PyTorch" if self.is_twin else "")


class Failed(Exception):
    """A command that came to no good end."""


def measured(command, log):
    """Runs a command; seconds, processor seconds and the most resident GiB of it."""
    before = time.perf_counter()
    with open(log, "a") as to:
        print("$", shlex.join(command), file=to, flush=True)
        process = subprocess.Popen(command, cwd=ROOT, stdout=to, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise Failed(f"exit code {process.returncode}; see {log}")
    # Linux counts in KiB.
    found = {"wall_s": time.perf_counter() - before, "cpu_s": usage.ru_utime + usage.ru_stime}
    return found | {"peak_gib": usage.ru_maxrss / 2.0**20}


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def curve_of_run(folder, images):
    """Evaluations with the images and the seconds until each, those of earlier evaluations included."""
    trained, evaluated = {}, {}
    for line in lines_of(folder / "timing.jsonl"):
        if line["kind"] == "timing":
            trained[line["step"]] = trained.get(line["step"], 0.0) + sum(line.get(part, 0.0) for part in PARTS)
            evaluated[line["step"]] = evaluated.get(line["step"], 0.0) + line.get("evaluation_s", 0.0)
    curve = []
    for line in lines_of(folder / "metrics.jsonl"):
        if line["kind"] == "eval":
            until = line["step"]
            seconds = sum(s for step, s in trained.items() if step <= until)
            seconds += sum(s for step, s in evaluated.items() if step < until)
            judged = line.get(f"reward/{JUDGE}")
            curve.append({"images": until * images, "seconds": seconds, "reward": line[f"reward/{REWARD}"], "judge": judged})
    return curve


def curve_of_lines(path):
    evaluations = [line for line in lines_of(path) if line["kind"] == "eval"]
    of = lambda line: {"images": line["images"], "seconds": line["seconds"], "reward": line["reward"][REWARD]}
    return [of(line) | {"judge": line["reward"].get(JUDGE)} for line in evaluations]


def audit_of(summary):
    """The largest deviation of a ratio from 1; none where there are no ratios."""
    audit = summary["audit"]
    if audit["result"] == "exact":
        return 0.0
    return audit.get("largest")


class Bench:
    def __init__(self, options):
        self.options = options
        self.folder = Path(options.to).resolve()
        self.runs, self.rows = self.folder / "runs", self.folder / "rows.jsonl"
        self.runs.mkdir(parents=True, exist_ok=True)
        self.program = str(Path(options.program).resolve())
        self.lock, self.pairs_lock = threading.Lock(), threading.Lock()
        self.done = {row["key"] for row in lines_of(self.rows)} if self.rows.exists() else set()

    def jobs(self):
        """What is to be done: runs first, then their twins."""
        options = self.options
        names = [variant.name for variant in VARIANTS]
        unknown = [name for name in options.only or [] if name not in names]
        if unknown:
            raise SystemExit(f"there is no algorithm {', '.join(unknown)}; there are {', '.join(names)}")
        chosen = [variant for variant in VARIANTS if not options.only or variant.name in options.only]
        if options.python:
            self.require_python()
        else:
            left_out = [variant.name for variant in chosen if variant.name == "offline-dpo"]
            chosen = [variant for variant in chosen if variant.name not in left_out]
            if left_out:
                print("offline-dpo is left out: its pairs are drawn by PyTorch, give --python", flush=True)
        of = lambda variant, seed, twin: Job(variant, seed, tuple(settings_of(variant, options)), twin)
        # Seed by seed, so that a stopped command leaves whole columns.
        runs = [of(variant, seed, False) for seed in options.seeds for variant in chosen]
        twins = [of(variant, seed, True) for seed in options.seeds for variant in chosen if variant.has_twin]
        return runs, twins if options.python else []

    def require_python(self):
        """Stops before the first run where the last ones, the twins, could not begin."""
        tried = subprocess.run([self.options.python, "-c", NEEDED], cwd=ROOT, capture_output=True, text=True)
        if tried.returncode != 0:
            why = (tried.stderr.strip() or "no message").splitlines()[-1]
            raise SystemExit(f"{self.options.python} cannot run bench/algorithms_peer.py: {why}; mend it, or leave --python out")

    def work(self, runs, twins):
        """Does jobs beside one another, a twin as soon as its run is there; those that failed, with why."""
        waiting, failed, following = queue.Queue(), [], {}
        for job in runs:
            if job.key not in self.done:
                waiting.put(job)
        for twin in twins:
            of_run = replace(twin, is_twin=False).key
            if twin.key not in self.done:
                # Rows of a run, whose folder may be gone, say that it has been there.
                waiting.put(twin) if of_run in self.done else following.setdefault(of_run, []).append(twin)
        cores = sorted(os.sched_getaffinity(0))

        def do(job):
            try:
                row = self.twin(job) if job.is_twin else self.run(job)
            except (Failed, OSError, KeyError, ValueError, IndexError) as error:
                with self.lock:
                    failed.append(f"{job.label}: {type(error).__name__}: {error}")
                    print(f"FAILED {failed[-1]}", flush=True)
                return
            with self.lock, open(self.rows, "a") as to:
                print(json.dumps(row), file=to, flush=True)
                for twin in following.pop(job.key, []):
                    waiting.put(twin)
                wait = waiting.qsize() + sum(map(len, following.values()))
                gain = row["after"] - row["before"]
                shown = f"{row['before']:.3f} -> {row['after']:.3f} ({gain:+.3f}), {row['wall_s']:.0f} s"
                print(f"{job.label}: {shown}; {wait} wait", flush=True)

        def worker(index):
            # Of this thread, and so of the programs that it starts.
            os.sched_setaffinity(0, {cores[index % len(cores)]})
            with contextlib.suppress(queue.Empty):
                while True:
                    do(waiting.get_nowait())

        threads = [threading.Thread(target=worker, args=(index,)) for index in range(self.options.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return failed

    def command(self, job, *more):
        variant = job.variant
        sets = [f'run.dir="{self.runs}"', f'run.name="{job.run_name}"', f"run.seed={job.seed}", *job.settings]
        sets = [one.replace("PAIRS", str(self.folder / "pairs")).replace("WEIGHTS", str(WEIGHTS)) for one in sets]
        return [self.program, "-q", "train", variant.config, *more, *(part for one in sets for part in ("--set", one))]

    def row(self, job, curve, found, audit):
        variant = job.variant
        about = {"algorithm": variant.name, "family": variant.family, "paradigm": variant.paradigm, "note": variant.note}
        about |= {"seed": job.seed, "program": "PyTorch" if job.is_twin else "flow-train", "key": job.key}
        judged = [point["judge"] for point in (curve[0], curve[-1])]
        values = {"before": curve[0]["reward"], "after": curve[-1]["reward"], "judge_before": judged[0], "judge_after": judged[1]}
        return about | values | {"audit": audit, "curve": curve, "settings": list(job.settings)} | found

    def run(self, job):
        folder, log = self.runs / job.run_name, self.runs / f"{job.run_name}.log"
        shutil.rmtree(folder, ignore_errors=True)
        if job.variant.name == "offline-dpo":
            return self.in_stages(job, log)
        found = measured(self.command(job), log)
        config = json.loads((folder / "run.json").read_text())["config"]
        images = config["sampling"]["prompts_per_step"] * config["sampling"]["group_size"]
        summary = json.loads((folder / "summary.json").read_text())
        return self.row(job, curve_of_run(folder, images), found, audit_of(summary))

    def in_stages(self, job, log):
        """A run whose data set has no digits to score: it stops at each evaluation, and `eval` measures with the config of `digits`."""
        options, folder = self.options, self.runs / job.run_name
        self.make_pairs()
        images, trained_s = 160, 0.0
        curve = [self.evaluated(WEIGHTS, job, log) | {"images": 0, "seconds": 0.0}]
        found = {"wall_s": 0.0, "cpu_s": 0.0, "peak_gib": 0.0}
        ends = sorted({*range(EVERY, options.steps, EVERY), options.steps})
        for end in ends:
            more = ["--set", f"run.steps={end}"] if end == ends[0] else ["--set", f"run.steps={end}", "--resume", "latest"]
            stage = measured(self.command(job) + more, log)
            for key, merge in (("wall_s", float.__add__), ("cpu_s", float.__add__), ("peak_gib", max)):
                found[key] = merge(found[key], stage[key])
            lines = [line for line in lines_of(folder / "timing.jsonl") if line["kind"] == "timing"]
            trained_s = sum(line.get(part, 0.0) for line in lines for part in PARTS)
            rewards = self.evaluated(folder / "weights/final.safetensors", job, log)
            curve.append(rewards | {"images": end * images, "seconds": trained_s})
        return self.row(job, curve, found, audit_of(json.loads((folder / "summary.json").read_text())))

    def evaluated(self, weights, job, log):
        """The rewards of weights on held-out prompts."""
        own = self.runs / f"{job.run_name}.eval"
        command = [self.program, "-q", "eval", NFT, "--weights", str(weights), "--set", "device.threads=1"]
        measured(command, own)
        text = own.read_text()
        with open(log, "a") as to:
            to.write(text)
        own.unlink()
        rewards = {}
        for name in (REWARD, JUDGE):
            # "reads-as-digit: 0.5441 [0.4954, 0.5928] …"
            rewards[name] = float(text.split(f"{name}: ", 1)[1].split()[0].rstrip(","))
        return {"reward": rewards[REWARD], "judge": rewards[JUDGE]}

    def make_pairs(self):
        """Pictures of the model that the run begins from, scored: of two the better one is preferred."""
        pairs, log = self.folder / "pairs", self.folder / "pairs.log"
        with self.pairs_lock:
            if (pairs / "pairs.jsonl").exists():
                return
            shutil.rmtree(pairs, ignore_errors=True)
            made = self.folder / "pairs-run"
            shutil.rmtree(made, ignore_errors=True)
            # Its run.json says how pictures are sampled.
            sets = [f'run.dir="{self.folder}"', 'run.name="pairs-run"', "run.steps=1", "evaluation.every=0", *COMMON]
            measured([self.program, "-q", "train", NFT, *(part for one in sets for part in ("--set", one))], log)
            peer = [self.options.python, str(ROOT / "bench/algorithms_peer.py"), "pairs", str(made / "run.json")]
            measured([*peer, "--weights", str(WEIGHTS), "--to", str(pairs)], log)

    def twin(self, job):
        """The same run in PyTorch, after ours, whose `run.json` it reads; both must agree in the first iteration."""
        about, log = self.runs / job.run_name / "run.json", self.runs / f"{job.run_name}.peer.log"
        lines = self.runs / f"{job.run_name}.peer.jsonl"
        if not about.exists():
            raise Failed(f"{about} is missing; take the row of that run out of {self.rows}, and it is run again")
        peer = [self.options.python, str(ROOT / "bench/algorithms_peer.py")]
        found = measured([*peer, "train", str(about), "--weights", str(WEIGHTS), "--to", str(lines)], log)
        measured([*peer, "compare", str(about), str(lines)], log)
        return self.row(job, curve_of_lines(lines), found, None)


def interval(values):
    """Mean and half the width of its 95 % interval; none of one value."""
    count = len(values)
    mean = sum(values) / count
    if count < 2:
        return mean, None
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    return mean, STUDENT.get(count - 1, 1.96) * deviation / math.sqrt(count)


def by_algorithm(folder):
    """The newest row of each algorithm, program and seed, in the order of the algorithms."""
    newest = {}
    for row in lines_of(folder / "rows.jsonl"):
        newest[row["algorithm"], row["program"], row["seed"]] = row
    found = {}
    for variant in VARIANTS:
        for program in ("flow-train", "PyTorch"):
            rows = [row for (name, by, _), row in sorted(newest.items()) if (name, by) == (variant.name, program)]
            if rows:
                found[variant.name, program] = rows
    return found


def mean_curve(rows):
    """The mean over seeds of each evaluation, at the mean of its seconds."""
    points = zip(*(row["curve"] for row in rows), strict=True)
    mean = lambda values: sum(values) / len(values)
    for at_once in points:
        yield {key: mean([point[key] for point in at_once]) for key in ("images", "seconds", "reward")}


def label_of(name, program):
    return name if program == "flow-train" else f"{name}, {program}"


def table(options):
    folder = Path(options.to)
    found = by_algorithm(folder)
    head = "| algorithm | paradigm | reward, before → after | gain, 95 % interval | by the judge | seconds | processor seconds | memory | audit |"
    text = [head, "|---|---|---|---|---|---|---|---|---|"]
    shutil.rmtree(folder / "curves", ignore_errors=True)
    for (name, program), rows in found.items():
        first, mean = rows[0], lambda key: sum(row[key] for row in rows) / len(rows)
        shown = lambda gain, half: f"{gain:+.3f}" + (f" ± {half:.3f}" if half is not None else "")
        gain = shown(*interval([row["after"] - row["before"] for row in rows]))
        judged = shown(*interval([row["judge_after"] - row["judge_before"] for row in rows]))
        audits = [row["audit"] for row in rows if row["audit"] is not None]
        audit = f"{max(audits):g}" if audits else "–"
        note = f" ({first['note']})" if first["note"] and program == "flow-train" else ""
        label = f"`{name}`{note}" if program == "flow-train" else f"`{name}`, {program}"
        text.append(
            f"| {label} | {first['paradigm']} | {mean('before'):.3f} → {mean('after'):.3f} | {gain} | {judged} "
            f"| {mean('wall_s'):.0f} | {mean('cpu_s'):.0f} | {1024 * max(row['peak_gib'] for row in rows):.0f} MiB | {audit} |"
        )
        path = folder / "curves" / first["family"] / f"{label_of(name, program)}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [{"kind": "eval"} | point | {"reward": {REWARD: point["reward"]}} for point in mean_curve(rows)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    seeds = sorted({row["seed"] for rows in found.values() for row in rows})
    images = max(row["curve"][-1]["images"] for rows in found.values() for row in rows)
    text += [
        "",
        f"Seeds {', '.join(map(str, seeds))}; {images:,} images for training each, without candidates that exploration drops; one thread a run. "
        f"Reward: `{REWARD}` on ten held-out prompts, 16 images each with the same noise in every run. Gain: mean over seeds, with the 95 % "
        "interval of Student's t over seeds. The judge is a second classifier, trained on another split, that no run is rewarded by (`gardo` "
        "looks at its ranks). Seconds are those of a whole process, evaluations included; memory is its resident maximum; the audit is the "
        "largest |ratio − 1| before the first optimizer step, of algorithms that have ratios.",
        "",
    ]
    (folder / "algorithms.md").write_text("\n".join(text))
    print("\n".join(text))
    print(f"wrote {folder / 'algorithms.md'} and {folder / 'curves'}")


def pictures(options):
    """One picture a family, reward by images and by seconds; `grpo` is in every family of variants of it."""
    folder = Path(options.to).resolve()
    of_grpo = folder / "curves/coupled/grpo.jsonl"
    for family in sorted((folder / "curves").iterdir()):
        curves = sorted(family.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        if family.name in ("step-weights", "windows", "branches") and of_grpo.exists():
            curves.insert(0, of_grpo)
        command = [*shlex.split(options.xtask), "bench", "run", "--reward", REWARD, "--goal", "0.9"]
        command += ["--to", str(folder), "--name", f"algorithms-{family.name}"]
        for path in curves:
            command += ["--curve", f"{path.stem}={path}"]
        subprocess.run(command, cwd=ROOT, check=True)


def run(options):
    bench = Bench(options)
    runs, twins = bench.jobs()
    failed = bench.work(runs, twins)
    if failed:
        raise SystemExit("failed:\n" + "\n".join(failed))


def listed(options):
    for variant in VARIANTS:
        print(f"{variant.name:20} {variant.paradigm:18} {variant.config}  {' '.join(variant.settings)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    parsers = {name: commands.add_parser(name) for name in ("run", "table", "pictures", "list")}
    for name in ("run", "table", "pictures"):
        parsers[name].add_argument("--to", default=str(ROOT / "runs/algorithms"))
    numbers = lambda text: [int(part) for part in text.split(",")]
    parsers["run"].add_argument("--program", required=True)
    parsers["run"].add_argument("--jobs", type=int, default=1)
    parsers["run"].add_argument("--seeds", type=numbers, default=[1, 2, 3])
    parsers["run"].add_argument("--steps", type=int, default=60)
    parsers["run"].add_argument("--only", type=lambda text: text.split(","))
    parsers["run"].add_argument("--python")
    parsers["pictures"].add_argument("--xtask", default="cargo xtask")
    options = parser.parse_args()
    {"run": run, "table": table, "pictures": pictures, "list": listed}[options.command](options)


if __name__ == "__main__":
    sys.exit(main())
