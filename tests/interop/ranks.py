"""Runs a function in several processes that make up one gloo group."""

import datetime
import multiprocessing
import os
import pathlib
import tempfile

import torch.distributed
import torch.multiprocessing

# The server imports torch once; ranks are forked from it before it has any thread.
multiprocessing.set_forkserver_preload(["torch", "torch.distributed.checkpoint", "torch.distributed.tensor"])


def run_ranks(world, function, *arguments):
    """Calls function(rank, *arguments) in `world` processes; raises what the first of them raised."""
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = pathlib.Path(folder, "rendezvous").as_uri()
        torch.multiprocessing.start_processes(
            _one_rank, (world, rendezvous, function, arguments), nprocs=world, start_method="forkserver"
        )


def _one_rank(rank, world, rendezvous, function, arguments):
    # Without it gloo looks the machine's own name up, which a container may not know.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=120)
    )
    try:
        function(rank, *arguments)
    finally:
        torch.distributed.destroy_process_group()
