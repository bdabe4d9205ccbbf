"""Rows of FC1 permuted, and offsets of splits, as operators of torch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Optional

import torch

from . import _core, _tensors
from ._error import ArgumentError, Error
from ._operands import is_plain as _is_plain
from ._operands import place as _place
from ._weight_grads import was_written as _was_written

_library = torch.library.Library("glu_ckpt", "DEF")
_library.define("interleave(Tensor t, int k, int? axis=None) -> Tensor")
_library.define("deinterleave(Tensor t, int k, int? axis=None) -> Tensor")
# The same for tensors that need no gradient: torch's Python code for gradients takes half of a call's time.
_library.define("interleave_data(Tensor t, int k, int? axis=None) -> Tensor")
_library.define("deinterleave_data(Tensor t, int k, int? axis=None) -> Tensor")
_library.define("interleave_out(Tensor t, Tensor(a!) out, int k, int? axis=None) -> ()")
_library.define("deinterleave_out(Tensor t, Tensor(a!) out, int k, int? axis=None) -> ()")
_library.define("interleave_(Tensor(a!) t, int k, int? axis=None) -> ()")
_library.define("deinterleave_(Tensor(a!) t, int k, int? axis=None) -> ()")
_library.define("splits_to_offsets(Tensor splits, int[] strides, bool leading_zero, ScalarType dtype) -> Tensor[]")

_KEYS = ("CPU", "CUDA")
_change_at = _core.change_glu_order_at


def _is_unwatched(t: torch.Tensor) -> bool:
    """Whether nobody has to see the operator: no gradient, and not torch's way to make values of views that negate."""
    return not t.requires_grad and _is_plain(t) and not t.is_neg()


#: What `interleave` and `deinterleave` do, without the operator around it.
_changes: dict[str, Callable[..., torch.Tensor]] = {}


def _define_change(name: str, forward: bool) -> None:
    def change(t: torch.Tensor, k: int, axis: Optional[int] = None) -> torch.Tensor:
        out = torch.empty_like(t, memory_format=torch.contiguous_format)
        device, stream = _place(t)
        _change_at(t.data_ptr(), out.data_ptr(), t.shape, t.stride(), t.element_size(), device, k, forward, axis, stream)
        return out

    def change_out(t: torch.Tensor, out: torch.Tensor, k: int, axis: Optional[int] = None) -> None:
        _core.change_glu_order(t, out, k, forward, axis, _tensors._stream(t, None), 0)
        _was_written((out,))

    def change_in_place(t: torch.Tensor, k: int, axis: Optional[int] = None) -> None:
        if t.requires_grad and torch.is_grad_enabled():
            raise Error(
                f"{name}_: shape {list(t.shape)} requires a gradient, and no gradient flows through what works in place; "
                "give .data, or call it under torch.no_grad()"
            )
        device, stream = _place(t)
        _change_at(t.data_ptr(), None, t.shape, t.stride(), t.element_size(), device, k, forward, axis, stream)
        _was_written((t,))

    _changes[name] = change
    for key in _KEYS:
        _library.impl(name, change, key)
        _library.impl(f"{name}_data", change, key)
        _library.impl(f"{name}_out", change_out, key)
        _library.impl(f"{name}_", change_in_place, key)
    for made in (name, f"{name}_data"):
        torch.library.register_fake(
            f"glu_ckpt::{made}", lambda t, k, axis=None: torch.empty_like(t, memory_format=torch.contiguous_format)
        )
    torch.library.register_fake(f"glu_ckpt::{name}_out", lambda t, out, k, axis=None: None)
    torch.library.register_fake(f"glu_ckpt::{name}_", lambda t, k, axis=None: None)


_define_change("interleave", True)
_define_change("deinterleave", False)


def _register_gradients(name: str, back: str) -> None:
    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.k, ctx.axis = inputs[1], inputs[2]

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return getattr(torch.ops.glu_ckpt, back)(grad.contiguous(), ctx.k, ctx.axis), None, None

    torch.library.register_autograd(f"glu_ckpt::{name}", backward, setup_context=keep)


_register_gradients("interleave", "deinterleave")
_register_gradients("deinterleave", "interleave")


def _splits_to_offsets(
    splits: torch.Tensor, strides: list[int], leading_zero: bool, dtype: torch.dtype
) -> list[torch.Tensor]:
    length = splits.shape[0] + int(leading_zero)
    outs = [torch.empty(length, dtype=dtype, device=splits.device) for _ in strides]
    _core.splits_to_offsets(splits, outs, strides, leading_zero, _tensors._stream(splits, None))
    return outs


def _fake_splits_to_offsets(
    splits: torch.Tensor, strides: list[int], leading_zero: bool, dtype: torch.dtype
) -> list[torch.Tensor]:
    return [splits.new_empty(splits.shape[0] + int(leading_zero), dtype=dtype) for _ in strides]


for _key in _KEYS:
    _library.impl("splits_to_offsets", _splits_to_offsets, _key)
torch.library.register_fake("glu_ckpt::splits_to_offsets", _fake_splits_to_offsets)

_interleave = torch.ops.glu_ckpt.interleave.default
_deinterleave = torch.ops.glu_ckpt.deinterleave.default
_interleave_data = torch.ops.glu_ckpt.interleave_data.default
_deinterleave_data = torch.ops.glu_ckpt.deinterleave_data.default
_interleave_now, _deinterleave_now = _changes["interleave"], _changes["deinterleave"]


def interleave(
    t: torch.Tensor, k: int = 32, out: Optional[torch.Tensor] = None, *, axis: Optional[int] = None
) -> torch.Tensor:
    """FC1 from contiguous order to blocks of `k` gate rows and `k` up rows: `glu_ckpt.interleave`."""
    if out is None:
        if _is_unwatched(t):
            return _interleave_now(t, k, axis)
        return _interleave(t, k, axis) if t.requires_grad else _interleave_data(t, k, axis)
    torch.ops.glu_ckpt.interleave_out(t, out, k, axis)
    return out


def deinterleave(
    t: torch.Tensor, k: int = 32, out: Optional[torch.Tensor] = None, *, axis: Optional[int] = None
) -> torch.Tensor:
    """The way back from `interleave`: `glu_ckpt.deinterleave`."""
    if out is None:
        if _is_unwatched(t):
            return _deinterleave_now(t, k, axis)
        return _deinterleave(t, k, axis) if t.requires_grad else _deinterleave_data(t, k, axis)
    torch.ops.glu_ckpt.deinterleave_out(t, out, k, axis)
    return out


def interleave_(t: torch.Tensor, k: int = 32, *, axis: Optional[int] = None) -> torch.Tensor:
    """`interleave` where the tensor stands. A parameter's `.data`, or under `torch.no_grad()`."""
    torch.ops.glu_ckpt.interleave_(t, k, axis)
    return t


def deinterleave_(t: torch.Tensor, k: int = 32, *, axis: Optional[int] = None) -> torch.Tensor:
    """`deinterleave` where the tensor stands."""
    torch.ops.glu_ckpt.deinterleave_(t, k, axis)
    return t


def _on_first_axis(
    change: Callable[..., torch.Tensor], name: str, tensor: torch.Tensor, interleave_size: int
) -> torch.Tensor:
    if tensor.dim() < 1 or interleave_size < 1 or tensor.shape[0] % (2 * interleave_size):
        raise ArgumentError(
            f"{name}: shape {list(tensor.shape)} with interleave_size {interleave_size}: the first axis has to be a "
            "multiple of 2 * interleave_size, which is at least 1"
        )
    return change(tensor.contiguous(), interleave_size, axis=0)


def interleave_glu_tensor(tensor: torch.Tensor, interleave_size: int) -> torch.Tensor:
    """`interleave` under the name, with the arguments and on the first axis of TransformerEngine's function: for one
    expert's FC1. The result is always new memory. Raises ArgumentError, a ValueError, for what does not divide."""
    return _on_first_axis(interleave, "interleave_glu_tensor", tensor, interleave_size)


def deinterleave_glu_tensor(tensor: torch.Tensor, interleave_size: int) -> torch.Tensor:
    """`deinterleave` likewise. TransformerEngine's checks nothing in this direction; this one does."""
    return _on_first_axis(deinterleave, "deinterleave_glu_tensor", tensor, interleave_size)


def splits_to_offsets(
    splits: torch.Tensor, stride: Any = 1, *, leading_zero: bool = True, dtype: torch.dtype = torch.int64
) -> Any:
    """Prefix sums of `splits` times each stride: `glu_ckpt.splits_to_offsets`."""
    several = not isinstance(stride, int)
    outs = torch.ops.glu_ckpt.splits_to_offsets(splits, list(stride) if several else [stride], leading_zero, dtype)
    return outs if several else outs[0]
