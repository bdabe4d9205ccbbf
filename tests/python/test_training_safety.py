"""What the training operators of glu_ckpt.torch are given by mistake, or beside other tools of autograd, on the CPU:
right gradients, or an error that says what is wrong."""

import pytest

torch = pytest.importorskip("torch")

import glu_ckpt  # noqa: E402
import glu_ckpt.torch as ops  # noqa: E402
from mlp_reference import eager_mlp  # noqa: E402
from training_cases import (DOUT, E, H, ROWS, SPLITS, WIDTH, coded, is_close, module_weights, run, tensors,  # noqa: E402
                            wanted_grads, wide_tensors)

def test_tensors_without_memory_are_refused():
    from torch.testing._internal.two_tensor import TwoTensor

    for name in ("x", "fc1", "fc1_bias", "fc2_bias", "probs"):
        given = tensors()
        given[name].untyped_storage().resize_(0)
        with pytest.raises(glu_ckpt.Error, match=f"{name}.* has no memory"):
            run(ops.grouped_mlp, given)
    splits = torch.tensor(SPLITS)
    splits.untyped_storage().resize_(0)
    with pytest.raises(glu_ckpt.Error, match="splits: .* has no memory"):
        run(ops.grouped_mlp, tensors(), splits)
    with pytest.raises(glu_ckpt.Error, match="splits: .* has no memory"):
        ops.grouped_linear(tensors()["x"], splits, tensors()["fc1"])
    # One of many, whose address is the distance from the begin of a memory that is gone.
    for offset in (0, 5):
        given, freed = tensors(), torch.zeros(2 * WIDTH * H + offset)
        given["fc1"] = [*given["fc1"].unbind(0)[:3], freed[offset:].view(2 * WIDTH, H)]
        freed.untyped_storage().resize_(0)
        with pytest.raises(glu_ckpt.Error, match="fc1 3: .* has no memory"):
            run(ops.grouped_mlp, given)
    for name in ("fc1", "fc2_bias"):
        given = tensors()
        given[name] = [t if e < 2 else TwoTensor(t, t) for e, t in enumerate(given[name])]
        with pytest.raises(glu_ckpt.Error, match=f"{name} 2: TwoTensor"):
            run(ops.grouped_mlp, given)


def test_views_that_negate():
    """Their memory holds the values with the other sign, as an imaginary part of a conjugate does."""
    given, right = tensors(), wanted_grads()
    wanted = run(ops.grouped_mlp, given)
    negated = torch._neg_view(-given["x"]).requires_grad_()
    out = run(ops.grouped_mlp, {**given, "x": negated})
    assert torch.equal(out, wanted)
    (dx,) = torch.autograd.grad(out, negated, torch._neg_view(-DOUT.float()))
    is_close(dx, right["x"])
    for name in ("fc1", "fc2", "fc1_bias", "fc2_bias", "probs"):
        with pytest.raises(glu_ckpt.Error, match=rf"{name}.* resolve_neg\(\)"):
            run(ops.grouped_mlp, {**given, name: torch._neg_view(-given[name])})


def test_shapes_of_the_linear_layers_buffers_and_biases():
    """A gradient's buffer of another shape was written by sums over whatever lay behind x."""
    x, weight = tensors()["x"], tensors()["fc1"].requires_grad_()
    for shape in ((E, H, 2 * WIDTH), (E, 2 * WIDTH, 4 * H), (E, WIDTH, H)):
        buffer = torch.zeros(shape)
        out = ops.grouped_linear(x, SPLITS, weight, weight_grad=buffer)
        with pytest.raises(glu_ckpt.Error, match=r"expected those of the weights, \[16, 12\]"):
            out.sum().backward()
        assert not buffer.any()
    for bias in (torch.ones(E, 1), torch.ones(E, 5), [torch.ones(1)] * E):
        with pytest.raises(glu_ckpt.Error, match=r"bias: shape .*, expected \[..., 16\]"):
            ops.grouped_linear(x, SPLITS, weight, bias)


def test_operators_check_what_comes_back_to_them():
    """Gradients and saved tensors, which saved_tensors_hooks may have changed."""
    given = tensors()
    x, fc1, fc2, splits = given["x"], given["fc1"], given["fc2"], torch.tensor(SPLITS)

    def linear_backward(dout):
        return torch.ops.glu_ckpt.grouped_linear_backward(dout, x, splits, [fc1], [], [], True, [True, True, False])

    def mlp_backward(z):
        return torch.ops.glu_ckpt.grouped_mlp_backward(
            DOUT.float(), x, splits, [fc1], [fc2], None, [], [], z, [], [], True, [True] + 5 * [False], 0, "swiglu", None,
            None, None)

    for dout in (torch.ones(2, 3), torch.ones(ROWS, H), torch.ones(ROWS, 2 * WIDTH, dtype=torch.bfloat16)):
        with pytest.raises(glu_ckpt.Error, match=r"the output.s gradient: .*; expected torch.float32, shape \[10, 16\]"):
            linear_backward(dout)
    for z in (torch.ones(1), torch.ones(ROWS, WIDTH), torch.ones(ROWS, 2 * WIDTH, dtype=torch.float16)):
        with pytest.raises(glu_ckpt.Error, match=r"z: .*; expected torch.float32, shape \[10, 16\]"):
            mlp_backward(z)
    _, z = torch.ops.glu_ckpt.grouped_mlp(x, splits, [fc1], [fc2], None, [], [], [], [], True, True, 0, "swiglu", None, None,
                                          None)
    assert torch.equal(mlp_backward(z.t().contiguous().t())[0], mlp_backward(z)[0])


def test_fake_tensors_leave_nothing_for_real_ones():
    from torch._subclasses.fake_tensor import FakeTensorMode

    def gradient():
        module = ops.GroupedMLP(3, H, 5, fuse_wgrad_accumulation=True)
        for w in module_weights(module):
            w.main_grad, w.grad_added_to_main_grad = torch.zeros_like(w), False
        module(torch.ones(ROWS, H), [3, 0, 7]).sum().backward()
        return module.linear_fc1.weight0.grad

    with FakeTensorMode():
        assert gradient().shape == (10, H)
    assert type(gradient()) is torch.Tensor


def operators():
    """Each as the functions call it, and as torch.compile does."""
    splits, none = torch.tensor(SPLITS), (None, None, None)
    fc2 = tensors()["fc2"]
    return [
        lambda x, w: ops.grouped_mlp(x, SPLITS, w, fc2),
        lambda x, w: ops.grouped_linear(x, SPLITS, w),
        lambda x, w: torch.ops.glu_ckpt.grouped_mlp(x, splits, [w], [fc2], None, [], [], [], [], True, True, 0, "swiglu",
                                                    *none)[0],
        lambda x, w: torch.ops.glu_ckpt.grouped_linear(x, splits, [w], [], [], True),
    ]


@pytest.mark.parametrize("operator", range(4))
@pytest.mark.parametrize("incoming", ["constant", "with a history"])
def test_a_second_derivative_is_refused(operator, incoming):
    """A gradient penalty changed nothing, silently, where the gradient that came in had no history."""
    function = operators()[operator]
    x, weight = tensors()["x"].requires_grad_(), tensors()["fc1"].requires_grad_()
    out = function(x, weight)
    loss = out.sum() if incoming == "constant" else out.square().sum()
    (once,) = torch.autograd.grad(loss, x, retain_graph=True)
    (dx,) = torch.autograd.grad(loss, x, create_graph=True)
    assert torch.equal(dx, once)
    with pytest.raises(RuntimeError, match="no second derivative"):
        (loss + dx.square().sum()).backward()


def test_splits_are_integers():
    """Others were cut off, and rows behind the last split belong to nobody."""
    import numpy

    given = tensors()
    wanted, y = run(ops.grouped_mlp, given), ops.grouped_linear(given["x"], SPLITS, given["fc1"])
    for splits in (tuple(SPLITS), numpy.array(SPLITS), numpy.array(SPLITS, dtype=numpy.int16),
                   torch.tensor(SPLITS, dtype=torch.uint8), [torch.tensor(3), 0, numpy.int64(5), 2]):
        assert torch.equal(run(ops.grouped_mlp, given, splits), wanted)
        assert torch.equal(ops.grouped_linear(given["x"], splits, given["fc1"]), y)
    for splits in ([3.7, 0, 5, 1.3], numpy.array([3, 0, 5, 1.3], dtype=numpy.float32), torch.tensor([3, 0, 5, 2.9]),
                   [True, False, True, True], torch.tensor(SPLITS, dtype=torch.complex64)):
        for call in (lambda: run(ops.grouped_mlp, given, splits), lambda: ops.grouped_linear(given["x"], splits, given["fc1"])):
            with pytest.raises(glu_ckpt.Error, match=r"splits: .*, shape \[4\]; give integers"):
                call()


@pytest.mark.parametrize("function", [ops.grouped_mlp, glu_ckpt.grouped_mlp], ids=["torch", "any library"])
def test_constants_of_activations_are_the_programs(function):
    """gpt-oss's activation has an offset of 1 where nobody says another; and a limit that would be passed over is none."""
    given, wide = tensors(), wide_tensors()
    scaled = {**given, "fc1": given["fc1"] * 8}
    wanted = run(eager_mlp, {**wide, "fc1": wide["fc1"] * 8}, activation="clamped_quick_geglu", alpha=1.702, limit=7.0,
                 offset=1.0)
    splits = torch.tensor(SPLITS)
    is_close(run(function, scaled, splits, activation="clamped_quick_geglu"), wanted)
    no_offset = run(function, given, splits, activation="quick_geglu", offset=0.0)
    assert torch.equal(run(function, given, splits, activation="quick_geglu"), no_offset)
    for options, text in [
        ({"limit": 7.0}, "swiglu has no `limit`"),
        ({"alpha": 1.702}, "swiglu has no `alpha`"),
        ({"activation": "geglu_erf", "offset": 1.0}, "geglu_erf has no `offset`"),
        ({"activation": "quick_geglu", "limit": 7.0}, "quick_geglu has no `limit`"),
        ({"activation": "clamped_swiglu"}, "clamped_swiglu has no limit of its own"),
    ]:
        with pytest.raises(glu_ckpt.Error, match=text):
            run(function, given, splits, **options)


@pytest.mark.parametrize("name", ["x", "fc1", "fc2", "fc1_bias", "fc2_bias"])
def test_autocast_converts_what_could_be_computed_without_it(name):
    """Codes of quantized weights became bfloat16 numbers."""
    given, wide = tensors(), wide_tensors()
    for dtype in (torch.int8, torch.float8_e4m3fn, torch.complex64, torch.float64):
        wrong = {**given, name: (wide[name] * 50).to(dtype)}
        with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(glu_ckpt.Error, match=f"{name}: {dtype}; only"):
            run(ops.grouped_mlp, wrong)
        if name in ("x", "fc1"):
            with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(glu_ckpt.Error, match=str(dtype)):
                ops.grouped_linear(wrong["x"], SPLITS, wrong["fc1"])


def test_meta_tensors():
    """Autocast has no such device, and values were looked for."""
    module, linear = ops.GroupedMLP(E, H, WIDTH, device="meta", bias=True), ops.GroupedLinear(E, H, 6, device="meta")
    x = torch.empty(ROWS, H, device="meta", requires_grad=True)
    for splits in (SPLITS, torch.tensor(SPLITS, device="meta")):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out, y = module(x, splits, torch.empty(ROWS, device="meta")), linear(x, splits)
        assert out.is_meta and out.shape == x.shape and y.shape == (ROWS, 6)
        (out.sum() + y.sum()).backward()
    assert x.grad.shape == x.shape and module.linear_fc1.weight1.grad.shape == (2 * WIDTH, H)
    turned = ops.interleave(torch.empty(E, 2 * WIDTH, H, device="meta"), 4)
    assert turned.is_meta and turned.shape == (E, 2 * WIDTH, H)


def test_transforms_of_torch_func():
    given, wanted = tensors(), wanted_grads()
    names = list(given)

    def loss(*values):
        return (run(ops.grouped_mlp, dict(zip(names, values))) * DOUT.float()).sum()

    for name, grad in zip(names, torch.func.grad(loss, tuple(range(len(names))))(*given.values())):
        is_close(grad, wanted[name])
    out, back = torch.func.vjp(lambda x: run(ops.grouped_mlp, {**given, "x": x}), given["x"])
    assert torch.equal(out, run(ops.grouped_mlp, given))
    is_close(back(DOUT.float())[0], wanted["x"])
    x, weight = given["x"], given["fc1"].requires_grad_()
    y = ops.grouped_linear(x, SPLITS, weight)
    grads = torch.autograd.grad(y.square().sum(), weight)
    assert torch.equal(torch.func.grad(lambda w: ops.grouped_linear(x, SPLITS, list(w)).square().sum())(weight), *grads)
    # Both gradients of a frozen layer depend on what they are of.
    for function in (lambda x: run(ops.grouped_mlp, {**tensors(), "x": x}).sum(),
                     lambda x: ops.grouped_linear(x, SPLITS, tensors()["fc1"]).square().sum()):
        with pytest.raises(RuntimeError, match="no second derivative"):
            torch.func.grad(lambda x, f=function: torch.func.grad(f)(x).sum())(x)


@pytest.mark.parametrize("name", ["x", "fc1", "fc2"])
def test_what_a_transform_left_behind(name):
    """A tensor that escapes from a transform is a wrapper without memory, which torch takes off."""
    given, left = tensors(), []

    def leave(t):
        left.append(t)
        return t.sum()

    wanted = run(ops.grouped_mlp, given)
    torch.func.grad(leave)(given[name])
    assert torch._C._functorch.is_functorch_wrapped_tensor(left[0])
    assert torch.equal(run(ops.grouped_mlp, {**given, name: left[0]}), wanted)
    weight = given["fc1"] if name == "x" else left[0]
    x = left[0] if name == "x" else torch.ones(ROWS, weight.shape[-1])
    assert torch.isfinite(ops.grouped_linear(x, SPLITS, weight)).all()


def test_batches_of_calls_are_refused():
    given = tensors()
    x = given["x"].requires_grad_()
    for function in (lambda x: run(ops.grouped_mlp, {**given, "x": x}), lambda x: ops.grouped_linear(x, SPLITS, given["fc1"])):
        with pytest.raises(glu_ckpt.Error, match="cannot be batched by vmap"):
            torch.vmap(function)(torch.stack([x, x]))
        with pytest.raises(glu_ckpt.Error, match="is_grads_batched"):
            out = function(x)
            torch.autograd.grad(out, x, torch.ones(3, *out.shape), is_grads_batched=True)
        with pytest.raises(glu_ckpt.Error, match="is_grads_batched"):
            torch.autograd.functional.jacobian(function, x, vectorize=True)


def test_probabilities_and_splits_with_strides():
    """They were refused in the dtype that is computed with, and taken in others."""
    given = tensors()
    splits = torch.tensor([value for count in SPLITS for value in (count, 99)])[::2]
    assert not splits.is_contiguous()
    probs = torch.stack([given["probs"], given["probs"] * 0], 1)[:, 0].requires_grad_()
    out = run(ops.grouped_mlp, {**given, "probs": probs}, splits)
    assert not probs.is_contiguous() and torch.equal(out, run(ops.grouped_mlp, given))
    (dprobs,) = torch.autograd.grad(out, probs, DOUT.float())
    is_close(dprobs, wanted_grads()["probs"])
    assert torch.equal(ops.grouped_linear(given["x"], splits, given["fc1"]), ops.grouped_linear(given["x"], SPLITS, given["fc1"]))
    one = torch.rand(1)
    assert torch.equal(run(ops.grouped_mlp, {**given, "probs": one.expand(ROWS)}),
                       run(ops.grouped_mlp, {**given, "probs": one.repeat(ROWS)}))


def test_errors_name_the_argument():
    given = tensors()
    x, fc1 = given["x"], given["fc1"]
    for changed, text in [
        ({"fc2": None}, "1 tensors of fc1, 0 of fc2"),
        ({"x": x.numpy()}, "x: ndarray; give a torch tensor"),
        ({"x": None}, "x: NoneType"),
        ({"x": x.to_sparse()}, "x: a tensor without memory of its own, layout torch.sparse_coo"),
        ({"fc1": [1, 2, 3, 4]}, "fc1: int; give a torch tensor"),
        ({"fc1": [fc1[0], None, None, None]}, "fc1: NoneType"),
        ({"fc1": 5}, "fc1: int"),
        ({"fc1": torch.zeros(E, 15, H)}, "fc1: 15 rows; as many rows of up as of gate needs a multiple of 2"),
        ({"fc1_bias": torch.zeros(E, 1)}, "fc1_bias: 1 values, expected 16, the rows of fc1"),
        ({"fc2_bias": torch.zeros(E, WIDTH)}, "fc2_bias: 8 values, expected 12, the rows of fc2"),
        ({"probs": 0.5}, "probs: float"),
        ({"probs": torch.ones(ROWS, dtype=torch.complex64)}, "probs: torch.complex64; give real numbers"),
    ]:
        with pytest.raises(glu_ckpt.Error, match=text) as raised:
            run(ops.grouped_mlp, {**given, **changed})
        assert isinstance(raised.value, ValueError)
    for options, text in [
        ({"k": 1.5}, "k=1.5, activation='swiglu', .*: k is an integer"),
        ({"k": -1}, "k=-1: a block of FC1 has at least 1 row"),
        ({"k": 3}, "fc1: 16 rows; interleaved:3 needs a multiple of 6"),
        ({"activation": None}, "activation=None, .* activation a name"),
        ({"alpha": "x"}, "alpha='x'"),
        ({"splits": None}, "splits: NoneType; give integers"),
        ({"splits": 10}, "splits: int"),
    ]:
        with pytest.raises(glu_ckpt.Error, match=text):
            run(ops.grouped_mlp, given, **options)
    linear = ops.GroupedLinear(E, H, 6)
    for splits, text in [(torch.tensor(10), r"m_splits: shape \[\]"), (torch.tensor([SPLITS]), r"shape \[1, 4\]"),
                         (None, "m_splits: NoneType"), ([3, 0, 5], "3 splits for 4 experts")]:
        with pytest.raises(ValueError, match=text):
            linear(x, splits)
    with pytest.raises(ValueError, match="inp: ndarray"):
        linear(x.numpy(), SPLITS)


def test_modules_refuse_options_when_they_are_made():
    for options, text in [({"k": 3}, "interleaved:3 needs a multiple of 6"), ({"k": 1.5}, "k=1.5"),
                          ({"activation": "silu"}, "silu"), ({"limit": 7.0}, "swiglu has no `limit`"),
                          ({"params_dtype": torch.float64}, "params_dtype: torch.float64")]:
        with pytest.raises(glu_ckpt.Error, match=text):
            ops.GroupedMLP(E, H, WIDTH, **options)
    with pytest.raises(ValueError, match="params_dtype: torch.int8"):
        ops.GroupedLinear(E, H, 6, params_dtype=torch.int8)


def saved_shapes(function):
    """Of what a forward keeps for its backward, by hooks that see each tensor."""
    kept = []

    def pack(t):
        kept.append(tuple(t.shape))
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = function()
    return out, kept


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("as_operator", [True, False])
def test_a_backward_keeps_what_it_needs(grouped, as_operator):
    """A frozen layer kept its input, and a weight could not be updated after the last forward that does not need it."""
    given, wanted = tensors(), wanted_grads()
    dout = coded(ROWS, 2 * WIDTH).float()
    splits = torch.tensor(SPLITS)

    def linear(x, weight, bias):
        forms = ([weight], [bias]) if grouped else (list(weight.unbind(0)), list(bias.unbind(0)))
        if as_operator:
            return torch.ops.glu_ckpt.grouped_linear(x, splits, *forms, [], True)
        return ops.grouped_linear(x, splits, *forms)

    leaves = [given[name].clone().requires_grad_() for name in ("x", "fc1", "fc1_bias")]
    right = torch.autograd.grad(linear(*leaves), leaves, dout)
    matrices = [(E, 2 * WIDTH, H)] if grouped else [(2 * WIDTH, H)] * E
    for needed, kept in (("x", matrices), ("fc1", [(ROWS, H)]), ("fc1_bias", [])):
        inputs = {name: given[name].clone().requires_grad_(name == needed) for name in ("x", "fc1", "fc1_bias")}
        out, shapes = saved_shapes(lambda: linear(*inputs.values()))
        assert shapes == [(E,), *kept], needed
        with torch.no_grad():
            for name in ("fc1", "fc1_bias") if needed != "x" else ("x", "fc1_bias"):
                inputs[name].mul_(3)
        (grad,) = torch.autograd.grad(out, inputs[needed], dout)
        assert torch.equal(grad, right[list(inputs).index(needed)]), needed
    for recompute in (False, True):
        x = given["x"].clone().requires_grad_()
        out, shapes = saved_shapes(lambda: run(ops.grouped_mlp, {**given, "x": x}, recompute=recompute))
        assert ((ROWS, H) in shapes) == recompute
        is_close(torch.autograd.grad(out, x, DOUT.float())[0], wanted["x"])
        # What sum() hands down has strides of 0.
        assert run(ops.grouped_mlp, {**given, "x": x}).sum().backward() is None
