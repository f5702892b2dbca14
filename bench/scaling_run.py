"""One run of `bench/scaling.sh`: starts it, looks at the memory of its cards meanwhile, and appends a row to the table.

    scaling_run.py run NAME --ranks N --cards 0,1 --pictures P [--resume] [--kill RANK --after ITERATION] [--stop ITERATION] -- ARGUMENTS
                        `flow-train train ARGUMENTS`, under `flow-train launch` for several ranks; the run is NAME in FOLDER/runs. With
                        --stop all of it is ended after that iteration, since a model that is trained in full takes long to be written
    scaling_run.py peer NAME --ranks N --cards 0,1 --pictures P -- PROGRAM ARGUMENTS
                        a program of this folder in PyTorch, under torchrun for several ranks; it prints lines of JSON
    scaling_run.py same NAME OTHER [...]
                        compares `metrics.jsonl` and the weights of runs, byte by byte; of weights what follows on the header,
                        which names the run

Only Python's own library is needed. Environment: FT, the program; OUT, the folder of `table.txt` and of the same rows as lines of
JSON, `rows.jsonl`; LOGS, that of the logs, OUT if it is not set; FOLDER_OF_RUNS, that of the runs (/dev/shm/w). `--kill` ends one rank by SIGKILL after an iteration, and expects the others to end by
themselves. With DRY=1 `run` and `peer` print what they would start; with CHECK=h100, too, runs are checked instead.
"""

import argparse
import hashlib
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

FOLDER = Path(os.environ.get("FOLDER_OF_RUNS", "/dev/shm/w"))
OUT = Path(os.environ.get("OUT", "."))
LOGS = Path(os.environ.get("LOGS", OUT))
# The first iterations compile kernels and record graphs.
WARM_UP = 2
# Between two looks at files and cards.
LOOK_S = 0.2


def row(*cells, **facts):
    """Appended in one call to each file, since several runs write at a time."""
    line = "| " + " | ".join(str(cell) for cell in cells) + " |\n"
    with open(OUT / "table.txt", "a") as table:
        table.write(line)
    with open(OUT / "rows.jsonl", "a") as rows:
        rows.write(json.dumps({"name": cells[0]} | facts) + "\n")
    print(line, end="", flush=True)


def records(name, file="timing.jsonl"):
    try:
        text = (FOLDER / "runs" / name / file).read_text()
    except FileNotFoundError:
        return []
    # The last line may be under way.
    return [json.loads(line) for line in text.split("\n")[:-1]]


def iterations_ms(name):
    timing = [record for record in records(name) if "update_s" in record]
    return [1e3 * (r["rollout_s"] + r["rewards_s"] + r["update_s"]) for r in timing]


def children(process):
    """Everything that `process` started, by /proc."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((each / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == process:
            found += [int(each.name)] + children(int(each.name))
    return found


def rank_of(process):
    try:
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    ranks = [variable for variable in variables if variable.startswith(b"RANK=")]
    return int(ranks[0][5:]) if ranks else None


def end(process):
    for each in children(process.pid) + [process.pid]:
        try:
            os.kill(each, signal.SIGKILL)
        except ProcessLookupError:
            pass


class Memory:
    """The most that the driver counts on each card, of what is looked at while a run goes on."""

    def __init__(self, cards):
        self.cards, self.most, self.is_over = cards, [0.0] * len(cards), threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self):
        ask = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", ",".join(self.cards)]
        while not self.is_over.wait(1.0):
            try:
                found = subprocess.run(ask, capture_output=True, text=True, timeout=10).stdout.split()
                self.most = [max(old, float(mib) / 1024) for old, mib in zip(self.most, found)]
            except (OSError, ValueError, subprocess.TimeoutExpired):
                continue

    def most_gib(self):
        self.is_over.set()
        return [round(gib, 1) for gib in self.most]


def watched(command, options, environment, look):
    """Runs a command with its output in a log; `look(process, seconds)` is called meanwhile. Its exit code, seconds and memory."""
    cards = options.cards.split(",")
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": options.cards, "NCCL_NVLS_ENABLE": "0"} | environment
    memory, began = Memory(cards), time.monotonic()
    with open(LOGS / f"{options.name}.log", "a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, stdin=subprocess.DEVNULL)
        try:
            while process.poll() is None:
                look(process, time.monotonic() - began)
                time.sleep(LOOK_S)
        finally:
            # Also where the time limit of the part has come.
            if process.poll() is None:
                end(process)
    return process.returncode, time.monotonic() - began, memory.most_gib()


def numbers(options, found_ms, first_s, memory_gib, note, **facts):
    steady = found_ms[WARM_UP:]
    facts |= {"ranks": options.ranks, "cards": options.cards, "pictures": options.pictures, "iterations_ms": found_ms}
    facts |= {"first_s": first_s, "memory_gib": memory_gib, "note": note}
    memory = " ".join(map(str, memory_gib))
    first = "–" if first_s is None else f"{first_s:.1f}"
    if first_s is not None and found_ms:
        # Processes, weights, connections.
        facts |= {"before_first_s": first_s - found_ms[0] / 1e3}
        first += f" ({facts['before_first_s']:.1f})"
    if not steady:
        note = note or "no iteration after the first two"
        row(options.name, options.ranks, options.pictures, "–", "–", first, memory, note, **facts)
        return
    median_ms = statistics.median(steady)
    spread = f"{min(steady):.0f} to {max(steady):.0f}"
    speed = f"{1e3 * options.pictures / median_ms:.2f}"
    facts |= {"median_ms": median_ms}
    row(options.name, options.ranks, options.pictures, f"{median_ms:.1f} ({spread})", speed, first, memory, note, **facts)


def is_dry(command, options):
    """Whether the command was printed and shall not be started. With CHECK=h100 a run is checked for such cards beforehand, anywhere."""
    device = os.environ.get("CHECK")
    if device and "train" in command:
        at = command.index("train") + 1
        check = [command[0], "check", *(word for word in command[at:] if word not in ("--quiet", "--resume", "latest"))]
        said = subprocess.run([*check, "--ranks", str(options.ranks), "--device", device], capture_output=True, text=True)
        print(f"{options.name} on {options.ranks}: {'ok' if said.returncode == 0 else said.stdout + said.stderr}", flush=True)
    elif os.environ.get("DRY"):
        print(f"CUDA_VISIBLE_DEVICES={options.cards} {shlex.join(map(str, command))}", flush=True)
    return bool(device or os.environ.get("DRY"))


def run(options):
    program = os.environ.get("FT", "flow-train")
    before = len(iterations_ms(options.name))
    launch = ["launch", "-n", str(options.ranks)] if options.ranks > 1 else []
    settings = [f"run.dir={FOLDER / 'runs'}", f"run.name={options.name}"]
    command = [program, *launch, "train", *options.arguments, *(word for each in settings for word in ("--set", each))]
    command += ["--resume", "latest"] if options.resume else []
    if is_dry(command, options):
        return 0
    if not options.resume:
        shutil.rmtree(FOLDER / "runs" / options.name, ignore_errors=True)
        before = 0
    first_s, killed_s, stopped_s = [], [], []

    def look(process, seconds):
        nonlocal before
        done = 0
        if not first_s or options.kill is not None or options.stop is not None:
            done = len(iterations_ms(options.name))
        # A run that goes on takes back what came behind its checkpoint.
        before = min(before, done) if not first_s else before
        if not first_s and done > before:
            first_s.append(seconds)
        if options.stop is not None and done >= options.stop:
            stopped_s.append(seconds)
            end(process)
            process.wait()
            return
        if options.kill is None or killed_s or done < options.after:
            return
        for each in children(process.pid):
            if rank_of(each) == options.kill:
                os.kill(each, signal.SIGKILL)
                killed_s.append(seconds)

    code, seconds, memory = watched(command, options, {}, look)
    note = "" if code == 0 else f"exit code {code}"
    if killed_s:
        note = f"rank {options.kill} killed after iteration {options.after}; all ended {seconds - killed_s[0]:.1f} s later, exit code {code}"
    elif options.kill is not None:
        note = f"nobody was killed; {note}"
    elif stopped_s:
        note = f"stopped after iteration {options.stop}"
    facts = {"seconds": seconds, "ended_after_kill_s": seconds - killed_s[0] if killed_s else None} | left_by(options.name)
    numbers(options, iterations_ms(options.name)[before:], (first_s or [None])[0], memory, note, **facts)
    return 0 if code == 0 or killed_s or stopped_s else 1


def left_by(name):
    """What a run says of its parts, its ratios and its memory."""
    last = lambda file, key: next((record for record in reversed(records(name, file)) if key in record), {})
    found = {key: last("timing.jsonl", "update_s").get(key) for key in ("rollout_s", "rewards_s", "update_s")}
    found["gradient_norm"] = last("metrics.jsonl", "gradient_norm").get("gradient_norm")
    try:
        summary = json.loads((FOLDER / "runs" / name / "summary.json").read_text())
    except (OSError, ValueError):
        return found
    return found | {key: summary.get(key) for key in ("audit", "peak_memory_gib")}


def peer(options):
    here = Path(__file__).parent
    program, *arguments = options.arguments
    start = [sys.executable]
    if options.ranks > 1:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks)]
    threads = os.environ.get("THREADS", "16")
    environment = {
        "OMP_NUM_THREADS": threads,
        "TORCHINDUCTOR_COMPILE_THREADS": threads,
        # One run compiles for those after it.
        "TORCHINDUCTOR_CACHE_DIR": str(FOLDER / "inductor"),
    }
    command = [*start, str(here / program), *arguments]
    if is_dry(command, options):
        return 0
    log, first_s = LOGS / f"{options.name}.log", []

    def lines():
        text = log.read_text(errors="replace") if log.exists() else ""
        found = []
        for line in text.split("\n")[:-1]:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return [line for line in found if isinstance(line, dict) and "iteration_s" in line]

    def look(_, seconds):
        if not first_s and lines():
            first_s.append(seconds)

    code, seconds, memory = watched(command, options, environment, look)
    found_ms = [1e3 * line["iteration_s"] for line in lines()]
    numbers(options, found_ms, (first_s or [None])[0], memory, "" if code == 0 else f"exit code {code}", seconds=seconds)
    return 0 if code == 0 else 1


def values(path):
    """A hash over what follows on the header of a safetensors file."""
    found = hashlib.blake2b()
    with open(path, "rb") as file:
        file.seek(int.from_bytes(file.read(8), "little"), 1)
        while part := file.read(1 << 24):
            found.update(part)
    return found.hexdigest()


def left(name):
    directory = FOLDER / "runs" / name
    files = sorted((directory / "weights").rglob("*.safetensors"))
    weights = {str(file.relative_to(directory)): values(file) for file in files}
    return (directory / "metrics.jsonl").read_bytes(), weights


def fields_apart(one, other):
    """The names of what two files of metrics say differently, or that they have other lines."""
    one, other = ([json.loads(line) for line in text.splitlines()] for text in (one, other))
    if len(one) != len(other):
        return [f"their lines, {len(one)} and {len(other)}"]
    absent = object()
    pairs = [(a, b, key) for a, b in zip(one, other) for key in a.keys() | b.keys()]
    return sorted({key for a, b, key in pairs if a.get(key, absent) != b.get(key, absent)})


def same(options):
    if os.environ.get("DRY"):
        return 0
    try:
        metrics, weights = left(options.name)
    except OSError as error:
        row(f"bytes of {options.name}", f"not compared: {error}", error=str(error))
        return 1
    is_same = bool(metrics) and bool(weights)
    for other in options.others:
        pair = f"bytes of {options.name} and {other}"
        try:
            found = left(other)
        except OSError as error:
            row(pair, f"not compared: {error}", error=str(error))
            is_same = False
            continue
        same_metrics, same_weights = found[0] == metrics, bool(weights) and found[1] == weights
        apart = [] if same_metrics else fields_apart(metrics, found[0])
        said = ["metrics " + ("equal" if same_metrics else "DIFFER in " + ", ".join(apart))]
        said.append(f"{len(weights)} files of weights " + ("equal" if same_weights else "DIFFER"))
        # Of a gradient that is zero all bytes are equal, whatever was exchanged.
        norm = left_by(other)["gradient_norm"]
        said.append(f"norm of the last gradient {norm}")
        row(pair, ", ".join(said), metrics=same_metrics, apart=apart, weights=same_weights, files=len(weights), gradient_norm=norm)
        is_same &= found == (metrics, weights)
    return 0 if is_same else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    for what in ("run", "peer"):
        command = commands.add_parser(what)
        command.add_argument("name")
        command.add_argument("--ranks", type=int, required=True)
        command.add_argument("--cards", required=True, help="numbers of GPUs, with commas between")
        command.add_argument("--pictures", type=int, required=True, help="of an iteration, on all ranks together")
        command.add_argument("--resume", action="store_true")
        command.add_argument("--kill", type=int, help="the rank that is ended")
        command.add_argument("--after", type=int, default=2, help="iterations before it is")
        command.add_argument("--stop", type=int, help="the iteration after which the run is ended")
        command.add_argument("arguments", nargs="+")
    command = commands.add_parser("same")
    command.add_argument("name")
    command.add_argument("others", nargs="+")
    options = parser.parse_args()
    # The end of a part's time: whatever was started ends, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(124))
    sys.exit({"run": run, "peer": peer, "same": same}[options.what](options))


if __name__ == "__main__":
    main()
