"""Functions on tensors in memory, of any library that speaks DLPack, without copies.

On a GPU they run on the caller's current stream and do not wait for it: torch's and cupy's current stream is found, and
`stream=` (an address, or an object of torch or cupy) names another. Of other libraries the stream is not known: then
they run on CUDA's default stream.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from . import _core
from ._error import Error

# Type checkers take it for true (see _commands.py).
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar, overload

    from typing_extensions import Unpack

    from . import results
    from ._options import DiffOptions, PathLike, Progress

    _Tensor = TypeVar("_Tensor")


def _library(tensor: Any) -> str:
    return type(tensor).__module__.partition(".")[0]


def _stream(tensor: Any, stream: Any) -> int | None:
    """The stream for a tensor, as DLPack counts them; None on the CPU."""
    library = _library(tensor)
    if library == "numpy" or (library == "torch" and not tensor.is_cuda):
        return None
    if stream is not None:
        # 0 is CUDA's default stream, which DLPack calls 1.
        return int(getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))) or 1
    if library == "torch":
        return sys.modules["torch"].cuda.current_stream(tensor.device).cuda_stream or 1
    if library == "cupy":
        return sys.modules["cupy"].cuda.get_current_stream().ptr or 1
    device = getattr(tensor, "__dlpack_device__", None)
    return None if device is None or device()[0] in (1, 3) else 1


def _empty(like: Any, shape: Sequence[int], dtype: str | None = None) -> Any:
    """Memory of the same library, on the same device; of the same dtype where none is given."""
    library = _library(like)
    if library == "numpy":
        numpy = sys.modules["numpy"]
        return numpy.empty(shape, dtype=dtype or like.dtype)
    if library == "torch":
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtype) if dtype else like.dtype, device=like.device)
    if library == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(like.device.id):
            return cupy.empty(shape, dtype=dtype or like.dtype)
    raise Error(f"{type(like).__module__}.{type(like).__name__}: give out=, memory of that library that can be written")


def _device_name(tensor: Any) -> str:
    """As torch spells it; empty where the tensor does not say."""
    device = getattr(tensor, "__dlpack_device__", None)
    if device is None:
        return ""
    kind, index = device()
    # Memory of the host that a GPU may read is of either.
    return {1: "cpu", 2: f"cuda:{index}"}.get(int(kind), "")


def _require_one_device(tensor: Any, out: Any) -> None:
    """Before `out` is asked to be shared on the other one's stream."""
    here, there = _device_name(tensor), _device_name(out)
    if here and there and here != there:
        raise Error(f"out: is on {there}, expected on {here}")


def _check_rows(k: Any) -> None:
    if not hasattr(k, "__index__"):
        raise Error(f"k: {type(k).__name__} {k!r}; give a whole number, the rows of a block")


def _changed(tensor: Any, k: int, out: Any, interleave: bool, axis: int | None, stream: Any, jobs: int) -> Any:
    _check_rows(k)
    if out is None:
        if not hasattr(tensor, "shape"):
            raise Error(f"t: {type(tensor).__name__} is no tensor; give one of numpy, torch or cupy, or give out=, too")
        out = _empty(tensor, tensor.shape)
    else:
        _require_one_device(tensor, out)
    _core.change_glu_order(tensor, out, k, interleave, axis, _stream(tensor, stream), jobs)
    return out


def interleave(
    t: _Tensor, k: int = 32, out: _Tensor | None = None, *, axis: int | None = None, stream: Any = None, jobs: int = 0
) -> _Tensor:
    """FC1 from contiguous order (F gate rows, then F up rows) to blocks of `k` gate rows and `k` up rows.

    t: [E, 2F, H], [2F, H] or a bias [2F], contiguous, of any dtype; `axis` says where the 2F rows are where that is
        something else, as 1 of a grouped bias [E, 2F].
    k: rows of a block; divides F.
    out: where to write: same shape, dtype and device, no overlap with `t`. Default: new memory of t's library.
    jobs: threads on the CPU; 0 for one per core.

    Returns `out`. Raises Error, with nothing written, for other shapes, dtypes, devices and strides, and for read-only
    memory.
    """
    return _changed(t, k, out, True, axis, stream, jobs)


def deinterleave(
    t: _Tensor, k: int = 32, out: _Tensor | None = None, *, axis: int | None = None, stream: Any = None, jobs: int = 0
) -> _Tensor:
    """The way back from `interleave`, with the same arguments."""
    return _changed(t, k, out, False, axis, stream, jobs)


def interleave_(
    t: _Tensor, k: int = 32, *, axis: int | None = None, stream: Any = None, jobs: int = 0
) -> _Tensor:
    """`interleave` where the tensor stands. Returns `t`.

    On a GPU the first call for new sizes uploads a small table; call it once before a CUDA graph captures it.
    """
    _check_rows(k)
    _core.change_glu_order_in_place(t, k, True, axis, _stream(t, stream), jobs)
    return t


def deinterleave_(
    t: _Tensor, k: int = 32, *, axis: int | None = None, stream: Any = None, jobs: int = 0
) -> _Tensor:
    """`deinterleave` where the tensor stands. Returns `t`."""
    _check_rows(k)
    _core.change_glu_order_in_place(t, k, False, axis, _stream(t, stream), jobs)
    return t


def splits_to_offsets(
    splits: Any, stride: Any = 1, *, leading_zero: bool = True, dtype: str = "int64", out: Any = None, stream: Any = None
) -> Any:
    """Where each group of rows begins: the prefix sums of `splits` [E] times `stride`, after one 0.

    splits: int32 or int64, contiguous.
    stride: a number, or several: then a list is returned, made in one launch.
    leading_zero: E + 1 numbers with it, E without.
    dtype: "int32" or "int64", of what is returned. `out` (a tensor, or a list of them) may be given instead.

    Raises Error for a sum that the dtype does not hold, on the CPU; on a GPU nothing waits, and such sums wrap.
    """
    several = isinstance(stride, Sequence)
    strides = list(stride) if several else [stride]
    if out is None:
        shape = (int(splits.shape[0]) + bool(leading_zero),)
        outs = [_empty(splits, shape, dtype) for _ in strides]
    else:
        outs = list(out) if several else [out]
    _core.splits_to_offsets(splits, outs, strides, leading_zero, _stream(splits, stream))
    return outs if several else outs[0]


def grouped_mlp(
    x: Any,
    splits: Any,
    fc1: Any,
    fc2: Any,
    *,
    k: int = 0,
    probs: Any = None,
    fc1_bias: Any = None,
    fc2_bias: Any = None,
    activation: str = "swiglu",
    alpha: float | None = None,
    limit: float | None = None,
    offset: float | None = None,
    out: Any = None,
    jobs: int = 0,
    stream: Any = None,
) -> Any:
    """The experts of one layer: p * (act(x W1^T + b1) W2^T + b2), with weights as they are stored.

    x: [..., H], the tokens, sorted by expert. BF16, F16 or F32; sums are fp32.
    splits: [E] int64, rows of each expert.
    fc1: [E, 2F, H], gate and up, interleaved in blocks of `k` rows; 0: contiguous. [E, F, H] without a gate.
    fc2: [E, H, F].
    probs: [T] float32, the router's; default 1.
    fc1_bias, fc2_bias: [E, 2F] and [E, H].
    activation: swiglu, clamped_swiglu, geglu_tanh, geglu_erf, quick_geglu, clamped_quick_geglu, reglu, glu, situ_glu
        or squared_relu (without a gate), with `alpha`, `limit` and `offset` as the program's options.

    The order of every sum depends on sizes alone, so equal weights in two layouts give equal bits. On a GPU the call
    allocates memory for what lies between the two products, and waits for its result.
    """
    if out is None:
        out = _empty(x, x.shape)
    if probs is None:
        rows = 1
        for extent in x.shape[:-1]:
            rows *= int(extent)
        probs = _empty(x, (rows,), "float32")
        probs.fill_(1.0) if _library(x) == "torch" else probs.fill(1.0)
    _core.grouped_mlp(
        x, splits, fc1, fc2, probs, out, fc1_bias, fc2_bias, k, activation, alpha, limit, offset, jobs, _stream(x, stream)
    )
    return out


if TYPE_CHECKING:

    @overload
    def diff(
        a: PathLike, b: PathLike, *, progress: Progress | None = None, **options: Unpack[DiffOptions]
    ) -> results.Diff: ...

    @overload
    def diff(a: Any, b: Any, *, stream: Any = None) -> results.ElementsDiff: ...


def diff(a: Any, b: Any, *, stream: Any = None, progress: Any = None, **options: Any) -> Any:
    """What differs between two tensors, or between two checkpoints where `a` and `b` are paths.

    Two tensors of one shape, dtype and device: {"equal", "elements", "differing", "first", "max_abs", "max_rel",
    "nan_in_one", "nan_in_both"}. Bits decide what differs; `first` is the flat index of the first difference, or None.
    On a GPU this waits for the stream.
    """
    if isinstance(a, (str, bytes, os.PathLike)):
        from ._commands import run

        return run("diff", [a, b], options, progress)
    if options or progress is not None:
        raise TypeError("diff of two tensors takes no options")
    return _core.diff_tensors(a, b, _stream(a, stream))
