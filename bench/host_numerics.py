"""What a run computes on the host, from the config in a run's `run.json`: steps, windows, prompts, advantages.

Ports of flow-trainer's `scheduler`, `geometry`, `timesteps`, `ema` and `advantage`, f64 throughout. What no config of
`xtask bench run` uses is refused by name.
"""

import math
from dataclasses import dataclass, replace

from philox import Draws


@dataclass(frozen=True)
class Step:
    """A sampling step: `mean = mean_x x + mean_v v`, `x' = mean + noise z`, `log p = offset - scale mean((x' - mean)²)`."""

    index: int
    sigma: float
    mean_x: float
    mean_v: float
    noise: float = 0.0
    scale: float = 0.0
    offset: float = 0.0


def refuse(what):
    raise SystemExit(f"the peer has no {what}")


def sigma_grid(steps, shift):
    if shift["kind"] != "static":
        refuse(f"shift of the kind `{shift['kind']}`")
    s = shift["value"]
    even = [(steps - step) / steps for step in range(steps)]
    return [s * sigma / (s * sigma + (1.0 - sigma)) for sigma in even] + [0.0]


def euler_steps(sigmas):
    return [Step(i, here, 1.0, there - here) for i, (here, there) in enumerate(zip(sigmas, sigmas[1:]))]


def stochastic(dynamics, sigmas, step, level):
    """The step under `cps` or `flow-sde`."""
    sigma, following = sigmas[step.index], sigmas[step.index + 1]
    if dynamics == "cps":
        kept, data = following * math.cos(level * math.pi / 2), 1.0 - following
        noise = following * math.sin(level * math.pi / 2)
        return replace(step, mean_x=data + kept, mean_v=(1.0 - sigma) * kept - sigma * data, noise=noise, scale=1.0)
    if dynamics == "flow-sde":
        dt = following - sigma
        deviation = level * math.sqrt(sigma / (1.0 - (sigmas[1] if sigma == 1.0 else sigma)))
        drift, noise = deviation * deviation / (2.0 * sigma), deviation * math.sqrt(-dt)
        means = {"mean_x": 1.0 + drift * dt, "mean_v": (1.0 + drift * (1.0 - sigma)) * dt}
        constants = {"scale": 1.0 / (2.0 * noise * noise), "offset": -math.log(noise) - 0.5 * math.log(2.0 * math.pi)}
        return replace(step, noise=noise, **means, **constants)
    refuse(f"dynamics `{dynamics}`")


class Schedule:
    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.sigmas = sigma_grid(scheduler["steps"], scheduler["shift"])

    def window(self, iteration):
        """The stochastic steps of an iteration."""
        window, every = self.scheduler["window"], range(self.scheduler["steps"] - 1)
        if self.scheduler["dynamics"] == "ode":
            return []
        match window["kind"]:
            case "all":
                return list(every)
            case "list":
                return sorted(window["steps"])
            case "random":
                candidates = sorted(window["from"]) if window.get("from") is not None else list(every)
                order = Draws(window["seed"], "window", iteration, 0).permutation(len(candidates))
                return sorted(candidates[index] for index in order[: window["count"]])
        refuse(f"window of the kind `{window['kind']}`")

    def steps(self, iteration):
        """The steps of a rollout."""
        steps, level = euler_steps(self.sigmas), self.scheduler["noise_level"]
        for index in self.window(iteration):
            at = level[index] if isinstance(level, list) else level
            steps[index] = stochastic(self.scheduler["dynamics"], self.sigmas, steps[index], at)
        return steps


class PromptOrder:
    """Which of the prompts an iteration takes: each once before any comes again, none twice in an iteration."""

    def __init__(self, prompts, per_iteration, seed):
        self.prompts, self.per_iteration, self.seed = prompts, per_iteration, seed
        if per_iteration > prompts:
            refuse(f"repeats of prompts: {per_iteration} of {prompts}")

    def shuffled(self, epoch):
        return Draws(self.seed, "prompts", epoch, 0).permutation(self.prompts)

    def order(self, epoch):
        size, per_iteration = self.prompts, self.per_iteration
        # An epoch is adjusted to the end of the one before, back to one that begins with an iteration.
        start = epoch
        while start * size % per_iteration:
            start -= 1
            if size >= 2 * per_iteration:
                break
        order = self.shuffled(start)
        for following in range(start + 1, epoch + 1):
            held = following * size % per_iteration
            present = set(order[size - held :]) if held else set()
            order = self.shuffled(following)
            spare = head = per_iteration - held
            for position in range(head if held else 0):
                if order[position] in present:
                    while order[spare] in present:
                        spare += 1
                    order[position], order[spare] = order[spare], order[position]
                    spare += 1
        return order

    def draw(self, iteration):
        first = iteration * self.per_iteration
        groups = range(first, first + self.per_iteration)
        orders = {epoch: self.order(epoch) for epoch in {group // self.prompts for group in groups}}
        return [orders[group // self.prompts][group % self.prompts] for group in groups]


def moments(values):
    """Mean around the first value, and population standard deviation."""
    mean = values[0] + sum(value - values[0] for value in values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))


def advantages(rewards, group_size, options):
    """Of one reward of weight 1, given group by group."""
    floor = options["std_floor"]
    groups = [rewards[first : first + group_size] for first in range(0, len(rewards), group_size)]
    of_batch = max(moments(rewards)[1], floor)
    is_sum = options["aggregation"] == "sum"
    found = []
    for group in groups:
        mean, deviation = moments(group)
        divisor = of_batch if is_sum and options["global_std"] else max(deviation, floor)
        found += [(value - mean) / divisor for value in group]
    if is_sum:
        return found
    mean, deviation = moments(found)
    return [(value - mean) / max(deviation, floor) for value in found]


def loss_times(config, seed, iteration, inner):
    """Noise levels at which a forward-process loss is taken, in order."""
    if config["strategy"] != "uniform":
        refuse(f"times of the strategy `{config['strategy']}`")
    (low, high), shift, count = config["range"], config["shift"], config["count"]
    draws = Draws(seed, "timesteps", iteration, inner)
    strata = [(part + draws.uniform()) / count for part in range(count)]
    fractions = [low + strata[part] * (high - low) for part in draws.permutation(count)]
    return [1.0 - shift * f / (1.0 + (shift - 1.0) * f) for f in fractions]


def old_policy_decay(config, iteration):
    """Share of the old sampling weights that survives an iteration, counted from 1."""
    return min(max(iteration - config["flat"], 0) * config["rate"], config["hold"])
