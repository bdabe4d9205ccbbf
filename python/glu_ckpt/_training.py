"""The grouped MLP and the grouped linear layer as operators of torch, with their gradients.

Weights and biases are lists: of one grouped tensor, or of one tensor for each expert. The backwards are operators of
their own, so that `torch.compile` sees two calls and no more. Nothing here waits for a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional, Union

import torch

from . import _core
from ._error import Error

Tensors = Union[torch.Tensor, Sequence[torch.Tensor]]

_library = torch.library.Library("glu_ckpt", "FRAGMENT")
_MLP_OPTIONS = "int k, str activation, float? alpha, float? limit, float? offset"
_library.define(
    "grouped_mlp(Tensor x, Tensor splits, Tensor[] fc1, Tensor[] fc2, Tensor? probs, Tensor[] fc1_bias, "
    "Tensor[] fc2_bias, Tensor[] fc1_grad, Tensor[] fc2_grad, bool accumulate, bool save, "
    f"{_MLP_OPTIONS}) -> (Tensor, Tensor)"
)
_library.define(
    "grouped_mlp_backward(Tensor dout, Tensor x, Tensor splits, Tensor[] fc1, Tensor[] fc2, Tensor? probs, "
    "Tensor[] fc1_bias, Tensor[] fc2_bias, Tensor? z, Tensor(a!)[] fc1_grad, Tensor(b!)[] fc2_grad, bool accumulate, "
    f"bool[] wanted, {_MLP_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    "grouped_linear(Tensor x, Tensor splits, Tensor[] weight, Tensor[] bias, Tensor[] weight_grad, bool accumulate) "
    "-> Tensor"
)
_library.define(
    "grouped_linear_backward(Tensor dout, Tensor x, Tensor splits, Tensor[] weight, Tensor[] bias, "
    "Tensor(a!)[] weight_grad, bool accumulate, bool[] wanted) -> (Tensor, Tensor, Tensor)"
)

_DTYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NO_STACK: tuple[list[int], str, int, int] = ([], "BF16", 0, 1)
_Stack = tuple[list[int], str, int, int]
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
#: Rows of tensors begin at multiples of so many bytes where Hopper's matrix instructions read them.
_ALIGNMENT = 16
#: The columns of the matrix of ones whose product with rows sums them.
_ONES = 8


def place(t: torch.Tensor) -> tuple[int, int]:
    """Index of the GPU, or -1, and the current stream there."""
    if not t.is_cuda:
        return -1, 0
    device = t.get_device()
    return device, _raw_stream(device) if _raw_stream else torch.cuda.current_stream(device).cuda_stream


_is_compiling = torch.compiler.is_compiling
_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._functorch.peek_interpreter_stack


def is_plain(t: torch.Tensor) -> bool:
    """Whether no compiler, mode, transform or subclass of tensors has to see an operator.

    The way through torch's dispatcher takes a third of a short call's time, and more for lists of tensors.
    """
    return (
        not _is_compiling()
        and (type(t) is torch.Tensor or type(t) is torch.nn.Parameter)
        and _modes() == 0
        and _transforms() is None
    )


def _are_plain(t: torch.Tensor, lists: Sequence[Sequence[torch.Tensor]]) -> bool:
    """The same of a tensor and of those that come with it; a list is of one type."""
    return is_plain(t) and all(not tensors or type(tensors[0]) in _PLAIN for tensors in lists)


def _dtype_name(name: str, t: torch.Tensor) -> str:
    try:
        return _DTYPES[t.dtype]
    except KeyError:
        raise Error(f"{name}: {t.dtype}; only bfloat16, float16 and float32 can be computed with") from None


def _stack(name: str, tensors: Sequence[torch.Tensor], axes: int, experts: int, device: torch.device) -> _Stack:
    """Tensors of all experts, each of so many axes or grouped with one more."""
    if not tensors:
        return _NO_STACK
    first = tensors[0]
    shape = first.shape[-axes:]
    grouped = len(tensors) == 1 and first.dim() == axes + 1
    if (first.shape[0] if grouped else len(tensors)) != experts or (not grouped and first.dim() != axes):
        count = f"{len(tensors)} of shape {list(first.shape)}" if len(tensors) > 1 else f"shape {list(first.shape)}"
        raise Error(f"{name}: {count}; give one tensor of {axes + 1} axes for {experts} experts, or {experts} of {axes}")
    for i, t in enumerate(tensors):
        if t.device != device or t.dtype != first.dtype or t.shape != first.shape or not t.is_contiguous():
            raise Error(
                f"{name} {i}: {t.dtype}, shape {list(t.shape)}, strides {list(t.stride())}, on {t.device}; a contiguous "
                f"tensor of {first.dtype} and shape {list(first.shape)} on {device} is needed"
            )
    rows, cols = (shape[0], shape[1]) if axes == 2 else (shape[0], 1)
    return [t.data_ptr() for t in tensors], _dtype_name(name, first), rows, cols


def _num_experts(tensors: Sequence[torch.Tensor]) -> int:
    return tensors[0].shape[0] if len(tensors) == 1 and tensors[0].dim() == 3 else len(tensors)


def _rows(name: str, t: torch.Tensor, like: Optional[torch.Tensor] = None) -> torch.Tensor:
    """Contiguous rows that begin where kernels can read them."""
    if like is not None and (t.shape != like.shape or t.dtype != like.dtype or t.device != like.device):
        raise Error(
            f"{name}: {t.dtype}, shape {list(t.shape)}, on {t.device}; expected {like.dtype}, shape {list(like.shape)}, "
            f"on {like.device}"
        )
    t = t.contiguous()
    return t.clone() if t.is_cuda and t.data_ptr() % _ALIGNMENT else t


def _check_vector(name: str, t: torch.Tensor, dtype: torch.dtype, length: int, device: torch.device) -> None:
    if t.dtype != dtype or t.shape != (length,) or t.device != device or not t.is_contiguous():
        raise Error(
            f"{name}: {t.dtype}, shape {list(t.shape)}, strides {list(t.stride())}, on {t.device}; a contiguous vector "
            f"of {length} {dtype} on {device} is needed"
        )


class _Step:
    """The arguments that the forward and the backward of the grouped MLP share, checked."""

    def __init__(
        self,
        x: torch.Tensor,
        splits: torch.Tensor,
        fc1: Sequence[torch.Tensor],
        fc2: Sequence[torch.Tensor],
        probs: Optional[torch.Tensor],
        fc1_bias: Sequence[torch.Tensor],
        fc2_bias: Sequence[torch.Tensor],
        options: tuple[Any, ...],
    ) -> None:
        if not fc1 or x.dim() < 1:
            raise Error(f"x: shape {list(x.shape)}, and {len(fc1)} tensors of fc1; give rows of x and at least one expert")
        self.x = _rows("x", x)
        self.experts = _num_experts(fc1)
        self.rows = math.prod(x.shape[:-1])
        self.device, self.stream = place(x)
        if probs is None:
            probs = torch.ones(self.rows, dtype=torch.float32, device=x.device)
        self.splits, self.probs = splits, probs
        _check_vector("splits", splits, torch.int64, self.experts, x.device)
        _check_vector("probs", probs, torch.float32, self.rows, x.device)
        stacks = [
            _stack(name, tensors, axes, self.experts, x.device)
            for name, tensors, axes in (("fc1", fc1, 2), ("fc2", fc2, 2), ("fc1_bias", fc1_bias, 1), ("fc2_bias", fc2_bias, 1))
        ]
        self.call = _core.MlpCall(_dtype_name("x", x), self.experts, x.shape[-1], *options, *stacks)

    def addresses(self) -> tuple[int, int, int, int]:
        return self.rows, self.x.data_ptr(), self.splits.data_ptr(), self.probs.data_ptr()

    def workspace(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.x.device)


def _grouped_mlp(
    x: torch.Tensor,
    splits: torch.Tensor,
    fc1: Sequence[torch.Tensor],
    fc2: Sequence[torch.Tensor],
    probs: Optional[torch.Tensor],
    fc1_bias: Sequence[torch.Tensor],
    fc2_bias: Sequence[torch.Tensor],
    fc1_grad: Sequence[torch.Tensor],
    fc2_grad: Sequence[torch.Tensor],
    accumulate: bool,
    save: bool,
    *options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    step = _Step(x, splits, fc1, fc2, probs, fc1_bias, fc2_bias, options)
    out, z = _fake_grouped_mlp(x, splits, fc1, fc2, probs, fc1_bias, fc2_bias, fc1_grad, fc2_grad, accumulate, save)
    if step.device < 0:
        _core.mlp_host(step.call, *step.addresses(), out.data_ptr(), z.data_ptr() if save else 0)
        return out, z
    run = _core.device_mlp(step.call, step.device, step.stream)
    workspace = step.workspace(run.workspace_bytes(step.rows))
    run.run(*step.addresses(), out.data_ptr(), z.data_ptr() if save else 0, workspace.data_ptr())
    return out, z


def _fake_grouped_mlp(
    x: torch.Tensor,
    splits: torch.Tensor,
    fc1: Sequence[torch.Tensor],
    fc2: Sequence[torch.Tensor],
    probs: Optional[torch.Tensor],
    fc1_bias: Sequence[torch.Tensor],
    fc2_bias: Sequence[torch.Tensor],
    fc1_grad: Sequence[torch.Tensor],
    fc2_grad: Sequence[torch.Tensor],
    accumulate: bool,
    save: bool,
    *options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    # FC1's rows are z's columns.
    return out, x.new_empty((math.prod(x.shape[:-1]), fc1[0].shape[-2]) if save else (0,))


def _grad_dtype(t: torch.Tensor, x: torch.Tensor) -> torch.dtype:
    """That of the tensor where it is written directly, else fp32, which is rounded afterwards."""
    return t.dtype if t.dtype in (x.dtype, torch.float32) else torch.float32


def _new_grad(tensors: Sequence[torch.Tensor], x: torch.Tensor, axes: int, wanted: bool) -> torch.Tensor:
    if not wanted:
        return x.new_empty(0)
    first = tensors[0]
    shape = first.shape if first.dim() == axes + 1 else (len(tensors), *first.shape)
    return first.new_empty(shape, dtype=_grad_dtype(first, x))


def _fake_grouped_mlp_backward(
    dout: torch.Tensor,
    x: torch.Tensor,
    splits: torch.Tensor,
    fc1: Sequence[torch.Tensor],
    fc2: Sequence[torch.Tensor],
    probs: Optional[torch.Tensor],
    fc1_bias: Sequence[torch.Tensor],
    fc2_bias: Sequence[torch.Tensor],
    z: Optional[torch.Tensor],
    fc1_grad: Sequence[torch.Tensor],
    fc2_grad: Sequence[torch.Tensor],
    accumulate: bool,
    wanted: Sequence[bool],
    *options: Any,
) -> tuple[torch.Tensor, ...]:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format) if wanted[0] else x.new_empty(0)
    dprobs = x.new_empty(math.prod(x.shape[:-1]) if wanted[1] else 0, dtype=torch.float32)
    return (
        dx,
        dprobs,
        _new_grad(fc1, x, 2, wanted[2] and not fc1_grad),
        _new_grad(fc2, x, 2, wanted[3] and not fc2_grad),
        _new_grad(fc1_bias, x, 1, wanted[4]),
        _new_grad(fc2_bias, x, 1, wanted[5]),
    )


def _grouped_mlp_backward(
    dout: torch.Tensor,
    x: torch.Tensor,
    splits: torch.Tensor,
    fc1: Sequence[torch.Tensor],
    fc2: Sequence[torch.Tensor],
    probs: Optional[torch.Tensor],
    fc1_bias: Sequence[torch.Tensor],
    fc2_bias: Sequence[torch.Tensor],
    z: Optional[torch.Tensor],
    fc1_grad: Sequence[torch.Tensor],
    fc2_grad: Sequence[torch.Tensor],
    accumulate: bool,
    wanted: Sequence[bool],
    *options: Any,
) -> tuple[torch.Tensor, ...]:
    step = _Step(x, splits, fc1, fc2, probs, fc1_bias, fc2_bias, options)
    dout = _rows("the output's gradient", dout, x)
    made = _fake_grouped_mlp_backward(
        dout, x, splits, fc1, fc2, probs, fc1_bias, fc2_bias, z, fc1_grad, fc2_grad, accumulate, wanted
    )
    dx, dprobs, *grads = made
    accumulate = accumulate and bool(fc1_grad or fc2_grad)
    stacks = []
    for name, caller, grad, axes, want in zip(
        ("fc1_grad", "fc2_grad", "fc1_bias", "fc2_bias"), (fc1_grad, fc2_grad, (), ()), grads, (2, 2, 1, 1), wanted[2:]
    ):
        # One of both is the caller's, and what is added to this one is all that it holds.
        if want and not caller and axes == 2 and accumulate:
            grad.zero_()
        stacks.append(_stack(name, caller or [grad], axes, step.experts, x.device) if want else _NO_STACK)
    call = _core.MlpGrads(step.call, *stacks, accumulate)
    addresses = (*step.addresses(), dout.data_ptr(), 0 if z is None else z.data_ptr(),
                 dx.data_ptr() if wanted[0] else 0, dprobs.data_ptr() if wanted[1] else 0)  # fmt: skip
    if step.device < 0:
        _core.mlp_backward_host(step.call, call, *addresses)
        return made
    run = _core.device_mlp_backward(step.call, call, step.device, step.stream)
    workspace = step.workspace(run.workspace_bytes(step.rows, z is None))
    run.run(*addresses, workspace.data_ptr())
    return made


_dummies: dict[Any, torch.Tensor] = {}


def _accumulated(weight: torch.Tensor) -> Optional[torch.Tensor]:
    """What autograd gets for a weight whose gradient went to the caller's buffer: nothing; or, where Megatron-Core waits
    for hooks of the parameter, a tensor that nobody reads."""
    if not hasattr(weight, "grad_added_to_main_grad"):
        return None
    weight.grad_added_to_main_grad = True
    if getattr(weight, "zero_out_wgrad", False):
        return torch.zeros_like(weight)
    key = weight.shape, weight.dtype, weight.device
    if key not in _dummies:
        _dummies[key] = torch.empty_like(weight, requires_grad=False)
    return _dummies[key].detach()


def _as_given(tensors: Sequence[torch.Tensor], grad: torch.Tensor, needed: Sequence[bool]) -> list[Optional[torch.Tensor]]:
    """The gradient of all experts, as one or as one each."""
    if not any(needed):
        return [None] * len(tensors)
    parts = [grad] if grad.shape == tensors[0].shape else list(grad.unbind(0))
    return [part.to(t.dtype) if need else None for part, t, need in zip(parts, tensors, needed)]


def _weight_grads(
    tensors: Sequence[torch.Tensor], caller: Sequence[torch.Tensor], grad: torch.Tensor, needed: Sequence[bool]
) -> list[Optional[torch.Tensor]]:
    if caller:
        return [_accumulated(t) if need else None for t, need in zip(tensors, needed)]
    return _as_given(tensors, grad, needed)


def _flat(lists: Sequence[Sequence[Any]]) -> list[Any]:
    return [t for tensors in lists for t in tensors]


def _listed_again(flat: Sequence[Any], lengths: Sequence[int]) -> list[Sequence[Any]]:
    found, at = [], 0
    for length in lengths:
        found.append(flat[at : at + length])
        at += length
    return found


class _MlpContext:
    """What a backward of the grouped MLP needs of its forward, in a context of autograd's."""

    @staticmethod
    def keep(
        ctx: Any, single: tuple[Any, ...], lists: Sequence[Sequence[torch.Tensor]], z: torch.Tensor, options: Sequence[Any]
    ) -> None:
        """single: x, splits, probs. lists: fc1, fc2, fc1_bias, fc2_bias, fc1_grad, fc2_grad. options: the operator's,
        from `accumulate` on."""
        ctx.accumulate, save, *ctx.options = options
        ctx.lengths = [len(tensors) for tensors in lists]
        ctx.mark_non_differentiable(z)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*single, z if save else None, *_flat(lists))

    @staticmethod
    def grads(ctx: Any, needs: Sequence[Any], dout: Optional[torch.Tensor]) -> tuple[Any, Any, list[list[Any]]]:
        """dx, dprobs and the lists of gradients; `needs` is of x, probs, and lists of the four lists'."""
        x, splits, probs, z, *flat = ctx.saved_tensors
        fc1, fc2, fc1_bias, fc2_bias, fc1_grad, fc2_grad = lists = _listed_again(flat, ctx.lengths)
        if dout is None:
            return None, None, [[None] * len(tensors) for tensors in lists[:4]]
        wanted = [needs[0], needs[1], *(any(each) for each in needs[2:])]
        run = _grouped_mlp_backward if _are_plain(dout, lists) else torch.ops.glu_ckpt.grouped_mlp_backward
        dx, dprobs, dfc1, dfc2, dfc1_bias, dfc2_bias = run(
            dout, x, splits, fc1, fc2, probs, fc1_bias, fc2_bias, z, fc1_grad, fc2_grad, ctx.accumulate, wanted,
            *ctx.options,
        )  # fmt: skip
        made = [
            _weight_grads(fc1, fc1_grad, dfc1, needs[2]),
            _weight_grads(fc2, fc2_grad, dfc2, needs[3]),
            _as_given(fc1_bias, dfc1_bias, needs[4]),
            _as_given(fc2_bias, dfc2_bias, needs[5]),
        ]
        return dx if wanted[0] else None, dprobs if wanted[1] else None, made


def _keep_mlp(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, splits, fc1, fc2, probs, fc1_bias, fc2_bias, fc1_grad, fc2_grad, *options = inputs
    _MlpContext.keep(ctx, (x, splits, probs), (fc1, fc2, fc1_bias, fc2_bias, fc1_grad, fc2_grad), output[1], options)


def _mlp_grads(ctx: Any, dout: Optional[torch.Tensor], unused: Any) -> tuple[Any, ...]:
    needs = ctx.needs_input_grad
    dx, dprobs, lists = _MlpContext.grads(ctx, [needs[0], needs[4], needs[2], needs[3], needs[5], needs[6]], dout)
    main = [[None] * length for length in ctx.lengths[4:]]
    return (dx, None, *lists[:2], dprobs, *lists[2:], *main, None, None, *(None for _ in ctx.options))


class _EagerMlp(torch.autograd.Function):
    """The same without torch.library's code for lists of tensors, which takes 0.7 ms a call, and 2 ms for 32 experts."""

    @staticmethod
    def forward(ctx: Any, lengths: Sequence[int], options: Sequence[Any], *flat: Any) -> torch.Tensor:
        x, splits, probs = flat[:3]
        lists = _listed_again(flat[3:], lengths)
        run = _grouped_mlp if _are_plain(x, lists) else torch.ops.glu_ckpt.grouped_mlp
        out, z = run(x, splits, lists[0], lists[1], probs, *lists[2:], *options)
        _MlpContext.keep(ctx, (x, splits, probs), lists, z, options)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Optional[torch.Tensor]) -> tuple[Any, ...]:
        x, _, probs, *flat = ctx.needs_input_grad[2:]
        needs = [x, probs, *_listed_again(flat, ctx.lengths)[:4]]
        dx, dprobs, lists = _MlpContext.grads(ctx, needs, dout)
        return (None, None, dx, None, dprobs, *_flat(lists), *(None for _ in range(sum(ctx.lengths[4:]))))


def _expert_of_rows(splits: torch.Tensor, rows: int, device: torch.device) -> torch.Tensor:
    ends = splits.to(device, non_blocking=True).cumsum(0)
    numbers = torch.arange(rows, device=device)
    return torch.searchsorted(ends, numbers, right=True).clamp_(max=splits.shape[0] - 1)


def _linear_product(
    product: int,
    x: torch.Tensor,
    dout: Optional[torch.Tensor],
    splits: torch.Tensor,
    matrices: _Stack,
    out: int,
    accumulate: bool = False,
) -> None:
    """0: y to `out`; 1: dx to `out`; 2: dW to the matrices."""
    call = _core.LinearCall(product, _dtype_name("x", x), splits.shape[0], matrices, accumulate)
    rows = math.prod(x.shape[:-1])
    addresses = rows, x.data_ptr(), 0 if dout is None else dout.data_ptr(), out
    device, stream = place(x)
    if device < 0:
        _core.linear_host(call, *addresses, splits.data_ptr())
    elif splits.is_cuda:
        _core.device_linear(call, device, stream).run(*addresses, splits.data_ptr())
    else:
        _core.host_splits_linear(call, device, stream).run(*addresses, splits.tolist())


def _check_linear(x: torch.Tensor, splits: torch.Tensor, weight: Sequence[torch.Tensor]) -> _Stack:
    if not weight:
        raise Error("weight: no tensors; give a grouped one, or one for each expert")
    experts = _num_experts(weight)
    _check_vector("splits", splits, torch.int64, experts, splits.device if splits.device.type == "cpu" else x.device)
    stack = _stack("weight", weight, 2, experts, x.device)
    if x.dim() < 1 or x.shape[-1] != stack[3]:
        raise Error(f"x: shape {list(x.shape)}, expected [..., {stack[3]}]; the last axis is the weights' input size")
    return stack


def _grouped_linear(
    x: torch.Tensor,
    splits: torch.Tensor,
    weight: Sequence[torch.Tensor],
    bias: Sequence[torch.Tensor],
    weight_grad: Sequence[torch.Tensor],
    accumulate: bool,
) -> torch.Tensor:
    stack = _check_linear(x, splits, weight)
    y = x.new_empty((*x.shape[:-1], stack[2]))
    _linear_product(0, _rows("x", x), None, splits, stack, y.data_ptr())
    if bias:
        _stack("bias", bias, 1, splits.shape[0], x.device)
        flat = y.view(-1, stack[2])
        all_biases = bias[0] if bias[0].dim() == 2 else torch.stack(list(bias))
        flat += all_biases.to(y.dtype)[_expert_of_rows(splits, flat.shape[0], x.device)]
    return y


def _fake_grouped_linear_backward(
    dout: torch.Tensor,
    x: torch.Tensor,
    splits: torch.Tensor,
    weight: Sequence[torch.Tensor],
    bias: Sequence[torch.Tensor],
    weight_grad: Sequence[torch.Tensor],
    accumulate: bool,
    wanted: Sequence[bool],
) -> tuple[torch.Tensor, ...]:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format) if wanted[0] else x.new_empty(0)
    return dx, _new_grad(weight, x, 2, wanted[1] and not weight_grad), _new_grad(bias, x, 1, wanted[2])


def _grouped_linear_backward(
    dout: torch.Tensor,
    x: torch.Tensor,
    splits: torch.Tensor,
    weight: Sequence[torch.Tensor],
    bias: Sequence[torch.Tensor],
    weight_grad: Sequence[torch.Tensor],
    accumulate: bool,
    wanted: Sequence[bool],
) -> tuple[torch.Tensor, ...]:
    stack = _check_linear(x, splits, weight)
    x, dout = _rows("x", x), _rows("the output's gradient", dout)
    experts, out_features = splits.shape[0], stack[2]
    dx, dw, db = _fake_grouped_linear_backward(dout, x, splits, weight, bias, weight_grad, accumulate, wanted)
    if wanted[0]:
        _linear_product(1, x, dout, splits, stack, dx.data_ptr())
    if wanted[1]:
        grads = _stack("weight_grad", weight_grad or [dw], 2, experts, x.device)
        _linear_product(2, x, dout, splits, grads, 0, accumulate and bool(weight_grad))
    if wanted[2]:
        # A product sums rows in one order, which index_add_ does not on a GPU.
        ones = x.new_ones((math.prod(x.shape[:-1]), _ONES))
        sums = x.new_empty((experts, out_features, _ONES), dtype=torch.float32)
        _linear_product(2, ones, dout, splits, _stack("bias", [sums], 2, experts, x.device), 0)
        db.copy_(sums[:, :, 0])
    return dx, dw, db


class _LinearContext:
    """As _MlpContext, of the grouped linear layer; lists are weight, bias and weight_grad."""

    @staticmethod
    def keep(ctx: Any, x: Any, splits: Any, lists: Sequence[Sequence[torch.Tensor]], accumulate: bool) -> None:
        ctx.accumulate = accumulate
        ctx.lengths = [len(tensors) for tensors in lists]
        ctx.save_for_backward(x, splits, *_flat(lists))

    @staticmethod
    def grads(ctx: Any, needs: Sequence[Any], dout: torch.Tensor) -> tuple[Any, list[Any], list[Any]]:
        x, splits, *flat = ctx.saved_tensors
        weight, bias, weight_grad = lists = _listed_again(flat, ctx.lengths)
        wanted = [needs[0], any(needs[1]), any(needs[2])]
        run = _grouped_linear_backward if _are_plain(dout, lists) else torch.ops.glu_ckpt.grouped_linear_backward
        dx, dw, db = run(dout, x, splits, weight, bias, weight_grad, ctx.accumulate, wanted)
        return dx if wanted[0] else None, _weight_grads(weight, weight_grad, dw, needs[1]), _as_given(bias, db, needs[2])


def _keep_linear(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, splits, weight, bias, weight_grad, accumulate = inputs
    _LinearContext.keep(ctx, x, splits, (weight, bias, weight_grad), accumulate)


def _linear_grads(ctx: Any, dout: torch.Tensor) -> tuple[Any, ...]:
    needs = ctx.needs_input_grad
    dx, weights, biases = _LinearContext.grads(ctx, [needs[0], needs[2], needs[3]], dout)
    return dx, None, weights, biases, [None] * ctx.lengths[2], None


class _EagerLinear(torch.autograd.Function):
    """As _EagerMlp."""

    @staticmethod
    def forward(ctx: Any, lengths: Sequence[int], accumulate: bool, *flat: Any) -> torch.Tensor:
        x, splits = flat[:2]
        lists = _listed_again(flat[2:], lengths)
        _LinearContext.keep(ctx, x, splits, lists, accumulate)
        run = _grouped_linear if _are_plain(x, lists) else torch.ops.glu_ckpt.grouped_linear
        return run(x, splits, *lists, accumulate)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[Any, ...]:
        x, _, *flat = ctx.needs_input_grad[2:]
        dx, weights, biases = _LinearContext.grads(ctx, [x, *_listed_again(flat, ctx.lengths)[:2]], dout)
        return (None, None, dx, None, *weights, *biases, *(None for _ in range(ctx.lengths[2])))


for _key in ("CPU", "CUDA"):
    _library.impl("grouped_mlp", _grouped_mlp, _key)
    _library.impl("grouped_mlp_backward", _grouped_mlp_backward, _key)
    _library.impl("grouped_linear", _grouped_linear, _key)
    _library.impl("grouped_linear_backward", _grouped_linear_backward, _key)
torch.library.register_fake("glu_ckpt::grouped_mlp", _fake_grouped_mlp)
torch.library.register_fake("glu_ckpt::grouped_mlp_backward", _fake_grouped_mlp_backward)
torch.library.register_fake(
    "glu_ckpt::grouped_linear", lambda x, splits, weight, *rest: x.new_empty((*x.shape[:-1], weight[0].shape[-2]))
)
torch.library.register_fake("glu_ckpt::grouped_linear_backward", _fake_grouped_linear_backward)
torch.library.register_autograd("glu_ckpt::grouped_mlp", _mlp_grads, setup_context=_keep_mlp)
torch.library.register_autograd("glu_ckpt::grouped_linear", _linear_grads, setup_context=_keep_linear)


def _listed(given: Optional[Tensors]) -> list[torch.Tensor]:
    if given is None:
        return []
    tensors = [given] if isinstance(given, torch.Tensor) else list(given)
    for t in tensors:
        if type(t) not in _PLAIN and hasattr(t, "placements"):
            raise TypeError(
                "a weight is a DTensor; apply fully_shard to the module whose forward is called, which gathers it"
            )
    return tensors


def _autocast(x: torch.Tensor, *lists: list[torch.Tensor]) -> list[Any]:
    """x and lists of tensors in autocast's dtype, where that is on."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or not x.is_floating_point():
        return [x, *lists]
    dtype = torch.get_autocast_dtype(kind)
    return [x.to(dtype), *([t.to(dtype) for t in tensors] for tensors in lists)]


def _splits_of(splits: Union[torch.Tensor, Sequence[int]], device: Optional[torch.device]) -> torch.Tensor:
    if not isinstance(splits, torch.Tensor):
        return torch.tensor(splits, dtype=torch.int64, device=device)
    return splits.to(device=device or splits.device, dtype=torch.int64)


def grouped_mlp(
    x: torch.Tensor,
    splits: Union[torch.Tensor, Sequence[int]],
    fc1: Tensors,
    fc2: Tensors,
    *,
    k: int = 0,
    probs: Optional[torch.Tensor] = None,
    fc1_bias: Optional[Tensors] = None,
    fc2_bias: Optional[Tensors] = None,
    activation: str = "swiglu",
    alpha: Optional[float] = None,
    limit: Optional[float] = None,
    offset: Optional[float] = None,
    recompute: bool = False,
    fc1_grad: Optional[Tensors] = None,
    fc2_grad: Optional[Tensors] = None,
    accumulate: bool = True,
) -> torch.Tensor:
    """The experts of one layer, p * (act(x W1^T + b1) W2^T + b2), with gradients of x, weights, biases and probs.

    x: [..., H], tokens sorted by expert, in bfloat16, float16 or float32; weights are of its dtype.
    splits: [E], rows of each expert, on x's device (else they are copied there).
    fc1: [E, 2F, H], gate and up, interleaved in blocks of `k` rows; 0: contiguous. Or E tensors [2F, H]. [E, F, H]
        without a gate. Gradients have the same order.
    fc2: [E, H, F], or E tensors [H, F].
    probs: [T], the router's; default 1. They multiply the activation, and FC2's bias.
    fc1_bias, fc2_bias: [E, 2F] and [E, H], or E tensors.
    activation, alpha, limit, offset: as for `glu_ckpt.grouped_mlp`.
    recompute: the backward computes FC1 again instead of keeping its output; with the same bits, but for orders that TMA
        cannot read (k neither a multiple of 8 nor a power of two), where its sums have another order.
    fc1_grad, fc2_grad: where the weights' gradients go instead of to `.grad`, as Megatron's `main_grad`: of the
        weights' shapes, float32 or x's dtype. They are added to what is there, or with accumulate=False replace it.

    Under autocast x, weights and biases are converted to its dtype, and the output has it. Rows behind the last split
    belong to nobody: of the output and of the gradients of x and probs they hold anything. On a GPU nothing waits, and
    wrong splits write nothing; on the CPU they raise Error.
    """
    w1, w2, b1, b2 = (_listed(given) for given in (fc1, fc2, fc1_bias, fc2_bias))
    main1, main2 = _listed(fc1_grad), _listed(fc2_grad)
    x, w1, w2, b1, b2 = _autocast(x, w1, w2, b1, b2)
    if probs is not None:
        probs = probs.reshape(-1).to(torch.float32)
    differentiable = [x, *w1, *w2, *b1, *b2] + ([probs] if probs is not None else [])
    save = not recompute and torch.is_grad_enabled() and any(t.requires_grad for t in differentiable)
    lists = (w1, w2, b1, b2, main1, main2)
    splits = _splits_of(splits, x.device)
    options = (accumulate, save, k, activation, alpha, limit, offset)
    if not torch.compiler.is_compiling():
        return _EagerMlp.apply([len(tensors) for tensors in lists], options, x, splits, probs, *_flat(lists))
    out, _ = torch.ops.glu_ckpt.grouped_mlp(x, splits, w1, w2, probs, b1, b2, main1, main2, *options)
    return out


def grouped_linear(
    x: torch.Tensor,
    splits: Union[torch.Tensor, Sequence[int]],
    weight: Tensors,
    bias: Optional[Tensors] = None,
    *,
    weight_grad: Optional[Tensors] = None,
    accumulate: bool = True,
) -> torch.Tensor:
    """One linear layer per expert, x W^T + b, with gradients of x, weights and biases.

    x: [..., in], rows sorted by expert.
    splits: rows of each expert: int64 [E] on x's GPU, where nothing waits and a CUDA graph replays with new ones; or a
        list, or a tensor on the CPU, which are checked. Both give the same bits.
    weight: [E, out, in], or E tensors [out, in]. bias: [E, out], or E tensors.
    weight_grad, accumulate: as `fc1_grad` of `grouped_mlp`.

    Rows behind the last split belong to nobody, and hold anything. Autocast converts x, weights and biases.
    """
    weights, biases, main = _listed(weight), _listed(bias), _listed(weight_grad)
    x, weights, biases = _autocast(x, weights, biases)
    splits, lists = _splits_of(splits, None), (weights, biases, main)
    if not torch.compiler.is_compiling():
        return _EagerLinear.apply([len(tensors) for tensors in lists], accumulate, x, splits, *_flat(lists))
    return torch.ops.glu_ckpt.grouped_linear(x, splits, *lists, accumulate)
