"""Where results go that the caller has memory for: gradients of weights to buffers, such as Megatron's `main_grad`, or to
autograd; the output and the gradient of x to the caller's tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Optional

import torch

from . import _core
from ._error import ArgumentError
from ._operands import PLAIN, Stack, as_given, copy_rows, is_plain


class GivenBuffers:
    """The buffers that a function was given for the weights of one layer. `owners` are the parameters that the weights
    are, or were converted from."""

    def __init__(self, owners: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], accumulate: bool) -> None:
        self.owners, self.tensors, self.accumulate = owners, tensors, accumulate

    def accumulates(self) -> bool:
        """Whether gradients are added to what is there."""
        return self.accumulate

    def of(self, needed: Sequence[bool]) -> Sequence[torch.Tensor]:
        """The buffers; for weights that need no gradient others, which nobody reads."""
        if all(needed):
            return self.tensors
        each = self.tensors[0].unbind(0) if len(self.tensors) == 1 else self.tensors
        return [t if need else torch.zeros_like(t) for t, need in zip(each, needed)]


class MainGrads:
    """`main_grad` of a module's weights. A framework may make it, or put another in its place, until the backward runs."""

    def __init__(self, owners: Sequence[torch.Tensor], is_first_microbatch: Optional[bool]) -> None:
        self.owners, self.is_first_microbatch = owners, is_first_microbatch

    def accumulates(self) -> bool:
        """As Megatron-Core and TransformerEngine say it, by the first weight."""
        return not self.is_first_microbatch and not getattr(self.owners[0], "overwrite_main_grad", False)

    def of(self, needed: Sequence[bool]) -> Sequence[torch.Tensor]:
        """As GivenBuffers.of."""
        if all(needed) and not torch.compiler.is_compiling() and not any_has("get_main_grad", self.owners):
            # As most have them, a layer's at once.
            grads = [getattr(owner, "main_grad", None) for owner in self.owners]
            if PLAIN.issuperset(map(type, grads)) and _core.have_same_shapes(grads, list(self.owners)):
                return grads
        found = {i: _main_grad(i, self.owners[i]) for i, need in enumerate(needed) if need}
        any_dtype = next(iter(found.values())).dtype
        return [
            found[i] if need else torch.zeros_like(weight, dtype=any_dtype, requires_grad=False)
            for i, (weight, need) in enumerate(zip(self.owners, needed))
        ]


def any_has(name: str, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether somebody gave one of them this attribute."""
    return any([hasattr(t, name) for t in tensors])  # A generator takes twice the time.


def _main_grad(i: int, weight: torch.Tensor) -> torch.Tensor:
    get = getattr(weight, "get_main_grad", None)
    grad = get() if get is not None else getattr(weight, "main_grad", None)
    if grad is None:
        raise RuntimeError(f"weight {i} of shape {list(weight.shape)} has no main_grad to add its gradient to")
    if grad.shape != weight.shape:
        if grad.numel() != weight.numel():
            raise RuntimeError(
                f"weight {i}: main_grad has {grad.numel()} elements, expected {weight.numel()}, as {list(weight.shape)}"
            )
        grad = grad.view(weight.shape)
    return grad


#: None: autograd's `.grad`.
Buffers = Optional[Any]


def given_buffers(owners: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], accumulate: bool) -> Buffers:
    return GivenBuffers(owners, tensors, accumulate) if tensors else None


def found_buffers(buffers: Buffers, needed: Sequence[bool]) -> tuple[Sequence[torch.Tensor], bool]:
    """The buffers that a backward writes, and whether it adds to them."""
    if buffers is None or not any(needed):
        return (), False
    return buffers.of(needed), buffers.accumulates()


def found_at_forward(buffers: Buffers) -> tuple[Sequence[torch.Tensor], bool]:
    """The same for a graph, whose backward has nothing but what its forward had."""
    if buffers is None or not torch.is_grad_enabled():
        return (), True
    if isinstance(buffers, GivenBuffers):
        return buffers.tensors, buffers.accumulate
    return found_buffers(buffers, [owner.requires_grad for owner in buffers.owners])


def found_for_both(
    layers: Sequence[Buffers], needed: Sequence[Sequence[bool]]
) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor], bool]:
    """The same of two layers that one backward writes, which adds to both or to none."""
    (one, adds_one), (two, adds_two) = (found_buffers(*each) for each in zip(layers, needed))
    if one and two and adds_one != adds_two:
        for t in two if adds_one else one:
            t.zero_()
    return one, two, adds_one or adds_two


def waits_for_hooks(buffers: Buffers) -> bool:
    """Whether Megatron-Core waits for hooks of these parameters."""
    return buffers is not None and any_has("grad_added_to_main_grad", buffers.owners)


# A graph that a stream captures may make one of these, in memory that then stays that graph's: it is never freed.
_dummies: dict[Any, torch.Tensor] = {}


def _accumulated(owner: torch.Tensor, weight: torch.Tensor) -> Optional[torch.Tensor]:
    """What autograd gets for a weight whose gradient went to a buffer: nothing; or, where Megatron-Core waits for hooks
    of the parameter, its owner, a tensor that nobody reads."""
    if not hasattr(owner, "grad_added_to_main_grad"):
        return None
    owner.grad_added_to_main_grad = True
    if getattr(owner, "zero_out_wgrad", False):
        return torch.zeros_like(weight, requires_grad=False)
    if not is_plain(weight):
        return torch.empty_like(weight, requires_grad=False)
    key = weight.shape, weight.dtype, weight.device
    if key not in _dummies:
        _dummies[key] = torch.empty_like(weight, requires_grad=False)
    return _dummies[key].detach()


def weight_grads(
    buffers: Buffers, tensors: Sequence[torch.Tensor], grad: Optional[torch.Tensor], needed: Sequence[bool]
) -> list[Optional[torch.Tensor]]:
    """For autograd, of one layer's weights; `grad` is the gradient of all, where it did not go to buffers."""
    if buffers is not None and not waits_for_hooks(buffers):
        return [None] * len(tensors)
    if buffers is not None:
        return [_accumulated(owner, t) if need else None for owner, t, need in zip(buffers.owners, tensors, needed)]
    return [None] * len(tensors) if grad is None else as_given(tensors, grad, needed)


def weight_grads_of_nothing(
    buffers: Buffers, tensors: Sequence[torch.Tensor], needed: Sequence[bool]
) -> list[Optional[torch.Tensor]]:
    """The same where no gradient of the output came in: buffers that are replaced become zero."""
    found, adds = found_buffers(buffers, needed)
    if not adds:
        for t in found:
            t.zero_()
    return weight_grads(buffers, tensors, None, needed)


_needs_grad = attrgetter("requires_grad")


def check_buffers(name: str, buffers: Sequence[torch.Tensor], found: Stack, rows: int, cols: int, dtype: str) -> None:
    """Whether gradients of weights of so many rows and columns can be written there; `dtype` is that of x."""
    if found[2] != rows or found[3] != cols:
        raise ArgumentError(
            f"{name}: matrices of {list(found[2:])}, expected those of the weights, [{rows}, {cols}]"
        )
    if found[1] != "F32" and found[1] != dtype:
        raise ArgumentError(f"{name}: {found[1]}; gradients are {dtype}, as x is, or F32")
    if any(map(_needs_grad, buffers)):
        raise ArgumentError(f"{name}: requires a gradient, as a gradient's buffer does not; give its detach()")


def check_apart(buffers: Sequence[torch.Tensor], weights: Sequence[torch.Tensor] = ()) -> None:
    """Whether buffers share memory neither with each other, as several are written at once, nor with weights."""
    buffers = list(buffers)
    if _core.overlap_each_other(buffers):
        raise ArgumentError(
            f"two of {len(buffers)} buffers for weights' gradients share memory; tied weights need a buffer for each use"
        )
    if buffers and _core.overlap(buffers, list(weights)):
        raise ArgumentError("a buffer for weights' gradients shares memory with a weight")


def owners_of(layers: Sequence[Buffers]) -> list[torch.Tensor]:
    return [owner for buffers in layers if buffers is not None for owner in buffers.owners]


def was_written(tensors: Sequence[torch.Tensor]) -> None:
    """For autograd, which has to know where a value that it saved is another now. Tensors of inference mode count nothing."""
    torch.autograd.graph.increment_version(tensors)


def in_its_place(made: torch.Tensor, given: Optional[torch.Tensor], splits: torch.Tensor) -> torch.Tensor:
    """What autograd gets of a result for which the caller may have given memory: another tensor at that address, since
    autograd marks what it gets."""
    if given is None:
        return made
    if made is not given:
        # Below a mode or a subclass of torch, an operator allocated it.
        copy_rows(given, made, splits)
    was_written([given])
    return given.detach()


ADDS_TO_MAIN_GRAD = (
    "the gradients of these parameters are added to main_grad and hooks are told so (grad_added_to_main_grad), which "
    "no graph can do; compile without fullgraph=True"
)
WRITES_IN_PLACE = "out and dgrad_out are written where they lie, outside of a graph; compile without fullgraph=True"


def outside_of_graphs(function: Callable[..., torch.Tensor], why: str) -> Callable[..., torch.Tensor]:
    """The function, at which torch.compile breaks its graph. As torch's own optimizers, without importing the compiler for
    those who do not compile."""

    @functools.wraps(function)
    def made(*arguments: Any) -> torch.Tensor:
        return function(*arguments)

    made = torch._disable_dynamo(made)
    made._torchdynamo_disable = True
    made._torchdynamo_disable_msg = why
    return made
