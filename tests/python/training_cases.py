"""A layer of experts whose values say where they stand, and its gradients in float64."""

import torch

import glu_ckpt.torch as ops
from mlp_reference import eager_mlp

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
