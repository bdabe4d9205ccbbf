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
