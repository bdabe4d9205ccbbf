"""Reads and writes checkpoints of safetensors files without the program: strict, small, Python's standard library."""
import dataclasses
import json
import math
import os
import pathlib
import struct

BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
        "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64}  # fmt: skip
INDEX = "model.safetensors.index.json"


class Broken(Exception):
    """A checkpoint that no program should take for a model; the text says why."""


class Unclear(Exception):
    """A checkpoint of which this reader does not know what it means: it says nothing of it."""


@dataclasses.dataclass
class Tensor:
    dtype: str
    shape: list
    data: bytes

    def __eq__(self, other):
        return (self.dtype, list(self.shape), self.data) == (other.dtype, list(other.shape), other.data)


def _once(pairs):
    if len({name for name, _ in pairs}) != len(pairs):
        raise Broken("a name twice in one JSON object")
    return dict(pairs)


def _once_in_config(pairs):
    if len({name for name, _ in pairs}) != len(pairs):
        raise Unclear("a name twice in config.json, of which Python's json, and so every loader, takes the last")
    return dict(pairs)


def read_json(data, once=_once):
    try:
        return json.loads(data.decode(), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise Broken(f"no JSON: {error}") from None


def is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def parse(data):
    """The tensors and the metadata of one safetensors file."""
    if len(data) < 8 or len(data) - 8 < (size := struct.unpack_from("<Q", data)[0]):
        raise Broken("the header is cut off")
    header = read_json(data[8 : 8 + size])
    if not isinstance(header, dict):
        raise Broken("the header is no object")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise Broken("metadata that is not text")
    tensors, ranges, body = {}, [], data[8 + size :]
    for name, entry in header.items():
        try:
            dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            counts = all(map(is_count, [*shape, begin, end]))
        except (KeyError, TypeError, ValueError):
            raise Broken(f"{name}: an entry that is not one") from None
        if not counts or dtype not in BITS or math.prod(shape) * BITS[dtype] != (end - begin) * 8:
            raise Broken(f"{name}: dtype, shape and bytes do not fit")
        ranges.append((begin, end))
        tensors[name] = Tensor(dtype, shape, body[begin:end])
    here = 0
    for begin, end in sorted(ranges):
        if begin != here:
            raise Broken("data with a hole, or used twice")
        here = end
    if here != len(body):
        raise Broken("more data than tensors, or less")
    return tensors, metadata


def build(tensors, metadata):
    header, offset = {"__metadata__": metadata} if metadata else {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, offset + len(tensor.data)]}
        offset += len(tensor.data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *(tensor.data for tensor in tensors.values())])


class Checkpoint:
    """A directory in parts that can be changed: `config`, `index`, the tensors and metadata of each file, other files."""

    def __init__(self, path):
        self.path, self.config, self.index, self.shards, self.metadata, self.others = pathlib.Path(path), None, None, {}, {}, {}
        for file in sorted(p for p in self.path.rglob("*") if p.is_file()):
            name, data = str(file.relative_to(self.path)), file.read_bytes()
            if name == "decoded.safetensors":
                continue
            if name.endswith(".safetensors"):
                self.shards[name], self.metadata[name] = parse(data)
            elif name == "config.json":
                self.config = json.loads(data)
            elif name == INDEX:
                self.index = json.loads(data)
            else:
                self.others[name] = data

    def files(self):
        files = {name: build(tensors, self.metadata[name]) for name, tensors in self.shards.items()}
        if self.config is not None:
            files["config.json"] = json.dumps(self.config).encode()
        if self.index is not None:
            files[INDEX] = json.dumps(self.index).encode()
        return files | self.others

    def tensors(self):
        return {name: tensor for shard in self.shards.values() for name, tensor in shard.items()}


def write(folder, files):
    for name, data in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def read_files(files):
    """The tensors and the configuration of a directory's files, as a loader finds them; raises Broken and Unclear."""
    config = read_json(files["config.json"], _once_in_config) if "config.json" in files else {}
    if not isinstance(config, dict):
        raise Broken("config.json is no object")
    shards = {name: parse(data) for name, data in files.items() if name.endswith(".safetensors") and "/" not in name}
    if INDEX in files:
        used = _indexed(read_json(files[INDEX]), shards)
    elif len(shards) > 1:
        raise Unclear("several files without an index")
    else:
        used = set(shards)
    found = {name: tensor for file in sorted(used) for name, tensor in shards[file][0].items()}
    if len(found) < sum(len(shards[file][0]) for file in used):
        raise Broken("a tensor in two files")
    if not found:
        raise Broken("no tensors")
    return found, config, [shards[file][1] for file in used]


def _indexed(index, shards):
    where = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(where, dict) or not all(isinstance(file, str) for file in where.values()):
        raise Broken("the index has no map")
    for name, file in where.items():
        if file not in shards and any(name in tensors for tensors, _ in shards.values()):
            raise Unclear(f"the index names {name} in {file}, and another file has it")
        if file not in shards or name not in shards[file][0]:
            raise Broken(f"the index names {name} in {file}, where it is not")
    used = set(where.values())
    if left := {name for file in used for name in shards[file][0]} - where.keys():
        raise Broken(f"the index does not name {min(left)}")
    if "model.safetensors" in shards and "model.safetensors" not in used:
        raise Unclear("a model.safetensors beside the index: transformers takes it, the program the index's")
    return used
