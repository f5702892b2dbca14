"""PyTorch's attention beside ours. Serves one request a line on standard input, answers with one line of JSON.

Requests are JSON: {"do": "about"}, {"do": "ceiling"}, or {"do": "time", "case": {batch, heads, queries, keys, head_dim,
causal}, "backend": "cudnn" | "flash", "what": "forward" | "backward", "repeats": n}.
Times are seconds of one call, from events around replays of a captured graph, so that the host has no share in them.
"""

import json
import statistics
import sys

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
CALLS_IN_A_GRAPH = 4


def replayed(call, repeats, seconds_guess):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(CALLS_IN_A_GRAPH):
            call()
    graph.replay()
    torch.cuda.synchronize()
    rounds = max(2, min(50, int(0.02 / seconds_guess / CALLS_IN_A_GRAPH)))
    samples = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(rounds):
            graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) / 1e3 / rounds / CALLS_IN_A_GRAPH)
    return samples


def time_case(request):
    case = request["case"]
    b, h, d = case["batch"], case["heads"], case["head_dim"]
    torch.manual_seed(0)
    make = lambda rows: torch.randn(b, h, rows, d, device="cuda", dtype=torch.bfloat16)
    q, k, v, gradient = make(case["queries"]), make(case["keys"]), make(case["keys"]), make(case["queries"])
    flops = 4 * b * h * d * case["queries"] * case["keys"]
    with sdpa_kernel(BACKENDS[request["backend"]]):
        attend = lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=case["causal"])
        if request["what"] == "forward":
            with torch.no_grad():
                return replayed(attend, request["repeats"], flops / 400e12)
        for x in (q, k, v):
            x.requires_grad_(True)
        # Captured with its forward and timed with it; the forward's own time is taken off.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            output = attend()
            back = lambda: torch.autograd.grad(output, (q, k, v), gradient, retain_graph=True)
            for _ in range(3):
                back()
        torch.cuda.synchronize()
        try:
            with torch.cuda.stream(stream):
                return replayed(back, request["repeats"], 2.5 * flops / 400e12)
        except RuntimeError:
            # Not capturable: launches one after the other, which the host may bound.
            torch.cuda.synchronize()
            samples = []
            for _ in range(request["repeats"]):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                for _ in range(20):
                    back()
                end.record()
                end.synchronize()
                samples.append(start.elapsed_time(end) / 1e3 / 20)
            return samples


def ceiling():
    n = 8192
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    samples = replayed(lambda: a @ b, 9, 2 * n**3 / 700e12)
    return 2 * n**3 / statistics.median(samples)


def main():
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "about":
            answer = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
        elif request["do"] == "ceiling":
            answer = {"flops": ceiling()}
        else:
            answer = {"seconds": time_case(request)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
