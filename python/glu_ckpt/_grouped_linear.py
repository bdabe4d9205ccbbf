"""The grouped linear layer as operators of torch, with their gradients. With splits on a GPU nothing waits for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional, Union

import torch

from . import _core
from ._error import Error
from ._operands import (
    Stack,
    Tensors,
    are_plain,
    as_given,
    autocast,
    check_apart,
    check_like,
    check_vector,
    contiguous_rows,
    differentiated_once,
    dtype_name,
    flattened,
    listed,
    listed_again,
    new_grad,
    num_experts,
    place,
    splits_of,
    stack_of,
    wanted_buffers,
    weight_grads,
)

_library = torch.library.Library("glu_ckpt", "FRAGMENT")
_library.define(
    "grouped_linear(Tensor x, Tensor splits, Tensor[] weight, Tensor[] bias, Tensor[] weight_grad, bool accumulate) "
    "-> Tensor"
)
_library.define(
    "grouped_linear_backward(Tensor dout, Tensor x, Tensor splits, Tensor[] weight, Tensor[] bias, "
    "Tensor(a!)[] weight_grad, bool accumulate, bool[] wanted) -> (Tensor, Tensor, Tensor)"
)

#: The columns of the matrix of ones whose product with rows sums them.
_ONES = 8


def _expert_of_rows(splits: torch.Tensor, rows: int, device: torch.device) -> torch.Tensor:
    ends = splits.to(device, non_blocking=True).cumsum(0)
    numbers = torch.arange(rows, device=device)
    return torch.searchsorted(ends, numbers, right=True).clamp_(max=splits.shape[0] - 1)


def _linear_product(
    product: int,
    x: torch.Tensor,
    dout: Optional[torch.Tensor],
    splits: torch.Tensor,
    matrices: Stack,
    out: int,
    accumulate: bool = False,
) -> None:
    """0: y to `out`; 1: dx to `out`; 2: dW to the matrices."""
    call = _core.LinearCall(product, dtype_name("x", x), splits.shape[0], matrices, accumulate)
    rows = math.prod(x.shape[:-1])
    addresses = rows, x.data_ptr(), 0 if dout is None else dout.data_ptr(), out
    device, stream = place(x)
    if device < 0:
        _core.linear_host(call, *addresses, splits.data_ptr())
    elif splits.is_cuda:
        _core.device_linear(call, device, stream).run(*addresses, splits.data_ptr())
    else:
        _core.host_splits_linear(call, device, stream).run(*addresses, splits.tolist())


def _check_linear(
    x: torch.Tensor, splits: torch.Tensor, weight: Sequence[torch.Tensor], bias: Sequence[torch.Tensor]
) -> Stack:
    if not weight:
        raise Error("weight: no tensors; give a grouped one, or one for each expert")
    experts = num_experts(weight)
    check_vector("splits", splits, torch.int64, experts, splits.device if splits.device.type == "cpu" else x.device)
    stack = stack_of("weight", weight, 2, experts, x.device)
    if x.dim() < 1 or x.shape[-1] != stack[3]:
        raise Error(f"x: shape {list(x.shape)}, expected [..., {stack[3]}]; the last axis is the weights' input size")
    if bias and stack_of("bias", bias, 1, experts, x.device)[2] != stack[2]:
        raise Error(f"bias: shape {list(bias[0].shape)}, expected [..., {stack[2]}]; the weights give so many values")
    return stack


def _grouped_linear(
    x: torch.Tensor,
    splits: torch.Tensor,
    weight: Sequence[torch.Tensor],
    bias: Sequence[torch.Tensor],
    weight_grad: Sequence[torch.Tensor],
    accumulate: bool,
) -> torch.Tensor:
    stack = _check_linear(x, splits, weight, bias)
    y = x.new_empty((*x.shape[:-1], stack[2]))
    _linear_product(0, contiguous_rows("x", x), None, splits, stack, y.data_ptr())
    if bias:
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
    return dx, new_grad(weight, x, 2, wanted[1] and not weight_grad), new_grad(bias, x, 1, wanted[2])


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
    stack = _check_linear(x, splits, weight, bias)
    experts, out_features = splits.shape[0], stack[2]
    check_like("the output's gradient", dout, (*x.shape[:-1], out_features), x)
    x, dout = contiguous_rows("x", x), contiguous_rows("the output's gradient", dout)
    dx, dw, db = _fake_grouped_linear_backward(dout, x, splits, weight, bias, weight_grad, accumulate, wanted)
    if wanted[0]:
        _linear_product(1, x, dout, splits, stack, dx.data_ptr())
    if wanted[1]:
        check_apart(weight_grad)
        grads = stack_of("weight_grad", weight_grad or [dw], 2, experts, x.device)
        if grads[2:] != stack[2:]:
            raise Error(f"weight_grad: matrices of {list(grads[2:])}, expected those of the weights, {list(stack[2:])}")
        _linear_product(2, x, dout, splits, grads, 0, accumulate and bool(weight_grad))
    if wanted[2]:
        # A product sums rows in one order, which index_add_ does not on a GPU.
        ones = x.new_ones((math.prod(x.shape[:-1]), _ONES))
        sums = x.new_empty((experts, out_features, _ONES), dtype=torch.float32)
        _linear_product(2, ones, dout, splits, stack_of("bias", [sums], 2, experts, x.device), 0)
        db.copy_(sums[:, :, 0])
    return dx, dw, db


class _LinearContext:
    """As _MlpContext, of the grouped linear layer; lists are weight, bias and weight_grad."""

    @staticmethod
    def keep(
        ctx: Any, x: Any, splits: Any, lists: Sequence[Sequence[torch.Tensor]], owners: Sequence[Any], accumulate: bool
    ) -> None:
        ctx.accumulate = accumulate
        ctx.lengths = [len(tensors) for tensors in lists]
        ctx.buffers, ctx.owners = lists[2], owners if lists[2] else ()
        ctx.save_for_backward(x, splits, *flattened(lists[:2]))

    @staticmethod
    def grads(ctx: Any, needs: Sequence[Any], dout: torch.Tensor) -> tuple[Any, list[Any], list[Any]]:
        x, splits, *flat = ctx.saved_tensors
        weight, bias = listed_again(flat, ctx.lengths[:2])
        weight_grad = wanted_buffers(ctx.buffers, needs[1])
        lists, wanted = (weight, bias, weight_grad), [needs[0], any(needs[1]), any(needs[2])]
        run = _grouped_linear_backward if are_plain(dout, lists) else torch.ops.glu_ckpt.grouped_linear_backward
        dx, dw, db = run(dout, x, splits, weight, bias, weight_grad, ctx.accumulate, wanted)
        weights = weight_grads(weight, ctx.owners, weight_grad, dw, needs[1])
        return dx if wanted[0] else None, weights, as_given(bias, db, needs[2])


def _keep_linear(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, splits, weight, bias, weight_grad, accumulate = inputs
    _LinearContext.keep(ctx, x, splits, (weight, bias, weight_grad), weight, accumulate)


@differentiated_once
def _linear_grads(ctx: Any, dout: torch.Tensor) -> tuple[Any, ...]:
    needs = ctx.needs_input_grad
    dx, weights, biases = _LinearContext.grads(ctx, [needs[0], needs[2], needs[3]], dout)
    return dx, None, weights, biases, [None] * ctx.lengths[2], None


class _EagerLinear(torch.autograd.Function):
    """As _EagerMlp."""

    @staticmethod
    def forward(ctx: Any, lengths: Sequence[int], owners: Sequence[Any], accumulate: bool, *flat: Any) -> torch.Tensor:
        x, splits = flat[:2]
        lists = listed_again(flat[2:], lengths)
        _LinearContext.keep(ctx, x, splits, lists, owners, accumulate)
        run = _grouped_linear if are_plain(x, lists) else torch.ops.glu_ckpt.grouped_linear
        return run(x, splits, *lists, accumulate)

    @staticmethod
    @differentiated_once
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[Any, ...]:
        x, _, *flat = ctx.needs_input_grad[3:]
        dx, weights, biases = _LinearContext.grads(ctx, [x, *listed_again(flat, ctx.lengths)[:2]], dout)
        return (None, None, None, dx, None, *weights, *biases, *(None for _ in range(ctx.lengths[2])))


for _key in ("CPU", "CUDA"):
    _library.impl("grouped_linear", _grouped_linear, _key)
    _library.impl("grouped_linear_backward", _grouped_linear_backward, _key)
torch.library.register_fake(
    "glu_ckpt::grouped_linear", lambda x, splits, weight, *rest: x.new_empty((*x.shape[:-1], weight[0].shape[-2]))
)
torch.library.register_fake("glu_ckpt::grouped_linear_backward", _fake_grouped_linear_backward)
torch.library.register_autograd("glu_ckpt::grouped_linear", _linear_grads, setup_context=_keep_linear)


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
    weights, biases, main = listed(weight), listed(bias), listed(weight_grad)
    owners = weights
    x, weights, biases = autocast(x, weights, biases)
    splits, lists = splits_of(splits, None), (weights, biases, main)
    if not torch.compiler.is_compiling():
        lengths = [len(tensors) for tensors in lists]
        return _EagerLinear.apply(lengths, owners, accumulate, x, splits, *flattened(lists))
    return torch.ops.glu_ckpt.grouped_linear(x, splits, *lists, accumulate)
