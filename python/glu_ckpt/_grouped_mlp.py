"""The grouped MLP as operators of torch, with their gradients.

The backward is an operator of its own, so that `torch.compile` sees two calls and no more. Nothing here waits for a GPU.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Optional, Union

import torch

from . import _core
from ._error import ArgumentError
from ._operands import (
    NO_STACK,
    NOWHERE,
    Places,
    Stack,
    Tensors,
    all_there,
    are_plain,
    as_given,
    autocast,
    check_like,
    check_tensor,
    contiguous_rows,
    differentiated_once,
    dtype_name,
    flattened,
    is_transformed,
    listed,
    listed_again,
    new_grad,
    num_experts,
    place,
    place_for,
    places_of,
    probs_of,
    refuse_places,
    refuse_vmap,
    splits_of,
    stack_of,
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
    found_for_both,
    given_buffers,
    in_its_place,
    outside_of_graphs,
    owners_of,
    waits_for_hooks,
    was_written,
    weight_grads,
    weight_grads_of_nothing,
)

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


def is_gated(activation: str) -> bool:
    return activation != "squared_relu"


def check_order(rows: int, k: int, activation: str) -> None:
    """Whether so many rows of FC1 can be in that order."""
    if k < 0:
        raise ArgumentError(f"k={k}: a block of FC1 has at least 1 row of gate; 0 is for all gate rows, then all up rows")
    if rows < 1:
        raise ArgumentError(f"fc1: {rows} rows; at least 1 is needed")
    multiple = 2 * max(k, 1) if is_gated(activation) else 1
    if rows % multiple != 0:
        order = f"interleaved:{k}" if k else "as many rows of up as of gate"
        raise ArgumentError(f"fc1: {rows} rows; {order} needs a multiple of {multiple}")


def make_call(
    dtype: str, experts: int, hidden: int, options: Sequence[Any], stacks: Sequence[Stack] = (NO_STACK,) * 4
) -> _core.MlpCall:
    """options: k, activation, alpha, limit, offset."""
    try:
        return _core.MlpCall(dtype, experts, hidden, *options, *stacks)
    except TypeError:
        given = ", ".join(f"{n}={v!r}" for n, v in zip(("k", "activation", "alpha", "limit", "offset"), options))
        raise ArgumentError(f"{given}: k is an integer of 64 bits, activation a name, the others are numbers") from None


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
        if not fc1 or not fc2 or x.dim() < 1:
            raise ArgumentError(
                f"x: shape {list(x.shape)}, {len(fc1)} tensors of fc1, {len(fc2)} of fc2; give rows of x, and fc1 and fc2 of "
                "at least one expert"
            )
        self.x = contiguous_rows("x", x)
        self.experts = num_experts(fc1)
        self.rows = math.prod(x.shape[:-1])
        self.device, self.stream = place(x)
        if probs is None:
            probs = torch.ones(self.rows, dtype=torch.float32, device=x.device)
        self.splits = vector("splits", splits, torch.int64, self.experts, x.device)
        self.probs = vector("probs", probs, torch.float32, self.rows, x.device)
        self.stacks = [
            stack_of(name, tensors, axes, self.experts, x.device)
            for name, tensors, axes in (("fc1", fc1, 2), ("fc2", fc2, 2), ("fc1_bias", fc1_bias, 1), ("fc2_bias", fc2_bias, 1))
        ]
        self.call = make_call(dtype_name("x", x), self.experts, x.shape[-1], options, self.stacks)
        check_order(self.stacks[0][2], *options[:2])
        for bias, layer in ((2, 0), (3, 1)):
            if self.stacks[bias][0] and self.stacks[bias][2] != self.stacks[layer][2]:
                raise ArgumentError(
                    f"fc{layer + 1}_bias: {self.stacks[bias][2]} values, expected {self.stacks[layer][2]}, the rows of "
                    f"fc{layer + 1}"
                )

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
    out: Optional[torch.Tensor] = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    step = _Step(x, splits, fc1, fc2, probs, fc1_bias, fc2_bias, options)
    out = place_for("out", out, x.shape, x, (x, splits, step.probs, *fc1, *fc2, *fc1_bias, *fc2_bias))
    z = _new_z(x, fc1, save)
    if step.device < 0:
        _core.mlp_host(step.call, *step.addresses(), out.data_ptr(), z.data_ptr() if save else 0)
        return out, z
    run = _core.device_mlp(step.call, step.device, step.stream)
    workspace = step.workspace(run.workspace_bytes(step.rows))
    run.run(*step.addresses(), out.data_ptr(), z.data_ptr() if save else 0, workspace.data_ptr())
    return out, z


def _new_z(x: torch.Tensor, fc1: Sequence[torch.Tensor], save: bool) -> torch.Tensor:
    """FC1's rows are its columns."""
    return x.new_empty((math.prod(x.shape[:-1]), fc1[0].shape[-2]) if save else (0,))


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
    return torch.empty_like(x, memory_format=torch.contiguous_format), _new_z(x, fc1, save)


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
) -> tuple[Optional[torch.Tensor], ...]:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format) if wanted[0] else None
    dprobs = x.new_empty(math.prod(x.shape[:-1]), dtype=torch.float32) if wanted[1] else None
    return (
        dx,
        dprobs,
        new_grad(fc1, x, 2, wanted[2] and not fc1_grad),
        new_grad(fc2, x, 2, wanted[3] and not fc2_grad),
        new_grad(fc1_bias, x, 1, wanted[4]),
        new_grad(fc2_bias, x, 1, wanted[5]),
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
    dgrad_out: Optional[torch.Tensor] = None,
) -> tuple[Optional[torch.Tensor], ...]:
    """The buffers are known to lie apart."""
    check_like("the output's gradient", dout, x.shape, x)
    x_is_unread = x is dout
    dout = contiguous_rows("the output's gradient", dout)
    step = _Step(dout if x_is_unread else x, splits, fc1, fc2, probs, fc1_bias, fc2_bias, options)
    if z is not None:
        check_like("z", z, (step.rows, fc1[0].shape[-2]), x)
        z = contiguous_rows("z", z)
    allocates = [wanted[0] and dgrad_out is None, *wanted[1:]]
    dx, *others = _fake_grouped_mlp_backward(
        dout, x, splits, fc1, fc2, probs, fc1_bias, fc2_bias, z, fc1_grad, fc2_grad, accumulate, allocates
    )
    if wanted[0] and dgrad_out is not None:
        read = (dout, x, splits, step.probs, *fc1, *fc2, *fc1_bias, *fc2_bias, *fc1_grad, *fc2_grad)
        dx = place_for("dgrad_out", dgrad_out, x.shape, x, read)
    made = dx, *others
    dprobs, dfc1, dfc2, *biases = others
    stacks, buffers = [], []
    for name, caller, grad, weights, want in (
        ("fc1_grad", fc1_grad, dfc1, step.stacks[0], wanted[2]), ("fc2_grad", fc2_grad, dfc2, step.stacks[1], wanted[3]),
    ):  # fmt: skip
        if not want:
            stacks.append(NO_STACK)
            continue
        stack = stack_of(name, caller or [grad], 2, step.experts, x.device)
        stacks.append(stack)
        if caller:
            check_buffers(name, caller, stack, weights[2], weights[3], dtype_name("x", x))
            buffers += caller
    for grad in biases:
        stacks.append(NO_STACK if grad is None else stack_of("bias", [grad], 1, step.experts, x.device))
    accumulate = accumulate and bool(buffers)
    # One of both is the caller's, and what is added to this one is all that it holds.
    for grad in (dfc1, dfc2):
        if accumulate and grad is not None:
            grad.zero_()
    call = _core.MlpGrads(step.call, *stacks, accumulate)
    addresses = (*step.addresses(), dout.data_ptr(), 0 if z is None else z.data_ptr(),
                 0 if dx is None else dx.data_ptr(), 0 if dprobs is None else dprobs.data_ptr())  # fmt: skip
    if step.device < 0:
        _core.mlp_backward_host(step.call, call, *addresses)
    else:
        run = _core.device_mlp_backward(step.call, call, step.device, step.stream)
        workspace = step.workspace(run.workspace_bytes(step.rows, z is None))
        run.run(*addresses, workspace.data_ptr())
    was_written(buffers)
    return made


@all_there
def _mlp_backward_operator(dout: torch.Tensor, *rest: Any) -> tuple[Optional[torch.Tensor], ...]:
    fc1_grad, fc2_grad, _, wanted = rest[8:12]
    check_apart([*(fc1_grad if wanted[2] else ()), *(fc2_grad if wanted[3] else ())])
    return _grouped_mlp_backward(dout, *rest)


class _MlpContext:
    """What a backward of the grouped MLP needs of its forward, in a context of autograd's."""

    @staticmethod
    def keep(
        ctx: Any,
        single: tuple[Any, ...],
        lists: Sequence[Sequence[torch.Tensor]],
        buffers: Sequence[Buffers],
        z: torch.Tensor,
        save: bool,
        options: Sequence[Any],
        dgrad_out: Optional[torch.Tensor] = None,
    ) -> None:
        """single: x, splits, probs. lists: fc1, fc2, fc1_bias, fc2_bias. buffers: of fc1 and fc2. options: the operator's,
        from k on."""
        x, splits, probs = single
        ctx.options = options
        ctx.dgrad_out = dgrad_out
        ctx.lengths = [len(tensors) for tensors in lists]
        # What a backward writes to is not what it saves: hooks of saved tensors would hand it copies.
        ctx.buffers = buffers
        ctx.is_transformed = is_transformed()
        ctx.mark_non_differentiable(z)
        ctx.set_materialize_grads(False)
        # With z at hand x is there for FC1's gradient alone.
        keeps_x = not save or ctx.is_transformed or any(t.requires_grad for t in lists[0])
        ctx.save_for_backward(x if keeps_x else None, splits, probs, z if save else None, *flattened(lists))

    @staticmethod
    def grads(ctx: Any, needs: Sequence[Any], dout: Optional[torch.Tensor]) -> tuple[Any, Any, list[list[Any]]]:
        """dx, dprobs and the lists of gradients; `needs` is of x, probs, and lists of the four lists'."""
        x, splits, probs, z, *flat = ctx.saved_tensors
        fc1, fc2, fc1_bias, fc2_bias = lists = listed_again(flat, ctx.lengths)
        if dout is None:
            weights = [weight_grads_of_nothing(*each) for each in zip(ctx.buffers, (fc1, fc2), needs[2:4])]
            return None, None, [*weights, [None] * len(fc1_bias), [None] * len(fc2_bias)]
        # Nothing reads it: something of its shape and dtype does.
        x = dout if x is None else x
        fc1_grad, fc2_grad, accumulate = found_for_both(ctx.buffers, needs[2:4])
        wanted = [needs[0], needs[1], *(any(each) for each in needs[2:])]
        run = torch.ops.glu_ckpt.grouped_mlp_backward
        if not ctx.is_transformed and are_plain(dout, (*lists, fc1_grad, fc2_grad)):
            run = functools.partial(_grouped_mlp_backward, dgrad_out=ctx.dgrad_out)
            if fc1_grad or fc2_grad:
                check_apart([*fc1_grad, *fc2_grad], owners_of(ctx.buffers))
        dx, dprobs, dfc1, dfc2, dfc1_bias, dfc2_bias = run(
            dout, x, splits, fc1, fc2, probs, fc1_bias, fc2_bias, z, fc1_grad, fc2_grad, accumulate, wanted, *ctx.options
        )
        made = [
            weight_grads(ctx.buffers[0], fc1, dfc1, needs[2]),
            weight_grads(ctx.buffers[1], fc2, dfc2, needs[3]),
            as_given(fc1_bias, dfc1_bias, needs[4]),
            as_given(fc2_bias, dfc2_bias, needs[5]),
        ]
        dx = in_its_place(dx, ctx.dgrad_out, splits) if wanted[0] else None
        return dx, dprobs if wanted[1] else None, made


def _keep_mlp(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, splits, fc1, fc2, probs, fc1_bias, fc2_bias, fc1_grad, fc2_grad, accumulate, save, *options = inputs
    ctx.buffer_counts = len(fc1_grad), len(fc2_grad)
    buffers = given_buffers(fc1, fc1_grad, accumulate), given_buffers(fc2, fc2_grad, accumulate)
    _MlpContext.keep(ctx, (x, splits, probs), (fc1, fc2, fc1_bias, fc2_bias), buffers, output[1], save, options)


@differentiated_once
def _mlp_grads(ctx: Any, dout: Optional[torch.Tensor], unused: Any) -> tuple[Any, ...]:
    needs = ctx.needs_input_grad
    dx, dprobs, lists = _MlpContext.grads(ctx, [needs[0], needs[4], needs[2], needs[3], needs[5], needs[6]], dout)
    main = [[None] * count for count in ctx.buffer_counts]
    return (dx, None, *lists[:2], dprobs, *lists[2:], *main, None, None, *(None for _ in ctx.options))


class _EagerMlp(torch.autograd.Function):
    """The same without torch.library's code for lists of tensors, which takes 0.7 ms a call, and 2 ms for 32 experts."""

    @staticmethod
    def forward(
        ctx: Any,
        lengths: Sequence[int],
        buffers: Sequence[Buffers],
        places: Places,
        save: bool,
        options: Sequence[Any],
        *flat: Any,
    ) -> torch.Tensor:
        x, splits, probs = flat[:3]
        fc1, fc2, *biases = lists = listed_again(flat[3:], lengths)
        run = torch.ops.glu_ckpt.grouped_mlp
        if are_plain(x, lists):
            run = functools.partial(_grouped_mlp, out=places.out)
        out, z = run(x, splits, fc1, fc2, probs, *biases, (), (), True, save, *options)
        _MlpContext.keep(ctx, flat[:3], lists, buffers, z, save, options, places.dgrad_out)
        return in_its_place(out, places.out, splits)

    @staticmethod
    @differentiated_once
    def backward(ctx: Any, dout: Optional[torch.Tensor], *unused: Any) -> tuple[Any, ...]:
        x, _, probs, *flat = ctx.needs_input_grad[5:]
        dx, dprobs, lists = _MlpContext.grads(ctx, [x, probs, *listed_again(flat, ctx.lengths)], dout)
        return None, None, None, None, None, dx, None, dprobs, *flattened(lists)


class _TransformedMlp(torch.autograd.Function):
    """The same in the form that transforms of torch.func ask for, which takes longer."""

    @staticmethod
    def forward(
        lengths: Sequence[int],
        buffers: Sequence[Buffers],
        places: Places,
        save: bool,
        options: Sequence[Any],
        *flat: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        fc1, fc2, *biases = listed_again(flat[3:], lengths)
        x, splits, probs = flat[:3]
        return torch.ops.glu_ckpt.grouped_mlp(x, splits, fc1, fc2, probs, *biases, (), (), True, save, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
        lengths, buffers, _, save, options, *flat = inputs
        _MlpContext.keep(ctx, tuple(flat[:3]), listed_again(flat[3:], lengths), buffers, output[1], save, options)

    backward = _EagerMlp.backward
    vmap = refuse_vmap


for _key in ("CPU", "CUDA"):
    _library.impl("grouped_mlp", _grouped_mlp, _key)
    _library.impl("grouped_mlp_backward", _mlp_backward_operator, _key)
torch.library.register_fake("glu_ckpt::grouped_mlp", _fake_grouped_mlp)
torch.library.register_fake("glu_ckpt::grouped_mlp_backward", all_there(_fake_grouped_mlp_backward))
torch.library.register_autograd("glu_ckpt::grouped_mlp", _mlp_grads, setup_context=_keep_mlp)
for _name in ("grouped_mlp", "grouped_mlp_backward"):
    torch.library.register_vmap(f"glu_ckpt::{_name}", refuse_vmap)


def _eager_mlp(
    lists: Sequence[Sequence[torch.Tensor]],
    buffers: Sequence[Buffers],
    places: Places,
    save: bool,
    options: Sequence[Any],
    *single: Any,
) -> torch.Tensor:
    lengths = [len(tensors) for tensors in lists]
    if is_transformed():
        refuse_places(places)
        return _TransformedMlp.apply(lengths, buffers, places, save, options, *single, *flattened(lists))[0]
    return _EagerMlp.apply(lengths, buffers, places, save, options, *single, *flattened(lists))


_uncompiled_mlp = outside_of_graphs(_eager_mlp, ADDS_TO_MAIN_GRAD)
_mlp_in_place = outside_of_graphs(_eager_mlp, WRITES_IN_PLACE)


def mlp_with_buffers(
    x: torch.Tensor,
    splits: Union[torch.Tensor, Sequence[int]],
    probs: Optional[torch.Tensor],
    lists: Sequence[list[torch.Tensor]],
    buffers: Sequence[Buffers],
    recompute: bool,
    options: Sequence[Any],
    places: Places = NOWHERE,
) -> torch.Tensor:
    """`grouped_mlp` with any buffers for the weights' gradients. lists: fc1, fc2, fc1_bias, fc2_bias; options: k,
    activation, alpha, limit, offset."""
    check_tensor("x", x)
    x, *lists = autocast(x, *lists)
    if probs is not None:
        probs = probs_of(probs)
    differentiable = flattened(([x], *lists, [probs] if probs is not None else []))
    save = not recompute and torch.is_grad_enabled() and any(t.requires_grad for t in differentiable)
    splits = splits_of(splits, x.device)
    if not torch.compiler.is_compiling():
        return _eager_mlp(lists, buffers, places, save, options, x, splits, probs)
    if places is not NOWHERE:
        return _mlp_in_place(lists, buffers, places, save, options, x, splits, probs)
    first, second = buffers
    differ = first is not None and second is not None and first.accumulates() != second.accumulates()
    if differ or waits_for_hooks(first) or waits_for_hooks(second):
        return _uncompiled_mlp(lists, buffers, places, save, options, x, splits, probs)
    (one, adds_one), (two, adds_two) = found_at_forward(first), found_at_forward(second)
    w1, w2, b1, b2 = lists
    out, _ = torch.ops.glu_ckpt.grouped_mlp(
        x, splits, w1, w2, probs, b1, b2, one, two, adds_one if one else adds_two, save, *options
    )
    return out


def grouped_mlp(
    x: torch.Tensor,
    splits: Union[torch.Tensor, Sequence[int]],
    fc1: Union[Tensors, Mxfp8Tensor, Sequence[Mxfp8Tensor]],
    fc2: Union[Tensors, Mxfp8Tensor, Sequence[Mxfp8Tensor]],
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
    out: Optional[torch.Tensor] = None,
    dgrad_out: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """The experts of one layer, p * (act(x W1^T + b1) W2^T + b2), with gradients of x, weights, biases and probs.

    x: [..., H], tokens sorted by expert, in bfloat16, float16 or float32; weights are of its dtype.
    splits: [E], rows of each expert, on x's device (else they are copied there).
    fc1: [E, 2F, H], gate and up, interleaved in blocks of `k` rows; 0: contiguous. Or E tensors [2F, H]. [E, F, H]
        without a gate. Gradients have the same order.
    fc2: [E, H, F], or E tensors [H, F]. Both may be in MXFP8.
    probs: [T], the router's; default 1. They multiply the activation, and FC2's bias.
    fc1_bias, fc2_bias: [E, 2F] and [E, H], or E tensors.
    activation, alpha, limit, offset: as for `glu_ckpt.grouped_mlp`.
    recompute: the backward computes FC1 again instead of keeping its output; with the same bits, but for orders that TMA
        cannot read (k neither a multiple of 8 nor a power of two), where its sums have another order.
    fc1_grad, fc2_grad: where the weights' gradients go instead of to `.grad`, as Megatron's `main_grad`: of the
        weights' shapes, float32 or x's dtype. They are added to what is there, or with accumulate=False replace it.
    out, dgrad_out: memory for the output, which is returned, and for the gradient of x, as TransformerEngine takes it:
        contiguous, of x's shape (of `grouped_linear` the output's), dtype and device, without a gradient of its own. Rows
        behind the last split keep what they hold. Other memory than what the call reads; autograd raises where a value
        that it saved was written over.

    Under autocast x, weights and biases are converted to its dtype, and the output has it. Rows behind the last split
    belong to nobody: of the output and of the gradients of x and probs they hold anything. On a GPU nothing waits, and
    wrong splits write nothing; on the CPU they raise Error.
    """
    check_tensor("x", x)
    fc1, fc2 = decoded_weights("fc1", fc1, x), decoded_weights("fc2", fc2, x)
    lists = [listed("fc1", fc1), listed("fc2", fc2), listed("fc1_bias", fc1_bias), listed("fc2_bias", fc2_bias)]
    buffers = (
        given_buffers(lists[0], listed("fc1_grad", fc1_grad), accumulate),
        given_buffers(lists[1], listed("fc2_grad", fc2_grad), accumulate),
    )
    options = k, activation, alpha, limit, offset
    return mlp_with_buffers(x, splits, probs, lists, buffers, recompute, options, places_of(out, dgrad_out))
