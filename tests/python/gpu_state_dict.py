#!/usr/bin/env python3
"""Checks and measures state-dict conversions on a GPU: Megatron's grouped, interleaved experts to Hugging Face's form.

usage: tests/python/gpu_state_dict.py [--layers N] [--experts N] [--rounds N]

Needs a wheel with CUDA kernels, and torch; exits 77 without a GPU. The shapes are those of Qwen3-30B-A3B's experts; all
48 layers and their result take 114 GB. Prints one line per check or figure; exits 1 if a check failed.
"""

import argparse
import statistics
import sys
import time

import torch

if not torch.cuda.is_available():
    print("gpu_state_dict: not run: torch finds no GPU")
    sys.exit(77)

import glu_ckpt  # noqa: E402

if not glu_ckpt._core.built_with_cuda():
    print("gpu_state_dict: not run: this wheel has no CUDA kernels")
    sys.exit(77)

HIDDEN, WIDTH, K = 2048, 768, 32
FORMS = {
    "to Hugging Face's form": {"naming": "hf:qwen3_moe", "scope": "experts", "experts": "indexed", "glu": "split"},
    "to contiguous": {"glu": "contiguous"},
    "to indexed": {"experts": "indexed", "force": True},
}
failures = []


def check(what, good):
    print(f"{'ok  ' if good else 'FAIL'} {what}", flush=True)
    if not good:
        failures.append(what)


def experts(layers, count, device):
    state = {}
    for layer in range(layers):
        prefix = f"decoder.layers.{layer}.mlp.experts.linear_fc"
        for name, shape in (("1", (count, 2 * WIDTH, HIDDEN)), ("2", (count, HIDDEN, WIDTH))):
            state[f"{prefix}{name}.weight"] = torch.randn(shape, dtype=torch.bfloat16, device=device)
    return state


def seconds(call, rounds):
    """Seconds on the GPU, and those until the call returned: medians."""
    on_gpu, on_host = [], []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        start = time.perf_counter()
        call()
        on_host.append(time.perf_counter() - start)
        end.record()
        torch.cuda.synchronize()
        on_gpu.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(on_gpu), statistics.median(on_host)


def run(what, options, state, rounds):
    start = time.perf_counter()
    plan = glu_ckpt.plan_state_dict(state, from_glu=f"interleaved:{K}", **options)
    planned = time.perf_counter() - start
    out = {name: torch.empty(info.shape, dtype=torch.bfloat16, device="cuda") for name, info in plan.outputs.items()}
    plan.run(state, out)
    host = {name: tensor.cpu() for name, tensor in state.items() if ".layers.0." in name}
    wanted = glu_ckpt.convert_state_dict(host, from_glu=f"interleaved:{K}", **options)
    check(f"{what}: the first layer is as on the CPU", all(torch.equal(out[k].cpu(), v) for k, v in wanted.items()))
    total = sum(info.bytes for info in plan.outputs.values())
    plain, plain_host = seconds(lambda: plan.run(state, out), rounds)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(state, out)
    for tensor in out.values():
        tensor.zero_()
    replayed, replayed_host = seconds(graph.replay, rounds)
    check(f"{what}: a graph replays it", all(torch.equal(out[k].cpu(), v) for k, v in wanted.items()))
    # A third of the model may have no room.
    del graph, out
    torch.cuda.empty_cache()
    room = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    copied, _ = seconds(lambda: [room[name].copy_(tensor) for name, tensor in state.items()], rounds)
    print(
        f"     {what}: {len(plan.outputs)} tensors of {total / 1e9:.2f} GB, planned in {planned * 1e3:.0f} ms; run "
        f"{plain * 1e3:.2f} ms ({plain_host * 1e3:.1f} on the host), graph {replayed * 1e3:.2f} ms "
        f"({replayed_host * 1e3:.2f}), copies of the same bytes {copied * 1e3:.2f} ms: {copied / replayed:.2f} of their "
        "speed",
        flush=True,
    )


def decode(layers, count, rounds):
    """FP8 in blocks of 128 x 128, one tensor an expert, as DeepSeek's are stored, to FC1 and FC2 of all experts."""
    state = {}
    for layer in range(layers):
        for e in range(count):
            for part, (rows, cols) in (("gate", (WIDTH, HIDDEN)), ("up", (WIDTH, HIDDEN)), ("down", (HIDDEN, WIDTH))):
                name = f"model.layers.{layer}.mlp.experts.{e}.{part}_proj.weight"
                state[name] = torch.randn(rows, cols, device="cuda").to(torch.float8_e4m3fn)
                state[f"{name}_scale_inv"] = torch.rand(rows // 128, cols // 128, device="cuda")
    config = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": count,
              "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    options = {"decode": "bf16", "naming": "megatron", "scope": "experts", "experts": "grouped", "force": True}
    for glu in ("contiguous", f"interleaved:{K}"):
        plan = glu_ckpt.plan_state_dict(state, config=config, glu=glu, **options)
        out = {name: torch.empty(info.shape, dtype=torch.bfloat16, device="cuda") for name, info in plan.outputs.items()}
        plan.run(state, out)
        host = {name: tensor.cpu() for name, tensor in state.items() if ".layers.0." in name}
        wanted = glu_ckpt.convert_state_dict(host, config=config, glu=glu, **options)
        check(f"FP8 to {glu}: the first layer is as on the CPU", all(torch.equal(out[k].cpu(), v) for k, v in wanted.items()))
        total = sum(info.bytes for info in plan.outputs.values())
        taken, _ = seconds(lambda: plan.run(state, out), rounds)
        room = [torch.empty_like(tensor) for tensor in out.values()]
        copied, _ = seconds(lambda: [a.copy_(b) for a, b in zip(room, out.values())], rounds)
        print(f"     FP8 to bf16, {glu}: {total / 1e9:.2f} GB in {taken * 1e3:.1f} ms, copies of the output {copied * 1e3:.2f} "
              "ms", flush=True)


def pair(layers, count, rounds):
    """Two GPUs, each with one expert-parallel rank's half of the experts, which both convert at the same time."""
    half = count // 2
    form = {"from_glu": f"interleaved:{K}", **FORMS["to Hugging Face's form"]}
    states = [experts(layers, half, f"cuda:{rank}") for rank in range(2)]
    graphs, outs = [], []
    for rank, state in enumerate(states):
        with torch.cuda.device(rank):
            plan = glu_ckpt.plan_state_dict(state, first_expert=rank * half, **form)
            out = {name: torch.empty(info.shape, dtype=torch.bfloat16, device="cuda") for name, info in plan.outputs.items()}
            plan.run(state, out)
            torch.cuda.synchronize()
            graphs.append(torch.cuda.CUDAGraph())
            # torch captures on one stream, which is of the first GPU, unless another is named.
            with torch.cuda.graph(graphs[-1], stream=torch.cuda.Stream(rank)):
                plan.run(state, out)
            for tensor in out.values():
                tensor.zero_()
            outs.append(out)

    def together(calls):
        for rank in range(2):
            torch.cuda.synchronize(rank)
        start = time.perf_counter()
        for rank, call in enumerate(calls):
            with torch.cuda.device(rank):
                call()
        for rank in range(2):
            torch.cuda.synchronize(rank)
        return time.perf_counter() - start

    replayed = statistics.median(together([graph.replay for graph in graphs]) for _ in range(rounds))
    alone = statistics.median(together([graphs[0].replay]) for _ in range(rounds))
    first = ".layers.0."
    whole = {name: torch.cat([state[name].cpu() for state in states]) for name in states[0] if first in name}
    wanted = glu_ckpt.convert_state_dict(whole, **form)
    made = {name: tensor.cpu() for out in outs for name, tensor in out.items() if first in name}
    check("two ranks' halves are the whole model's experts", made.keys() == wanted.keys()
          and all(torch.equal(made[name], tensor) for name, tensor in wanted.items()))
    total = sum(tensor.nbytes for out in outs for tensor in out.values())
    print(f"     two GPUs, {half} experts each: {total / 1e9:.2f} GB in {replayed * 1e3:.2f} ms; one of them alone its half "
          f"in {alone * 1e3:.2f} ms", flush=True)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--layers", type=int, default=4)
    options.add_argument("--experts", type=int, default=128)
    options.add_argument("--rounds", type=int, default=7)
    chosen = options.parse_args()
    print(f"{torch.cuda.get_device_name()}: {chosen.layers} layers of {chosen.experts} experts")
    state = experts(chosen.layers, chosen.experts, "cuda")
    for what, form in FORMS.items():
        run(what, form, state, chosen.rounds)
    del state
    decode(min(chosen.layers, 8), chosen.experts, chosen.rounds)
    if torch.cuda.device_count() > 1:
        torch.cuda.empty_cache()
        pair(min(chosen.layers, 18), chosen.experts, chosen.rounds)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
