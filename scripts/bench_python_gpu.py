#!/usr/bin/env python3
"""Measures and checks glu_ckpt.torch on a GPU, all in one run: what docs/performance.md says of the Python module.

usage: scripts/bench_python_gpu.py [--experts E] [--rows 2F] [--hidden H] [--rounds N]

Needs a wheel with CUDA kernels and torch. Prints one line per figure or check; exits 1 if a check failed. Speeds are of
bytes read and written, beside a device copy of the same tensor in the same round; medians over the rounds.
"""

import argparse
import statistics
import sys
import time

import torch

import glu_ckpt
import glu_ckpt.torch as ops

K = 32
failures = []


def check(what, good, detail=""):
    print(f"{'ok  ' if good else 'FAIL'} {what}{': ' + detail if detail else ''}", flush=True)
    if not good:
        failures.append(what)


def eager(t, k):
    """What one writes without an operator."""
    e, rows, h = t.shape
    return t.view(e, 2, rows // (2 * k), k, h).transpose(1, 2).reshape(e, rows, h)


def milliseconds(call, calls=3):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls


def measure_large(args):
    shape = (args.experts, args.rows, args.hidden)
    t = torch.empty(shape, dtype=torch.bfloat16, device="cuda").random_(0, 1000)
    out, place = torch.empty_like(t), t.clone()
    calls = {
        "device copy": lambda: out.copy_(t),
        "interleave, out=": lambda: ops.interleave(t, K, out),
        "deinterleave, out=": lambda: ops.deinterleave(t, K, out),
        "interleave_": lambda: ops.interleave_(place, K),
        "deinterleave_": lambda: ops.deinterleave_(place, K),
        "interleave": lambda: ops.interleave(t, K),
        "eager formula": lambda: eager(t, K),
    }
    for call in calls.values():
        call()
    times = {name: [] for name in calls}
    for _ in range(args.rounds):
        for name, call in calls.items():
            times[name].append(milliseconds(call))
    bytes_moved = 2 * t.numel() * t.element_size()
    middle = {name: statistics.median(values) for name, values in times.items()}
    print(f"{list(shape)} bf16, interleaved:{K}, {bytes_moved / 2e9:.2f} GB, {args.rounds} rounds")
    for name, value in middle.items():
        print(f"  {name:20} {value:8.3f} ms {bytes_moved / value / 1e6:8.0f} GB/s  {middle['device copy'] / value:5.2f} of a copy"
              f"  (from {min(times[name]):.3f} to {max(times[name]):.3f})")
    for name, least in {"interleave": 0.98, "interleave_": 0.95}.items():
        ratio = middle["device copy"] / middle[name]
        check(f"{name} at least {least} of a device copy", ratio >= least, f"{ratio:.3f}")
    ratio = middle["eager formula"] / middle["interleave"]
    check("interleave at least 2.7 times the eager formula", ratio >= 2.7, f"{ratio:.2f}")
    check("interleave is the eager formula's result", torch.equal(ops.interleave(t, K), eager(t, K)))
    del out, place
    for k in (1, 8, 24, 1024):
        if args.rows % (2 * k) == 0:
            part = t[:2].contiguous()
            check(f"in place there and back, K = {k}", torch.equal(ops.deinterleave_(ops.interleave_(part.clone(), k), k), part))


def measure_overhead():
    t = torch.zeros(4, 512, 1536, dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(t)
    calls = {
        "torch.empty_like": lambda: torch.empty_like(t),
        "copy_": lambda: out.copy_(t),
        "ops.interleave": lambda: ops.interleave(t, K),
        "ops.interleave_": lambda: ops.interleave_(t, K),
        "ops.interleave, out=": lambda: ops.interleave(t, K, out),
        "glu_ckpt.interleave": lambda: glu_ckpt.interleave(t, K),
        "glu_ckpt.interleave_": lambda: glu_ckpt.interleave_(t, K),
    }
    print(f"time of a call on {t.numel() * t.element_size() / 1e6:.1f} MB: until it returns, and with the GPU's share")
    for name, call in calls.items():
        returned, finished = [], []
        for _ in range(7):
            for _ in range(20):
                call()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            # Few enough that the queue to the GPU never fills.
            for _ in range(200):
                call()
            returned.append((time.perf_counter() - begin) / 200)
            torch.cuda.synchronize()
            finished.append((time.perf_counter() - begin) / 200)
        us = 1e6 * statistics.median(returned)
        print(f"  {name:22} {us:6.1f} us {1e6 * statistics.median(finished):6.1f} us")
        if name in ("ops.interleave", "ops.interleave_"):
            check(f"{name} returns within 15 us", us <= 15, f"{us:.1f} us")


def check_streams():
    stream = torch.cuda.Stream()
    calls = {
        "ops.interleave": lambda t: ops.interleave(t, K),
        "ops.interleave_": lambda t: ops.interleave_(t, K),
        "glu_ckpt.interleave": lambda t: glu_ckpt.interleave(t, K),
        "ops.splits_to_offsets": lambda t: ops.splits_to_offsets(t.view(-1)[:64].view(torch.int64).fill_(3)),
    }
    for name, call in calls.items():
        t = torch.zeros(2, 256, 1024, dtype=torch.bfloat16, device="cuda")
        source = torch.randn_like(t)
        call(t.clone())
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            begun = torch.cuda.Event()
            torch.cuda._sleep(400_000_000)
            begun.record()
            t.copy_(source)
            got = call(t)
            waiting = not begun.query()
            # Behind the call on the same stream: what it read must be gone by then, and not before.
            if name != "ops.interleave_":
                t.zero_()
        check(f"{name} does not wait for its stream", waiting)
        torch.cuda.synchronize()
        if "interleave" in name:
            check(f"{name} runs in the stream's order", torch.equal(got, eager(source, K)))
        else:
            check(f"{name} runs in the stream's order", got.tolist() == [3 * i for i in range(len(got))])


def check_graph():
    t = torch.zeros(4, 256, 512, dtype=torch.bfloat16, device="cuda")
    place, out = torch.zeros_like(t), torch.empty_like(t)
    splits = torch.tensor([1, 2, 3], device="cuda")
    ops.interleave_(place, K)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = ops.interleave(t, K)
        ops.interleave(t, K, out)
        ops.interleave_(place, K)
        offsets = ops.splits_to_offsets(splits)
        generic = glu_ckpt.deinterleave(made, K)
    for seed in range(3):
        torch.manual_seed(seed)
        t.normal_()
        place.copy_(t)
        splits.add_(1)
        graph.replay()
        torch.cuda.synchronize()
        good = all(torch.equal(x, eager(t, K)) for x in (made, out, place)) and torch.equal(generic, t)
        check(f"graph, replay {seed}", good and torch.equal(offsets[1:], splits.cumsum(0)))


def check_compile():
    def step(w, x):
        w = ops.interleave(w * 2, K)
        y = torch.bmm(x, w.transpose(1, 2)) + 1
        ops.deinterleave_(w, K)
        return y, w

    w = torch.randn(4, 256, 128, dtype=torch.bfloat16, device="cuda")
    x = torch.randn(4, 16, 128, dtype=torch.bfloat16, device="cuda")
    wanted = step(w, x)
    got = torch.compile(step, fullgraph=True)(w, x)
    check("torch.compile(fullgraph=True)", torch.equal(got[1], wanted[1]) and torch.allclose(got[0], wanted[0], atol=0.1))
    check("no graph break", torch._dynamo.explain(step)(w, x).graph_break_count == 0)
    graphed = torch.compile(step, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        got = [part.clone() for part in graphed(w, x)]
    check("torch.compile with CUDA graphs", torch.equal(got[1], wanted[1]))


def check_others():
    t = torch.randn(2, 64, 8, device="cuda")
    for wrong, text in [(lambda: glu_ckpt.interleave(t, 32, torch.empty(2, 64, 8)), "on cpu, expected on cuda:0"),
                        (lambda: ops.interleave(t, 5), "needs a multiple of 10"),
                        (lambda: ops.interleave(t.transpose(0, 1), 1), "not contiguous")]:
        try:
            wrong()
            check(text, False)
        except glu_ckpt.Error as error:
            check(text, text in str(error), str(error))
    check("diff on the GPU", ops.diff(t, -t)["differing"] == t.numel() and ops.diff(t, t)["equal"])
    x, splits = torch.randn(9, 8, device="cuda"), torch.tensor([4, 5], device="cuda")
    fc2 = torch.randn(2, 8, 32, device="cuda")
    a, b = ops.grouped_mlp(x, splits, t, fc2), ops.grouped_mlp(x, splits, ops.interleave(t, 8), fc2, k=8)
    wanted = glu_ckpt.grouped_mlp(x.cpu(), splits.cpu(), t.cpu(), fc2.cpu())
    check("grouped_mlp: the same bits in two layouts", torch.equal(a, b))
    check("grouped_mlp: near the CPU's", torch.allclose(a.cpu(), wanted, rtol=1e-4, atol=1e-3))
    try:
        import cupy
    except ImportError:
        print("cupy is not here")
        return
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        array = cupy.arange(2 * 64 * 8, dtype="float32").reshape(2, 64, 8)
        got = glu_ckpt.interleave(array, 8)
        glu_ckpt.interleave_(array, 8)
    stream.synchronize()
    wanted = eager(torch.arange(2 * 64 * 8, dtype=torch.float32).reshape(2, 64, 8), 8).numpy()
    check("cupy, on its current stream", (got.get() == wanted).all() and (array.get() == wanted).all())


def check_capture_of_a_first_call():
    t = torch.randn(3, 384, 40, device="cuda").to(torch.bfloat16)
    wanted = eager(t, 24)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.interleave_(t, 24)
    graph.replay()
    torch.cuda.synchronize()
    check("a capture may hold the first interleave_ of a size", torch.equal(t, wanted))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args()
    print(f"glu_ckpt {glu_ckpt.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
    check("the wheel has CUDA kernels", glu_ckpt._core.built_with_cuda())
    parts = (lambda: measure_large(args), measure_overhead, check_streams, check_graph, check_others, check_compile,
             check_capture_of_a_first_call)
    for part in parts:
        try:
            part()
        except Exception as error:  # What fails must not hide the others.
            check(getattr(part, "__name__", "part"), False, f"{type(error).__name__}: {error}")
    print(f"{len(failures)} checks failed")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
