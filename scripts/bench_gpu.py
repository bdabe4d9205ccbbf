#!/usr/bin/env python3
"""Compares the layout kernels with PyTorch's formula for the same permutation, in one run on one GPU.

    scripts/bench_gpu.py [--glu-ckpt PATH] [--json]

The formula is the one that training code uses: view FC1 as [2, F/K, K, H], exchange the first two axes, make it
contiguous. It is timed as it is (eager), and compiled for one static shape with mode="max-autotune". Needs torch with
CUDA, and a glu-ckpt built with it. Each PyTorch figure stands beside a device copy timed in turn with it; the kernels'
figures come from `glu-ckpt bench kernels`, which does the same.
"""

import argparse
import json
import statistics
import subprocess
import sys

import torch

# model, [E, 2F, H], K; the shapes of `glu-ckpt bench kernels`.
SHAPES = [
    ("DeepSeek-V3", (64, 4096, 7168), (32, 8, 1)),
    ("Qwen3-30B", (128, 1536, 2048), (32, 8, 1)),
    ("gpt-oss-120b", (128, 5760, 2880), (32, 8, 1)),
    ("Mixtral-8x7B", (8, 28672, 4096), (32, 8, 1)),
]
COMPILED = ("DeepSeek-V3", 32)
# max-autotune replays a CUDA graph, and copies its input into the graph's own memory first.
COMPILE_MODES = ("max-autotune", "max-autotune-no-cudagraphs")
GROUPS = (8, 64, 256)
ROUNDS = 11


def interleave(weight, block_rows):
    """[E, 2F, H] from halves to blocks of block_rows rows."""
    experts, rows, hidden = weight.shape
    blocks = weight.view(experts, 2, rows // (2 * block_rows), block_rows, hidden)
    return blocks.transpose(1, 2).contiguous().view(experts, rows, hidden)


def offsets(splits, strides):
    """The chain that splits_to_offsets_multi replaces: a prefix sum, a leading zero, one product per array."""
    ends = torch.cumsum(splits, 0)
    starts = torch.cat([torch.zeros(1, dtype=splits.dtype, device=splits.device), ends])
    return [ends.to(torch.int32), starts] + [starts * stride for stride in strides]


def batch_us(work, launches):
    """Microseconds a call takes in a row of `launches`, after one untimed."""
    work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(launches):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / launches


def in_turn(*works, launches=1):
    """Medians over rounds in which all take turns."""
    for work in works:
        work()
    times = [[batch_us(work, launches) for work in works] for _ in range(ROUNDS)]
    return [statistics.median(column) for column in zip(*times)]


def torch_figures():
    for model, shape, all_block_rows in SHAPES:
        weight = torch.randint(-32768, 32767, shape, dtype=torch.int16, device="cuda").view(torch.bfloat16)
        target = torch.empty_like(weight)
        for block_rows in all_block_rows:
            works = {"eager": lambda: interleave(weight, block_rows)}
            if (model, block_rows) == COMPILED:
                for mode in COMPILE_MODES:
                    compiled = torch.compile(interleave, mode=mode, dynamic=False)
                    # As integers: the random bits hold NaNs, which equal nothing.
                    got, want = (f(weight, block_rows).view(torch.int16) for f in (compiled, interleave))
                    assert torch.equal(got, want)
                    works[f"compiled, {mode}"] = lambda f=compiled: f(weight, block_rows)
            *own, copy = in_turn(*works.values(), lambda: target.copy_(weight))
            for how, microseconds in zip(works, own):
                yield {
                    "kernel": f"torch, {how}", "model": model, "what": f"interleave:{block_rows}",
                    "shape": list(shape), "bytes": 2 * weight.nbytes, "microseconds": microseconds,
                    "gb_per_s": 2 * weight.nbytes / microseconds / 1e3, "reference": "copy_",
                    "reference_microseconds": copy, "ratio": copy / microseconds,
                }
    for groups in GROUPS:
        splits = torch.full((groups,), 37, dtype=torch.int64, device="cuda")
        (microseconds,) = in_turn(lambda: offsets(splits, (7168, 2048, 7168)), launches=50)
        yield {"kernel": "torch, eager", "model": "", "what": "5 offset arrays", "shape": [groups], "bytes": 0,
               "microseconds": microseconds}


def own_figures(program):
    run = subprocess.run([program, "bench", "kernels", "--json"], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(run.stdout)


def speedups(own, others):
    """Our speed over PyTorch's where both measured the same thing on the same shape."""
    ours = {(f["model"], f["what"], tuple(f["shape"])): f for f in own if f["kernel"] == "strided_copy"}
    ours |= {("", "5 offset arrays", tuple(f["shape"])): f for f in own if f["kernel"] == "splits_to_offsets"}
    for figure in others:
        mine = ours.get((figure["model"], figure["what"], tuple(figure["shape"])))
        if mine:
            yield {"what": figure["what"], "model": figure["model"], "shape": figure["shape"], "than": figure["kernel"],
                   "times_as_fast": figure["microseconds"] / mine["microseconds"]}


def table(figures):
    for f in figures:
        rate = f"{f['gb_per_s']:8.0f}" if f.get("gb_per_s") else "       -"
        ratio = f"{f['ratio']:7.3f} of {f['reference']}" if f.get("reference") else "      -"
        print(f"{f['kernel']:30} {f['model']:13} {f['what']:42} {str(f['shape']):18} {f['microseconds']:9.1f} us"
              f" {rate} GB/s {ratio}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--glu-ckpt", default="glu-ckpt", help="the program to measure")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("bench_gpu: PyTorch sees no GPU", file=sys.stderr)
        return 77
    own = own_figures(arguments.glu_ckpt)
    others = list(torch_figures())
    faster = list(speedups(own["figures"], others))
    if arguments.json:
        print(json.dumps({"device": own["device"], "cuda_driver": own["cuda_driver"], "torch": torch.__version__,
                          "figures": own["figures"] + others, "speedups": faster}))
        return 0
    print(f"{own['device']}, driver for CUDA {own['cuda_driver']}, torch {torch.__version__}")
    table(own["figures"] + others)
    for f in faster:
        print(f"{f['what']} {f['model']} {f['shape']}: {f['times_as_fast']:.2f} times as fast as {f['than']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
