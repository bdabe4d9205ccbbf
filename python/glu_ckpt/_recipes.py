"""What recipes with 8 bits want of tokens and weights: padding behind each expert's rows, and MXFP8."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Union

import torch

from . import _core
from ._error import ArgumentError
from ._operands import check_memory, check_tensor, contiguous_rows, dtype_name, place, splits_of

_BLOCK = 32
_ELEMENTS = {torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2"}


def token_alignment(recipe: str = "none", *, grouped_tensor: bool = False) -> int:
    """Megatron's multiple of rows per expert for a recipe: "none" (0: no padding), "fp8" (16), "mxfp8" (32) or "fp4"
    (128); 256 for TransformerEngine's grouped tensors and op fuser, whatever the recipe."""
    return _core.token_alignment(recipe, grouped_tensor)


def _numbers(splits: Union[torch.Tensor, Sequence[int]]) -> list[int]:
    return splits_of(splits, None).tolist()


class _MovedTokens(torch.autograd.Function):
    """Rows with padding, or without it; the gradient goes the other way."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, splits: list[int], alignment: int, takes_off: bool) -> torch.Tensor:
        ctx.call = splits, alignment, takes_off
        padded = _core.padded_splits(splits, alignment)
        there, made = (sum(padded), sum(splits)) if takes_off else (sum(splits), sum(padded))
        if rows.dim() < 1 or rows.shape[0] != there:
            raise ArgumentError(f"shape {list(rows.shape)}; the splits take {there} rows{' with padding' * takes_off}")
        check_memory("rows", rows)
        given = rows.resolve_neg().contiguous()
        out = rows.new_empty((made, *rows.shape[1:]))
        row_bytes = math.prod(rows.shape[1:]) * rows.element_size()
        if row_bytes > 0:
            addresses = given.data_ptr(), out.data_ptr()
            _core.move_tokens(splits, alignment, row_bytes, *addresses, takes_off, *place(rows))
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        splits, alignment, takes_off = ctx.call
        return _MovedTokens.apply(grad, splits, alignment, not takes_off), None, None, None


def pad_tokens(
    rows: torch.Tensor, splits: Union[torch.Tensor, Sequence[int]], alignment: int
) -> tuple[torch.Tensor, list[int]]:
    """Adds rows of zeros behind each expert's, to a multiple of `alignment`, as TransformerEngine's Fp8Padding does.

    rows: [T, ...], sorted by expert, of any dtype: tokens, codes, probabilities. splits: rows of each expert; a tensor on
    a GPU is waited for. Returns the rows and the splits with padding; experts without rows get none. With gradients.
    """
    check_tensor("rows", rows)
    counts = _numbers(splits)
    return _MovedTokens.apply(rows, counts, alignment, False), _core.padded_splits(counts, alignment)


def unpad_tokens(rows: torch.Tensor, splits: Union[torch.Tensor, Sequence[int]], alignment: int) -> torch.Tensor:
    """Takes the rows away that `pad_tokens` added for the same splits and alignment, as Fp8Unpadding does."""
    check_tensor("rows", rows)
    return _MovedTokens.apply(rows, _numbers(splits), alignment, True)


def _grid(rows: int, cols: int, axis: str) -> tuple[int, int]:
    return (rows, cols // _BLOCK) if axis == "row" else (rows // _BLOCK, cols)


def _compact(rows: int, cols: int, axis: str) -> tuple[int, int]:
    """As TransformerEngine keeps scales."""
    multiples = (128, 4) if axis == "row" else (4, 128)
    return tuple(-(-extent // by) * by for extent, by in zip(_grid(rows, cols, axis), multiples))


class Mxfp8Tensor:
    """Matrices in MXFP8: each block of 32 elements has one power of two, as TransformerEngine makes them.

    codes: [..., R, C] of torch.float8_e4m3fn or float8_e5m2.
    scales: [..., R, C / 32] in bytes (E8M0), or [..., R / 32, C] where blocks lie along columns (axis="column"); or padded
        as TransformerEngine keeps them, to multiples of 128 along the axis without blocks and of 4 along the other.

    `grouped_mlp`, `grouped_linear` take one for the weights of all experts, or one each: [out, in], with blocks along
    rows. They are decoded in front of the product, to bfloat16 or float32 as x is, which is exact for scales of 2^-124 to
    2^119; no gradient comes to them.
    """

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor, *, axis: str = "row") -> None:
        for name, t in (("codes", codes), ("scales", scales)):
            check_tensor(name, t)
            check_memory(name, t)
        if axis not in ("row", "column"):
            raise ArgumentError(f"axis={axis!r}: blocks lie along a 'row' or a 'column'")
        if codes.dtype not in _ELEMENTS:
            raise ArgumentError(f"codes: {codes.dtype}; MXFP8 has torch.float8_e4m3fn or torch.float8_e5m2")
        if codes.dim() < 2:
            raise ArgumentError(f"codes: shape {list(codes.shape)}; matrices have two axes at least")
        rows, cols = codes.shape[-2:]
        if (cols if axis == "row" else rows) % _BLOCK:
            raise ArgumentError(f"codes: shape {list(codes.shape)}; blocks of {_BLOCK} along a {axis} do not divide it")
        grids = _grid(rows, cols, axis), _compact(rows, cols, axis)
        if scales.element_size() != 1 or scales.device != codes.device or scales.shape[:-2] != codes.shape[:-2]:
            grids = ()
        if tuple(scales.shape[-2:]) not in grids:
            raise ArgumentError(
                f"scales: {scales.dtype}, shape {list(scales.shape)}, on {scales.device}; expected bytes of shape "
                f"{[*codes.shape[:-2], *_grid(rows, cols, axis)]}, or padded {[*codes.shape[:-2], *_compact(rows, cols, axis)]}, "
                f"on {codes.device}"
            )
        self.codes, self.scales, self.axis = codes.detach().contiguous(), scales.detach().contiguous(), axis

    @property
    def shape(self) -> torch.Size:
        """That of the codes."""
        return self.codes.shape

    @property
    def device(self) -> torch.device:
        """That of codes and scales."""
        return self.codes.device

    def __repr__(self) -> str:
        return f"Mxfp8Tensor({list(self.shape)}, {self.codes.dtype}, blocks along a {self.axis}, on {self.device})"

    @staticmethod
    def quantize(
        values: torch.Tensor, *, axis: str = "row", dtype: torch.dtype = torch.float8_e4m3fn, padded: bool = False
    ) -> Mxfp8Tensor:
        """Rounds matrices of bfloat16, float16 or float32 with the bits of TransformerEngine's quantizer. padded: scales
        have the padding that TransformerEngine's have, with zeros in it."""
        check_tensor("values", values)
        if values.dim() < 2 or dtype not in _ELEMENTS:
            raise ArgumentError(f"values: shape {list(values.shape)} to {dtype}; give matrices, and a dtype of 8 bits")
        values = contiguous_rows("values", values.detach())
        grid = (_compact if padded else _grid)(*values.shape[-2:], axis)
        made = Mxfp8Tensor(
            torch.empty(values.shape, dtype=dtype, device=values.device),
            torch.zeros((*values.shape[:-2], *grid), dtype=torch.uint8, device=values.device),
            axis=axis,
        )
        for call, codes, scales, offset in made._calls():
            address = values.data_ptr() + offset * values.element_size()
            _core.mx_quantize(call, address, dtype_name("values", values), codes, scales, *place(values))
        return made

    def dequantize(self, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """The numbers, in bfloat16 or float32."""
        if dtype not in (torch.bfloat16, torch.float32):
            raise ArgumentError(f"{dtype}: MXFP8 decodes to bfloat16 or float32, which hold what it holds")
        values = torch.empty(self.shape, dtype=dtype, device=self.device)
        for call, codes, scales, offset in self._calls():
            address = values.data_ptr() + offset * values.element_size()
            _core.mx_dequantize(call, codes, scales, address, dtype_name("values", values), *place(self.codes))
        return values

    def swizzled_scales(self) -> torch.Tensor:
        """The scales in the order in which cuBLAS reads them, tiles of 128 x 4; padding is zero."""
        rows, cols = self.shape[-2:]
        grid = _grid(rows, cols, self.axis)
        padded = torch.zeros((*self.shape[:-2], *_compact(rows, cols, self.axis)), dtype=torch.uint8, device=self.device)
        padded[..., : grid[0], : grid[1]] = self.scales.view(torch.uint8)[..., : grid[0], : grid[1]]
        out = torch.empty_like(padded)
        size = math.prod(padded.shape[-2:])
        for i, (call, _, _, _) in enumerate(self._calls(each=True)):
            _core.mx_reorder(call, padded.data_ptr() + i * size, out.data_ptr() + i * size, False, *place(padded))
        return out

    def _calls(self, each: bool = False) -> list[tuple[Any, int, int, int]]:
        """Matrices for the kernels, with the addresses of their codes and scales and the element that they begin at: one
        where all together are one matrix, whose scales have no padding behind an expert's."""
        rows, cols = self.shape[-2:]
        count = math.prod(self.shape[:-2])
        if 0 in self.shape:
            return []
        scale_rows, step = self.scales.shape[-2:]
        if not each and scale_rows == _grid(rows, cols, self.axis)[0]:
            rows, count = rows * count, 1
        call = _core.MxMatrix(rows, cols, self.axis == "row", _ELEMENTS[self.codes.dtype], step)
        return [
            (call, self.codes.data_ptr() + i * rows * cols, self.scales.data_ptr() + i * scale_rows * step, i * rows * cols)
            for i in range(count)
        ]


def decoded_weights(name: str, given: Any, x: torch.Tensor) -> Any:
    """The weights as tensors, where they are in MXFP8."""
    several = list(given) if isinstance(given, (list, tuple)) else [given]
    if not any(issubclass(kind, Mxfp8Tensor) for kind in set(map(type, several))):
        return given
    decoded = []
    for t in several:
        if not isinstance(t, Mxfp8Tensor) or t.axis != "row":
            raise ArgumentError(f"{name}: {t!r:.80} beside or as MXFP8; all weights are in MXFP8 with blocks along rows, or none")
        decoded.append(t.dequantize(x.dtype))
    return decoded
