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
