"""State-dict hooks on Megatron-Core's own model, through its own checkpoints.

usage: megatron_hooks.py FOLDER
A process of its own, since Megatron's state is global. Needs the folder of the interop suite's modules on its path. A
model is loaded with hooks, saved by dist_checkpointing, and read by models with and without hooks.
"""

import faulthandler
import os
import sys

K = 16


def interleaved(t):
    """The definition, by views: [2F, H]."""
    return t.unflatten(0, (2, t.shape[0] // (2 * K), K)).transpose(0, 1).flatten(0, 2)


def main(folder):
    import megatron_on_cpu

    # Where a process that writes files dies, Megatron waits for it for ever.
    faulthandler.dump_traceback_later(150, exit=True)
    megatron_on_cpu.install()
    import torch
    from megatron.core import dist_checkpointing
    from megatron.core.parallel_state import destroy_model_parallel
    from megatron_job import make_training

    import glu_ckpt
    import glu_ckpt.torch as ops

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)

    def make_model(seed):
        destroy_model_parallel()
        model, _ = make_training(seed)
        return model

    def parameters(model):
        return {name: value.detach().clone() for name, value in model.named_parameters()}

    def load(model, checkpoint):
        model.load_state_dict(dist_checkpointing.load({"model": model.sharded_state_dict()}, checkpoint)["model"])

    trained = make_model(1)
    plain = parameters(trained)
    routed = {name for name in plain if ".experts." in name and "linear_fc1" in name}
    assert len(routed) == 2 * 4, sorted(plain)
    wanted = {name: interleaved(value) if name in routed else value for name, value in plain.items()}

    hooks = ops.add_state_dict_hooks(trained, K)
    assert len(hooks.modules) == len(routed), hooks.modules
    state = trained.state_dict()
    state.update(plain)
    trained.load_state_dict(state)
    assert all(torch.equal(value, wanted[name]) for name, value in parameters(trained).items())
    checkpoint = f"{folder}/checkpoint"
    os.mkdir(checkpoint)
    dist_checkpointing.save({"model": trained.sharded_state_dict()}, checkpoint)
    assert all(torch.equal(value, wanted[name]) for name, value in parameters(trained).items()), "saving changed the model"

    without = make_model(2)
    assert not torch.equal(parameters(without)[min(routed)], plain[min(routed)])
    load(without, checkpoint)
    assert all(torch.equal(value, plain[name]) for name, value in parameters(without).items())

    hooked = make_model(3)
    ops.add_state_dict_hooks(hooked, K)
    load(hooked, checkpoint)
    assert all(torch.equal(value, wanted[name]) for name, value in parameters(hooked).items())

    assert glu_ckpt.inspect(checkpoint)["moe_layers"] == 2
    torch.distributed.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
