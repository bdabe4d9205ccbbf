"""safetensors, the library: files that it writes, files that it opens."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import writers
from glu_program import assert_same, load_safetensors


def test_every_dtype_is_read_and_written(glu, tmp_path):
    tensors = writers.every_dtype()
    save_file(tensors, tmp_path / "model.safetensors")
    assert_same(glu.read(tmp_path / "model.safetensors"), tensors)


def test_packed_four_bit_values(glu, tmp_path):
    tensors = writers.model()
    # The library counts two values per element of torch's; only load_file and safe_open know the dtype.
    tensors["packed"] = writers.random_bits(4, 6, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    save_file(tensors, tmp_path / "model.safetensors")
    got = glu.read(tmp_path / "model.safetensors")
    assert got["packed"].dtype == torch.float4_e2m1fn_x2
    assert torch.equal(got.pop("packed").view(torch.uint8), tensors.pop("packed").view(torch.uint8))
    assert_same(got, tensors)


@pytest.mark.parametrize("shard_size", ["5GB", "20KB"])
def test_grouping_and_back(glu, tmp_path, shard_size):
    tensors = writers.model()
    save_file(tensors, tmp_path / "model.safetensors")
    to = glu.convert(tmp_path / "model.safetensors", "--experts", "grouped", "--max-shard-size", shard_size)
    assert_same(load_safetensors(to), writers.grouped(tensors))
    assert_same(load_safetensors(glu.convert(to, "--experts", "indexed")), tensors)


def test_metadata_is_kept_and_the_layout_added(glu, tmp_path):
    save_file(writers.model(), tmp_path / "model.safetensors", metadata={"format": "pt", "origin": "a test"})
    options = ("--from-glu", "contiguous", "--glu", "interleaved:16")
    to = glu.convert(tmp_path / "model.safetensors", *options, suffix=".safetensors")
    with safe_open(to, "pt") as file:
        metadata = file.metadata()
        assert metadata["origin"] == "a test" and metadata["format"] == "pt"
        assert metadata["glu_ckpt.glu"] == "interleaved:16"
        assert_same({name: file.get_tensor(name) for name in file.keys()}, writers.interleaved(writers.model(), 16))


def test_the_index_names_every_tensor(glu, tmp_path):
    save_file(writers.model(), tmp_path / "model.safetensors")
    to = glu.convert(tmp_path / "model.safetensors", "--experts", "grouped", "--max-shard-size", "20KB")
    index = json.loads((to / "model.safetensors.index.json").read_text())
    for name, file in index["weight_map"].items():
        with safe_open(to / file, "pt") as shard:
            assert name in shard.keys()
    assert sorted(index["weight_map"]) == sorted(writers.grouped(writers.model()))
