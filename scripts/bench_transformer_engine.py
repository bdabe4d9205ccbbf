#!/usr/bin/env python3
"""Computes and times a grouped linear layer and the experts of a layer beside TransformerEngine's, in one process.

usage: scripts/bench_transformer_engine.py [--rounds N]

Needs a GPU, torch, transformer_engine with its part for torch, and a wheel of glu_ckpt with CUDA kernels. bf16, weights in
tensors of their own, gradients in `.grad`. TransformerEngine's experts are its unfused grouped MLP with interleaved rows.
Prints milliseconds of a step (forward and backward) and of a forward, microseconds until their calls return, and how far
the results lie from each other, and from float64's for one expert.
"""

import argparse
import statistics
import time

import torch
import transformer_engine.pytorch as te
from transformer_engine.pytorch import ops as te_ops

import glu_ckpt.torch as ops

K = 32
# Name, experts, H, F, tokens of each expert.
SHAPES = (("small", 8, 512, 256, 64), ("Qwen3-30B", 128, 2048, 768, 1024), ("DeepSeek-V3", 64, 7168, 2048, 256),
          ("Mixtral-8x7B", 8, 4096, 14336, 1024))
DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16


def distance(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def milliseconds(call, calls=5):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls


def take_turns(what, calls, rounds):
    """`calls` by name; those of TransformerEngine come first."""
    times, returned = {name: [] for name in calls}, {}
    for call in calls.values():
        call()
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(milliseconds(call))
    for name, call in calls.items():
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(5):
            call()
        returned[name] = (time.perf_counter() - begin) / 5 * 1e6
        torch.cuda.synchronize()
    first = statistics.median(next(iter(times.values())))
    for name, values in times.items():
        middle = statistics.median(values)
        print(f"  {what}, {name}: {middle:.3f} ms, {returned[name]:.0f} us to return, {middle / first:.2f}", flush=True)


def fill(module, name, weights):
    with torch.no_grad():
        for e, weight in enumerate(weights):
            getattr(module, f"{name}{e}").copy_(weight)


def results(call, out_grad, leaves, module):
    for leaf in leaves:
        leaf.grad = None
    module.zero_grad()
    out = call()
    out.backward(out_grad)
    return [out.detach(), *(leaf.grad.clone() for leaf in leaves), module.weight0.grad.clone()]


def beside(what, calls, out_grad, leaves, modules, rounds):
    """calls, modules: TransformerEngine's and ours, by name."""
    found = {name: results(call, out_grad, leaves, modules[name]) for name, call in calls.items()}
    *theirs, ours = found
    for name in theirs:
        print(f"  {what}: ours beside {name}: {[f'{distance(a, b):.1e}' for a, b in zip(found[ours], found[name])]}")
    take_turns(f"{what}, a step", {name: lambda call=call: call().backward(out_grad) for name, call in calls.items()}, rounds)
    take_turns(f"{what}, forward", {name: torch.no_grad()(call) for name, call in calls.items()}, rounds)
    return found


def compare(shape, rounds):
    name, experts, hidden, width, tokens = shape
    print(f"{name}: {experts} experts of {hidden} x {width}, {tokens} tokens each")
    torch.manual_seed(0)

    def random(*sizes, scale=1.0):
        return (torch.randn(*sizes, device=DEVICE) * scale).to(DTYPE)

    x, probs = random(experts * tokens, hidden).requires_grad_(), torch.rand(experts * tokens, device=DEVICE).requires_grad_()
    splits, listed = torch.tensor([tokens] * experts, device=DEVICE), [tokens] * experts
    fc1 = [random(2 * width, hidden, scale=hidden**-0.5) for _ in range(experts)]
    fc2 = [random(hidden, width, scale=width**-0.5) for _ in range(experts)]
    words = {"bias": False, "params_dtype": DTYPE, "device": DEVICE}
    theirs, ours = te.GroupedLinear(experts, hidden, 2 * width, **words), ops.GroupedLinear(experts, hidden, 2 * width, **words)
    for module in (theirs, ours):
        fill(module, "weight", fc1)
    calls = {"TransformerEngine": lambda: theirs(x, listed), "TransformerEngine, splits on the GPU": lambda: theirs(x, splits),
             "ours": lambda: ours(x, splits)}
    modules = dict(zip(calls, (theirs, theirs, ours)))
    beside("grouped linear", calls, random(experts * tokens, 2 * width), [x], modules, rounds)
    words = {"bias": False, "dtype": DTYPE, "device": DEVICE}
    theirs = te_ops.Sequential(te_ops.GroupedLinear(experts, hidden, 2 * width, **words),
                               te_ops.ScaledSwiGLU(glu_interleave_size=K),
                               te_ops.GroupedLinear(experts, width, hidden, **words))
    ours = ops.GroupedMLP(experts, hidden, width, k=K, params_dtype=DTYPE, device=DEVICE)
    for linears in ((theirs[0], theirs[2]), (ours.linear_fc1, ours.linear_fc2)):
        fill(linears[0], "weight", fc1)
        fill(linears[1], "weight", fc2)
    calls = {"TransformerEngine": lambda: theirs(x, splits, probs, splits), "ours": lambda: ours(x, splits, probs)}
    grad = random(experts * tokens, hidden)
    found = beside("experts", calls, grad, [x, probs], dict(zip(calls, (theirs[0], ours.linear_fc1))), rounds)
    rows, weight = x[:tokens].detach().double().requires_grad_(), fc1[0].double().requires_grad_()
    gate, up = (rows @ weight.T).unflatten(1, (width // K, 2, K)).unbind(2)
    middle = (torch.nn.functional.silu(gate) * up).flatten(1) * probs[:tokens].detach().double()[:, None]
    out = middle @ fc2[0].double().T
    out.backward(grad[:tokens].double())
    for name, (y, dx, _, dw) in found.items():
        print(f"  experts, expert 0 beside float64: {name}: out {distance(y[:tokens], out.detach()):.2e}, dx "
              f"{distance(dx[:tokens], rows.grad):.2e}, dW {distance(dw, weight.grad):.2e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for shape in SHAPES:
        compare(shape, rounds)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
