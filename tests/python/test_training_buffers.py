"""Gradients of weights that go to buffers, such as Megatron's main_grad, on the CPU: to the right ones, in whole, and with
everybody told who waits for them."""

import pytest

torch = pytest.importorskip("torch")

import glu_ckpt  # noqa: E402
import glu_ckpt.torch as ops  # noqa: E402
from mlp_reference import eager_mlp  # noqa: E402
from training_cases import (DOUT, E, H, ROWS, SPLITS, WIDTH, check_main_grads, coded, is_close, module_weights,  # noqa: E402
                            module_with_main_grads, run, tensors, wanted_grads, wide_tensors)


def copying_hooks():
    """As save_on_cpu and activation offload do."""
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone())


def test_main_grad_beside_hooks_of_saved_tensors():
    """The gradients went to copies of the buffers, which nobody reads."""
    given = tensors()
    module, called = module_with_main_grads(), []
    module.linear_fc1.weight0.register_post_accumulate_grad_hook(lambda p: called.append(p))
    with copying_hooks():
        out = module(given["x"], SPLITS, given["probs"])
    out.backward(DOUT.float())
    check_main_grads(module)
    assert called
    weight, buffer = given["fc1"].requires_grad_(), torch.zeros(E, 2 * WIDTH, H)
    with copying_hooks():
        ops.grouped_linear(given["x"], SPLITS, weight, weight_grad=buffer).sum().backward()
    is_close(buffer[3], given["x"][8:].sum(0).expand(2 * WIDTH, H))


@pytest.mark.parametrize("reentrant", [False, True])
def test_main_grad_beside_checkpointing(reentrant):
    from torch.utils.checkpoint import checkpoint

    given, module = tensors(), module_with_main_grads()
    x = given["x"].requires_grad_()
    checkpoint(module, x, SPLITS, given["probs"], use_reentrant=reentrant).backward(DOUT.float())
    check_main_grads(module)
    is_close(x.grad, wanted_grads()["x"])


def test_main_grad_beside_autocast():
    """The parameters of Megatron-Core's hooks are those that autocast converts."""
    given, module = tensors(), module_with_main_grads()
    linear = ops.GroupedLinear(E, H, 6, fuse_wgrad_accumulation=True)
    for w in linear.weights():
        w.main_grad, w.grad_added_to_main_grad = torch.zeros_like(w), False
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = module(given["x"], SPLITS, given["probs"])
        y = linear(given["x"], SPLITS)
    (out.square().sum() + y.sum()).backward()
    for w in (*module_weights(module), *linear.weights()):
        assert w.grad_added_to_main_grad and w.grad.dtype == torch.float32
    assert module.linear_fc1.weight2.main_grad.any() and linear.weight2.main_grad.any()


def test_main_grad_may_change_before_the_backward():
    """Several micro-batches are under way at once, and buffers are cleared when it suits."""
    given, module = tensors(), module_with_main_grads(3.0)
    outs = [module(given["x"], SPLITS, given["probs"]) for _ in range(2)]
    for w in module_weights(module):
        w.main_grad.zero_()
    for out in outs:
        out.backward(DOUT.float())
    check_main_grads(module, times=2)


@pytest.fixture(params=["by C", "by capsules"])
def described(request, monkeypatch):
    """torch before 2.10 has no C functions that describe its tensors."""
    if request.param == "by capsules":
        monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", None, raising=False)


def test_many_tensors_at_once(described):
    core, memory = glu_ckpt._core, torch.arange(4000, dtype=torch.float32)

    def part(begin, *shape):
        return memory[begin : begin + torch.Size(shape).numel()].view(shape)

    alike = [part(0, 4, 6), torch.nn.Parameter(part(100, 4, 6)), part(24, 4, 6).detach()]
    assert core.alike_addresses(alike) == [t.data_ptr() for t in alike]
    transposed, expanded = part(200, 6, 4).t(), part(300, 6).expand(4, 6)
    for other in (part(0, 6, 4), part(0, 4, 6).double(), part(0, 4, 6).to("meta"), transposed, expanded, part(0, 24)):
        try:
            found = core.alike_addresses([*alike, other])
        except (BufferError, RuntimeError, glu_ckpt.Error):
            found = None  # A tensor without memory.
        assert found is None, other
    # Where an axis has one value its stride says nothing.
    assert core.alike_addresses([part(0, 1, 6), memory.as_strided((1, 6), (77, 1), 50)])
    assert core.have_same_shapes([part(0, 2, 3), part(0, 5)], [part(9, 2, 3), part(1, 5).double()])
    assert not core.have_same_shapes([part(0, 2, 3), part(0, 5)], [part(9, 5), part(1, 2, 3)])
    assert not core.have_same_shapes([part(0, 5)], [])
    assert not core.overlap_each_other([part(0, 10), part(20, 10), part(10, 10)])
    assert core.overlap_each_other([part(0, 10), part(20, 10), part(9, 4)])
    assert core.overlap_each_other([part(0, 100), part(5, 2)])
    assert not core.overlap_each_other([part(0, 10), part(5, 0), torch.zeros(0)])
    lie_apart = [part(100, 10), part(0, 10), part(50, 10)]
    assert not core.overlap(lie_apart, [part(10, 40), part(60, 40), part(110, 40), part(55, 0)])
    for begin, length in ((0, 1), (9, 41), (59, 1), (40, 30), (0, 2000), (109, 1)):
        assert core.overlap(lie_apart, [part(3000, 9), part(begin, length)]), (begin, length)
    # Six values, though nbytes says 2,400: only these are read.
    assert not core.overlap([part(10, 40)], [part(4, 6).expand(100, 6)])
    assert core.overlap([part(10, 40)], [part(5, 6).expand(100, 6)])
    assert core.overlap([part(10, 40)], [memory.as_strided((3,), (20,), 0)])


def test_buffers_that_share_memory_are_refused(described):
    given = tensors()
    tied = given["fc1"][0].requires_grad_()
    buffer, square = torch.zeros(2 * WIDTH, H), torch.zeros(E, H, H)
    rows = torch.zeros(E * 2 * WIDTH * H)
    overlapping = [rows[8 * e : 8 * e + 2 * WIDTH * H].view(2 * WIDTH, H) for e in range(E)]
    fc1, fc2 = (coded(E, H, H, first=first).float().requires_grad_() for first in (100, 900))
    for out in (
        ops.grouped_mlp(given["x"], SPLITS, [tied] * E, given["fc2"], fc1_grad=[buffer] * E),
        ops.grouped_mlp(given["x"], SPLITS, [tied] * E, given["fc2"], fc1_grad=overlapping),
        ops.grouped_mlp(given["x"], SPLITS, fc1, fc2, activation="squared_relu", fc1_grad=square, fc2_grad=square),
        ops.grouped_linear(given["x"], SPLITS, [tied] * E, weight_grad=[buffer] * E, accumulate=False),
    ):
        with pytest.raises(glu_ckpt.Error, match="share memory"):
            out.sum().backward()
    assert not buffer.any() and not square.any() and not rows.any()
    # One tensor may be the weight of several experts, whose gradients autograd adds.
    run(ops.grouped_mlp, {**given, "fc1": [tied] * E}).backward(DOUT.float())
    wide = wide_tensors()
    leaf = wide["fc1"][0].requires_grad_()
    run(eager_mlp, {**wide, "fc1": [leaf] * E}).backward(DOUT)
    is_close(tied.grad, leaf.grad)


def test_frozen_experts_have_no_gradient_in_the_callers_buffers():
    given, wanted = tensors(), wanted_grads()
    weights = [t.requires_grad_(e != 2) for e, t in enumerate(given["fc1"])]
    buffers = [torch.full_like(t, 7.0) for t in weights]
    run(ops.grouped_mlp, {**given, "fc1": weights}, fc1_grad=buffers, accumulate=False).backward(DOUT.float())
    ops.grouped_linear(given["x"], SPLITS, weights, weight_grad=buffers).backward(torch.zeros(ROWS, 2 * WIDTH))
    for e, buffer in enumerate(buffers):
        is_close(buffer, torch.full_like(buffer, 7.0) if e == 2 else wanted["fc1"][e])


def test_a_frozen_layer_needs_no_main_grad():
    given, module = tensors(), module_with_main_grads()
    for w in module.linear_fc1.weights():
        w.requires_grad_(False)
        del w.main_grad
    module(given["x"], SPLITS, given["probs"]).backward(DOUT.float())
    for e, w in enumerate(module.linear_fc2.weights()):
        is_close(w.main_grad, wanted_grads()["fc2"][e])


def test_each_layer_says_whether_main_grad_is_replaced():
    """The flag of linear_fc1 cleared what linear_fc2 had gathered."""
    wanted = wanted_grads()
    for flagged in ((), (1,), (2,), (1, 2)):
        given, module = tensors(), module_with_main_grads(5.0)
        layers = {1: module.linear_fc1, 2: module.linear_fc2}
        for n in flagged:
            layers[n].weight0.overwrite_main_grad = True
        module(given["x"], SPLITS, given["probs"]).backward(DOUT.float())
        for n, layer in layers.items():
            for e, w in enumerate(layer.weights()):
                is_close(w.main_grad, wanted[f"fc{n}"][e] + (0 if n in flagged else 5))


class FullyShardedParameter:
    """As Megatron-FSDP has them: a buffer comes with get_main_grad(), when the gradient is computed."""

    def __init__(self, weight):
        self.weight, self.buffer = weight, None
        weight.get_main_grad = lambda: self.buffer


def test_main_grad_is_found_when_the_backward_runs():
    """A buffer that was replaced after the forward was written, and one that was there later was missed."""
    given, module = tensors(), module_with_main_grads()
    linear = ops.GroupedLinear(E, H, 6, bias=False, fuse_wgrad_accumulation=True)
    every = [*module_weights(module), *linear.weights()]
    older = [torch.zeros_like(w) for w in every]
    for w, old in zip(every, older):
        w.main_grad = old
    out, y = module(given["x"], SPLITS, given["probs"]), linear(given["x"], SPLITS)
    for w in every:
        w.main_grad = torch.full_like(w, 9.0)
        w.overwrite_main_grad = True
    torch.autograd.backward([out, y], [DOUT.float(), torch.ones_like(y)])
    check_main_grads(module)
    assert not any(old.any() for old in older)
    is_close(linear.weight0.main_grad, given["x"][:3].sum(0).expand(6, H))

    lazy = [FullyShardedParameter(w) for w in module_weights(module)]
    out = module(given["x"], SPLITS, given["probs"])
    for parameter in lazy:
        parameter.buffer = torch.zeros_like(parameter.weight)
    out.backward(DOUT.float())
    for parameter in lazy:
        parameter.weight.main_grad = parameter.buffer
    check_main_grads(module)
    lazy[5].buffer = None
    out = module(given["x"], SPLITS, given["probs"])
    with pytest.raises(RuntimeError, match=r"weight 1 of shape \[12, 8\] has no main_grad"):
        out.backward(DOUT.float())


@pytest.mark.parametrize("zeros", [False, True])
def test_hooks_of_megatron_beside_torch_compile(zeros):
    """The flag stayed False and there was no gradient, at which Megatron-Core's DDP asserts."""
    torch._dynamo.reset()
    given, module = tensors(), module_with_main_grads()
    linear = ops.GroupedLinear(E, H, 6, bias=False, fuse_wgrad_accumulation=True)
    for w in linear.weights():
        w.main_grad, w.grad_added_to_main_grad = torch.zeros_like(w), False
    hooked, called, kept = [*module_weights(module), *linear.weights()], [], []

    def hook(w):
        called.append(w)
        assert w.grad is not None and w.grad_added_to_main_grad
        assert not zeros or not w.grad.any()
        w.grad = None

    for w in hooked:
        w.zero_out_wgrad = zeros
        kept.append(w.expand_as(w).grad_fn.next_functions[0][0])
        kept[-1].register_hook(lambda *unused, w=w: hook(w))

    def step(x, splits, probs):
        return module(x * 1, splits, probs) * 1, linear(x, splits)

    outs = torch.compile(step, backend="aot_eager")(given["x"], torch.tensor(SPLITS), given["probs"])
    torch.autograd.backward(outs, [DOUT.float(), torch.ones_like(outs[1])])
    check_main_grads(module)
    assert len(called) == len(hooked)
    is_close(linear.weight0.main_grad, given["x"][:3].sum(0).expand(6, H))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="grad_added_to_main_grad"):
        torch.compile(step, backend="eager", fullgraph=True)(given["x"], torch.tensor(SPLITS), given["probs"])


def test_frozen_experts_of_one_grouped_buffer():
    """Their part of it was written."""
    given, wanted = tensors(), wanted_grads()
    weights = [t.requires_grad_(e != 2) for e, t in enumerate(given["fc1"])]
    buffer, of_linear = torch.full((E, 2 * WIDTH, H), 7.0), torch.full((E, 2 * WIDTH, H), 7.0)
    run(ops.grouped_mlp, {**given, "fc1": weights}, fc1_grad=buffer).backward(DOUT.float())
    ops.grouped_linear(given["x"], SPLITS, weights, weight_grad=of_linear, accumulate=False).sum().backward()
    for e in range(E):
        is_close(buffer[e], torch.full((2 * WIDTH, H), 7.0) + (0 if e == 2 else wanted["fc1"][e]))
    assert (of_linear[2] == 7).all() and not of_linear[1].any() and (of_linear[3] != 7).all()
    splits = torch.tensor(SPLITS)
    compiled = torch.full((E, 2 * WIDTH, H), 7.0)
    torch.compile(lambda: ops.grouped_linear(given["x"], splits, weights, weight_grad=compiled, accumulate=False).sum(),
                  backend="aot_eager")().backward()
    assert torch.equal(compiled, of_linear)


def test_autograd_sees_that_buffers_were_written():
    """A buffer that another graph saved gave that graph wrong gradients."""
    given = tensors()
    fc1, weight = given["fc1"].requires_grad_(), torch.ones(E, 2 * WIDTH, H, requires_grad=True)
    splits, none = torch.tensor(SPLITS), (None, None, None)

    def of_mlp(buffer):
        run(ops.grouped_mlp, {**given, "fc1": fc1}, fc1_grad=buffer).backward(DOUT.float())

    def of_linear(buffer):
        ops.grouped_linear(given["x"], SPLITS, fc1, weight_grad=buffer).sum().backward()

    def of_operators(buffer):
        torch.ops.glu_ckpt.grouped_mlp_backward(
            DOUT.float(), given["x"], splits, [fc1.detach()], [given["fc2"]], None, [], [], None, [buffer], [], True,
            [False, False, True, False, False, False], 0, "swiglu", *none)
        torch.ops.glu_ckpt.grouped_linear_backward(
            torch.ones(ROWS, 2 * WIDTH), given["x"], splits, [fc1.detach()], [], [buffer], True, [False, True, False])

    for write in (of_mlp, of_linear, of_operators):
        buffer = torch.zeros(E, 2 * WIDTH, H)
        saved = (buffer * weight).sum()
        write(buffer)
        assert buffer.any()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            saved.backward()
    with torch.inference_mode():
        buffer = torch.zeros(E, 2 * WIDTH, H)
    of_mlp(buffer)
    assert buffer.any()


class Nothing(torch.autograd.Function):
    """Hands no gradient down."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


def test_no_gradient_of_the_output():
    """Buffers that are replaced become zero, and hooks are told; grouped_mlp left what an older step wrote."""
    for accumulate in (False, True):
        given = tensors()
        fc1 = given["fc1"].requires_grad_()
        buffers = [torch.full((E, 2 * WIDTH, H), 3.0) for _ in range(2)]
        Nothing.apply(run(ops.grouped_mlp, given, fc1_grad=buffers[0], accumulate=accumulate)).sum().backward()
        Nothing.apply(ops.grouped_linear(given["x"], SPLITS, fc1, weight_grad=buffers[1], accumulate=accumulate)).sum().backward()
        assert all((buffer == (3 if accumulate else 0)).all() for buffer in buffers)
    module = module_with_main_grads(5.0)
    module.linear_fc2.weight0.overwrite_main_grad = True
    given = tensors()
    Nothing.apply(module(given["x"], SPLITS, given["probs"])).sum().backward()
    assert all(w.grad_added_to_main_grad and w.grad is not None for w in module_weights(module))
    assert all((w.main_grad == 5).all() for w in module.linear_fc1.weights())
    assert not any(w.main_grad.any() for w in module.linear_fc2.weights())


def test_buffers_are_checked_by_name(described):
    given = tensors()
    fc1, fc2 = given["fc1"].requires_grad_(), given["fc2"].requires_grad_()
    shape = (E, 2 * WIDTH, H)

    def mlp(x=given["x"], **buffers):
        return ops.grouped_mlp(x, SPLITS, fc1, fc2, **buffers)

    def linear(buffer):
        return ops.grouped_linear(given["x"], SPLITS, fc1, weight_grad=buffer)

    for out, text in [
        (mlp(fc1_grad=torch.zeros(E, 4, H)), r"fc1_grad: matrices of \[4, 12\], expected those of the weights, \[16, 12\]"),
        (mlp(fc2_grad=torch.zeros(E, WIDTH, H)), r"fc2_grad: matrices of \[8, 12\]"),
        (mlp(fc1_grad=list(torch.zeros(3, 2 * WIDTH, H))), "fc1_grad: 3 of shape"),
        (mlp(fc1_grad=torch.zeros(shape, dtype=torch.bfloat16)), "fc1_grad: BF16; gradients are F32"),
        (mlp(fc1_grad=torch.zeros(shape, dtype=torch.int32)), "fc1_grad: torch.int32"),
        (mlp(fc1_grad=torch.zeros(E, H, 2 * WIDTH).transpose(1, 2)), "fc1_grad 0: .* contiguous"),
        (mlp(fc1_grad=torch.zeros(shape, requires_grad=True)), "fc1_grad: requires a gradient"),
        (mlp(fc1_grad=fc1.detach()), "shares memory with a weight"),
        (mlp(fc1_grad=torch.zeros(shape), fc2_grad=fc1.detach().view(-1)[: fc2.numel()].view_as(fc2)), "with a weight"),
        (linear(torch.zeros(shape, requires_grad=True)), "weight_grad: requires a gradient"),
        (linear(fc1.detach()), "shares memory with a weight"),
    ]:
        with pytest.raises(glu_ckpt.Error, match=text) as raised:
            out.sum().backward()
        assert isinstance(raised.value, ValueError)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = linear(fc1.detach())
    with pytest.raises(ValueError, match="shares memory with a weight"):
        out.sum().backward()
    assert torch.equal(fc1, tensors()["fc1"]) and torch.equal(fc2, tensors()["fc2"])
