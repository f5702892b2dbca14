"""Functions of tensors as CUDA graphs, recorded by hand: the least that PyTorch can ask of the host.

`torch.compile(mode="reduce-overhead")` records by itself, but reuses the memory of a result at the next replay, which a
training loop that keeps gradients and old log-probabilities runs into. Here inputs have places of their own, and results are
copied out.
"""

import torch

# Calls before a function is recorded: compiling, choices of algorithms and states of libraries come with the first ones.
WARM_UPS = 3


def recorded(function, pool=None):
    """The graph of one call of `function`, and what that call returned, which each replay overwrites."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_UPS):
            function()
    torch.cuda.current_stream().wait_stream(aside)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = function()
    return graph, result


class Replays:
    """Functions, each recorded at the first call with its key. `kept`: tensors that recording must leave as they were, such as
    gradients that a function adds to; their places stay those at the recording."""

    def __init__(self, kept=()):
        self.kept, self.found, self.pool = list(kept), {}, torch.cuda.graph_pool_handle()

    def __call__(self, key, function, *inputs):
        """What `function(*inputs)` returns: a tensor, or a tuple of tensors."""
        if key not in self.found:
            places = [value.detach().clone() for value in inputs]
            before = [value.clone() for value in self.kept]
            graph, results = recorded(lambda: function(*places), self.pool)
            for value, old in zip(self.kept, before):
                value.copy_(old)
            self.found[key] = graph, places, results
        graph, places, results = self.found[key]
        for place, value in zip(places, inputs):
            place.copy_(value)
        graph.replay()
        if isinstance(results, tuple):
            return tuple(result.clone() for result in results)
        return results.clone()
