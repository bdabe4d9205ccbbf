"""What the grouped MLP and the grouped linear layer have in common: operands as the kernels take them, checked, and
gradients as autograd wants them.

Weights and biases are lists: of one grouped tensor, or of one tensor for each expert.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn, Optional, Union

import torch

from . import _core
from ._error import ArgumentError

Tensors = Union[torch.Tensor, Sequence[torch.Tensor]]
#: Addresses, dtype, rows and columns.
Stack = tuple[list[int], str, int, int]
NO_STACK: Stack = ([], "BF16", 0, 1)

_DTYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
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
        and not t.is_meta
        and _modes() == 0
        and _transforms() is None
    )


def is_transformed() -> bool:
    """Whether a transform of torch.func is at work."""
    return _transforms() is not None


def refuse_vmap(*unused: Any) -> Any:
    """What vmap finds for the operators."""
    raise ArgumentError("glu_ckpt's operators cannot be batched by vmap; give all rows in one call, sorted by expert")


def are_plain(t: torch.Tensor, lists: Sequence[Sequence[torch.Tensor]]) -> bool:
    """The same of a tensor and of those that come with it; a list is of one type."""
    return is_plain(t) and all(not tensors or type(tensors[0]) in PLAIN for tensors in lists)


def check_memory(name: str, t: torch.Tensor) -> None:
    """Values have to lie at the tensor's address: those of freed storages and of some subclasses do not, and those of a
    view that negates (`is_neg`) are others."""
    try:
        address = t.data_ptr()
    except RuntimeError:
        raise ArgumentError(
            f"{name}: a tensor without memory of its own, layout {t.layout}; sparse tensors, and those of vmap and "
            "is_grads_batched=True, cannot be computed with"
        ) from None
    if address == t.storage_offset() * t.element_size() and t.numel() > 0:
        raise ArgumentError(
            f"{name}: {type(t).__name__} of shape {list(t.shape)} has no memory of its own; its storage was freed, or it "
            "is of a subclass that keeps values elsewhere"
        )
    if t.is_neg():
        raise ArgumentError(f"{name}: shape {list(t.shape)} is a view that negates; give its resolve_neg()")


def check_dtype(name: str, dtype: torch.dtype) -> None:
    if dtype not in _DTYPES:
        raise ArgumentError(f"{name}: {dtype}; only bfloat16, float16 and float32 can be computed with")


def dtype_name(name: str, t: torch.Tensor) -> str:
    try:
        return _DTYPES[t.dtype]
    except KeyError:
        check_dtype(name, t.dtype)
        raise


def stack_of(name: str, tensors: Sequence[torch.Tensor], axes: int, experts: int, device: torch.device) -> Stack:
    """Tensors of all experts, each of so many axes or grouped with one more."""
    if not tensors:
        return NO_STACK
    first = tensors[0]
    shape = first.shape[-axes:]
    grouped = len(tensors) == 1 and first.dim() == axes + 1
    if (first.shape[0] if grouped else len(tensors)) != experts or (not grouped and first.dim() != axes):
        count = f"{len(tensors)} of shape {list(first.shape)}" if len(tensors) > 1 else f"shape {list(first.shape)}"
        raise ArgumentError(f"{name}: {count}; give one tensor of {axes + 1} axes for {experts} experts, or {experts} of {axes}")
    rows, cols = shape if axes == 2 else (shape[0], 1)
    if len(tensors) == 1 and first.device == device and first.is_contiguous():
        check_memory(name, first)
        return [first.data_ptr()], dtype_name(name, first), rows, cols
    addresses = _core.alike_addresses(list(tensors)) if first.device == device else None
    if addresses is None or _lacks_memory(tensors, addresses):
        _refuse_one(name, tensors, device)
    return addresses, dtype_name(name, first), rows, cols


#: No memory lies below; the addresses of freed storages are distances from 0, which are smaller.
_LOWEST_ADDRESS = 1 << 44


def _lacks_memory(tensors: Sequence[torch.Tensor], addresses: Sequence[int]) -> bool:
    """Whether check_memory refuses one of them."""
    if min(addresses) < _LOWEST_ADDRESS:
        offsets = map(tensors[0].element_size().__mul__, map(torch.Tensor.storage_offset, tensors))
        if any(map(operator.eq, addresses, offsets)):
            return True
    return any(map(torch.Tensor.is_neg, tensors))


def _refuse_one(name: str, tensors: Sequence[torch.Tensor], device: torch.device) -> NoReturn:
    """The error of the first tensor that is not like the others, or lacks memory."""
    first = tensors[0]
    for i, t in enumerate(tensors):
        if t.device != device or t.dtype != first.dtype or t.shape != first.shape or not t.is_contiguous():
            raise ArgumentError(
                f"{name} {i}: {t.dtype}, shape {list(t.shape)}, strides {list(t.stride())}, on {t.device}; a contiguous "
                f"tensor of {first.dtype} and shape {list(first.shape)} on {device} is needed"
            )
        check_memory(f"{name} {i}", t)
    raise ArgumentError(f"{name}: {len(tensors)} tensors of {first.dtype}, which DLPack does not describe")


def num_experts(tensors: Sequence[torch.Tensor]) -> int:
    return tensors[0].shape[0] if len(tensors) == 1 and tensors[0].dim() == 3 else len(tensors)


def check_like(name: str, t: torch.Tensor, shape: Sequence[int], x: torch.Tensor) -> None:
    """Whether it has this shape, and the dtype and device of x."""
    if tuple(t.shape) != tuple(shape) or t.dtype != x.dtype or t.device != x.device:
        raise ArgumentError(
            f"{name}: {t.dtype}, shape {list(t.shape)}, on {t.device}; expected {x.dtype}, shape {list(shape)}, on {x.device}"
        )


class Places(NamedTuple):
    """The caller's memory for the output and for the gradient of x; without it both are allocated."""

    out: Optional[torch.Tensor] = None
    dgrad_out: Optional[torch.Tensor] = None


NOWHERE = Places()


def places_of(out: Optional[torch.Tensor], dgrad_out: Optional[torch.Tensor]) -> Places:
    for name, t in (("out", out), ("dgrad_out", dgrad_out)):
        if t is not None:
            check_tensor(name, t)
    return Places(out, dgrad_out) if out is not None or dgrad_out is not None else NOWHERE


def refuse_places(places: Places) -> None:
    """For calls below a transform of torch.func, in which no value has an address."""
    for name, t in zip(Places._fields, places):
        if t is not None:
            raise ArgumentError(f"{name}: a transform of torch.func writes to no memory of the caller's")


def _extent(t: torch.Tensor) -> int:
    """Bytes from its first value to behind its last one. An expanded tensor has more values than memory."""
    if t.numel() == 0:
        return 0
    return (1 + sum((length - 1) * stride for length, stride in zip(t.shape, t.stride()))) * t.element_size()


def place_for(
    name: str, given: Optional[torch.Tensor], shape: Sequence[int], x: torch.Tensor, read: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Memory for a result of this shape and of x's dtype, on its device: what the caller gave, else new one. `read` is
    what the caller gave for reading, none of which may lie there. TransformerEngine checks in this order, too."""
    if given is None:
        return x.new_empty(tuple(shape))
    if tuple(given.shape) != tuple(shape):
        raise ArgumentError(f"{name}: shape {list(given.shape)}, expected {list(shape)}")
    check_like(name, given, shape, x)
    if not given.is_contiguous():
        raise ArgumentError(f"{name}: strides {list(given.stride())} of shape {list(shape)}; give contiguous memory")
    if given.requires_grad:
        raise ArgumentError(f"{name}: requires a gradient, as memory for results does not; give its detach()")
    check_memory(name, given)
    begin, end = given.data_ptr(), given.data_ptr() + given.nbytes
    for t in read:
        first = t.data_ptr()
        if begin < first + _extent(t) and first < end:
            raise ArgumentError(f"{name}: shares memory with a tensor of shape {list(t.shape)} that the call reads")
    # in_its_place() copies to memory in which rows begin where no kernel writes them.
    return x.new_empty(tuple(shape)) if given.is_cuda and begin % _ALIGNMENT else given


def copy_rows(into: torch.Tensor, made: torch.Tensor, splits: torch.Tensor) -> None:
    """Copies the rows of experts and leaves those behind them, for results that something else had to allocate."""
    rows = torch.arange(math.prod(into.shape[:-1]), device=into.device) < splits.to(into.device).sum()
    into.copy_(torch.where(rows.view(*into.shape[:-1], 1), made, into))


def contiguous_rows(name: str, t: torch.Tensor) -> torch.Tensor:
    """Contiguous rows that begin where kernels can read them."""
    t = t.resolve_neg()
    check_memory(name, t)
    t = t.contiguous()
    return t.clone() if t.is_cuda and t.data_ptr() % _ALIGNMENT else t


def vector(name: str, t: torch.Tensor, dtype: torch.dtype, length: int, device: torch.device) -> torch.Tensor:
    """t, contiguous, if it has this length, dtype and device."""
    if t.dtype != dtype or t.shape != (length,) or t.device != device:
        raise ArgumentError(
            f"{name}: {t.dtype}, shape {list(t.shape)}, on {t.device}; a vector of {length} {dtype} on {device} is needed"
        )
    check_memory(name, t)
    return t.contiguous()


def _grad_dtype(t: torch.Tensor, x: torch.Tensor) -> torch.dtype:
    """That of the tensor where it is written directly, else fp32, which is rounded afterwards."""
    return t.dtype if t.dtype in (x.dtype, torch.float32) else torch.float32


def new_grad(tensors: Sequence[torch.Tensor], x: torch.Tensor, axes: int, wanted: bool) -> Optional[torch.Tensor]:
    """Memory for the gradient of all experts, where it is wanted."""
    if not wanted:
        return None
    first = tensors[0]
    shape = first.shape if first.dim() == axes + 1 else (len(tensors), *first.shape)
    return first.new_empty(shape, dtype=_grad_dtype(first, x))


def all_there(function: Callable[..., Sequence[Optional[torch.Tensor]]]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The same as torch's operators have it, which give tensors only: empty ones for those that are not wanted."""

    @functools.wraps(function)
    def run(dout: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
        return tuple(dout.new_empty(0) if t is None else t for t in function(dout, *rest))

    return run


def as_given(tensors: Sequence[torch.Tensor], grad: Any, needed: Sequence[bool]) -> list[Optional[torch.Tensor]]:
    """The gradient of all experts, as one or as one each."""
    if not any(needed):
        return [None] * len(tensors)
    parts = [grad] if grad.shape == tensors[0].shape else list(grad.unbind(0))
    return [part.to(t.dtype) if need else None for part, t, need in zip(parts, tensors, needed)]


def unread(like: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """What stands for a tensor that was not saved, since a backward needs nothing of it but its shape and dtype."""
    return like.new_empty((), dtype=dtype).expand(tuple(shape))


class _NoSecondDerivative(torch.autograd.Function):
    """Gradients, whose own gradient raises. `inputs` are what they depend on."""

    @staticmethod
    def forward(inputs: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tensors[inputs:]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *unused: Any) -> tuple[Any, ...]:
        raise RuntimeError("glu_ckpt's operators have no second derivative, but their gradients are differentiated")


def differentiated_once(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """torch's once_differentiable takes gradients for constants where the one that comes in is one, as a sum's is; a
    gradient penalty would then count for nothing."""

    @functools.wraps(backward)
    def run(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        if not torch.is_grad_enabled():
            return backward(ctx, *grads)
        # With create_graph=True, or below a transform of torch.func.
        with torch.no_grad():
            made = backward(ctx, *grads)
        flat, spec = torch.utils._pytree.tree_flatten(made)
        at = [i for i, t in enumerate(flat) if isinstance(t, torch.Tensor)]
        if not is_transformed():
            inputs, values = [], [flat[i].detach().requires_grad_() for i in at]
        else:
            # Which let nobody call requires_grad_(); but what the gradients depend on is all there.
            inputs, values = [t for t in (*ctx.saved_tensors, *grads) if t is not None], [flat[i] for i in at]
        refusing = _NoSecondDerivative.apply(len(inputs), *inputs, *values) if at else ()
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


def check_tensor(name: str, t: Any) -> None:
    if not isinstance(t, torch.Tensor):
        raise ArgumentError(f"{name}: {type(t).__name__}; give a torch tensor")


def listed(name: str, given: Optional[Tensors]) -> list[torch.Tensor]:
    if given is None:
        return []
    tensors = [given] if isinstance(given, torch.Tensor) or not isinstance(given, Iterable) else list(given)
    if not PLAIN.issuperset(map(type, tensors)):
        for t in tensors:
            check_tensor(name, t)
            if hasattr(t, "placements"):
                raise TypeError(
                    "a weight is a DTensor; apply fully_shard to the module whose forward is called, which gathers it"
                )
    return tensors


def autocast(x: torch.Tensor, *lists: list[torch.Tensor]) -> list[Any]:
    """x and lists of tensors in autocast's dtype, where that is on. Codes, complex numbers and float64 stay what they are,
    as torch's own layers leave them, and are refused later."""
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind) or not x.is_floating_point():
        return [x, *lists]
    dtype = torch.get_autocast_dtype(kind)
    converted = [[t.to(dtype) if t.dtype in _DTYPES else t for t in tensors] for tensors in ([x], *lists)]
    return [converted[0][0], *converted[1:]]


def probs_of(probs: Any) -> torch.Tensor:
    """[T], fp32."""
    check_tensor("probs", probs)
    if probs.is_complex():
        raise ArgumentError(f"probs: {probs.dtype}; give real numbers")
    return probs if probs.dtype == torch.float32 and probs.dim() == 1 else probs.reshape(-1).to(torch.float32)


def splits_of(splits: Any, device: Optional[torch.device]) -> torch.Tensor:
    """int64, on that device, or where they are."""
    if isinstance(splits, torch.Tensor):
        if splits.dtype == torch.int64 and (device is None or splits.device == device):
            return splits
    else:
        if not hasattr(splits, "__len__"):
            raise ArgumentError(f"splits: {type(splits).__name__}; give integers, the rows of each expert")
        splits = torch.tensor(splits, device=device) if len(splits) else torch.zeros(0, dtype=torch.int64, device=device)
    if splits.is_floating_point() or splits.is_complex() or splits.dtype == torch.bool:
        raise ArgumentError(f"splits: {splits.dtype}, shape {list(splits.shape)}; give integers, the rows of each expert")
    return splits.to(device=device or splits.device, dtype=torch.int64)
