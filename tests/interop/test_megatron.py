"""Megatron: its own dist_checkpointing saves, glu-ckpt converts, and a model made anew loads that.

Only the device and the compilers are replaced, see megatron_on_cpu.py; model, distributed optimizer and checkpoint code
are Megatron's.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from safetensors.torch import load_file

import writers
from glu_program import assert_same, need

need("megatron-core")

CONTIGUOUS = ("--from-glu", "contiguous", "--from-shared-glu", "contiguous", "--from-optimizer-glu", "contiguous")


def run_megatron(folder, world, action, checkpoint, seed):
    """Runs the job on `world` ranks; returns, per rank, what model and optimizer hold."""
    folder.mkdir()
    job = pathlib.Path(__file__).with_name("megatron_job.py")
    rendezvous = (folder / "rendezvous").as_uri()
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    ranks = []
    for rank in range(world):
        tensors, log = folder / f"rank{rank}.safetensors", folder / f"rank{rank}.log"
        command = [sys.executable, job, rank, world, rendezvous, action, checkpoint, tensors, seed + rank]
        with log.open("w") as out:
            # A group of its own: the processes that Megatron starts do not all end with it.
            process = subprocess.Popen(
                [str(word) for word in command], stdout=out, stderr=out, env=environment, start_new_session=True
            )
        ranks.append((process, tensors, log))
    try:
        for process, _, log in ranks:
            assert process.wait(timeout=180) == 0, log.read_text()[-4000:]
    finally:
        for process, _, _ in ranks:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    return [load_file(tensors) for _, tensors, _ in ranks]


@pytest.fixture(scope="module", params=[1, 2], ids=["one-rank", "expert-parallel-2"])
def training(request, tmp_path_factory):
    """A checkpoint, its number of ranks, and what each of them held."""
    folder = tmp_path_factory.mktemp("megatron")
    checkpoint = folder / "iter_0000100"
    checkpoint.mkdir()
    (folder / "latest_checkpointed_iteration.txt").write_text("100")
    return checkpoint, request.param, run_megatron(folder / "save", request.param, "save", checkpoint, seed=1)


def in_blocks(held, routed, shared):
    """FC1 in blocks of that many rows: parameters and their optimizer states. 0 leaves the rows as they are."""
    changed = dict(held)
    for name, tensor in held.items():
        block = routed if ".local_experts." in name else shared if ".shared_experts." in name else 0
        # Adam's step is a scalar.
        if block and "linear_fc1.weight" in name and tensor.ndim == 2:
            changed[name] = writers.interleave_rows(tensor, block)
    return changed


def assert_loads(folder, training, checkpoint, change=lambda held: held):
    _, world, held = training
    for got, want in zip(run_megatron(folder, world, "load", checkpoint, seed=50), held):
        assert any(name.startswith("exp_avg/") for name in want)
        assert_same(got, change(want))


def test_megatron_loads_a_copy(glu, training, tmp_path):
    assert_loads(tmp_path / "load", training, glu.convert(training[0], "--force"))


def test_megatron_loads_interleaved_rows_and_back(glu, training, tmp_path):
    there = glu.convert(training[0], *CONTIGUOUS, "--glu", "interleaved:8")
    assert_loads(tmp_path / "there", training, there, lambda held: in_blocks(held, routed=8, shared=0))
    assert_loads(tmp_path / "back", training, glu.convert(there, "--glu", "contiguous"))


# On two ranks each would hold a flat part of the shared expert's optimizer state, in which no rows can be found.
@pytest.mark.parametrize("training", [1], ids=["one-rank"], indirect=True)
def test_shared_experts_have_blocks_of_their_own(glu, training, tmp_path):
    there = glu.convert(training[0], *CONTIGUOUS, "--glu", "interleaved:32", "--shared-glu", "interleaved:16")
    assert_loads(tmp_path / "there", training, there, lambda held: in_blocks(held, routed=32, shared=16))


def test_megatron_loads_what_went_through_safetensors(glu, training, tmp_path):
    there = glu.convert(training[0], *CONTIGUOUS, "--glu", "interleaved:8", "--format", "safetensors")
    back = glu.convert(there, "--glu", "contiguous", "--format", "torch-dist")
    assert_loads(tmp_path / "back", training, back)


def test_the_directory_above_is_a_checkpoint_too(glu, training):
    assert glu.digest(training[0].parent, *CONTIGUOUS[:4]) == glu.digest(training[0], *CONTIGUOUS[:4])


def test_the_layout_is_seen(glu, training):
    seen = json.loads(glu.run("inspect", training[0], "--json").stdout)
    assert seen["layout"]["naming"] == "megatron-dist" and seen["layout"]["glu"] == "unknown"
    assert (seen["moe_layers"], seen["num_experts"], seen["hidden_size"]) == (2, 4, 32)
    assert seen["moe_intermediate_size"] == 64 and seen["optimizer"] is True
