#!/usr/bin/env python3
"""Checks and measures the training operators of glu_ckpt.torch on a GPU, all in one run. Exits 77 without one.

usage: tests/python/gpu_training.py [--steps N] [--rounds N] [--large] [--only PART...]

Needs a wheel with CUDA kernels, and torch. Prints one line per check or figure; exits 1 if a check failed. --large times
the shapes of DeepSeek-V3, Qwen3-30B and Mixtral.
"""

import argparse
import os
import statistics
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402

if not torch.cuda.is_available():
    print("gpu_training: not run: torch finds no GPU")
    sys.exit(77)

import glu_ckpt  # noqa: E402
import glu_ckpt.torch as ops  # noqa: E402
from mlp_reference import ACTIVATIONS, eager_mlp, interleaved_order, train, uses  # noqa: E402

if not glu_ckpt._core.built_with_cuda():
    print("gpu_training: not run: this wheel has no CUDA kernels")
    sys.exit(77)

CUDA = torch.device("cuda", 0)
failures = []


def check(what, good, detail=""):
    print(f"{'ok  ' if good else 'FAIL'} {what}{': ' + detail if detail else ''}", flush=True)
    if not good:
        failures.append(what)


def tensors(splits, hidden, width, dtype, activation="swiglu", bias=True, seed=0):
    generator = torch.Generator(CUDA).manual_seed(seed)

    def random(*shape, scale=1.0):
        return (torch.randn(*shape, generator=generator, device=CUDA) * scale).to(dtype)

    rows, experts, fc1_rows = sum(splits), len(splits), width if activation == "squared_relu" else 2 * width
    made = {"x": random(rows, hidden), "fc1": random(experts, fc1_rows, hidden, scale=hidden**-0.5),
            "fc2": random(experts, hidden, width, scale=width**-0.5),
            "probs": torch.rand(rows, generator=generator, device=CUDA)}
    if bias:
        made.update(fc1_bias=random(experts, fc1_rows), fc2_bias=random(experts, hidden))
    return made, random(rows, hidden)


def grads_of(function, given, dout, splits, **options):
    leaves = {name: t.clone().requires_grad_() for name, t in given.items()}
    out = function(leaves["x"], splits, leaves["fc1"], leaves["fc2"], probs=leaves["probs"],
                   fc1_bias=leaves.get("fc1_bias"), fc2_bias=leaves.get("fc2_bias"), **options)
    return out.detach(), dict(zip(leaves, torch.autograd.grad(out, list(leaves.values()), dout)))


def check_gradients():
    splits = [70, 0, 129, 1]
    for dtype, bound in ((torch.bfloat16, 2**-7), (torch.float16, 2**-10), (torch.float32, 2e-6)):
        wrong = []
        for activation in ACTIVATIONS:
            given, dout = tensors(splits, 72, 96, dtype, activation)
            options = {"activation": activation, **uses(activation)}
            wide = {name: t.double() for name, t in given.items()}
            wanted_out, wanted = grads_of(eager_mlp, wide, dout.double(), splits, rounded=dtype, **options)
            first = None
            for k in (0,) if activation == "squared_relu" else (0, 1, 12, 32, 96):
                turned = dict(given)
                for name in ("fc1", "fc1_bias"):
                    t = given[name].reshape(4, given["fc1"].shape[1], -1)
                    turned[name] = interleaved_order(t, k).reshape(given[name].shape).contiguous()
                where = f"{activation} k={k}"
                device_splits = torch.tensor(splits, device=CUDA)
                out, grads = grads_of(ops.grouped_mlp, turned, dout, device_splits, k=k, **options)
                _, again = grads_of(ops.grouped_mlp, turned, dout, device_splits, k=k, recompute=True, **options)
                # TMA does not read 12 rows in any box of a power of two: other kernels, with sums in another order.
                if k != 12:
                    wrong += [f"{where}: {name} of recomputed z" for name in grads if not torch.equal(again[name], grads[name])]
                for name in ("fc1", "fc1_bias"):
                    t = grads[name].reshape(4, given["fc1"].shape[1], -1)
                    back = t if k == 0 else t.unflatten(1, (96 // k, 2, k)).transpose(1, 2).flatten(1, 3)
                    grads[name] = back.reshape(given[name].shape)
                found = {"out": out, **grads}
                for name, value in {"out": wanted_out, **wanted}.items():
                    for what, got in (("", found[name]), (" recomputed", again[name] if name == "x" else found[name])):
                        off = (got.double() - value).norm() / value.norm()
                        if not off < bound:
                            wrong.append(f"{where}: {name}{what} {off:.1e} off")
                if first is None:
                    first = found
                elif k != 12:
                    wrong += [f"{where}: {name} has other bits" for name in found if not torch.equal(first[name], found[name])]
        check(f"{dtype}: output and six gradients beside autograd in double, all activations, five orders", not wrong,
              "; ".join(wrong[:6]))


def check_weights_that_change():
    splits = torch.tensor([40, 30], device=CUDA)
    for k, hidden in ((0, 64), (32, 64), (12, 64), (0, 60)):
        given, _ = tensors([40, 30], hidden, 96, torch.bfloat16)
        words = {"probs": given["probs"], "fc1_bias": given["fc1_bias"], "fc2_bias": given["fc2_bias"], "k": k}
        good = True
        for _ in range(3):
            got = ops.grouped_mlp(given["x"], splits, given["fc1"], given["fc2"], **words)
            moved = {name: t.clone() for name, t in given.items()}
            wanted = ops.grouped_mlp(given["x"], splits, moved["fc1"], moved["fc2"], probs=moved["probs"], k=k,
                                     fc1_bias=moved["fc1_bias"], fc2_bias=moved["fc2_bias"])
            good = good and torch.equal(got, wanted)
            for name in ("fc1", "fc2", "fc1_bias", "fc2_bias"):
                given[name].normal_()
        check(f"weights and biases changed in place, k={k}, H={hidden}", good)


def check_main_grad():
    splits = torch.tensor([128, 0, 200, 56], device=CUDA)
    given, dout = tensors([128, 0, 200, 56], 256, 128, torch.bfloat16)
    _, plain = grads_of(ops.grouped_mlp, given, dout, splits, k=32)
    for grad_dtype in (torch.float32, torch.bfloat16):
        for accumulate in (True, False):
            buffers = [torch.full(given[name].shape, 2.0, dtype=grad_dtype, device=CUDA) for name in ("fc1", "fc2")]
            weights = [given[name].clone().requires_grad_() for name in ("fc1", "fc2")]
            out = ops.grouped_mlp(given["x"], splits, *weights, probs=given["probs"], fc1_bias=given["fc1_bias"],
                                  fc2_bias=given["fc2_bias"], k=32, fc1_grad=buffers[0], fc2_grad=buffers[1],
                                  accumulate=accumulate)
            out.backward(dout)
            old = 2.0 if accumulate else 0.0
            good = all(w.grad is None for w in weights)
            for name, buffer in zip(("fc1", "fc2"), buffers):
                wanted = plain[name].float() + old
                good = good and (buffer.float() - wanted).norm() < 0.01 * wanted.norm() and (buffer[1] == old).all()
            check(f"main_grad {grad_dtype}, accumulate={accumulate}", bool(good))


def check_streams_and_graphs():
    splits_list = [200, 0, 300, 140]
    given, dout = tensors(splits_list, 256, 128, torch.bfloat16)
    splits = torch.tensor(splits_list, device=CUDA)
    leaves = {name: t.clone().requires_grad_() for name, t in given.items()}

    def step():
        out = ops.grouped_mlp(leaves["x"], splits, leaves["fc1"], leaves["fc2"], probs=leaves["probs"], k=32,
                              fc1_bias=leaves["fc1_bias"], fc2_bias=leaves["fc2_bias"])
        return [out.detach(), *torch.autograd.grad(out, list(leaves.values()), dout)]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
        stream.synchronize()
        torch.cuda._sleep(400_000_000)
        begun = torch.cuda.Event()
        begun.record()
        step()
        check("forward and backward do not wait for their stream", not begun.query())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = step()
    for seed, new_splits in enumerate([splits_list, [1, 500, 0, 100], [0, 0, 0, 640], [160, 160, 160, 160]]):
        splits.copy_(torch.tensor(new_splits))
        generator = torch.Generator(CUDA).manual_seed(seed)
        with torch.no_grad():
            for leaf in leaves.values():
                leaf.copy_(torch.rand(leaf.shape, generator=generator, device=CUDA) - 0.5)
        for t in made:
            t.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        rows, wanted = sum(new_splits), step()
        good = all(torch.equal(a[:rows] if a.shape[0] == 640 else a, b[:rows] if b.shape[0] == 640 else b)
                   for a, b in zip(made, wanted))
        check(f"a graph of forward and backward, replay {seed}", good)
    linear = ops.GroupedLinear(4, 256, 128, params_dtype=torch.bfloat16, device=CUDA)
    x = given["x"].clone().requires_grad_()

    def linear_step():
        y = linear(x, splits)
        return [y.detach(), *torch.autograd.grad(y, [x, *linear.parameters()], torch.ones_like(y))]

    with torch.cuda.stream(stream):
        linear_step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = linear_step()
    splits.copy_(torch.tensor([100, 40, 0, 500]))
    graph.replay()
    torch.cuda.synchronize()
    check("a graph of a grouped linear layer", all(torch.equal(a, b) for a, b in zip(made, linear_step())))


def check_determinism_and_neighbours():
    splits_list = [200, 0, 300, 140]
    given, dout = tensors(splits_list, 256, 128, torch.bfloat16)
    splits = torch.tensor(splits_list, device=CUDA)
    first_out, first = grads_of(ops.grouped_mlp, given, dout, splits, k=32)
    good = True
    for _ in range(5):
        torch.empty(1 << 24, device=CUDA).normal_()
        out, grads = grads_of(ops.grouped_mlp, given, dout, splits, k=32)
        good = good and torch.equal(out, first_out) and all(torch.equal(grads[n], first[n]) for n in grads)
    check("the same bits five times", good)
    longer = dict(given)
    nans = torch.full((61, 256), float("nan"), device=CUDA, dtype=torch.bfloat16)
    longer["x"] = torch.cat([given["x"], nans])
    longer["probs"] = torch.cat([given["probs"], nans[:, 0].float()])
    _, long_grads = grads_of(ops.grouped_mlp, longer, torch.cat([dout, nans]), splits, k=32)
    check("rows behind the last split count for nothing",
          all(torch.isfinite(long_grads[n][: len(given[n])]).all() and
              (long_grads[n][: len(given[n])].float() - first[n].float()).norm() < 1e-2 * first[n].float().norm()
              for n in given))


def check_places():
    """Outputs and gradients of x in the caller's memory, at any address."""
    splits, tail = [70, 0, 130, 56], 40
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        given, dout = tensors([*splits[:-1], splits[-1] + tail], 128, 96, dtype)
        counts = torch.tensor(splits, device=CUDA)
        rows = sum(splits)

        def mlp(x, given=given, counts=counts, **places):
            return ops.grouped_mlp(x, counts, given["fc1"], given["fc2"], probs=given["probs"], k=32,
                                   fc1_bias=given["fc1_bias"], fc2_bias=given["fc2_bias"], **places)

        def linear(x, given=given, counts=counts, weight=given["fc1"][:, :128].contiguous(), **places):
            return ops.grouped_linear(x, counts, weight, given["fc2_bias"], **places)

        for what, call in (("grouped_mlp", mlp), ("grouped_linear", linear)):
            x = given["x"].clone().requires_grad_()
            wanted = call(x)
            wanted.backward(dout)
            wanted_grad, x.grad = x.grad, None
            for offset in (0, 1, 3):
                out, grads = (torch.full((dout.numel() + offset,), -3.25, dtype=dtype, device=CUDA)[offset:].view_as(dout)
                              for _ in range(2))
                made = call(x, out=out, dgrad_out=grads)
                made.backward(dout)
                same = torch.equal(out[:rows], wanted[:rows]) and torch.equal(grads[:rows], wanted_grad[:rows])
                untouched = bool((out[rows:] == -3.25).all() and (grads[rows:] == -3.25).all())
                check(f"{what} {dtype}: given memory {offset} elements off holds the same bits, its tail untouched",
                      same and untouched and made.data_ptr() == out.data_ptr())
                x.grad = None
        out, graph = torch.full_like(dout, -3.25), torch.cuda.CUDAGraph()
        with torch.no_grad():
            mlp(given["x"], out=out)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                mlp(given["x"], out=out)
            out.fill_(-3.25)
            counts.copy_(torch.tensor([0, 130, 70, 0], device=CUDA))
            graph.replay()
            wanted = mlp(given["x"])
        check(f"grouped_mlp {dtype}: a graph writes there with new splits",
              torch.equal(out[:200], wanted[:200]) and bool((out[200:] == -3.25).all()))


def check_recipes():
    """Padding and MXFP8 with the bits of the CPU's."""
    splits = [5, 0, 130, 33]
    rows = torch.randn(sum(splits), 96, device=CUDA)
    for dtype in (torch.bfloat16, torch.float32, torch.uint8):
        given = (rows * 50).to(dtype)
        padded, counts = ops.pad_tokens(given, splits, 32)
        wanted, wanted_counts = ops.pad_tokens(given.cpu(), splits, 32)
        check(f"padding of {dtype}", torch.equal(padded.cpu(), wanted) and counts == wanted_counts
              and torch.equal(ops.unpad_tokens(padded, splits, 32), given))
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for shape in ((4, 192, 128), (4, 64, 96), (160, 2080)):
            for axis in ("row", "column"):
                for element in (torch.float8_e4m3fn, torch.float8_e5m2):
                    values = (torch.randn(shape, device=CUDA) * 3).to(dtype)
                    for padded in (False, True):
                        made = ops.Mxfp8Tensor.quantize(values, axis=axis, dtype=element, padded=padded)
                        host = ops.Mxfp8Tensor.quantize(values.cpu(), axis=axis, dtype=element, padded=padded)
                        same = torch.equal(made.codes.view(torch.uint8).cpu(), host.codes.view(torch.uint8))
                        same = same and torch.equal(made.scales.cpu(), host.scales)
                        same = same and torch.equal(made.dequantize(torch.float32).cpu(), host.dequantize(torch.float32))
                        same = same and torch.equal(made.swizzled_scales().cpu(), host.swizzled_scales())
                        if not same:
                            check(f"MXFP8 of {dtype} {shape} {axis} {element} padded={padded}", False)
    check("MXFP8 on the GPU has the CPU's bits", not any("MXFP8 of" in failure for failure in failures))
    given, dout = tensors([70, 0, 130, 56], 128, 96, torch.bfloat16)
    counts = torch.tensor([70, 0, 130, 56], device=CUDA)
    fc1, fc2 = (ops.Mxfp8Tensor.quantize(given[name]) for name in ("fc1", "fc2"))
    outs = []
    for w1, w2 in ((fc1, fc2), (fc1.dequantize(), fc2.dequantize())):
        x = given["x"].clone().requires_grad_()
        out = ops.grouped_mlp(x, counts, w1, w2, probs=given["probs"], k=32)
        out.backward(dout)
        outs.append((out, x.grad))
    check("layers with MXFP8 weights compute what the decoded ones do",
          all(torch.equal(a, b) for a, b in zip(*outs)))


def check_linear():
    splits = [70, 0, 129, 1]
    generator = torch.Generator(CUDA).manual_seed(1)
    for dtype, bound in ((torch.bfloat16, 2**-7), (torch.float16, 2**-10), (torch.float32, 2e-6)):
        leaves = [torch.randn(*shape, generator=generator, device=CUDA).to(dtype).requires_grad_()
                  for shape in ((200, 72), (4, 40, 72), (4, 40))]
        dout = torch.randn(200, 40, generator=generator, device=CUDA).to(dtype)
        x, weight, bias = leaves
        wanted_out = torch.cat([torch.nn.functional.linear(rows.double(), weight[e].double(), bias[e].double())
                                for e, rows in enumerate(x.split(splits))])
        wanted = torch.autograd.grad(wanted_out, leaves, dout.double())
        results = []
        for form in (torch.tensor(splits, device=CUDA), splits):
            out = ops.grouped_linear(x, form, weight, bias)
            results.append([out, *torch.autograd.grad(out, leaves, dout)])
        for got, value in zip(results[0], [wanted_out, *wanted]):
            if not (got.double() - value).norm() < bound * value.norm():
                check(f"grouped_linear {dtype}", False)
        check(f"grouped_linear {dtype}: splits on the device and on the host give the same bits",
              all(torch.equal(a, b) for a, b in zip(*results)))


def check_compile():
    module = ops.GroupedMLP(4, 128, 64, k=32, bias=True, params_dtype=torch.bfloat16, device=CUDA)
    generator = torch.Generator(CUDA).manual_seed(2)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, device=CUDA) * 0.2)
    x = torch.randn(300, 128, generator=generator, device=CUDA).to(torch.bfloat16)
    splits = torch.tensor([100, 50, 0, 150], device=CUDA)

    def step(x, splits):
        return module(x * 2, splits).float().square().sum()

    def run(function):
        module.zero_grad()
        leaf = x.clone().requires_grad_()
        function(leaf, splits).backward()
        return [leaf.grad.clone(), *(p.grad.clone() for p in module.parameters())]

    wanted = run(step)
    for mode in (None, "reduce-overhead"):
        compiled = torch.compile(step, fullgraph=True, mode=mode)
        for _ in range(4):
            got = run(compiled)
        check(f"torch.compile(fullgraph=True, mode={mode!r})", all(torch.equal(a, b) for a, b in zip(got, wanted)))


def compare_training(args):
    steps = args.steps
    torch.use_deterministic_algorithms(True)
    words = {"dtype": torch.bfloat16, "device": CUDA, "tokens": 512, "hidden": 32, "width": 64, "num_experts": 8,
             "rate": 1e-2}

    def ours(x, splits, fc1, fc2, probs, k):
        return ops.grouped_mlp(x, splits, fc1, fc2, k=k, probs=probs)

    def eager(parts):
        return lambda x, splits, fc1, fc2, probs, k: eager_mlp(x, splits.tolist(), fc1, fc2, k=k, probs=probs, parts=parts)

    found = {"ours, contiguous": train(ours, steps, **words), "ours, interleaved:32": train(ours, steps, k=32, **words),
             "eager": train(eager(1), steps, **words),
             "eager, float32": train(eager(1), steps, **{**words, "dtype": torch.float32}), "eager, another order": train(eager(2), steps, **words)}
    torch.use_deterministic_algorithms(False)
    print(f"{steps} steps in bf16, losses at steps 1, {steps // 4}, {steps // 2}, {steps}, mean of the last 20")
    for name, losses in found.items():
        picked = [losses[i] for i in (0, steps // 4 - 1, steps // 2 - 1, steps - 1)]
        print(f"  {name:22} " + " ".join(f"{loss:.6f}" for loss in picked) + f" {statistics.mean(losses[-20:]):.6f}")
    check("interleaved:32 and contiguous give equal losses", found["ours, contiguous"] == found["ours, interleaved:32"])
    exact = torch.tensor(found["eager, float32"])
    for name, losses in found.items():
        off = (torch.tensor(losses) - exact).abs()
        print(f"  {name:22} from float32's: mean {off.mean():.2e}, at most {off.max():.2e}")
    wanted = torch.tensor(found["eager"])
    noise = (torch.tensor(found["eager, another order"]) - wanted).abs()
    off = (torch.tensor(found["ours, contiguous"]) - wanted).abs()
    check("the model learned", wanted[-20:].mean() < 0.7 * wanted[0])
    check("losses agree with eager's within its own noise", bool(off.max() <= 3 * noise.max()),
          f"at most {off.max():.2e} apart, mean {off.mean():.2e}; two eager runs {noise.max():.2e}, mean {noise.mean():.2e}")


def milliseconds(call, calls):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls


def measure(name, experts, hidden, width, tokens, rounds, calls=3):
    """Through torch beside the same kernels called barely, both with what they need already there."""
    given, dout = tensors([tokens] * experts, hidden, width, torch.bfloat16, bias=False)
    splits = torch.tensor([tokens] * experts, device=CUDA)
    leaves = [given[n].requires_grad_() for n in ("x", "fc1", "fc2", "probs")]
    x, fc1, fc2, probs = (t.detach() for t in leaves)
    main = [torch.zeros_like(t) for t in (fc1, fc2)]
    rows = x.shape[0]

    each = [list(t.unbind(0)) for t in (fc1, fc2, *main)]
    for t in each[0] + each[1]:
        t.requires_grad_()

    def torch_step(recompute=False, weights=(leaves[1], leaves[2]), grads=main):
        out = ops.grouped_mlp(leaves[0], splits, *weights, probs=leaves[3], k=32, recompute=recompute, fc1_grad=grads[0],
                              fc2_grad=grads[1], accumulate=False)
        torch.autograd.grad(out, [leaves[0], leaves[3]], dout)

    def fresh_gradients():
        out = ops.grouped_mlp(leaves[0], splits, leaves[1], leaves[2], probs=leaves[3], k=32)
        torch.autograd.grad(out, leaves, dout)

    core, none = glu_ckpt._core, ([], "BF16", 0, 1)
    stream = torch.cuda.current_stream().cuda_stream

    def stack(t):
        return [t.data_ptr()], "BF16", t.shape[1], t.shape[2]

    call = core.MlpCall("BF16", experts, hidden, 32, "swiglu", None, None, None, stack(fc1), stack(fc2), none, none)
    grads = core.MlpGrads(call, stack(main[0]), stack(main[1]), none, none, False)
    forward, backward = core.device_mlp(call, 0, stream), core.device_mlp_backward(call, grads, 0, stream)
    out, z, dx = torch.empty_like(x), x.new_empty(rows, 2 * width), torch.empty_like(x)
    dprobs = torch.empty_like(probs)
    space = torch.empty(max(forward.workspace_bytes(rows), backward.workspace_bytes(rows, False)), dtype=torch.uint8,
                        device=CUDA)
    at = [rows, x.data_ptr(), splits.data_ptr(), probs.data_ptr()]

    def bare_step():
        forward.run(*at, out.data_ptr(), z.data_ptr(), space.data_ptr())
        backward.run(*at, dout.data_ptr(), z.data_ptr(), dx.data_ptr(), dprobs.data_ptr(), space.data_ptr())

    steps = {"bare": bare_step, "torch": torch_step, "torch, recompute": lambda: torch_step(True),
             "torch, a tensor each": lambda: torch_step(False, each[:2], each[2:]), "torch, new gradients": fresh_gradients}
    times = {what: [] for what in steps}
    for what in steps:
        steps[what]()
    for _ in range(rounds):
        for what, step in steps.items():
            times[what].append(milliseconds(step, calls))
    middle = {what: statistics.median(values) for what, values in times.items()}
    returned = {}
    for what, step in steps.items():
        step()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            step()
        returned[what] = (time.perf_counter() - begin) / calls
        torch.cuda.synchronize()
    print(f"{name}: forward and backward, {experts} experts of {hidden} x {width}, {tokens} tokens each; milliseconds a step, "
          "of bare, and microseconds until a call returns")
    for what, value in middle.items():
        print(f"  {what:22} {value:8.3f} ms {value / middle['bare']:6.3f} {1e6 * returned[what]:8.0f} us", flush=True)


def measure_all(args):
    shapes = [("small", 8, 512, 256, 64)]
    if args.large:
        shapes += [("DeepSeek-V3", 64, 7168, 2048, 256), ("Qwen3-30B", 128, 2048, 768, 1024), ("Mixtral", 8, 4096, 14336, 1024)]
    for shape in shapes:
        measure(*shape, args.rounds, 20 if shape[0] == "small" else 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--only", nargs="*", help="names of parts: check_gradients, ...")
    args = parser.parse_args()
    print(f"glu_ckpt {glu_ckpt.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
    parts = [check_gradients, check_weights_that_change, check_main_grad, check_determinism_and_neighbours, check_linear,
             check_places, check_recipes,
             check_streams_and_graphs, check_compile, compare_training, measure_all]
    if args.only:
        parts = [part for part in parts if part.__name__ in args.only]
    for part in parts:
        try:
            begin = time.perf_counter()
            part(*([args] if part in (compare_training, measure_all) else []))
            print(f"  ({part.__name__}: {time.perf_counter() - begin:.1f} s)", flush=True)
        except Exception as error:  # What fails must not hide the others.
            import traceback

            traceback.print_exc()
            check(part.__name__, False, f"{type(error).__name__}: {str(error)[:500]}")
    print(f"{len(failures)} checks failed")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
