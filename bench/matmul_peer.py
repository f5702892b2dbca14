"""PyTorch's matrix products (cuBLAS) beside ours. Serves one request a line on standard input, answers with one line of JSON.

Requests are JSON: {"do": "about"}, {"do": "ceiling"}, {"do": "ceilings"}, or {"do": "time", "case": {layout, m, n, k, rank, bias, epilogue, tokens},
"repeats": n}. A case with "fp8" is of e4m3 with a scale for each row of both operands: {fp8: "product", "quantise" or "both", fast, m, n, k}, by
`torch._scaled_mm`, and by `torch.compile` what quantises. What PyTorch cannot fuse it does in further operations. Four sets of operands are in rotation, as on our side.
Times are seconds of one product, from events around replays of a captured graph, so that the host has no share in them.
"""

import json
import statistics
import sys
import time

import torch
import torch.nn.functional as functional

SETS = 4
# How long a product is repeated before it is measured, as on our side: a GPU that waited has another clock than one that multiplied.
WARM_UP_S = 0.5


def replayed(calls, repeats, seconds_guess):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            for call in calls:
                call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    rounds = max(2, min(60, int(0.02 / seconds_guess / len(calls))))
    begin = time.monotonic()
    while time.monotonic() - begin < WARM_UP_S:
        for _ in range(rounds):
            graph.replay()
        torch.cuda.synchronize()
    samples = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(rounds):
            graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) / 1e3 / rounds / len(calls))
    return samples


def product(case):
    """One product on operands of its own."""
    m, n, k, rank, layout = case["m"], case["n"], case["k"], case["rank"], case["layout"]
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
    a_shape = lambda k: (k, m) if layout == "TN" else (m, k)
    b_shape = lambda k: (n, k) if layout == "NT" else (k, n)
    a, b = make(*a_shape(k)), make(*b_shape(k))
    left = (lambda x: x.t()) if layout == "TN" else (lambda x: x)
    right = (lambda x: x.t()) if layout == "NT" else (lambda x: x)
    out, epilogue = make(m, n), case["epilogue"]
    if rank:
        t, u = make(*a_shape(rank)), make(*b_shape(rank))
        plain = lambda: torch.addmm(left(a) @ right(b), left(t), right(u))
    elif case["bias"]:
        bias = make(n)
        plain = lambda: functional.linear(a, b, bias)
    else:
        plain = lambda: torch.mm(left(a), right(b), out=out)
    if epilogue == "store":
        return plain
    if epilogue in ("gelu", "gelu_keep"):
        return lambda: functional.gelu(plain(), approximate="tanh")
    if epilogue == "gate":
        residual, gate = make(m, n), make(m, n)
        tokens = case["tokens"]
        rows = -(-m // tokens)
        gate = make(rows, n).repeat_interleave(tokens, 0)[:m] if m % tokens else make(rows, 1, n)
        shape = (m, n) if m % tokens else (rows, tokens, n)
        return lambda: torch.addcmul(residual.view(shape), gate, plain().view(shape))
    if epilogue == "derivative":
        sums = make(m, n)
        return lambda: torch.ops.aten.gelu_backward(plain(), sums, approximate="tanh")
    total = torch.zeros(m, n, device="cuda")
    return lambda: total.add_(plain())


def quantise(x):
    """Codes of e4m3 and an f32 scale for each row, [rows, 1]."""
    scale = x.abs().amax(dim=-1, keepdim=True).float().clamp(min=2.0**-116 * 448) / 448
    codes = (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes, scale


compiled_quantise = torch.compile(quantise, dynamic=False)


def product_of_codes(case):
    """One product of codes, one quantisation of rows, or both, on operands of its own."""
    m, n, k = case["m"], case["n"], case["k"]
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
    x = make(m, k)
    if case["fp8"] == "quantise":
        return lambda: compiled_quantise(x)
    weight, weight_scale = quantise(make(n, k))
    multiply = lambda codes, scale: torch._scaled_mm(
        codes,
        weight.t(),
        scale_a=scale,
        scale_b=weight_scale.t(),
        out_dtype=torch.bfloat16,
        use_fast_accum=case["fast"],
    )
    if case["fp8"] == "both":
        return lambda: multiply(*compiled_quantise(x))
    codes, scale = quantise(x)
    return lambda: multiply(codes, scale)


def time_case(case, repeats):
    torch.manual_seed(0)
    if "fp8" in case:
        work = 500 * case["m"] * case["k"] if case["fp8"] == "quantise" else 2 * case["m"] * case["n"] * case["k"]
        with torch.no_grad():
            return replayed([product_of_codes(case) for _ in range(SETS)], repeats, work / 500e12)
    flops = 2 * case["m"] * case["n"] * (case["k"] + case["rank"])
    with torch.no_grad():
        return replayed([product(case) for _ in range(SETS)], repeats, flops / 500e12)


def ceiling():
    n = 8192
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    samples = replayed([lambda: a @ b] * 2, 9, 2 * n**3 / 700e12)
    return 2 * n**3 / statistics.median(samples)


def ceilings():
    """What the device gives at most, beside products: bytes that a copy reads and writes, and time from kernel to kernel."""
    one = torch.randn(2**29, device="cuda")
    other = torch.empty_like(one)
    copy = statistics.median(replayed([lambda: other.copy_(one)] * 2, 9, 1.5e-3))
    few = torch.zeros(32, device="cuda")
    launch = statistics.median(replayed([lambda: few.add_(1.0)] * 200, 9, 2e-6))
    return {"matmul_flops": ceiling(), "copy_bytes": 2 * one.nbytes / copy, "launch_seconds": launch}


def main():
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "about":
            answer = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
        elif request["do"] == "ceiling":
            answer = {"flops": ceiling()}
        elif request["do"] == "ceilings":
            answer = ceilings()
        else:
            answer = {"seconds": time_case(request["case"], request["repeats"])}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
