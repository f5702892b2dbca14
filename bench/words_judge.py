"""What PP-OCR and Tesseract read in held-out words, before and after training, of weights of the words job.

    words_judge.py WEIGHTS… [--config FILE] [--device cpu|cuda] [--set KEY=VALUE] [--to FILE]

WEIGHTS are files, or folders of finished runs of `configs/words-nft.toml` or `configs/words-grpo.toml`; what training began from comes first:
the config's own, `assets/words-mmdit.safetensors`, unless `--before` names others. `flow-train eval` writes the same 160 pictures' noise for each
(20 s of a core), so means are those of a run's own evaluations. Printed is a line of JSON for each: by reward its mean and 95 % interval over
prompts, and by reward the rise since before, prompt by prompt, with its interval. Environment: FT, the program. Needs what
`crates/flow-rewards-remote/examples/tesseract_judge.py` says, and `flow-train fetch words`.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
from pathlib import Path

from words_runs import REPOSITORY, judge_settings

MEAN = re.compile(r"^(\S+): (\S+) \[(\S+), (\S+)\] over (\d+) held-out prompts, (\d+) images each$")
# A prompt, and a mean for each reward.
ROW = re.compile(r'^(the word ".*")((?:\s+-?\d\.\d+)+)$')


def found_in(text):
    """Means with their intervals, and prompts' means, by reward, of what `flow-train eval` prints."""
    lines = text.splitlines()
    means = {match[1]: [float(match[place]) for place in (2, 3, 4)] for match in map(MEAN.match, lines) if match}
    rows = [[float(value) for value in match[2].split()] for match in map(ROW.match, lines) if match]
    return means, dict(zip(means, zip(*rows)))


def evaluated(options, weights):
    settings = [f"device.kind={options.device}", *judge_settings(), *options.set]
    command = [options.program, "eval", str(options.config), "--quiet", *(["--weights", str(weights.resolve())] if weights else [])]
    command += [word for setting in settings for word in ("--set", setting)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)}\n{ended.stderr}")
    return found_in(ended.stdout)


def rise(before, after):
    """The mean difference of prompts' means, and half the width of its 95 % interval."""
    differences = [late - early for early, late in zip(before, after, strict=True)]
    # Student's factor of 39 degrees of freedom, as for the configs' 40 prompts.
    half = 2.023 * statistics.stdev(differences) / len(differences) ** 0.5
    return [round(statistics.mean(differences), 4), round(half, 4)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", nargs="+", type=Path)
    parser.add_argument("--before", type=Path, help="what training began from; without it the config's weights")
    parser.add_argument("--config", type=Path, default=REPOSITORY / "configs/words-nft.toml")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--to", type=Path, help="a file that the lines are appended to")
    options = parser.parse_args()
    options.program = os.environ.get("FT", "flow-train")
    start = None
    for weights in (options.before, *options.weights):
        means, prompts = evaluated(options, weights)
        line = {"weights": str(weights) if weights else "before", "means": means}
        if start is None:
            start = prompts
        else:
            line["rise"] = {reward: rise(start[reward], values) for reward, values in prompts.items()}
        print(json.dumps(line), flush=True)
        if options.to:
            with options.to.open("a") as file:
                print(json.dumps(line), file=file)


if __name__ == "__main__":
    main()
