"""torch.distributed.checkpoint: directories saved by 1, 2 and 4 ranks, directories loaded into as many."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import writers
from glu_program import assert_same
from ranks import run_ranks

WORLDS = [1, 2, 4]
CONTIGUOUS = ("--from-glu", "contiguous", "--from-optimizer-glu", "contiguous")


def whole_tensors():
    """What the ranks hold together. 4 experts, 7 rows and 3 columns: neither divides by every number of ranks."""
    return writers.grouped(writers.model()) | {
        "uneven.rows": writers.random_bits(7, 5, seed=1),
        "uneven.columns": writers.random_bits(6, 3, dtype=torch.float32, seed=2),
        "old.sharded": writers.random_bits(8, 6, dtype=torch.float32, seed=3),
        "scalar": writers.random_bits(dtype=torch.int64, seed=4),
    }


def placed(rank, name, tensor):
    """This rank's part: DTensors along an axis that the name settles, else a replicated tensor."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    if "linear_fc1.weight" in name or name == "uneven.rows":
        return distribute_tensor(tensor, mesh, [Shard(0)])
    if "linear_fc2.weight" in name or name == "uneven.columns":
        return distribute_tensor(tensor, mesh, [Shard(1)])
    if "bias" in name:
        return distribute_tensor(tensor, mesh, [Replicate()])
    return old_style_shard(rank, tensor) if name == "old.sharded" else tensor


def old_style_shard(rank, tensor):
    """torch.distributed._shard's ShardedTensor, which came before DTensor: even shares of the rows."""
    from torch.distributed._shard import sharded_tensor

    rows = tensor.shape[0] // torch.distributed.get_world_size()
    shard = sharded_tensor.Shard.from_tensor_and_offsets(tensor[rank * rows :][:rows].clone(), [rank * rows, 0], rank)
    return sharded_tensor.init_from_local_shards([shard], list(tensor.shape))


def save_rank(rank, path, one_file):
    state = {name: placed(rank, name, tensor) for name, tensor in whole_tensors().items()}
    nested = {"args": {"num_experts": writers.EXPERTS, "lr": 1e-4, "name": "a run"}, "lists": [1, "two"]}
    dcp.save(state | nested, storage_writer=dcp.FileSystemWriter(path, single_file_per_rank=one_file))


def load_rank(rank, path, sharded):
    """Loads into tensors of other values, and compares what this rank holds."""
    whole = whole_tensors()
    targets = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    wanted = whole
    if sharded:
        targets = {name: placed(rank, name, tensor) for name, tensor in targets.items()}
        wanted = {name: placed(rank, name, tensor) for name, tensor in whole.items()}
    dcp.load(targets, storage_reader=dcp.FileSystemReader(path))
    assert_same({n: local(t) for n, t in targets.items()}, {n: local(t) for n, t in wanted.items()})


def local(tensor):
    if hasattr(tensor, "local_shards"):
        return tensor.local_shards()[0].tensor
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def save_one(path, state):
    """From this process, without a group."""
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path), no_dist=True)


def load_one(path, tensors):
    targets = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    dcp.load(targets, storage_reader=dcp.FileSystemReader(path), no_dist=True)
    return targets


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Directories by number of ranks and single_file_per_rank, each saved once."""
    made = {}

    def save(world, one_file):
        if (world, one_file) not in made:
            path = tmp_path_factory.mktemp("dcp") / "step"
            run_ranks(world, save_rank, path, one_file)
            made[world, one_file] = path
        return made[world, one_file]

    return save


@pytest.mark.parametrize("one_file", [True, False], ids=["file-per-rank", "file-per-tensor"])
@pytest.mark.parametrize("world", WORLDS)
def test_reads_what_ranks_save(glu, saved, world, one_file):
    assert_same(glu.read(saved(world, one_file)), whole_tensors())


def test_number_of_ranks_does_not_change_the_digest(glu, saved):
    assert len({glu.digest(saved(world, True), "--from-glu", "contiguous") for world in WORLDS}) == 1
    glu.run("verify", saved(1, True), saved(4, False), "--from-glu", "contiguous", "--to-glu", "contiguous")


def test_objects_travel_with_the_tensors(glu, saved):
    objects = {"args": {"num_experts": 0, "lr": 0.0, "name": ""}, "lists": [0, ""]}
    for source in (saved(2, True), glu.convert(saved(2, True), "--format", "safetensors")):
        to = glu.convert(source, "--format", "torch-dist", "--force")
        targets = {"args": dict(objects["args"]), "lists": list(objects["lists"])}
        dcp.load(targets, storage_reader=dcp.FileSystemReader(to), no_dist=True)
        assert targets == {"args": {"num_experts": writers.EXPERTS, "lr": 1e-4, "name": "a run"}, "lists": [1, "two"]}


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
@pytest.mark.parametrize("world", WORLDS)
def test_ranks_load_what_is_written(glu, tmp_path, world, sharded):
    save_file(whole_tensors(), tmp_path / "model.safetensors")
    to = glu.convert(tmp_path / "model.safetensors", "--format", "torch-dist")
    run_ranks(world, load_rank, to, sharded)


def test_ranks_load_a_rewritten_checkpoint(glu, saved):
    to = glu.convert(saved(4, True), "--experts", "indexed")
    run_ranks(2, load_rank, glu.convert(to, "--experts", "grouped"), True)


def test_metadata_says_what_is_stored(glu, tmp_path):
    save_file(whole_tensors(), tmp_path / "model.safetensors")
    to = glu.convert(tmp_path / "model.safetensors", "--format", "torch-dist")
    metadata = dcp.FileSystemReader(to).read_metadata()
    assert sorted(metadata.state_dict_metadata) == sorted(whole_tensors())
    for name, tensor in whole_tensors().items():
        entry = metadata.state_dict_metadata[name]
        assert entry.size == tensor.shape and entry.properties.dtype == tensor.dtype
        assert sum(chunk.sizes.numel() for chunk in entry.chunks) == tensor.numel()


def test_every_dtype_there_and_back(glu, tmp_path):
    tensors = writers.every_dtype()
    save_one(tmp_path / "saved", tensors)
    assert_same(glu.read(tmp_path / "saved"), tensors)
    to = glu.convert(tmp_path / "saved", "--experts", "grouped")
    assert_same(load_one(to, writers.grouped(tensors)), writers.grouped(tensors))


def test_views_are_stored_with_their_strides(glu, tmp_path):
    tensors = writers.model()
    big = writers.random_bits(10, 40, dtype=torch.float32, seed=5)
    name = "decoder.layers.0.mlp.experts.linear_fc1.weight0"
    tensors |= {"turned": big.t(), "narrow": big.narrow(1, 7, 5), name: tensors[name].t().contiguous().t()}
    save_one(tmp_path / "saved", tensors)
    assert_same(glu.read(tmp_path / "saved"), tensors)


def test_torch_turns_the_output_into_a_file(glu, tmp_path):
    save_file(writers.model(), tmp_path / "model.safetensors")
    dcp_to_torch_save(glu.convert(tmp_path / "model.safetensors", "--format", "torch-dist"), tmp_path / "all.pt")
    assert_same(torch.load(tmp_path / "all.pt", weights_only=True), writers.model())
    assert_same(glu.read(tmp_path / "all.pt"), writers.model())


@pytest.mark.parametrize("block", [32, 8])
@pytest.mark.parametrize("group", [False, True], ids=["indexed", "grouped"])
def test_weight_bias_and_optimizer_rows_are_interleaved(glu, tmp_path, block, group):
    tensors = writers.model() | writers.optimizer()
    axis = 0
    if group:
        tensors, axis = writers.grouped(tensors), 1
    save_one(tmp_path / "saved", tensors)
    there = glu.convert(tmp_path / "saved", *CONTIGUOUS, "--glu", f"interleaved:{block}")
    assert_same(load_one(there, tensors), writers.interleaved(tensors, block, axis))
    assert_same(load_one(glu.convert(there, "--glu", "contiguous"), tensors), tensors)


def test_optimizer_state_follows_the_grouping_of_its_weight(glu, tmp_path):
    tensors = writers.model() | writers.optimizer()
    save_one(tmp_path / "saved", tensors)
    there = glu.convert(tmp_path / "saved", "--experts", "grouped")
    assert_same(load_one(there, writers.grouped(tensors)), writers.grouped(tensors))


def test_optimizer_state_is_dropped_when_asked(glu, tmp_path):
    save_one(tmp_path / "saved", writers.model() | writers.optimizer())
    options = ("--from-glu", "contiguous", "--glu", "interleaved:32", "--optimizer", "drop")
    there = glu.convert(tmp_path / "saved", *options)
    assert sorted(dcp.FileSystemReader(there).read_metadata().state_dict_metadata) == sorted(writers.model())
    assert_same(load_one(there, writers.model()), writers.interleaved(writers.model(), 32))
