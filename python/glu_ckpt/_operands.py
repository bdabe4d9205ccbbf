"""What the grouped MLP and the grouped linear layer have in common: operands as the kernels take them, checked, and
gradients as autograd wants them.

Weights and biases are lists: of one grouped tensor, or of one tensor for each expert.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

import torch

from ._error import Error

Tensors = Union[torch.Tensor, Sequence[torch.Tensor]]
#: Addresses, dtype, rows and columns.
Stack = tuple[list[int], str, int, int]
NO_STACK: Stack = ([], "BF16", 0, 1)

_DTYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
#: Rows of tensors begin at multiples of so many bytes where Hopper's matrix instructions read them.
_ALIGNMENT = 16


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


def are_plain(t: torch.Tensor, lists: Sequence[Sequence[torch.Tensor]]) -> bool:
    """The same of a tensor and of those that come with it; a list is of one type."""
    return is_plain(t) and all(not tensors or type(tensors[0]) in _PLAIN for tensors in lists)


def check_memory(name: str, t: torch.Tensor) -> None:
    """Values have to lie at the tensor's address: those of freed storages and of some subclasses do not, and those of a
    view that negates (`is_neg`) are others."""
    if t.data_ptr() == t.storage_offset() * t.element_size() and t.numel() > 0:
        raise Error(
            f"{name}: {type(t).__name__} of shape {list(t.shape)} has no memory of its own; its storage was freed, or it "
            "is of a subclass that keeps values elsewhere"
        )
    if t.is_neg():
        raise Error(f"{name}: shape {list(t.shape)} is a view that negates; give its resolve_neg()")


def dtype_name(name: str, t: torch.Tensor) -> str:
    try:
        return _DTYPES[t.dtype]
    except KeyError:
        raise Error(f"{name}: {t.dtype}; only bfloat16, float16 and float32 can be computed with") from None


def stack_of(name: str, tensors: Sequence[torch.Tensor], axes: int, experts: int, device: torch.device) -> Stack:
    """Tensors of all experts, each of so many axes or grouped with one more."""
    if not tensors:
        return NO_STACK
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
        check_memory(f"{name} {i}", t)
    rows, cols = (shape[0], shape[1]) if axes == 2 else (shape[0], 1)
    return [t.data_ptr() for t in tensors], dtype_name(name, first), rows, cols


def num_experts(tensors: Sequence[torch.Tensor]) -> int:
    return tensors[0].shape[0] if len(tensors) == 1 and tensors[0].dim() == 3 else len(tensors)


def check_like(name: str, t: torch.Tensor, shape: Sequence[int], x: torch.Tensor) -> None:
    """Whether it has this shape, and the dtype and device of x."""
    if tuple(t.shape) != tuple(shape) or t.dtype != x.dtype or t.device != x.device:
        raise Error(
            f"{name}: {t.dtype}, shape {list(t.shape)}, on {t.device}; expected {x.dtype}, shape {list(shape)}, on {x.device}"
        )


def contiguous_rows(name: str, t: torch.Tensor) -> torch.Tensor:
    """Contiguous rows that begin where kernels can read them."""
    t = t.resolve_neg()
    check_memory(name, t)
    t = t.contiguous()
    return t.clone() if t.is_cuda and t.data_ptr() % _ALIGNMENT else t


def check_vector(name: str, t: torch.Tensor, dtype: torch.dtype, length: int, device: torch.device) -> None:
    if t.dtype != dtype or t.shape != (length,) or t.device != device or not t.is_contiguous():
        raise Error(
            f"{name}: {t.dtype}, shape {list(t.shape)}, strides {list(t.stride())}, on {t.device}; a contiguous vector "
            f"of {length} {dtype} on {device} is needed"
        )
    check_memory(name, t)


def _grad_dtype(t: torch.Tensor, x: torch.Tensor) -> torch.dtype:
    """That of the tensor where it is written directly, else fp32, which is rounded afterwards."""
    return t.dtype if t.dtype in (x.dtype, torch.float32) else torch.float32


def new_grad(tensors: Sequence[torch.Tensor], x: torch.Tensor, axes: int, wanted: bool) -> torch.Tensor:
    if not wanted:
        return x.new_empty(0)
    first = tensors[0]
    shape = first.shape if first.dim() == axes + 1 else (len(tensors), *first.shape)
    return first.new_empty(shape, dtype=_grad_dtype(first, x))


_dummies: dict[Any, torch.Tensor] = {}


def _accumulated(owner: torch.Tensor, weight: torch.Tensor) -> Optional[torch.Tensor]:
    """What autograd gets for a weight whose gradient went to the caller's buffer: nothing; or, where Megatron-Core waits
    for hooks of the parameter, its owner, a tensor that nobody reads."""
    if not hasattr(owner, "grad_added_to_main_grad"):
        return None
    owner.grad_added_to_main_grad = True
    if getattr(owner, "zero_out_wgrad", False):
        return torch.zeros_like(weight)
    if not is_plain(weight):
        return torch.empty_like(weight, requires_grad=False)
    key = weight.shape, weight.dtype, weight.device
    if key not in _dummies:
        _dummies[key] = torch.empty_like(weight, requires_grad=False)
    return _dummies[key].detach()


def wanted_buffers(caller: Sequence[torch.Tensor], needed: Sequence[bool]) -> Sequence[torch.Tensor]:
    """The caller's buffers, but for weights that need no gradient others, which nobody reads."""
    if len(caller) != len(needed) or all(needed) or not any(needed):
        return caller
    return [t if need else torch.zeros_like(t) for t, need in zip(caller, needed)]


def check_apart(buffers: Sequence[torch.Tensor]) -> None:
    """Whether no two of the caller's buffers share memory: several are written at once."""
    spans = sorted((t.data_ptr(), t.numel() * t.element_size()) for t in buffers)
    for (begin, size), (following, _) in zip(spans, spans[1:]):
        if begin + size > following:
            raise Error(
                f"two of {len(spans)} buffers for weights' gradients share memory; tied weights need a buffer for each use"
            )


def as_given(tensors: Sequence[torch.Tensor], grad: torch.Tensor, needed: Sequence[bool]) -> list[Optional[torch.Tensor]]:
    """The gradient of all experts, as one or as one each."""
    if not any(needed):
        return [None] * len(tensors)
    parts = [grad] if grad.shape == tensors[0].shape else list(grad.unbind(0))
    return [part.to(t.dtype) if need else None for part, t, need in zip(parts, tensors, needed)]


def weight_grads(
    tensors: Sequence[torch.Tensor],
    owners: Sequence[torch.Tensor],
    caller: Sequence[torch.Tensor],
    grad: torch.Tensor,
    needed: Sequence[bool],
) -> list[Optional[torch.Tensor]]:
    """`owners` are the parameters that the weights are, or were converted from."""
    if caller:
        return [_accumulated(owner, t) if need else None for owner, t, need in zip(owners, tensors, needed)]
    return as_given(tensors, grad, needed)


class _NoSecondDerivative(torch.autograd.Function):
    """Gradients, whose own gradient raises."""

    @staticmethod
    def forward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return grads

    @staticmethod
    def backward(ctx: Any, *unused: Any) -> tuple[Any, ...]:
        raise RuntimeError("glu_ckpt's operators have no second derivative, but their gradients are differentiated")


def differentiated_once(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """torch's once_differentiable takes gradients for constants where the one that comes in is one, as a sum's is; a
    gradient penalty would then count for nothing."""

    @functools.wraps(backward)
    def run(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        with torch.no_grad():
            made = backward(ctx, *grads)
        # With create_graph=True.
        if not torch.is_grad_enabled():
            return made
        flat, spec = torch.utils._pytree.tree_flatten(made)
        at = [i for i, t in enumerate(flat) if isinstance(t, torch.Tensor)]
        refusing = _NoSecondDerivative.apply(*(flat[i].detach().requires_grad_() for i in at)) if at else ()
        for i, t in zip(at, refusing):
            flat[i] = t
        return torch.utils._pytree.tree_unflatten(flat, spec)

    return run


def flattened(lists: Sequence[Sequence[Any]]) -> list[Any]:
    return [t for tensors in lists for t in tensors]


def listed_again(flat: Sequence[Any], lengths: Sequence[int]) -> list[Sequence[Any]]:
    found, at = [], 0
    for length in lengths:
        found.append(flat[at : at + length])
        at += length
    return found


def listed(given: Optional[Tensors]) -> list[torch.Tensor]:
    if given is None:
        return []
    tensors = [given] if isinstance(given, torch.Tensor) else list(given)
    for t in tensors:
        if type(t) not in _PLAIN and hasattr(t, "placements"):
            raise TypeError(
                "a weight is a DTensor; apply fully_shard to the module whose forward is called, which gathers it"
            )
    return tensors


def autocast(x: torch.Tensor, *lists: list[torch.Tensor]) -> list[Any]:
    """x and lists of tensors in autocast's dtype, where that is on. Codes, complex numbers and float64 stay what they are,
    as torch's own layers leave them, and are refused later."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or not x.is_floating_point():
        return [x, *lists]
    dtype = torch.get_autocast_dtype(kind)
    converted = [[t.to(dtype) if t.dtype in _DTYPES else t for t in tensors] for tensors in ([x], *lists)]
    return [converted[0][0], *converted[1:]]


def splits_of(splits: Union[torch.Tensor, Sequence[int]], device: Optional[torch.device]) -> torch.Tensor:
    if not isinstance(splits, torch.Tensor):
        splits = torch.tensor(splits, device=device) if len(splits) else torch.zeros(0, dtype=torch.int64, device=device)
    if splits.is_floating_point() or splits.is_complex() or splits.dtype == torch.bool:
        raise Error(f"splits: {splits.dtype}, shape {list(splits.shape)}; give integers, the rows of each expert")
    return splits.to(device=device or splits.device, dtype=torch.int64)
