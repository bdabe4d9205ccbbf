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


def every_grouping():
    """Megatron-Core's own TEGroupedMLP over linear layers with TransformerEngine's parameters, and its own optimizer over
    torch's Adam, indexed and grouped, into each other."""
    import copy

    import torch
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.moe.experts import GroupedMLPSubmodules, TEGroupedMLP
    from megatron.core.transformer.transformer_config import TransformerConfig
    from test_state_dict_hooks import Linear

    import glu_ckpt.torch as ops

    config = TransformerConfig(
        num_layers=1, hidden_size=32, num_attention_heads=4, num_moe_experts=4, moe_ffn_hidden_size=64,
        gated_linear_unit=True, activation_func=torch.nn.functional.silu, add_bias_linear=False, use_cpu_initialization=True,
    )

    def make(grouped, k):
        linear = lambda experts, cols, rows, **options: Linear(experts, rows, cols, grouped, bias=options["bias"])  # noqa: E731
        model = torch.nn.Module()
        model.ddp_config = DistributedDataParallelConfig()
        model.config = config
        model.mlp = torch.nn.Module()
        model.mlp.experts = TEGroupedMLP(
            4, config, GroupedMLPSubmodules(linear, linear), pg_collection=ProcessGroupCollection.use_mpu_process_groups()
        )
        optimizer = get_megatron_optimizer(OptimizerConfig(lr=1e-2), [model])
        hooks = ops.add_state_dict_hooks(model, k, experts="indexed", optimizer=optimizer.chained_optimizers[0].optimizer)
        assert hooks.modules == ["mlp.experts.linear_fc1"], hooks.modules
        return model, optimizer

    def step(model, optimizer):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.25)
        optimizer.chained_optimizers[0].optimizer.step()

    torch.manual_seed(4)
    first, first_optimizer = make(False, 0)
    for parameter in first.parameters():
        parameter.data.normal_()
    for parameter in first.parameters():
        parameter.grad = torch.randn_like(parameter)
    first_optimizer.chained_optimizers[0].optimizer.step()
    state, states = copy.deepcopy(first.state_dict()), copy.deepcopy(first_optimizer.state_dict())
    assert "mlp.experts.linear_fc1.weight3" in state, list(state)
    step(first, first_optimizer)
    for grouped in (True, False):
        model, optimizer = make(grouped, K)
        model.load_state_dict(state)
        optimizer.load_state_dict(copy.deepcopy(states))  # torch takes its counters as they are.
        weight = model.mlp.experts.linear_fc1.weight[3] if grouped else model.mlp.experts.linear_fc1.weight3
        assert torch.equal(weight, interleaved(state["mlp.experts.linear_fc1.weight3"]))
        step(model, optimizer)
        saved = model.state_dict()
        assert all(torch.equal(saved[name], value) for name, value in first.state_dict().items())
        moments = [o.chained_optimizers[0].optimizer.state_dict()["state"] for o in (optimizer, first_optimizer)]
        assert moments[0].keys() == moments[1].keys()
        for number, held in moments[1].items():
            assert all(torch.equal(moments[0][number][key], held[key]) for key in ("exp_avg", "exp_avg_sq"))


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
    every_grouping()
    torch.distributed.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
