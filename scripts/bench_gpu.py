#!/usr/bin/env python3
"""Compares glu-ckpt's kernels with PyTorch, in one run on one GPU.

    scripts/bench_gpu.py [kernels|forward] [--glu-ckpt PATH] [--json] [--model M] [--tokens N,N] [--backward]

kernels (the default): the layout kernels beside PyTorch's formula for the same permutation.

The formula is the one that training code uses: view FC1 as [2, F/K, K, H], exchange the first two axes, make it
contiguous. It is timed as it is (eager), and compiled for one static shape with mode="max-autotune". Needs torch with
CUDA, and a glu-ckpt built with it. Each PyTorch figure stands beside a device copy timed in turn with it; the kernels'
figures come from `glu-ckpt bench kernels`, which does the same.

forward: the grouped MLP beside torch._grouped_mm, SwiGLU and torch._grouped_mm on the shapes of `glu-ckpt bench
forward`. PyTorch's FC1 is in halves, and its activation eager, or compiled for one static shape. The program runs
before and after PyTorch; its time is the mean of its two medians, and both are printed. --model and --tokens choose
figures, as for the program.

forward --backward: gradients of x, the probabilities and both weights. PyTorch's time is that of a forward with the
backward by autograd, less that of the forward; its activation is compiled. The program's backward reads the
pre-activation that its forward saved.

Where QuACK (quack-kernels) is installed, forward and backward stand beside its grouped kernels too, which it tunes for
each shape: gate and up rows alternate, no probabilities. Its backward is the sum of its four products' times.

Each of them is measured by itself: its works take turns with one another, not with those of the other two. Where power
limits the GPU, works that take turns share one clock, and the figures differ (docs/performance.md).
"""

import argparse
import json
import statistics
import subprocess
import sys

try:
    import torch
except ImportError:
    sys.exit("bench_gpu: PyTorch is not installed; it needs one with CUDA, the 'torch' package")

try:
    from quack.gemm_interface import gemm as quack_gemm
    from quack.gemm_interface import gemm_dgated, gemm_gated
except ImportError:
    quack_gemm = None

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


def swiglu(z, probs):
    """[T, 2F] in halves to [T, F], times each row's probability."""
    gate, linear = z.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * linear * probs


def values(*shape, deviation):
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda").mul_(deviation)


def torch_backward(figure):
    """Microseconds of autograd on the shape of one of the program's figures."""
    experts, hidden, width = (figure[key] for key in ("num_experts", "hidden_size", "moe_intermediate_size"))
    tokens = figure["tokens_per_expert"]
    rows = experts * tokens
    inputs = [values(rows, hidden, deviation=1), torch.rand(rows, 1, device="cuda").to(torch.bfloat16),
              values(experts, 2 * width, hidden, deviation=hidden**-0.5),
              values(experts, hidden, width, deviation=width**-0.5)]
    gradient = values(rows, hidden, deviation=1)
    ends = torch.arange(1, experts + 1, device="cuda", dtype=torch.int32) * tokens
    torch._dynamo.reset()
    activation = torch.compile(swiglu, dynamic=False)
    for tensor in inputs:
        tensor.requires_grad_(True)

    def forward():
        x, probs, fc1, fc2 = inputs
        z = torch._grouped_mm(x, fc1.transpose(1, 2), offs=ends)
        return torch._grouped_mm(activation(z, probs), fc2.transpose(1, 2), offs=ends)

    def both():
        return torch.autograd.grad(forward(), inputs, gradient)

    both()
    launches = max(1, min(20, round(1000 / batch_us(both, 1))))
    with_backward, alone = in_turn(both, forward, launches=launches)
    return with_backward - alone


def torch_forward(figure):
    """Microseconds of PyTorch on the shape of one of the program's figures: (compiled, eager)."""
    experts, hidden, width = (figure[key] for key in ("num_experts", "hidden_size", "moe_intermediate_size"))
    tokens = figure["tokens_per_expert"]
    rows = experts * tokens
    x, probs = values(rows, hidden, deviation=1), torch.rand(rows, 1, device="cuda").to(torch.bfloat16)
    # As they are stored, [out, in], and seen as [in, out]: the inner axis of both operands is the summed one.
    fc1 = values(experts, 2 * width, hidden, deviation=hidden**-0.5).transpose(1, 2)
    fc2 = values(experts, hidden, width, deviation=width**-0.5).transpose(1, 2)
    ends = torch.arange(1, experts + 1, device="cuda", dtype=torch.int32) * tokens

    def forward(activation):
        return torch._grouped_mm(activation(torch._grouped_mm(x, fc1, offs=ends), probs), fc2, offs=ends)

    torch._dynamo.reset()
    compiled = torch.compile(swiglu, dynamic=False)
    got, want = (forward(activation)[:4096].float() for activation in (compiled, swiglu))
    assert (got - want).abs().max() < 0.25 * want.pow(2).mean().sqrt()
    del got, want
    works = [lambda: forward(compiled), lambda: forward(swiglu)]
    launches = max(1, min(50, round(1000 / batch_us(works[0], 1))))
    return in_turn(*works, launches=launches)


def quack_times(figure, backward):
    """Microseconds of QuACK's forward, or of the four products of its backward; nothing where it is not installed."""
    if quack_gemm is None:
        return []
    experts, hidden, width = (figure[key] for key in ("num_experts", "hidden_size", "moe_intermediate_size"))
    tokens = figure["tokens_per_expert"]
    rows = experts * tokens
    x = values(rows, hidden, deviation=1)
    fc1 = values(experts, 2 * width, hidden, deviation=hidden**-0.5)
    fc2 = values(experts, hidden, width, deviation=width**-0.5)
    ends = torch.arange(experts + 1, device="cuda", dtype=torch.int32) * tokens
    z, y = gemm_gated(x, fc1.mT, activation="swiglu", cu_seqlens_m=ends)
    expected = x[:tokens].float() @ fc1[0].T.float()
    expected = torch.nn.functional.silu(expected[:, ::2]) * expected[:, 1::2]
    assert (y[:tokens].float() - expected).abs().max() < 0.25 * expected.pow(2).mean().sqrt()
    out = torch.empty_like(x)
    if not backward:
        def forward():
            gemm_gated(x, fc1.mT, activation="swiglu", store_preact=False, postact_out=y, cu_seqlens_m=ends)
            quack_gemm(y, fc2.mT, out=out, cu_seqlens_m=ends)

        works = [forward]
    else:
        dout, dz = values(rows, hidden, deviation=1), torch.empty_like(z)
        dfc1, dfc2 = torch.empty_like(fc1), torch.empty_like(fc2)
        works = [
            lambda: gemm_dgated(dout, fc2, z, activation="swiglu", dx_out=dz, postact_out=y, cu_seqlens_m=ends),
            lambda: quack_gemm(dz, fc1, out=out, cu_seqlens_m=ends),
            lambda: quack_gemm(dout.T, y, out=dfc2, cu_seqlens_k=ends),
            lambda: quack_gemm(dz.T, x, out=dfc1, cu_seqlens_k=ends),
        ]
    for work in works:
        work()
    return in_turn(*works, launches=max(1, min(50, round(1000 / batch_us(works[0], 1)))))


def forward_figures(arguments):
    """One row for each figure of the program, with PyTorch's times and the ratios."""
    before = own_forward(arguments)
    others = []
    for figure in before["figures"]:
        compiled_and_eager = torch_forward(figure)
        torch.cuda.empty_cache()
        others.append((*compiled_and_eager, *quack_times(figure, backward=False)))
        torch.cuda.empty_cache()
    after = own_forward(arguments)
    rows = []
    for first, (compiled, eager, *quack), second in zip(before["figures"], others, after["figures"]):
        own = (first["microseconds"] + second["microseconds"]) / 2
        flops, weight_bytes = first["tflops"] * first["microseconds"], first["weight_bytes"]
        rows.append({
            "model": first["model"], "tokens_per_expert": first["tokens_per_expert"],
            "num_experts": first["num_experts"], "microseconds": own,
            "microseconds_before": first["microseconds"], "microseconds_after": second["microseconds"],
            "tflops": flops / own, "weight_gb_per_s": weight_bytes / own / 1e3,
            "of_read": (first["of_read"] + second["of_read"]) / 2,
            "torch_compiled_microseconds": compiled, "torch_compiled_tflops": flops / compiled,
            "torch_eager_microseconds": eager, "times_torch_compiled": compiled / own, "times_torch_eager": eager / own,
            **beside_quack(quack, own),
        })
    return before, after, rows


def beside_quack(parts, own):
    """A row's figures of QuACK, whose parts take these microseconds."""
    if not parts:
        return {}
    return {"quack_microseconds": sum(parts), "quack_parts_microseconds": parts, "times_quack": sum(parts) / own}


def quack_column(row):
    return f" {row['quack_microseconds']:9.1f} {row['times_quack']:8.3f}" if "times_quack" in row else ""


def quack_title():
    return f" {'QuACK':>9} {'x QuACK':>8}" if quack_gemm is not None else ""


def report_backward(arguments):
    """The backward beside autograd's."""
    before = own_forward(arguments)
    others = []
    for figure in before["figures"]:
        other = torch_backward(figure)
        torch.cuda.empty_cache()
        others.append((other, quack_times(figure, backward=True)))
        torch.cuda.empty_cache()
    after = own_forward(arguments)
    rows = []
    for first, (other, quack), second in zip(before["figures"], others, after["figures"]):
        own = (first["backward_microseconds"] + second["backward_microseconds"]) / 2
        # Twice the forward's operations.
        flops = 2 * first["tflops"] * first["microseconds"]
        rows.append({
            "model": first["model"], "tokens_per_expert": first["tokens_per_expert"],
            "num_experts": first["num_experts"], "microseconds": own,
            "microseconds_before": first["backward_microseconds"], "microseconds_after": second["backward_microseconds"],
            "recompute_microseconds": (first["recompute_microseconds"] + second["recompute_microseconds"]) / 2,
            "saving_microseconds": second["saving_microseconds"],
            "not_saving_microseconds": second["not_saving_microseconds"],
            "tflops": flops / own, "torch_microseconds": other, "torch_tflops": flops / other,
            "times_torch": other / own, **beside_quack(quack, own),
        })
    if arguments.json:
        print(json.dumps({"device": before["device"], "cuda_driver": before["cuda_driver"], "torch": torch.__version__,
                          "before": before["figures"], "after": after["figures"], "figures": rows}))
        return
    print(f"{before['device']}, driver for CUDA {before['cuda_driver']}, torch {torch.__version__}")
    print(f"{'model':13} {'tokens':>6} {'us':>9} {'before':>9} {'after':>9} {'TFLOP/s':>8} {'recompute':>9} {'torch':>9}"
          f" {'TFLOP/s':>8} {'x torch':>8} {'forward':>9} {'saving z':>9}{quack_title()}")
    for row in rows:
        print(f"{row['model']:13} {row['tokens_per_expert']:6} {row['microseconds']:9.1f}"
              f" {row['microseconds_before']:9.1f} {row['microseconds_after']:9.1f} {row['tflops']:8.1f}"
              f" {row['recompute_microseconds']:9.1f} {row['torch_microseconds']:9.1f} {row['torch_tflops']:8.1f}"
              f" {row['times_torch']:8.3f} {row['not_saving_microseconds']:9.1f} {row['saving_microseconds']:9.1f}"
              f"{quack_column(row)}")


def own_forward(arguments):
    filters = [f"--{name}={value}" for name in ("model", "tokens") if (value := getattr(arguments, name))]
    if arguments.backward:
        filters.append("--backward")
    run = subprocess.run([arguments.glu_ckpt, "bench", "forward", "--json", *filters], check=True,
                         stdout=subprocess.PIPE, text=True)
    return json.loads(run.stdout)


def report_forward(arguments):
    before, after, rows = forward_figures(arguments)
    if arguments.json:
        print(json.dumps({"device": before["device"], "cuda_driver": before["cuda_driver"], "torch": torch.__version__,
                          "before": before["figures"], "after": after["figures"], "figures": rows}))
        return
    print(f"{before['device']}, driver for CUDA {before['cuda_driver']}, torch {torch.__version__}")
    print(f"{'model':13} {'tokens':>6} {'us':>9} {'before':>9} {'after':>9} {'TFLOP/s':>8} {'GB/s':>6} {'of read':>8}"
          f" {'compiled':>9} {'TFLOP/s':>8} {'eager':>9} {'x compiled':>10} {'x eager':>8}{quack_title()}")
    for row in rows:
        print(f"{row['model']:13} {row['tokens_per_expert']:6} {row['microseconds']:9.1f}"
              f" {row['microseconds_before']:9.1f} {row['microseconds_after']:9.1f} {row['tflops']:8.1f}"
              f" {row['weight_gb_per_s']:6.0f} {row['of_read']:8.3f} {row['torch_compiled_microseconds']:9.1f}"
              f" {row['torch_compiled_tflops']:8.1f} {row['torch_eager_microseconds']:9.1f}"
              f" {row['times_torch_compiled']:10.3f} {row['times_torch_eager']:8.3f}{quack_column(row)}")


def table(figures):
    for f in figures:
        rate = f"{f['gb_per_s']:8.0f}" if f.get("gb_per_s") else "       -"
        ratio = f"{f['ratio']:7.3f} of {f['reference']}" if f.get("reference") else "      -"
        print(f"{f['kernel']:30} {f['model']:13} {f['what']:42} {str(f['shape']):18} {f['microseconds']:9.1f} us"
              f" {rate} GB/s {ratio}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("kernels", "forward"), default="kernels", help="what to measure")
    parser.add_argument("--glu-ckpt", default="glu-ckpt", help="the program to measure")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--model", help="forward: of this model alone")
    parser.add_argument("--tokens", help="forward: so many tokens per expert; 8, or 1,8,64")
    parser.add_argument("--backward", action="store_true", help="forward: the backward in place of the forward")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("bench_gpu: PyTorch sees no GPU", file=sys.stderr)
        return 77
    if arguments.what == "forward":
        report_backward(arguments) if arguments.backward else report_forward(arguments)
        return 0
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
