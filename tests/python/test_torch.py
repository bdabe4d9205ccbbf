"""glu_ckpt.torch on the CPU: operators, torch.compile, gradients, state dicts."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import glu_ckpt  # noqa: E402
import glu_ckpt.torch as ops  # noqa: E402

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.uint8, torch.int64]


def interleaved(t, k, axis):
    """The definition, by views."""
    rows = t.shape[axis]
    parts = t.unflatten(axis, (2, rows // (2 * k), k))
    return parts.transpose(axis, axis + 1).flatten(axis, axis + 2)


def positions(shape, dtype):
    count = torch.Size(shape).numel()
    size = torch.empty(0, dtype=dtype).element_size()
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    return torch.arange(count).to(bits).view(dtype).reshape(shape)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "axis"), [((3, 16, 6), None), ((16, 6), None), ((16,), None), ((4, 16), 1)])
@pytest.mark.parametrize("module", [glu_ckpt, ops])
def test_interleave_is_its_definition(module, dtype, shape, axis):
    t = positions(shape, dtype)
    for k in (1, 2, 4, 8):
        wanted = interleaved(t.view(torch.uint8).reshape(*shape, -1), k, shape.index(16))
        wanted = wanted.reshape(*shape[:-1], -1).view(dtype) if len(shape) > 1 else wanted.reshape(-1).view(dtype)
        got = module.interleave(t, k, axis=axis)
        assert isinstance(got, torch.Tensor) and same(got, wanted.reshape(shape))
        assert same(module.deinterleave(got, k, axis=axis), t)
        out = torch.empty_like(t)
        assert module.interleave(t, k, out, axis=axis) is out and same(out, got)
        assert module.deinterleave_(out, k, axis=axis) is out and same(out, t)
        assert module.interleave_(out, k, axis=axis) is out and same(out, got)


def test_who_watches_sees_the_operator():
    """A plain call goes past torch's dispatcher; tracers, modes and transforms must not lose it by that."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import TorchDispatchMode

    t = positions((3, 16, 6), torch.float32)
    traced = make_fx(lambda x: ops.deinterleave(ops.interleave(x, 2), 4))(t)
    names = [str(node.target) for node in traced.graph.nodes if node.op == "call_function"]
    assert names == ["glu_ckpt.interleave_data.default", "glu_ckpt.deinterleave_data.default"]
    assert same(traced(2 * t), ops.deinterleave(ops.interleave(2 * t, 2), 4))

    class Listener(TorchDispatchMode):
        seen = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Listener():
        ops.interleave(t, 2)
    assert Listener.seen == ["glu_ckpt.interleave_data.default"]

    class Marked(torch.Tensor):
        pass

    assert isinstance(ops.interleave(t.as_subclass(Marked), 2), torch.Tensor)
    assert same(torch.vmap(lambda x: ops.interleave(x, 2))(t), ops.interleave(t, 2))
    wanted = ops.interleave(t, 2)
    assert same(torch.func.jvp(lambda x: x + ops.interleave(t, 2), (t,), (t,))[0], t + wanted)


def test_what_is_wrong_is_refused():
    t, out = torch.zeros(2, 96, 5), torch.zeros(2, 96, 5)
    for module in (glu_ckpt, ops):
        for call, text in [
            (lambda: module.interleave(t, 32), "needs a multiple of 64"),
            (lambda: module.interleave_(t, 32), "needs a multiple of 64"),
            (lambda: module.interleave(t.transpose(1, 2), 1), "not contiguous"),
            (lambda: module.interleave_(t[:, ::2], 1), "not contiguous"),
            (lambda: module.interleave(t, 16, out.double()), "expected F32"),
            (lambda: module.interleave(t, 16, t), "overlap"),
            (lambda: module.interleave(t, 16, axis=7), "no axis 7"),
        ]:
            with pytest.raises(glu_ckpt.Error, match=text):
                call()
    assert not out.any()
    with pytest.raises(glu_ckpt.Error):
        glu_ckpt.interleave_(torch.zeros(4, 2, requires_grad=True), 1)


def test_operators_keep_torchs_own_rules():
    t = torch.randn(2, 8, 3)
    for name in ("interleave", "deinterleave"):
        operator = getattr(torch.ops.glu_ckpt, name).default
        torch.library.opcheck(operator, (t, 2), test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))
        torch.library.opcheck(getattr(torch.ops.glu_ckpt, name + "_").default, (t.clone(), 2),
                              test_utils=("test_schema", "test_faketensor"))
    torch.library.opcheck(torch.ops.glu_ckpt.splits_to_offsets.default,
                          (torch.tensor([1, 2]), [1, 3], True, torch.int32), test_utils=("test_schema", "test_faketensor"))


def test_gradients_flow_back():
    t = torch.randn(2, 8, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: ops.interleave(x, 2) * 3, (t,))
    assert torch.autograd.gradcheck(lambda x: ops.deinterleave(x, 2) * 3, (t,))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile_without_a_graph_break(backend):
    def step(w, x):
        w = ops.interleave(w * 2, 2)
        ops.deinterleave_(w, 4)
        return torch.nn.functional.linear(x, ops.deinterleave(w, 2)) + 1

    w, x = torch.randn(8, 3), torch.randn(5, 3)
    wanted = step(w, x)
    assert torch.equal(torch.compile(step, fullgraph=True, backend=backend)(w, x), wanted)
    assert torch._dynamo.explain(step)(w, x).graph_break_count == 0


def test_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        t = torch.empty(64, 4096, 7168, dtype=torch.bfloat16)
        assert ops.interleave(t, 32).shape == t.shape
        ops.interleave_(t, 32)
        assert ops.splits_to_offsets(torch.empty(8, dtype=torch.int64), dtype=torch.int32).shape == (9,)


def test_the_other_operators():
    splits = torch.tensor([2, 0, 3])
    assert ops.splits_to_offsets(splits).tolist() == [0, 2, 2, 5]
    a, b = ops.splits_to_offsets(splits, [1, 4], leading_zero=False, dtype=torch.int32)
    assert a.tolist() == [2, 2, 5] and b.tolist() == [8, 8, 20] and b.dtype == torch.int32
    x, fc1, fc2 = torch.randn(5, 6), torch.randn(3, 8, 6), torch.randn(3, 6, 4)
    got = ops.grouped_mlp(x, splits, fc1, fc2)
    assert torch.equal(got, ops.grouped_mlp(x, splits, ops.interleave(fc1, 2), fc2, k=2))
    gate, up = (x[:2] @ fc1[0].T).chunk(2, dim=1)
    torch.testing.assert_close(got[:2], (torch.nn.functional.silu(gate) * up) @ fc2[0].T)
    assert ops.diff(fc1, fc1)["equal"] and ops.diff(fc1, -fc1)["differing"] == fc1.numel()


class GroupedLinear(torch.nn.Module):
    """Parameters as TransformerEngine's GroupedLinear names them."""

    def __init__(self, experts, rows, cols):
        super().__init__()
        for e in range(experts):
            self.register_parameter(f"weight{e}", torch.nn.Parameter(torch.randn(rows, cols)))
            self.register_parameter(f"bias{e}", torch.nn.Parameter(torch.randn(rows)))


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear_fc1 = GroupedLinear(2, 16, 3)
        self.linear_fc2 = GroupedLinear(2, 3, 8)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = torch.nn.Module()
        self.mlp.experts = Experts()
        self.mlp.shared_experts = Experts()
        self.mlp.grouped = torch.nn.Module()
        self.mlp.grouped.weight = torch.nn.Parameter(torch.randn(2, 16, 3))
        self.mlp.grouped.bias = torch.nn.Parameter(torch.randn(2, 16))


def chosen(name, module):
    return name.endswith(".experts.linear_fc1") or name.endswith("grouped")


def is_moved(key):
    return key.startswith("mlp.experts.linear_fc1.") or key.startswith("mlp.grouped.")


@pytest.mark.parametrize("assign", [False, True])
def test_state_dicts_are_contiguous_and_the_model_interleaved(assign):
    model, k = Model(), 2
    hooks = ops.add_state_dict_hooks(model, k, select=chosen)
    assert hooks.modules == ["mlp.experts.linear_fc1", "mlp.grouped"]
    state = {name: value.clone() for name, value in Model().state_dict().items()}
    kept = {name: value.clone() for name, value in state.items()}
    model.load_state_dict(state, assign=assign)
    for name, value in model.named_parameters():
        axis = value.dim() - (1 if "bias" in name else 2)
        wanted = interleaved(kept[name], k, axis) if is_moved(name) else kept[name]
        assert torch.equal(value, wanted), name
    assert all(torch.equal(state[name], kept[name]) for name in kept)
    before = {name: value.clone() for name, value in model.named_parameters()}
    saved = model.state_dict()
    assert all(torch.equal(saved[name], kept[name]) for name in kept)
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())
    hooks.remove()
    assert not torch.equal(model.state_dict()["mlp.grouped.weight"], kept["mlp.grouped.weight"])


def test_what_is_not_loaded_is_not_permuted():
    model = Model()
    ops.add_state_dict_hooks(model, 2)
    before = {name: value.clone() for name, value in model.named_parameters()}
    loaded = "mlp.experts.linear_fc1.weight1"
    model.load_state_dict({loaded: torch.zeros(16, 3)}, strict=False)
    for name, value in model.named_parameters():
        assert torch.equal(value, torch.zeros(16, 3) if name == loaded else before[name])
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict({loaded: torch.zeros(16, 4)}, strict=False)
    with pytest.raises(ValueError, match="linear_fc1"):
        ops.add_state_dict_hooks(torch.nn.Linear(2, 2))


def test_megatrons_own_model_and_checkpoints(tmp_path):
    # Its import alone fails here, for it wants triton; megatron_on_cpu helps it over that.
    if importlib.util.find_spec("megatron") is None:
        pytest.skip("megatron-core is not installed")
    here = pathlib.Path(__file__).parent
    job = subprocess.run(
        [sys.executable, here / "megatron_hooks.py", tmp_path],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(here.parent / "interop"), *sys.path])},
        capture_output=True, text=True,
    )
    assert job.returncode == 0 and job.stdout.endswith("ok\n"), job.stdout + job.stderr


def test_readers_tensors(hub, testdata):
    with glu_ckpt.open(hub) as checkpoint:
        for name, tensor in checkpoint.items():
            taken = tensor.torch()
            assert taken.dtype == torch.bfloat16 and tuple(taken.shape) == tensor.shape
            assert same(torch.from_dlpack(tensor), taken)
            assert taken.view(torch.uint8).numpy().tobytes() == tensor.numpy(raw=True).tobytes()


def test_autograd_sees_what_works_in_place():
    """Elsewhere a gradient was made of the permuted weight, or passed the permutation by."""
    coded = torch.arange(16 * 3, dtype=torch.float32).view(16, 3)
    for function in (ops.interleave_, ops.deinterleave_):
        x, w = torch.ones(5, 3, requires_grad=True), coded.clone().requires_grad_()
        y = x @ w.t()
        with torch.no_grad():
            function(w, 4)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        for t in (coded.clone().requires_grad_(), coded.clone().requires_grad_() * 2):
            before = t.detach().clone()
            with pytest.raises(glu_ckpt.Error, match=r"_: shape \[16, 3\] requires a gradient"):
                function(t, 4)
            assert torch.equal(t, before)
    out = torch.zeros(16, 3)
    version = out._version
    ops.interleave(coded, 4, out)
    assert out._version > version
    with torch.inference_mode():
        assert torch.equal(ops.interleave_(coded.clone(), 4), out)


def test_views_that_negate_are_permuted_with_their_sign():
    coded = torch.arange(16 * 3, dtype=torch.float32).view(16, 3)
    assert torch.equal(ops.interleave(torch._neg_view(-coded), 4), ops.interleave(coded, 4))
    assert torch.equal(ops.deinterleave(torch._neg_view(-coded), 4), ops.deinterleave(coded, 4))


def test_transformer_engines_names_work_on_the_first_axis_and_check_both_ways():
    t = torch.arange(8)
    assert ops.interleave_glu_tensor(t, 2).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    for shape in ((24,), (24, 5), (24, 3, 2)):
        t = torch.randn(shape, requires_grad=True)
        for k in (1, 2, 3, 4, 6, 12):
            wanted = t.unflatten(0, (2, 12 // k, k)).transpose(0, 1).flatten(0, 2)
            made = ops.interleave_glu_tensor(t, k)
            assert torch.equal(made, wanted) and made.data_ptr() != t.data_ptr()
            assert torch.equal(ops.deinterleave_glu_tensor(made, k), t)
            (grad,) = torch.autograd.grad(made, t, wanted.detach())
            assert torch.equal(grad, ops.deinterleave_glu_tensor(wanted.detach(), k))
    strided = torch.randn(5, 24).t()
    assert torch.equal(ops.interleave_glu_tensor(strided, 4), ops.interleave_glu_tensor(strided.clone(), 4))
    for call in (ops.interleave_glu_tensor, ops.deinterleave_glu_tensor):
        for shape, k in (((24,), 0), ((24,), -1), ((24,), 5), ((25,), 1), ((), 1)):
            with pytest.raises(ValueError, match="multiple of 2"):
                call(torch.zeros(shape), k)
