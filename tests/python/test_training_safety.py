"""What the training operators of glu_ckpt.torch are given by mistake, or beside other tools of autograd, on the CPU:
right gradients, or an error that says what is wrong."""

import pytest

torch = pytest.importorskip("torch")

import glu_ckpt  # noqa: E402
import glu_ckpt.torch as ops  # noqa: E402
from mlp_reference import eager_mlp  # noqa: E402

E, H, WIDTH, SPLITS, ROWS = 4, 12, 8, [3, 0, 5, 2], 10


def coded(*shape, first=0):
    """Every value says where it stands."""
    count = torch.Size(shape).numel()
    return torch.sin(torch.arange(first, first + count, dtype=torch.float64) * 1.7).reshape(shape)


def wide_tensors():
    return {"x": coded(ROWS, H), "fc1": coded(E, 2 * WIDTH, H, first=1000), "fc2": coded(E, H, WIDTH, first=3000),
            "probs": coded(ROWS, first=5000).abs(), "fc1_bias": coded(E, 2 * WIDTH, first=6000),
            "fc2_bias": coded(E, H, first=7000)}


def tensors():
    return {name: t.float() for name, t in wide_tensors().items()}


DOUT = coded(ROWS, H, first=9000)


def run(function, given, splits=SPLITS, **options):
    return function(given["x"], splits, given["fc1"], given["fc2"], probs=given["probs"], fc1_bias=given["fc1_bias"],
                    fc2_bias=given["fc2_bias"], **options)


def wanted_grads():
    leaves = {name: t.requires_grad_() for name, t in wide_tensors().items()}
    return dict(zip(leaves, torch.autograd.grad(run(eager_mlp, leaves), list(leaves.values()), DOUT)))


def is_close(got, wanted):
    torch.testing.assert_close(got.double(), wanted.double(), rtol=1e-5, atol=1e-4)


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


def module_with_main_grads(value=0.0, **options):
    module = ops.GroupedMLP(E, H, WIDTH, bias=True, fuse_wgrad_accumulation=True, **options)
    given = tensors()
    module.load_state_dict({**{f"linear_fc{n}.weight": given[f"fc{n}"] for n in (1, 2)},
                            **{f"linear_fc{n}.bias{e}": given[f"fc{n}_bias"][e] for n in (1, 2) for e in range(E)}})
    for w in module_weights(module):
        w.main_grad, w.grad_added_to_main_grad = torch.full_like(w, value), False
    return module


def module_weights(module):
    return [*module.linear_fc1.weights(), *module.linear_fc2.weights()]


def check_main_grads(module, times=1):
    wanted = wanted_grads()
    for linear, name in ((module.linear_fc1, "fc1"), (module.linear_fc2, "fc2")):
        for w, grad in zip(linear.weights(), wanted[name]):
            is_close(w.main_grad, times * grad)
            assert w.grad_added_to_main_grad


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


def test_buffers_that_share_memory_are_refused():
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
        ({"limit": 7.0}, "swiglu has no --limit"),
        ({"alpha": 1.702}, "swiglu has no --alpha"),
        ({"activation": "geglu_erf", "offset": 1.0}, "geglu_erf has no --offset"),
        ({"activation": "quick_geglu", "limit": 7.0}, "quick_geglu has no --limit"),
        ({"activation": "clamped_swiglu"}, "clamped_swiglu has no limit of its own"),
    ]:
        with pytest.raises(glu_ckpt.Error, match=text):
            run(function, given, splits, **options)


def test_a_frozen_layer_needs_no_main_grad():
    given, module = tensors(), module_with_main_grads()
    for w in module.linear_fc1.weights():
        w.requires_grad_(False)
        del w.main_grad
    module(given["x"], SPLITS, given["probs"]).backward(DOUT.float())
    for e, w in enumerate(module.linear_fc2.weights()):
        is_close(w.main_grad, wanted_grads()["fc2"][e])


def test_both_layers_say_whether_main_grad_is_replaced():
    """The flag of linear_fc1 holds for both; that of linear_fc2 alone was passed over."""
    given, module = tensors(), module_with_main_grads(5.0)
    module.linear_fc2.weight0.overwrite_main_grad = True
    with pytest.raises(RuntimeError, match="is set for linear_fc2, but not for linear_fc1"):
        module(given["x"], SPLITS, given["probs"])
    for w in module.linear_fc1.weights():
        w.requires_grad_(False)
    module(given["x"], SPLITS, given["probs"]).backward(DOUT.float())
    for e, w in enumerate(module.linear_fc2.weights()):
        is_close(w.main_grad, wanted_grads()["fc2"][e])


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
