"""Times PyTorch's attention backends on the shapes of our attention bench, forward and forward + backward."""
import sys, torch, time
from torch.nn.attention import sdpa_kernel, SDPBackend
import torch.nn.functional as F

SHAPES = [(4, 16, 4096, 64), (16, 16, 256, 64), (16, 16, 1024, 64), (2, 16, 4096, 128), (1, 12, 16384, 128), (16, 8, 512, 128)]

def timed(run, iterations):
    for _ in range(3):
        run()
    samples = []
    for _ in range(7):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        for _ in range(iterations):
            run()
        b.record()
        b.synchronize()
        samples.append(a.elapsed_time(b) / 1e3 / iterations)
    return sorted(samples)[3]

for b, h, s, d in SHAPES:
    q, k, v = (torch.randn(b, h, s, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    do = torch.randn_like(q)
    flops = 4 * b * h * s * s * d
    n = max(4, min(200, int(0.02 / (flops / 400e12))))
    for name, backend in [("cudnn", SDPBackend.CUDNN_ATTENTION), ("fa2", SDPBackend.FLASH_ATTENTION)]:
        with sdpa_kernel(backend):
            with torch.no_grad():
                # graph replay, so that the host does not bound the small shapes
                g = torch.cuda.CUDAGraph()
                F.scaled_dot_product_attention(q, k, v)
                torch.cuda.synchronize()
                with torch.cuda.graph(g):
                    for _ in range(4):
                        F.scaled_dot_product_attention(q, k, v)
                fwd = timed(g.replay, max(1, n // 4)) / 4
            def both():
                o = F.scaled_dot_product_attention(q, k, v)
                torch.autograd.grad(o, (q, k, v), do)
            full = timed(both, n)
            o = F.scaled_dot_product_attention(q, k, v)
            back = timed(lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True), n)
        print(f"{name:6} B{b} H{h} S{s} D{d}: fwd {fwd*1e3:.3f} ms {flops/fwd/1e12:.0f} TFLOP/s, fwd+bwd {full*1e3:.3f} ms {3.5*flops/full/1e12:.0f}, bwd {back*1e3:.3f} ms {2.5*flops/back/1e12:.0f}", flush=True)
