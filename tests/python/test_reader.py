"""glu_ckpt.open on every format, against safetensors read by its definition."""

import gc
import json
import os
import pathlib
import struct
import subprocess
import sys

import glu_ckpt
import numpy as np
import pytest

NUMPY = {"F32": "f4", "F16": "f2", "F64": "f8", "I64": "i8", "I32": "i4", "U8": "u1", "BOOL": "?"}


def safetensors(path):
    """name -> (dtype, shape, bytes), by the format's definition."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    start = 8 + length
    return {
        name: (t["dtype"], tuple(t["shape"]), data[start + t["data_offsets"][0] : start + t["data_offsets"][1]])
        for name, t in header.items()
    }


def raw_bytes(checkpoint, name):
    return checkpoint[name].numpy(raw=True).tobytes()


def test_safetensors_shards(hub):
    wanted = {}
    for file in sorted(hub.glob("*.safetensors")):
        wanted |= safetensors(file)
    with glu_ckpt.open(hub) as checkpoint:
        assert checkpoint.format == "safetensors" and set(checkpoint) == set(wanted) and len(checkpoint) == len(wanted)
        for name, (dtype, shape, data) in wanted.items():
            tensor = checkpoint[name]
            assert (tensor.dtype, tensor.shape, tensor.info.bytes) == (dtype, shape, len(data))
            assert tensor.info.file.endswith(".safetensors") and raw_bytes(checkpoint, name) == data


@pytest.mark.parametrize("format", ["safetensors", "torch", "torch-dist"])
def test_every_format_has_the_same_tensors(format, hub, tmp_path):
    glu_ckpt.convert(hub, tmp_path / "out", format=format, force=True)
    with glu_ckpt.open(hub) as source, glu_ckpt.open(tmp_path / "out") as copy:
        assert copy.format == format and set(copy) == set(source)
        for name in source:
            assert copy[name].info[:3] == source[name].info[:3]
            assert raw_bytes(copy, name) == raw_bytes(source, name)
            assert glu_ckpt.diff(copy[name], source[name])["equal"]


def test_arrays_of_numpy(tmp_path):
    header, data = {}, b""
    for number, (dtype, kind) in enumerate(NUMPY.items()):
        values = (np.arange(6) * (number + 1) % 2 if kind == "?" else np.arange(6) * (number + 1)).astype(kind)
        header[dtype] = {"dtype": dtype, "shape": [2, 3], "data_offsets": [len(data), len(data) + values.nbytes]}
        data += values.tobytes()
    # An odd number of bytes before it: memory that is mapped would not be aligned.
    header["odd"] = {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}
    data += np.float32(2.5).tobytes()
    header["scalar"] = {"dtype": "F64", "shape": [], "data_offsets": [len(data), len(data) + 8]}
    data += np.float64(1.5).tobytes()
    header["none"] = {"dtype": "F32", "shape": [0, 4], "data_offsets": [len(data), len(data)]}
    text = json.dumps(header).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    checkpoint = glu_ckpt.open(path)
    for number, (dtype, kind) in enumerate(NUMPY.items()):
        values = (np.arange(6) * (number + 1) % 2 if kind == "?" else np.arange(6) * (number + 1)).astype(kind)
        array = checkpoint[dtype].numpy()
        assert array.dtype == values.dtype and np.array_equal(array, values.reshape(2, 3))
    assert checkpoint["odd"].numpy().flags.aligned and checkpoint["odd"].numpy()[0] == 2.5
    assert checkpoint["scalar"].numpy().shape == () and checkpoint["scalar"].numpy() == 1.5
    assert checkpoint["none"].numpy().shape == (0, 4)


def test_bf16_is_not_guessed(hub):
    with glu_ckpt.open(hub) as checkpoint:
        name = next(name for name in checkpoint if checkpoint[name].dtype == "BF16")
        with pytest.raises(glu_ckpt.Error, match="raw=True") as caught:
            checkpoint[name].numpy()
        assert caught.value.slug == "not-supported" and caught.value.tensor == name
        assert checkpoint[name].numpy(raw=True).dtype == np.uint16


def test_memory_outlives_the_checkpoint_and_never_changes_the_file(hub):
    before = {file: file.read_bytes() for file in hub.iterdir()}
    checkpoint = glu_ckpt.open(hub)
    name = next(iter(checkpoint))
    wanted = raw_bytes(checkpoint, name)
    array = checkpoint[name].numpy(raw=True)
    del checkpoint
    gc.collect()
    assert array.tobytes() == wanted
    array[...] = 0
    assert {file: file.read_bytes() for file in hub.iterdir()} == before


def test_bytes_are_mapped_where_they_lie(hub):
    """Two arrays of one tensor have one address."""
    checkpoint = glu_ckpt.open(hub)
    name = next(iter(checkpoint))
    addresses = {checkpoint[name].numpy(raw=True).__array_interface__["data"][0] for _ in range(2)}
    assert len(addresses) == 1


def test_what_is_not_there(hub):
    with pytest.raises(KeyError):
        glu_ckpt.open(hub)["no such tensor"]
    assert "no such tensor" not in glu_ckpt.open(hub)
    with pytest.raises(glu_ckpt.Error) as caught:
        glu_ckpt.open("/no/such/path")
    assert caught.value.slug == "not-found" and caught.value.file == "/no/such/path"


def test_malformed_files_are_refused(galleries):
    files = sorted((galleries / "format").glob("*.safetensors"))
    assert files
    refused = 0
    for file in files:
        try:
            checkpoint = glu_ckpt.open(file)
        except glu_ckpt.Error as error:
            refused += error.exit_status == 3
        else:
            for name in checkpoint:
                raw_bytes(checkpoint, name)
    assert refused > len(files) // 2


def test_a_pickle_is_never_run(tmp_path):
    """The bomb writes a file when it is unpickled; opening it must refuse, or leave it asleep."""
    import pickle
    import zipfile

    target = tmp_path / "boom"

    class Bomb:
        def __reduce__(self):
            return os.system, (f"touch {target}",)

    for protocol in (0, 2, 4):
        path = tmp_path / f"bomb{protocol}.pt"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("bomb/data.pkl", pickle.dumps({"weight": Bomb()}, protocol))
            archive.writestr("bomb/version", "3\n")
        with pytest.raises(glu_ckpt.Error) as caught:
            list(glu_ckpt.open(path))
        assert caught.value.exit_status == 3 and not target.exists()
