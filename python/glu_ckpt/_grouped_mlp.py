"""The grouped MLP as operators of torch, with their gradients.

The backward is an operator of its own, so that `torch.compile` sees two calls and no more. Nothing here waits for a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional, Union

import torch

from . import _core
from ._error import Error
from ._operands import (
    NO_STACK,
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
        self.x = contiguous_rows("x", x)
        self.experts = num_experts(fc1)
        self.rows = math.prod(x.shape[:-1])
        self.device, self.stream = place(x)
        if probs is None:
            probs = torch.ones(self.rows, dtype=torch.float32, device=x.device)
        self.splits, self.probs = splits, probs
        check_vector("splits", splits, torch.int64, self.experts, x.device)
        check_vector("probs", probs, torch.float32, self.rows, x.device)
        stacks = [
            stack_of(name, tensors, axes, self.experts, x.device)
            for name, tensors, axes in (("fc1", fc1, 2), ("fc2", fc2, 2), ("fc1_bias", fc1_bias, 1), ("fc2_bias", fc2_bias, 1))
        ]
        self.call = _core.MlpCall(dtype_name("x", x), self.experts, x.shape[-1], *options, *stacks)

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
) -> tuple[torch.Tensor, ...]:
    step = _Step(x, splits, fc1, fc2, probs, fc1_bias, fc2_bias, options)
    check_like("the output's gradient", dout, x.shape, x)
    dout = contiguous_rows("the output's gradient", dout)
    if z is not None:
        check_like("z", z, (step.rows, fc1[0].shape[-2]), x)
        z = contiguous_rows("z", z)
    made = _fake_grouped_mlp_backward(
        dout, x, splits, fc1, fc2, probs, fc1_bias, fc2_bias, z, fc1_grad, fc2_grad, accumulate, wanted
    )
    dx, dprobs, *grads = made
    check_apart([*fc1_grad, *fc2_grad])
    accumulate = accumulate and bool(fc1_grad or fc2_grad)
    stacks = []
    for name, caller, grad, axes, want in zip(
        ("fc1_grad", "fc2_grad", "fc1_bias", "fc2_bias"), (fc1_grad, fc2_grad, (), ()), grads, (2, 2, 1, 1), wanted[2:]
    ):
        # One of both is the caller's, and what is added to this one is all that it holds.
        if want and not caller and axes == 2 and accumulate:
            grad.zero_()
        stacks.append(stack_of(name, caller or [grad], axes, step.experts, x.device) if want else NO_STACK)
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


class _MlpContext:
    """What a backward of the grouped MLP needs of its forward, in a context of autograd's."""

    @staticmethod
    def keep(
        ctx: Any,
        single: tuple[Any, ...],
        lists: Sequence[Sequence[torch.Tensor]],
        owners: Sequence[Sequence[torch.Tensor]],
        z: torch.Tensor,
        options: Sequence[Any],
    ) -> None:
        """single: x, splits, probs. lists: fc1, fc2, fc1_bias, fc2_bias, fc1_grad, fc2_grad. owners: the parameters of
        fc1 and fc2. options: the operator's, from `accumulate` on."""
        ctx.accumulate, save, *ctx.options = options
        ctx.lengths = [len(tensors) for tensors in lists]
        # What a backward writes to is not what it saves: hooks of saved tensors would hand it copies.
        ctx.buffers = lists[4:]
        ctx.owners = owners if lists[4] or lists[5] else ((), ())
        ctx.mark_non_differentiable(z)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*single, z if save else None, *flattened(lists[:4]))

    @staticmethod
    def grads(ctx: Any, needs: Sequence[Any], dout: Optional[torch.Tensor]) -> tuple[Any, Any, list[list[Any]]]:
        """dx, dprobs and the lists of gradients; `needs` is of x, probs, and lists of the four lists'."""
        x, splits, probs, z, *flat = ctx.saved_tensors
        fc1, fc2, fc1_bias, fc2_bias = lists = listed_again(flat, ctx.lengths[:4])
        if dout is None:
            return None, None, [[None] * len(tensors) for tensors in lists]
        fc1_grad, fc2_grad = (wanted_buffers(*each) for each in zip(ctx.buffers, needs[2:4]))
        wanted = [needs[0], needs[1], *(any(each) for each in needs[2:])]
        run = _grouped_mlp_backward if are_plain(dout, (*lists, *ctx.buffers)) else torch.ops.glu_ckpt.grouped_mlp_backward
        dx, dprobs, dfc1, dfc2, dfc1_bias, dfc2_bias = run(
            dout, x, splits, fc1, fc2, probs, fc1_bias, fc2_bias, z, fc1_grad, fc2_grad, ctx.accumulate, wanted,
            *ctx.options,
        )  # fmt: skip
        made = [
            weight_grads(fc1, ctx.owners[0], fc1_grad, dfc1, needs[2]),
            weight_grads(fc2, ctx.owners[1], fc2_grad, dfc2, needs[3]),
            as_given(fc1_bias, dfc1_bias, needs[4]),
            as_given(fc2_bias, dfc2_bias, needs[5]),
        ]
        return dx if wanted[0] else None, dprobs if wanted[1] else None, made


def _keep_mlp(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, splits, fc1, fc2, probs, fc1_bias, fc2_bias, fc1_grad, fc2_grad, *options = inputs
    lists = (fc1, fc2, fc1_bias, fc2_bias, fc1_grad, fc2_grad)
    _MlpContext.keep(ctx, (x, splits, probs), lists, (fc1, fc2), output[1], options)


@differentiated_once
def _mlp_grads(ctx: Any, dout: Optional[torch.Tensor], unused: Any) -> tuple[Any, ...]:
    needs = ctx.needs_input_grad
    dx, dprobs, lists = _MlpContext.grads(ctx, [needs[0], needs[4], needs[2], needs[3], needs[5], needs[6]], dout)
    main = [[None] * length for length in ctx.lengths[4:]]
    return (dx, None, *lists[:2], dprobs, *lists[2:], *main, None, None, *(None for _ in ctx.options))


class _EagerMlp(torch.autograd.Function):
    """The same without torch.library's code for lists of tensors, which takes 0.7 ms a call, and 2 ms for 32 experts."""

    @staticmethod
    def forward(
        ctx: Any, lengths: Sequence[int], owners: Sequence[Any], options: Sequence[Any], *flat: Any
    ) -> torch.Tensor:
        x, splits, probs = flat[:3]
        lists = listed_again(flat[3:], lengths)
        run = _grouped_mlp if are_plain(x, lists) else torch.ops.glu_ckpt.grouped_mlp
        out, z = run(x, splits, lists[0], lists[1], probs, *lists[2:], *options)
        _MlpContext.keep(ctx, (x, splits, probs), lists, owners, z, options)
        return out

    @staticmethod
    @differentiated_once
    def backward(ctx: Any, dout: Optional[torch.Tensor]) -> tuple[Any, ...]:
        x, _, probs, *flat = ctx.needs_input_grad[3:]
        needs = [x, probs, *listed_again(flat, ctx.lengths)[:4]]
        dx, dprobs, lists = _MlpContext.grads(ctx, needs, dout)
        return (None, None, None, dx, None, dprobs, *flattened(lists), *(None for _ in range(sum(ctx.lengths[4:]))))


for _key in ("CPU", "CUDA"):
    _library.impl("grouped_mlp", _grouped_mlp, _key)
    _library.impl("grouped_mlp_backward", _grouped_mlp_backward, _key)
torch.library.register_fake("glu_ckpt::grouped_mlp", _fake_grouped_mlp)
torch.library.register_fake("glu_ckpt::grouped_mlp_backward", _fake_grouped_mlp_backward)
torch.library.register_autograd("glu_ckpt::grouped_mlp", _mlp_grads, setup_context=_keep_mlp)


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
    w1, w2, b1, b2 = (listed(given) for given in (fc1, fc2, fc1_bias, fc2_bias))
    owners, main1, main2 = (w1, w2), listed(fc1_grad), listed(fc2_grad)
    x, w1, w2, b1, b2 = autocast(x, w1, w2, b1, b2)
    if probs is not None:
        probs = probs.reshape(-1).to(torch.float32)
    differentiable = [x, *w1, *w2, *b1, *b2] + ([probs] if probs is not None else [])
    save = not recompute and torch.is_grad_enabled() and any(t.requires_grad for t in differentiable)
    lists = (w1, w2, b1, b2, main1, main2)
    splits = splits_of(splits, x.device)
    options = (accumulate, save, k, activation, alpha, limit, offset)
    if not torch.compiler.is_compiling():
        lengths = [len(tensors) for tensors in lists]
        return _EagerMlp.apply(lengths, owners, options, x, splits, probs, *flattened(lists))
    out, _ = torch.ops.glu_ckpt.grouped_mlp(x, splits, w1, w2, probs, b1, b2, main1, main2, *options)
    return out
