"""Outputs and gradients of x that go to the caller's memory, on the CPU: with the bits of memory that is allocated, behind
the experts' rows what was there, and nothing else accepted. The cases are those that TransformerEngine has for its own."""

import pytest

torch = pytest.importorskip("torch")

import glu_ckpt.torch as ops  # noqa: E402
from training_cases import DOUT, E, H, ROWS, SPLITS, WIDTH, coded, module_with_main_grads, run, tensors  # noqa: E402

SENTINEL = -3.25
TAIL = 4


def linear_case():
    """A call of grouped_linear with rows behind the experts', and its output's shape."""
    x = coded(ROWS + TAIL, H).float()
    weight, bias = coded(E, 6, H, first=100).float(), coded(E, 6, first=900).float()
    return lambda x, **places: ops.grouped_linear(x, SPLITS, weight, bias, **places), x, (ROWS + TAIL, 6)


def mlp_case():
    given = tensors()
    given["probs"] = coded(ROWS + TAIL, first=5000).float().abs()
    call = lambda x, **places: run(ops.grouped_mlp, {**given, "x": x}, **places)  # noqa: E731
    return call, coded(ROWS + TAIL, H).float(), (ROWS + TAIL, H)


def module_case():
    module = ops.GroupedMLP(E, H, WIDTH, bias=True, k=2)
    probs = coded(ROWS + TAIL, first=5000).float().abs()
    call = lambda x, **places: module(x, torch.tensor(SPLITS), probs, **places)  # noqa: E731
    return call, coded(ROWS + TAIL, H).float(), (ROWS + TAIL, H)


def linear_module_case():
    module = ops.GroupedLinear(E, H, 6)
    call = lambda x, **places: module(x, torch.tensor(SPLITS), **places)  # noqa: E731
    return call, coded(ROWS + TAIL, H).float(), (ROWS + TAIL, 6)


every_case = pytest.mark.parametrize("case", [linear_case, mlp_case, module_case, linear_module_case])


def filled(shape, **options):
    return torch.full(tuple(shape), SENTINEL, **options)


@every_case
@pytest.mark.parametrize("given", [("out",), ("dgrad_out",), ("out", "dgrad_out")])
def test_the_same_bits_in_given_memory(case, given):
    call, x, shape = case()
    grad = coded(*shape, first=9000).float()
    plain_x = x.clone().requires_grad_()
    plain = call(plain_x)
    plain.backward(grad)
    memory = {name: filled(shape if name == "out" else x.shape) for name in given}
    used_x = x.clone().requires_grad_()
    for _ in range(2):  # It can be used again: autograd did not mark it.
        used_x.grad = None
        out = call(used_x, **memory)
        out.backward(grad)
    assert torch.equal(out[:ROWS], plain[:ROWS]) and torch.equal(used_x.grad[:ROWS], plain_x.grad[:ROWS])
    if "out" in memory:
        assert out.data_ptr() == memory["out"].data_ptr() and out.grad_fn is not None
    if "dgrad_out" in memory:
        assert torch.equal(memory["dgrad_out"][:ROWS], plain_x.grad[:ROWS])
    for t in memory.values():
        assert (t[ROWS:] == SENTINEL).all() and not t.requires_grad


@every_case
def test_without_gradients(case):
    call, x, shape = case()
    memory = filled(shape)
    with torch.no_grad():
        out = call(x, out=memory, dgrad_out=filled(x.shape))
        assert torch.equal(out[:ROWS], call(x)[:ROWS])
    assert out.data_ptr() == memory.data_ptr() and not out.requires_grad


WRONG = {
    "shape": lambda shape: filled((shape[0] + 1, shape[1])),
    "one axis": lambda shape: filled((shape[0] * shape[1],)),
    "torch.float64": lambda shape: filled(shape, dtype=torch.float64),
    "meta": lambda shape: filled(shape, device="meta"),
    "strides": lambda shape: filled((shape[1], shape[0])).t(),
    "requires a gradient": lambda shape: filled(shape, requires_grad=True),
}


@every_case
@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("name", ["out", "dgrad_out"])
def test_other_memory_is_refused(case, what, name):
    call, x, shape = case()
    x.requires_grad_()
    memory = WRONG[what](shape if name == "out" else x.shape)
    before = None if memory.is_meta else memory.detach().clone()
    with pytest.raises(ValueError, match=f"^{name}: .*{what if what != 'one axis' else 'shape'}"):
        call(x, **{name: memory}).sum().backward()
    assert before is None or torch.equal(memory, before)


@every_case
def test_memory_of_operands_is_refused(case):
    call, x, shape = case()
    x.requires_grad_()
    if tuple(shape) == tuple(x.shape):
        with pytest.raises(ValueError, match="^out: shares memory with a tensor of shape"):
            call(x, out=x.detach())
    if case in (module_case, linear_module_case):  # Frozen weights want no x.
        with pytest.raises(ValueError, match="^dgrad_out: shares memory with a tensor of shape"):
            call(x, dgrad_out=x.detach()).sum().backward()
    with pytest.raises(ValueError, match="^out: list; give a torch tensor"):
        call(x, out=[1])


@every_case
def test_memory_right_behind_an_expanded_operand(case):
    """Its one row is all that it takes; what it repeats lies nowhere."""
    call, x, _ = case()
    memory = torch.full((x.shape[0] + 1, H), SENTINEL)
    memory[0] = x[0]
    repeated = memory[:1].expand(x.shape).requires_grad_()
    call(repeated, dgrad_out=memory[1:]).sum().backward()
    plain = x[:1].repeat(x.shape[0], 1).requires_grad_()
    call(plain).sum().backward()
    assert torch.equal(memory[1 : ROWS + 1], plain.grad[:ROWS])
    if case in (module_case, linear_module_case):  # Frozen weights want no x.
        with pytest.raises(ValueError, match="^dgrad_out: shares memory with a tensor of shape"):
            call(repeated, dgrad_out=memory[:-1]).sum().backward()


@every_case
def test_a_value_that_was_written_over_is_no_longer_saved(case):
    """The second forward writes over what the square of the first one needs."""
    call, x, shape = case()
    memory = filled(shape)
    first = call(x.requires_grad_(), out=memory).square().sum()
    call(x, out=memory)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        first.backward()


def test_beside_modes_and_subclasses():
    """Below a mode an operator is seen, and its result is copied."""
    from torch.utils.flop_counter import FlopCounterMode

    for case in (linear_case, mlp_case):
        call, x, shape = case()
        wanted, memory, grads = call(x), filled(shape), filled(x.shape)
        x.requires_grad_()
        with FlopCounterMode(display=False):
            out = call(x, out=memory, dgrad_out=grads)
            out[:ROWS].sum().backward()
        assert out.data_ptr() == memory.data_ptr() and torch.equal(memory[:ROWS], wanted[:ROWS])
        assert (memory[ROWS:] == SENTINEL).all() and (grads[ROWS:] == SENTINEL).all()
        assert torch.equal(grads[:ROWS], x.grad[:ROWS])


def test_a_transform_is_refused():
    call, x, shape = linear_case()
    with pytest.raises(ValueError, match="^out: a transform of torch.func"):
        torch.func.grad(lambda x: call(x, out=filled(shape)).sum())(x)


def test_beside_main_grads_and_autocast():
    given = tensors()
    plain, placed = module_with_main_grads(), module_with_main_grads()
    out, grads = filled((ROWS, H)), filled((ROWS, H))
    x = given["x"].clone().requires_grad_()
    placed(x, SPLITS, given["probs"], out=out, dgrad_out=grads).backward(DOUT.float())
    plain(given["x"], SPLITS, given["probs"]).backward(DOUT.float())
    assert torch.equal(placed.linear_fc1.weight2.main_grad, plain.linear_fc1.weight2.main_grad)
    assert torch.equal(grads, x.grad)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(ValueError, match="^out: torch.float32"):
            placed(x, SPLITS, given["probs"], out=out)
        placed(x, SPLITS, given["probs"], out=out.bfloat16())


def test_compiled_code_leaves_its_graph():
    call, x, shape = mlp_case()
    memory, wanted = filled(shape), call(x)
    compiled = torch.compile(lambda x: call(x * 1, out=memory) * 2, backend="eager")
    assert torch.equal(compiled(x)[:ROWS], wanted[:ROWS] * 2) and torch.equal(memory[:ROWS], wanted[:ROWS])
