"""Conversions between state dicts: what `convert` does to files, on tensors in memory."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

from . import _core
from ._commands import _option_words
from ._error import Error
from ._reader import _TORCH, TensorHandle, TensorInfo
from ._tensors import _library, _stream

# Type checkers take it for true (see _commands.py).
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._commands import PathLike

#: Options of `convert` about files and about how they are written.
_OF_FILES = frozenset(
    "consume_source device device_memory dry_run format from_config manifest max_memory max_shard_size overwrite part "
    "progress reflink resume verify".split()
)
#: torch's names of dtypes, by safetensors'.
_TORCH_NAMES = {
    **_TORCH,
    **{"U8": "uint8", "I8": "int8", "I16": "int16", "F16": "float16", "I32": "int32", "F32": "float32"},
    **{"C64": "complex64", "F64": "float64", "I64": "int64", "F4": "float4_e2m1fn_x2"},
}
_NAMES_OF_TORCH = {f"torch.{name}": dtype for dtype, name in _TORCH_NAMES.items()}
#: numpy's, where dtypes are not as those that went into them.
_NUMPY_NAMES = {"F16": "float16", "F32": "float32", "F64": "float64"}
#: What TransformerEngine keeps beside weights; it is mostly no tensor.
_EXTRA_STATE = re.compile(r"(^|\.)_extra_state\d*$")


class _Memory:
    """What TensorHandle reads from, of one tensor."""

    def __init__(self, tensor: Any, bytes: int) -> None:
        self._tensor, self._bytes = tensor, bytes

    def describe(self, name: str) -> tuple[Any, ...]:
        return self._tensor.dtype, self._tensor.shape, self._bytes, ""

    def tensor(self, name: str, raw: bool) -> Any:
        return self._tensor.raw() if raw else self._tensor


def _item(name: str, value: Any) -> Any:
    """The value as the compiled part takes it: itself, or its address and what it is."""
    if isinstance(value, tuple):
        return None, value[0], list(value[1]), [], "cpu"
    if _library(value) == "torch" or hasattr(value, "data_ptr"):
        dtype = _NAMES_OF_TORCH.get(str(value.dtype))
        if dtype is None or value.is_neg() or value.is_conj():
            raise Error(f"'{name}': a tensor of torch with {value.dtype} elements is not supported", "not-supported", 3)
        shape = list(value.shape)
        if dtype == "F4":
            dtype = "U8"
        device = "cpu" if value.device.type in ("cpu", "meta") else f"cuda:{value.device.index}"
        if value.device.type not in ("cpu", "meta", "cuda"):
            raise Error(f"'{name}': is on {value.device}; only the CPU and CUDA are supported", "not-supported", 3)
        return None if value.is_meta else value.data_ptr(), dtype, shape, list(value.stride()), device
    return value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tuple) or hasattr(value, "__dlpack__")


def _stream_of(values: Any, stream: Any) -> int | None:
    """The stream of the first tensor that is on a GPU; the CPU has none."""
    for value in values:
        if not isinstance(value, tuple) and not (_library(value) == "torch" and value.is_meta):
            found = _stream(value, stream)
            if found is not None:
                return found
    return None


def _empty(like: Any, info: TensorInfo, same_dtype: bool, name: str) -> Any:
    """Memory for an output: of the library of a tensor that goes into it, on its device."""
    library = _library(like)
    if library == "torch":
        torch = sys.modules["torch"]
        dtype = like.dtype if same_dtype else getattr(torch, _TORCH_NAMES[info.dtype])
        return torch.empty(info.shape, dtype=dtype, device=like.device)
    if library in ("numpy", "cupy") and (same_dtype or info.dtype in _NUMPY_NAMES):
        module = sys.modules[library]
        dtype = like.dtype if same_dtype else _NUMPY_NAMES[info.dtype]
        if library == "numpy":
            return module.empty(info.shape, dtype=dtype)
        with module.cuda.Device(like.device.id):
            return module.empty(info.shape, dtype=dtype)
    device = getattr(like, "__dlpack_device__", None)
    if device is not None and int(device()[0]) != 1:
        raise Error(f"'{name}': give out=, memory of {library} on that device")
    return TensorHandle(_Memory(_core.new_tensor(info.dtype, list(info.shape), info.bytes), info.bytes), name)


def _config_text(config: Any) -> str:
    if config is None:
        return ""
    if isinstance(config, Mapping):
        import json

        return json.dumps(config)
    path = os.fspath(config)
    if os.path.isdir(path):
        path = os.path.join(path, "config.json")
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise Error(f"{path}: {error.strerror}", "not-found", 3, file=path) from None


def _sorted_names(state: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What TransformerEngine keeps that is no tensor, and the tensors."""
    extra = [name for name, value in state.items() if not _is_tensor(value) and _EXTRA_STATE.search(name)]
    others = frozenset(extra)
    names = [name for name in state if name not in others]
    for name in names:
        if not _is_tensor(state[name]):
            raise Error(f"'{name}': is {type(state[name]).__name__}, and no tensor that can be shared", tensor=name)
    return extra, names


class StatePlan:
    """A conversion between state dicts of these names, dtypes and shapes, made by `plan_state_dict`.

    outputs: what it makes, by name: TensorInfo, of which `file` is empty.
    renamed: by name, outputs that are inputs under another name, or their own, and which.
    dropped, notes: inputs that go nowhere, and sentences that one should know.
    """

    def __init__(
        self,
        state: Mapping[str, Any],
        config: Any,
        record: Any,
        first: tuple[int, int],
        stream: Any,
        options: dict[str, Any],
    ) -> None:
        for name in options:
            if name in _OF_FILES:
                raise TypeError(f"'{name}' is an option about files; tensors in memory have none")
        self._extra, self._names = _sorted_names(state)
        values = [state[name] for name in self._names]
        words = [os.fsencode(word) for word in ["convert", "STATE", "OUT", *_option_words("convert", options)]]
        self._plan = _core.StatePlan(
            self._names,
            [_item(name, value) for name, value in zip(self._names, values)],
            words,
            _config_text(config),
            dict(record or {}),
            first,
            _stream_of(values, stream),
        )
        rows = self._plan.outputs()
        self.outputs = {name: TensorInfo(dtype, shape, size, "") for name, dtype, shape, size, *_ in rows}
        self.renamed = {row[0]: self._names[row[4]] for row in rows if row[4] is not None}
        self.notes: list[str] = self._plan.notes()
        self._like = [(row[5], row[6]) for row in rows]
        self.dropped: list[str] = self._plan.dropped()

    def to_json(self) -> dict[str, Any]:
        """Which bytes go where: for each output its dtype, shape and `moves`. A move copies runs of `run_bytes` bytes,
        from byte `from_offset` of the tensor `from` to byte `offset`, for all indices of its `loops`, each of which
        adds its `from_step` and `step`."""
        import json

        return json.loads(self._plan.to_json())

    def run(self, state: Mapping[str, Any], out: Any = None, *, stream: Any = None, jobs: int = 0) -> dict[str, Any]:
        """Makes the outputs from tensors of the planned names, dtypes and shapes.

        out: a mapping that has memory for every output and nothing else, which is written to and returned in a dict. By
            default memory of the state's library is made, and what only gets another name is the input itself.
        stream: as for the operators; on a GPU nothing waits, and a CUDA graph can capture a call with `out`.
        jobs: threads on the CPU; 0 for one per core.

        The elements that decided about the plan (copies, masters, biases that may be idle) are trusted to do so still.
        """
        values = [self._value(state, name) for name in self._names]
        if out is None:
            made = self._room(values)
            targets = [None if name in self.renamed else _item(name, made[name]) for name in self.outputs]
            made.update({name: state[source] for name, source in self.renamed.items()})
        else:
            self._check_names(out)
            made = {name: out[name] for name in self.outputs}
            targets = [_item(name, value) for name, value in made.items()]
        items = [_item(name, value) for name, value in zip(self._names, values)]
        self._plan.run(items, targets, _stream_of(values, stream), jobs)
        if out is not None:
            written = [value for value in made.values() if _library(value) == "torch"]
            if written:
                # Autograd has to know where a value that it saved is another now.
                sys.modules["torch"].autograd.graph.increment_version(written)
        # What TransformerEngine keeps beside its weights stays where those keep their names.
        made.update({name: state[name] for name in self._extra if name in state and self._keeps_module(name)})
        return made

    def _value(self, state: Mapping[str, Any], name: str) -> Any:
        if name not in state:
            raise Error(f"'{name}': the plan needs it, and the state dict has none", tensor=name)
        value = state[name]
        return value.detach() if hasattr(value, "detach") else value

    def _keeps_module(self, name: str) -> bool:
        module = name[: name.rindex("_extra_state")]
        return any(output.startswith(module) for output in self.outputs)

    def _check_names(self, out: Mapping[str, Any]) -> None:
        for name in self.outputs:
            if name not in out:
                raise Error(f"out: has no '{name}', which the conversion makes", tensor=name)
        for name in out:
            if name not in self.outputs and not _EXTRA_STATE.search(name):
                raise Error(f"out: has '{name}', which the conversion does not make", tensor=name)

    def _room(self, values: list[Any]) -> dict[str, Any]:
        room = {}
        for (name, info), (like, same_dtype) in zip(self.outputs.items(), self._like):
            if name not in self.renamed:
                room[name] = _empty(values[like], info, same_dtype, name)
        return room


def plan_state_dict(
    state: Mapping[str, Any],
    *,
    config: Any = None,
    record: Mapping[str, str] | None = None,
    first_expert: int = 0,
    first_layer: int = 0,
    stream: Any = None,
    **options: Any,
) -> StatePlan:
    """Plans the conversion of a state dict, to be run as often as its values change.

    state: tensors by name, of any library that speaks DLPack, or what they are: (dtype, shape) with safetensors' word
        for the dtype, or tensors on torch's meta device. Names, layouts and refusals are those of checkpoints in files.
    config: a config.json, as a dict or a path; `record`: what a glu_ckpt.json says of the layout.
    first_expert, first_layer: of one expert-parallel rank's experts, or one pipeline stage's layers, the numbers of the
        first in the whole model. Keys that count through the model, as the hub's do, begin with them on both sides;
        Megatron's modules count from 0. `scope="experts"`, since the rest of a model is not there.
    options: those of `convert` that are not about files: `to`, `naming`, `experts`, `glu`, `from_glu`, `scope`, ...

    Raises Error where `convert` would refuse a checkpoint of these tensors, with the same slug.
    """
    return StatePlan(state, config, record, (first_expert, first_layer), stream, options)


def convert_state_dict(
    state: Mapping[str, Any],
    *,
    out: Any = None,
    config: Any = None,
    record: Mapping[str, str] | None = None,
    first_expert: int = 0,
    first_layer: int = 0,
    stream: Any = None,
    jobs: int = 0,
    **options: Any,
) -> dict[str, Any]:
    """The state dict in another layout or naming: `plan_state_dict(state, ...).run(state, out)`.

    A tensor that only gets another name is returned as it is. `out`, a mapping, is written to: a receiver's parameters.
    """
    first = {"first_expert": first_expert, "first_layer": first_layer}
    plan = plan_state_dict(state, config=config, record=record, stream=stream, **first, **options)
    return plan.run(state, out, stream=stream, jobs=jobs)


def digest_state_dict(
    state: Mapping[str, Any],
    *,
    config: Any = None,
    record: Mapping[str, str] | None = None,
    stream: Any = None,
    **options: Any,
) -> str:
    """The digest of a state dict: that of the checkpoint that it was loaded from, or will be saved to, in any layout.

    state, config, record, stream: as for `plan_state_dict`. options: those of `digest` that are not about files, such as
    `from_glu`. Reads every tensor; what TransformerEngine keeps that is no tensor does not count.
    """
    _, names = _sorted_names(state)
    values = [state[name] for name in names]
    items = [_item(name, value.detach() if hasattr(value, "detach") else value) for name, value in zip(names, values)]
    words = [os.fsencode(word) for word in ["digest", "STATE", *_option_words("digest", options)]]
    return _core.state_digest(names, items, words, _config_text(config), dict(record or {}), _stream_of(values, stream))
