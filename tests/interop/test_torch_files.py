"""torch.save and torch.load: files that PyTorch writes, files that it loads."""

import argparse
import collections
import json

import numpy
import pytest
import torch
from safetensors.torch import save_file

import writers
from glu_program import assert_same


# Each takes no argument and returns what to save and the tensors to find in it.


def flat():
    return writers.model(), writers.model()


def parameters():
    tensors = {name: tensor.float().nan_to_num() for name, tensor in writers.model().items()}
    return {name: torch.nn.Parameter(tensor) for name, tensor in tensors.items()}, tensors


def views():
    """Offsets, steps and turned axes; the storages are larger than what is seen of them."""
    tensors = writers.model()
    big = writers.random_bits(10, 40, dtype=torch.float32, seed=5)
    tensors |= {
        "view.turned": big.t(),
        "view.narrow": big.narrow(0, 3, 4),
        "view.columns": big.narrow(1, 7, 5),
        "view.steps": big[::3, 1::2],
        "view.repeated": big[0].expand(6, 40),
        "view.scalar": big[2, 3],
    }
    # FC1 itself as a view: experts out of one buffer, and one that is stored column by column.
    name = "decoder.layers.0.mlp.experts.linear_fc1.weight"
    buffer = torch.stack([tensors[f"{name}{i}"] for i in range(writers.EXPERTS)])
    tensors |= {f"{name}{i}": buffer[i] for i in range(3)}
    tensors[f"{name}3"] = buffer[3].t().contiguous().t()
    return tensors, tensors


def tied():
    tensors = writers.model()
    tensors["output_layer.weight"] = tensors["embedding.word_embeddings.weight"]
    tensors["output_layer.first_row"] = tensors["embedding.word_embeddings.weight"][0]
    return tensors, tensors


def with_module_metadata():
    """What Module.state_dict() returns: an OrderedDict with an attribute."""
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    state = module.state_dict()
    state.update(writers.model())
    assert isinstance(state, collections.OrderedDict) and state._metadata
    return state, dict(state)


def nested():
    """Megatron's model_optim_rng.pt in small. The names of tensors are their ways, but for `model` at the top. The
    states of random number generators are objects rather than tensors of the model."""
    extra = {"lists.1.deep": writers.random_bits(3)}
    saved = {
        "checkpoint_version": 3.0,
        "iteration": 2**40,
        "args": argparse.Namespace(num_experts=4, lr=1e-4, bf16=torch.bfloat16, name="näme", shape=torch.Size([2, 3])),
        "model": writers.model(),
        "optimizer": {"param_groups": [{"lr": 0.5, "betas": (0.9, 0.95), "step": 7, "flags": {1, 2}}, {}]},
        "rng_state": [{"torch": writers.random_bits(16, dtype=torch.uint8), "numpy": numpy.random.RandomState(3).get_state()}],
        "lists": [None, {"deep": extra["lists.1.deep"]}, b"bytes\0\xff", True, -(2**70), float("inf")],
    }
    return saved, writers.model() | extra


def legacy_dtypes():
    """Not the younger dtypes: torch itself cannot load those from its legacy files."""
    young = ("extra.float8", "extra.uint16", "extra.uint32", "extra.uint64")
    tensors = {name: tensor for name, tensor in writers.every_dtype().items() if not name.startswith(young)}
    return tensors, tensors


CASES = [flat, parameters, views, tied, with_module_metadata, legacy_dtypes, nested]
LEGACY = {"_use_new_zipfile_serialization": False}
FORMATS = {
    "zip": {},
    "zip-protocol-4": {"pickle_protocol": 4},
    "legacy": LEGACY,
    "legacy-protocol-3": LEGACY | {"pickle_protocol": 3},
}


def load_folder(folder, **options):
    """The tensors of a single .bin or .pt, or of shards with their index, as transformers would look for them."""
    indexes = list(folder.glob("*.index.json"))
    if not indexes:
        (file,) = [*folder.glob("*.bin"), *folder.glob("*.pt")]
        return torch.load(file, **options)
    shards = {}
    tensors = {}
    for name, file in json.loads(indexes[0].read_text())["weight_map"].items():
        if file not in shards:
            shards[file] = torch.load(folder / file, **options)
        tensors[name] = shards[file][name]
    assert sum(map(len, shards.values())) == len(tensors)
    return tensors


def assert_same_objects(got, want, way="top"):
    """Equal types and values all the way down; tensors to the last bit."""
    assert type(got) is type(want), way
    if isinstance(want, dict):
        assert list(got) == list(want), way
        for key in want:
            assert_same_objects(got[key], want[key], f"{way}.{key}")
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want), way
        for i, item in enumerate(want):
            assert_same_objects(got[i], item, f"{way}.{i}")
    elif isinstance(want, argparse.Namespace):
        assert_same_objects(vars(got), vars(want), way)
    elif isinstance(want, torch.Tensor):
        assert_same({way: got}, {way: want})
    elif isinstance(want, numpy.ndarray):
        assert got.dtype == want.dtype and numpy.array_equal(got, want), way
    else:
        assert got == want, way


@pytest.mark.parametrize("options", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_reads_what_torch_saves(glu, tmp_path, case, options):
    saved, tensors = case()
    torch.save(saved, tmp_path / "model_optim_rng.pt", **options)
    assert_same(glu.read(tmp_path / "model_optim_rng.pt"), tensors)


def test_reads_every_dtype(glu, tmp_path):
    torch.save(writers.every_dtype(), tmp_path / "pytorch_model.bin")
    assert_same(glu.read(tmp_path / "pytorch_model.bin"), writers.every_dtype())


@pytest.mark.parametrize("case", [flat, views, legacy_dtypes], ids=lambda case: case.__name__)
def test_digests_agree_across_formats(glu, tmp_path, case):
    saved, tensors = case()
    torch.save(saved, tmp_path / "a.pt")
    torch.save(saved, tmp_path / "b.pt", **LEGACY)
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, tmp_path / "c.safetensors")
    options = ("--from-glu", "contiguous")
    digests = {glu.digest(tmp_path / name, *options) for name in ("a.pt", "b.pt", "c.safetensors")}
    assert len(digests) == 1
    glu.run("verify", tmp_path / "a.pt", tmp_path / "c.safetensors", *options, "--to-glu", "contiguous")


def test_reads_shards_with_an_index(glu, tmp_path):
    tensors = writers.model()
    sharded = tmp_path / "sharded"
    sharded.mkdir()
    names = list(tensors)
    weight_map = {}
    for i in range(3):
        file = f"pytorch_model-{i + 1:05d}-of-00003.bin"
        torch.save({name: tensors[name] for name in names[i::3]}, sharded / file)
        weight_map |= {name: file for name in names[i::3]}
    (sharded / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert_same(glu.read(sharded), tensors)


# With computed offsets torch does not look where a record is: it must lie where torch would have put it.
LOADS = {"read": ({}, False), "mmap": ({"mmap": True}, False), "computed-offsets": ({}, True)}


@pytest.mark.parametrize("shard_size", ["5GB", "20KB"])
@pytest.mark.parametrize(("options", "computed"), LOADS.values(), ids=LOADS)
@pytest.mark.parametrize("make", [writers.model, writers.every_dtype], ids=lambda make: make.__name__)
def test_torch_loads_what_is_written(glu, tmp_path, make, options, computed, shard_size):
    save_file(make(), tmp_path / "model.safetensors")
    to = glu.convert(tmp_path / "model.safetensors", "--format", "torch", "--max-shard-size", shard_size)
    with torch.utils.serialization.config.patch("load.calculate_storage_offsets", computed):
        assert_same(load_folder(to, weights_only=True, **options), make())


def test_layout_and_back_keeps_everything_else(glu, tmp_path):
    saved, _ = nested()
    torch.save(saved, tmp_path / "model_optim_rng.pt")
    there = glu.convert(tmp_path / "model_optim_rng.pt", "--from-glu", "contiguous", "--glu", "interleaved:32")
    want = saved | {"model": writers.interleaved(writers.model(), 32)}
    assert_same_objects(load_folder(there, weights_only=False), want)
    assert_same_objects(load_folder(glu.convert(there, "--glu", "contiguous"), weights_only=False), saved)


def test_other_objects_travel_beside_safetensors(glu, tmp_path):
    saved, _ = nested()
    torch.save(saved, tmp_path / "model_optim_rng.pt")
    there = glu.convert(tmp_path / "model_optim_rng.pt", "--format", "safetensors")
    assert_same_objects(load_folder(glu.convert(there, "--format", "torch"), weights_only=False), saved)


def test_grouping_inside_a_torch_file(glu, tmp_path):
    torch.save(writers.model(), tmp_path / "pytorch_model.bin")
    there = glu.convert(tmp_path / "pytorch_model.bin", "--experts", "grouped")
    assert_same(load_folder(there, weights_only=True), writers.grouped(writers.model()))
    assert_same(load_folder(glu.convert(there, "--experts", "indexed"), weights_only=True), writers.model())
