"""Writes checkpoints whose headers take as much memory as can be for their bytes: hostile_files.py OUT KIND

KIND is json, pickle, zip or dcp. Each checkpoint is a directory of OUT with one file of 20 MB, which no program wrote.
OUT/sound has 100,000 tensors with the names of real ones (dcp: known to their planner by long paths), and OUT/short
360,000 with names that no model has.
"""

import io
import pathlib
import pickle
import struct
import sys
import types
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "galleries"))
from dcp_gallery import Dcp  # noqa: E402
from torch_pickles import made, name_of, text  # noqa: E402

# Bytes of an item that torch writes, at least.
ITEM = 700
SIZE = 20_000_000
# A config.json of more than 16 MiB is refused for its length alone.
CONFIG_SIZE = 16_000_000


def fill(item, size):
    """`item`, bytes or a function of a number, as often as it fits in `size` bytes."""
    if not callable(item):
        return b",".join([item] * (size // (len(item) + 1)))
    return b",".join(item(i) for i in range(size // (len(item(0)) + 6)))


def texts(size):
    return {
        "zeros": b"[" + fill(b"0", size) + b"]",
        "lists": b"[" + fill(b"[]", size) + b"]",
        "strings": b"[" + fill(b'""', size) + b"]",
        "nested": b"[" + fill(b"[" * 50 + b"]" * 50, size) + b"]",
        "keys": b"{" + fill(lambda i: b'"%d":0' % i, size) + b"}",
        "same_key": b"{" + fill(b'"":0', size) + b"}",
        "long_string": b'"' + b"a" * size + b'"',
        "escapes": b'"' + b"\\u0001" * (size // 6) + b'"',
    }


def pickles():
    def listed(value, bytes_of_one):
        return b"\x80\x04](" + value * (SIZE // bytes_of_one) + b"e."

    entries = b"".join(b"X" + struct.pack("<I", 8) + b"%08d" % i + b"K\1" for i in range(SIZE // 15))
    return {
        "lists": listed(b"]", 1),
        "dicts": listed(b"}", 1),
        "ints": listed(b"K\1", 2),
        "strings": listed(b"\x8c\0", 2),
        "memo": listed(b"]\x94", 2),
        "marks": b"\x80\x04" + b"(" * SIZE + b".",
        "tuples": b"\x80\x04N" + b"\x85" * SIZE + b".",
        "entries": b"\x80\x04}(" + entries + b"u.",
        "long_string": b"\x80\x04X" + struct.pack("<I", SIZE) + b"a" * SIZE + b".",
    }


def tensors(name, count):
    entry = b'"%s":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    return b"{" + b",".join(entry % name(i) for i in range(count)) + b"}"


def safetensors(path, header, data=b""):
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def torch_file(path, pickled):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickled)
        archive.writestr("a/version", b"3\n")


def many_records(path, name):
    """A zip of empty records: 30 bytes before the directory, 46 in it, and the name twice."""
    headers, directory, offset = [], [], 0
    count = SIZE // (76 + 2 * len(name(0)))
    for i in range(count):
        fields = struct.pack("<HHHHHIIIHH", 0, 0, 0, 0, 0, 0, 0, 0, len(name(i)), 0)
        headers.append(b"PK\3\4" + fields + name(i))
        directory.append(b"PK\1\2\0\0" + fields + struct.pack("<HHHII", 0, 0, 0, 0, offset) + name(i))
        offset += len(headers[-1])
    listed = b"".join(directory)
    end64 = b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, count, count, len(listed), offset)
    locator = b"PK\6\7" + struct.pack("<IQI", 0, offset + len(listed), 1)
    few = min(count, 0xFFFF)
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, few, few, len(listed), offset, 0)
    path.write_bytes(b"".join(headers) + listed + end64 + locator + end)


def write_json(place, model):
    for name, text in texts(SIZE).items():
        (model("index_" + name) / "model.safetensors.index.json").write_bytes(b'{"weight_map":' + text + b"}")
        (model("record_" + name) / "glu_ckpt.json").write_bytes(b'{"glu_ckpt":' + text + b"}")
        safetensors(place("header_" + name) / "model.safetensors", b'{"__metadata__":' + text + b"}")
    for name, text in texts(CONFIG_SIZE).items():
        (model("config_" + name) / "config.json").write_bytes(b'{"model_type": "qwen3_moe", "x": ' + text + b"}")
    safetensors(place("short") / "model.safetensors", tensors(lambda i: b"%d" % i, 360_000))
    safetensors(place("sound") / "model.safetensors",
                tensors(lambda i: b"backbone.blocks.%d.mixer.branches.%d.in_proj.weight" % (i // 1000, i % 1000), 100_000))


def write_pickle(place, model):
    for name, pickled in pickles().items():
        torch_file(place("pickle_" + name) / "model.pt", pickled)
        (place("metadata_" + name) / ".metadata").write_bytes(pickled)


def write_zip(place, model):
    many_records(place("zip_short") / "model.pt", lambda i: b"a/%07d" % i)
    many_records(place("zip_long") / "model.pt", lambda i: b"a/%0200d" % i)
    many_records(place("zip_folders") / "model.pt", lambda i: b"a/%06d/" % i)


def named(module, name):
    """A class that pickles as this name."""
    sys.modules.setdefault(module, types.ModuleType(module))
    found = type(name, (), {"__module__": module})
    setattr(sys.modules[module], name, found)
    return found


def many_tensors(directory, count):
    """A torch_dist of `count` tensors of one number, whose planner knows each by a path of many long keys."""
    metadata = "torch.distributed.checkpoint.metadata"
    size_class, layout = named("torch", "Size"), named("torch.serialization", "_get_layout")
    dtype, encoding = named("torch", "bfloat16"), named(metadata, "_MEM_FORMAT_ENCODING")
    properties, chunk, kept, index, whole = (named(metadata, name) for name in (
        "TensorProperties", "ChunkStorageMetadata", "TensorStorageMetadata", "MetadataIndex", "Metadata"))
    info = named("torch.distributed.checkpoint.filesystem", "_StorageInfo")
    # What a class is called with, or the state of an object of it.
    size_class.__reduce__ = lambda self: (size_class, ((self.extent,),))
    layout.__reduce__ = lambda self: (layout, ("torch.strided",))
    encoding.__reduce__ = lambda self: (encoding, (0,))
    properties.__getstate__ = lambda self: self.state

    def made_of(of, **fields):
        one = of()
        one.__dict__.update(fields)
        return one

    state, paths, places = {}, {}, {}
    for i in range(count):
        words = ("model", "backbone", "blocks", f"{i // 1000:03}", "mixer_of_experts_and_attention", "branches",
                 f"{i % 1000:03}", "projection_of_inputs_to_states", "parametrizations", "weight", "original0", "data")
        name = ".".join(words)
        paths[name] = words
        state[name] = made_of(
            kept, properties=made_of(properties, state=(dtype, layout(), False, encoding(), False)),
            size=made_of(size_class, extent=1),
            chunks=[made_of(chunk, offsets=made_of(size_class, extent=0), sizes=made_of(size_class, extent=1))])
        places[made_of(index, fqn=name, offset=made_of(size_class, extent=0), index=None)] = made_of(
            info, relative_path="__0_0.distcp", offset=ITEM * i, length=ITEM)
    with open(directory / ".metadata", "wb") as file:
        pickle.dump(made_of(whole, state_dict_metadata=state, planner_data=paths, storage_data=places,
                            storage_meta=None, version="1.0.0"), file, 2)
    with open(directory / "__0_0.distcp", "wb") as file:
        file.truncate(ITEM * count)


def with_object(directory, name, content):
    """A sound torch_dist of three tensors, and beside them an object."""
    dcp = Dcp()
    dcp.state_extra[text(name)] = made(name_of("torch.distributed.checkpoint.metadata", "BytesStorageMetadata"))
    dcp.append(name, [0], "__0_0.distcp", content)
    for file, data in dcp.files().items():
        (directory / file).write_bytes(data)


def write_dcp(place, model):
    many_tensors(place("sound"), 100_000)
    for name, content in pickles().items():
        archive = io.BytesIO()
        torch_file(archive, content)
        with_object(place("object_" + name), "optimizer.state_of_parameters", archive.getvalue())


def main():
    out = pathlib.Path(sys.argv[1])

    def place(name):
        (out / name).mkdir(parents=True)
        return out / name

    def model(name):
        header = b'{"model.embed_tokens.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
        safetensors(place(name) / "model.safetensors", header, bytes(4))
        return out / name

    {"json": write_json, "pickle": write_pickle, "zip": write_zip, "dcp": write_dcp}[sys.argv[2]](place, model)


if __name__ == "__main__":
    main()
