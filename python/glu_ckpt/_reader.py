"""Tensors of a checkpoint, by name."""

from __future__ import annotations

import os
from collections import namedtuple
from collections.abc import Mapping

from . import _core
from ._error import Error

# Type checkers take it for true (see _commands.py).
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NamedTuple

    import numpy
    import torch

#: Where names of dtypes differ between safetensors and numpy; numpy has no others.
_NUMPY = {"BOOL", "U8", "I8", "I16", "U16", "F16", "I32", "U32", "F32", "C64", "F64", "I64", "U64"}
#: What torch calls the dtypes for which libraries disagree about DLPack.
_TORCH = {
    "BF16": "bfloat16",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "BOOL": "bool",
}


if TYPE_CHECKING:

    class TensorInfo(NamedTuple):
        """What the headers say of a tensor. `dtype` is safetensors' word; `bytes` are those of the whole tensor."""

        dtype: str
        shape: tuple[int, ...]
        bytes: int
        file: str

else:
    TensorInfo = namedtuple("TensorInfo", "dtype shape bytes file")


class TensorHandle:
    """One tensor of an open checkpoint. Its bytes are read when a library takes it, or mapped where they lie as they are.

    `numpy.from_dlpack(handle)` and `torch.from_dlpack(handle)` take it without a copy. Memory that is written to becomes
    this process's own; the file is never changed.
    """

    def __init__(self, reader: _core.Reader, name: str) -> None:
        self._reader = reader
        self.name = name
        self.info = TensorInfo(*reader.describe(name))

    @property
    def dtype(self) -> str:
        """As safetensors spells it: "BF16"."""
        return self.info.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements on each axis."""
        return self.info.shape

    def __dlpack__(self, **words: Any) -> Any:
        return self._reader.tensor(self.name, False).__dlpack__(**words)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def numpy(self, raw: bool = False) -> numpy.ndarray:
        """The tensor as a numpy array.

        numpy has no BF16 and no floats of fewer bits: for them this raises Error, unless `raw` asks for the bits, as
        unsigned integers of the same size (of 4-bit and 6-bit floats: the packed bytes, on one axis).
        """
        import numpy

        if not raw and self.dtype not in _NUMPY:
            raise Error(
                f"{self.name}: {self.dtype} is no dtype of numpy; raw=True gives its bits, .torch() a tensor",
                "not-supported",
                3,
                tensor=self.name,
            )
        taken = self._reader.tensor(self.name, raw or self.dtype == "BOOL")
        array = numpy.from_dlpack(taken)
        return array.view(numpy.bool_) if self.dtype == "BOOL" and not raw else array

    def torch(self, raw: bool = False) -> torch.Tensor:
        """The tensor as a torch tensor on the CPU; with `raw` its bits, as unsigned integers."""
        import torch

        as_bits = raw or self.dtype in _TORCH
        tensor = torch.from_dlpack(self._reader.tensor(self.name, as_bits))
        return tensor.view(getattr(torch, _TORCH[self.dtype])) if as_bits and not raw else tensor

    def __repr__(self) -> str:
        return f"<{self.name}: {self.dtype} {list(self.shape)}>"


class Checkpoint(Mapping[str, TensorHandle]):
    """An open checkpoint: a mapping from names to tensors, in the order of the files. Pickles are parsed, never run."""

    def __init__(self, path: str | bytes | os.PathLike[str]) -> None:
        self._reader = _core.Reader(os.fsencode(path))
        self._names: dict[str, None] = dict.fromkeys(self._reader.names())

    @property
    def format(self) -> str:
        """How it is stored: "safetensors", "torch" or "torch-dist"."""
        return self._reader.format

    @property
    def metadata(self) -> dict[str, str]:
        """The entries of safetensors' `__metadata__`."""
        return self._reader.metadata()

    def info(self, name: str) -> TensorInfo:
        """What the headers say of a tensor."""
        return TensorInfo(*self._reader.describe(name))

    def __getitem__(self, name: str) -> TensorHandle:
        return TensorHandle(self._reader, name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"<Checkpoint {self.format}, {len(self)} tensors>"

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *unused: object) -> None:
        """Tensors that were taken stay; files are closed once nothing needs them."""


def open(path: str | bytes | os.PathLike[str]) -> Checkpoint:
    """Opens a checkpoint of any format that the program reads: safetensors, torch.save, torch_dist; a file or a folder.

    Reads headers only. Raises Error for what is broken, truncated or hostile.
    """
    return Checkpoint(path)
