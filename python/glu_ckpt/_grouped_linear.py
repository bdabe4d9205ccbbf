"""The grouped linear layer as operators of torch, with their gradients. With splits on a GPU nothing waits for it."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Optional, Union

import torch

from . import _core
from ._error import ArgumentError
from ._operands import (
    NOWHERE,
    Places,
    Stack,
    Tensors,
    are_plain,
    as_given,
    autocast,
    check_like,
    all_there,
    check_tensor,
    contiguous_rows,
    copy_rows,
    differentiated_once,
    dtype_name,
    is_transformed,
    listed,
    listed_again,
    new_grad,
    num_experts,
    place,
    place_for,
    places_of,
    refuse_places,
    refuse_vmap,
    splits_of,
    stack_of,
    unread,
    vector,
)
from ._recipes import Mxfp8Tensor, decoded_weights
from ._weight_grads import (
    ADDS_TO_MAIN_GRAD,
    WRITES_IN_PLACE,
    Buffers,
    check_apart,
    check_buffers,
    found_at_forward,
    found_buffers,
    given_buffers,
    in_its_place,
    outside_of_graphs,
    waits_for_hooks,
    was_written,
    weight_grads,
    weight_grads_of_nothing,
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
    # A copy of the host's, for memory that is pinned is read later, when its owner may have written the next step's.
    ends = (splits if splits.device == device else splits.clone()).to(device, non_blocking=True).cumsum(0)
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


def _linear_splits(splits: torch.Tensor, experts: int, device: torch.device) -> torch.Tensor:
    return vector("splits", splits, torch.int64, experts, splits.device if splits.device.type == "cpu" else device)


def _check_shapes(x: torch.Tensor, weight: Sequence[torch.Tensor], bias: Sequence[torch.Tensor]) -> None:
    """Of tensors whose values may not be there."""
    out_features, in_features = weight[0].shape[-2:]
    if x.dim() < 1 or x.shape[-1] != in_features:
        raise ArgumentError(
            f"x: shape {list(x.shape)}, expected [..., {in_features}]; the last axis is the weights' input size"
        )
    if bias and bias[0].dim() > 0 and bias[0].shape[-1] != out_features:
        raise ArgumentError(
            f"bias: shape {list(bias[0].shape)}, expected [..., {out_features}]; the weights give so many values"
        )


def _grouped_linear(
    x: torch.Tensor,
    splits: torch.Tensor,
    weight: Sequence[torch.Tensor],
    bias: Sequence[torch.Tensor],
    weight_grad: Sequence[torch.Tensor],
    accumulate: bool,
    *,
    out: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    if not weight:
        raise ArgumentError("weight: no tensors; give a grouped one, or one for each expert")
    experts = num_experts(weight)
    splits = _linear_splits(splits, experts, x.device)
    stack = stack_of("weight", weight, 2, experts, x.device)
    _check_shapes(x, weight, bias)
    stack_of("bias", bias, 1, experts, x.device)
    y = place_for("out", out, (*x.shape[:-1], stack[2]), x, (x, splits, *weight, *bias))
    _linear_product(0, contiguous_rows("x", x), None, splits, stack, y.data_ptr())
    if bias:
        flat = y.view(-1, stack[2])
        all_biases = bias[0] if bias[0].dim() == 2 else torch.stack(list(bias))
        biases = all_biases.to(y.dtype)[_expert_of_rows(splits, flat.shape[0], x.device)]
        if out is None:
            flat += biases
        else:
            copy_rows(flat, flat + biases, splits)
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
) -> tuple[Optional[torch.Tensor], ...]:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format) if wanted[0] else None
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
    *,
    dgrad_out: Optional[torch.Tensor] = None,
) -> tuple[Optional[torch.Tensor], ...]:
    """The buffers are known to lie apart."""
    if not weight:
        raise ArgumentError("weight: no tensors; give a grouped one, or one for each expert")
    experts, out_features = num_experts(weight), weight[0].shape[-2]
    splits = _linear_splits(splits, experts, x.device)
    _check_shapes(x, weight, bias)
    check_like("the output's gradient", dout, (*x.shape[:-1], out_features), x)
    dout = contiguous_rows("the output's gradient", dout)
    allocates = [wanted[0] and dgrad_out is None, *wanted[1:]]
    dx, dw, db = _fake_grouped_linear_backward(dout, x, splits, weight, bias, weight_grad, accumulate, allocates)
    if wanted[0]:
        if dgrad_out is not None:
            dx = place_for("dgrad_out", dgrad_out, x.shape, x, (dout, x, splits, *weight, *weight_grad))
        # Its product reads no x.
        _linear_product(1, dout, dout, splits, stack_of("weight", weight, 2, experts, x.device), dx.data_ptr())
    if wanted[1]:
        x = contiguous_rows("x", x)
        grads = stack_of("weight_grad" if weight_grad else "weight", weight_grad or [dw], 2, experts, x.device)
        if weight_grad:
            check_buffers("weight_grad", weight_grad, grads, *weight[0].shape[-2:], dtype_name("x", x))
        _linear_product(2, x, dout, splits, grads, 0, accumulate and bool(weight_grad))
        was_written(weight_grad)
    if wanted[2]:
        # A product sums rows in one order, which index_add_ does not on a GPU.
        ones = dout.new_ones((math.prod(x.shape[:-1]), _ONES))
        sums = dout.new_empty((experts, out_features, _ONES), dtype=torch.float32)
        _linear_product(2, ones, dout, splits, stack_of("bias", [sums], 2, experts, x.device), 0)
        db.copy_(sums[:, :, 0])
    return dx, dw, db


@all_there
def _linear_backward_operator(dout: torch.Tensor, *rest: Any) -> tuple[Optional[torch.Tensor], ...]:
    check_apart(rest[4] if rest[6][1] else ())
    return _grouped_linear_backward(dout, *rest)


class _LinearContext:
    """As _MlpContext, of the grouped linear layer; lists are weight and bias."""

    @staticmethod
    def keep(
        ctx: Any, x: Any, splits: Any, lists: Sequence[Sequence[torch.Tensor]], buffers: Buffers, dgrad_out: Any = None
    ) -> None:
        weight, bias = lists
        ctx.buffers = buffers
        ctx.dgrad_out = dgrad_out
        ctx.is_transformed = is_transformed()
        ctx.lengths = [len(tensors) for tensors in lists]
        # The operator refuses to have no weights.
        ctx.like = [(t.shape, t.dtype) for t in (x, *weight[:1], *bias[:1])]
        ctx.set_materialize_grads(False)
        # What the gradients of others need is not kept for these, as other layers of torch do.
        kept_x = x if ctx.is_transformed or any(t.requires_grad for t in weight) else None
        kept = weight if ctx.is_transformed or x.requires_grad else ()
        ctx.save_for_backward(splits, kept_x, *kept)

    @staticmethod
    def grads(ctx: Any, needs: Sequence[Any], dout: Optional[torch.Tensor]) -> tuple[Any, list[Any], list[Any]]:
        splits, x, *weight = ctx.saved_tensors
        like_x, like_weight, *like_bias = ctx.like
        if dout is None:
            weight = [unread(splits, *like_weight)] * ctx.lengths[0]
            return None, weight_grads_of_nothing(ctx.buffers, weight, needs[1]), [None] * ctx.lengths[1]
        x = unread(dout, *like_x) if x is None else x
        weight = weight or [unread(dout, *like_weight)] * ctx.lengths[0]
        bias = [unread(dout, *like) for like in like_bias] * ctx.lengths[1]
        found, accumulate = found_buffers(ctx.buffers, needs[1])
        lists, wanted = (weight, bias, found), [needs[0], any(needs[1]), any(needs[2])]
        run = torch.ops.glu_ckpt.grouped_linear_backward
        if not ctx.is_transformed and are_plain(dout, lists):
            run = functools.partial(_grouped_linear_backward, dgrad_out=ctx.dgrad_out)
            if found:
                check_apart(found, ctx.buffers.owners)
        dx, dw, db = run(dout, x, splits, weight, bias, found, accumulate, wanted)
        dx = in_its_place(dx, ctx.dgrad_out, splits) if wanted[0] else None
        return dx, weight_grads(ctx.buffers, weight, dw, needs[1]), as_given(bias, db, needs[2])


def _keep_linear(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, splits, weight, bias, weight_grad, accumulate = inputs
    ctx.buffer_count = len(weight_grad)
    _LinearContext.keep(ctx, x, splits, (weight, bias), given_buffers(weight, weight_grad, accumulate))


@differentiated_once
def _linear_grads(ctx: Any, dout: Optional[torch.Tensor]) -> tuple[Any, ...]:
    needs = ctx.needs_input_grad
    dx, weights, biases = _LinearContext.grads(ctx, [needs[0], needs[2], needs[3]], dout)
    return dx, None, weights, biases, [None] * ctx.buffer_count, None


class _EagerLinear(torch.autograd.Function):
    """As _EagerMlp."""

    @staticmethod
    def forward(ctx: Any, lengths: Sequence[int], buffers: Buffers, places: Places, *flat: Any) -> torch.Tensor:
        x, splits = flat[:2]
        lists = listed_again(flat[2:], lengths)
        _LinearContext.keep(ctx, x, splits, lists, buffers, places.dgrad_out)
        if are_plain(x, lists):
            y = _grouped_linear(x, splits, *lists, (), True, out=places.out)
        else:
            y = torch.ops.glu_ckpt.grouped_linear(x, splits, *lists, (), True)
        return in_its_place(y, places.out, splits)

    @staticmethod
    @differentiated_once
    def backward(ctx: Any, dout: Optional[torch.Tensor]) -> tuple[Any, ...]:
        x, _, *flat = ctx.needs_input_grad[3:]
        dx, weights, biases = _LinearContext.grads(ctx, [x, *listed_again(flat, ctx.lengths)], dout)
        return None, None, None, dx, None, *weights, *biases


class _TransformedLinear(torch.autograd.Function):
    """As _TransformedMlp."""

    @staticmethod
    def forward(lengths: Sequence[int], buffers: Buffers, places: Places, *flat: Any) -> torch.Tensor:
        return torch.ops.glu_ckpt.grouped_linear(*flat[:2], *listed_again(flat[2:], lengths), (), True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        lengths, buffers, _, x, splits, *flat = inputs
        _LinearContext.keep(ctx, x, splits, listed_again(flat, lengths), buffers)

    backward = _EagerLinear.backward
    vmap = refuse_vmap


for _key in ("CPU", "CUDA"):
    _library.impl("grouped_linear", _grouped_linear, _key)
    _library.impl("grouped_linear_backward", _linear_backward_operator, _key)
torch.library.register_fake(
    "glu_ckpt::grouped_linear", lambda x, splits, weight, *rest: x.new_empty((*x.shape[:-1], weight[0].shape[-2]))
)
torch.library.register_fake("glu_ckpt::grouped_linear_backward", all_there(_fake_grouped_linear_backward))
torch.library.register_autograd("glu_ckpt::grouped_linear", _linear_grads, setup_context=_keep_linear)
for _name in ("grouped_linear", "grouped_linear_backward"):
    torch.library.register_vmap(f"glu_ckpt::{_name}", refuse_vmap)


def _eager_linear(
    x: torch.Tensor,
    splits: torch.Tensor,
    weights: list[torch.Tensor],
    biases: list[torch.Tensor],
    buffers: Buffers,
    places: Places,
) -> torch.Tensor:
    function = _EagerLinear
    if is_transformed():
        refuse_places(places)
        function = _TransformedLinear
    return function.apply((len(weights), len(biases)), buffers, places, x, splits, *weights, *biases)


_uncompiled_linear = outside_of_graphs(_eager_linear, ADDS_TO_MAIN_GRAD)
_linear_in_place = outside_of_graphs(_eager_linear, WRITES_IN_PLACE)


def linear_with_buffers(
    x: torch.Tensor,
    splits: Union[torch.Tensor, Sequence[int]],
    weights: list[torch.Tensor],
    biases: list[torch.Tensor],
    buffers: Buffers,
    places: Places = NOWHERE,
) -> torch.Tensor:
    """`grouped_linear` with lists of tensors, and any buffers for the weights' gradients."""
    check_tensor("x", x)
    x, weights, biases = autocast(x, weights, biases)
    splits = splits_of(splits, None)
    if not torch.compiler.is_compiling():
        return _eager_linear(x, splits, weights, biases, buffers, places)
    if places is not NOWHERE:
        return _linear_in_place(x, splits, weights, biases, buffers, places)
    if waits_for_hooks(buffers):
        return _uncompiled_linear(x, splits, weights, biases, buffers, places)
    return torch.ops.glu_ckpt.grouped_linear(x, splits, weights, biases, *found_at_forward(buffers))


def grouped_linear(
    x: torch.Tensor,
    splits: Union[torch.Tensor, Sequence[int]],
    weight: Union[Tensors, Mxfp8Tensor, Sequence[Mxfp8Tensor]],
    bias: Optional[Tensors] = None,
    *,
    weight_grad: Optional[Tensors] = None,
    accumulate: bool = True,
    out: Optional[torch.Tensor] = None,
    dgrad_out: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """One linear layer per expert, x W^T + b, with gradients of x, weights and biases.

    x: [..., in], rows sorted by expert.
    splits: rows of each expert: int64 [E] on x's GPU, where nothing waits and a CUDA graph replays with new ones; or a
        list, or a tensor on the CPU, which are checked. Both give the same bits.
    weight: [E, out, in], or E tensors [out, in], also in MXFP8. bias: [E, out], or E tensors.
    weight_grad, accumulate: as `fc1_grad` of `grouped_mlp`. out, dgrad_out: as those of `grouped_mlp`.

    Rows behind the last split belong to nobody, and hold anything. Autocast converts x, weights and biases.
    """
    check_tensor("x", x)
    weights = listed("weight", decoded_weights("weight", weight, x))
    buffers = given_buffers(weights, listed("weight_grad", weight_grad), accumulate)
    return linear_with_buffers(x, splits, weights, listed("bias", bias), buffers, places_of(out, dgrad_out))
