"""One Megatron process of a small training run: makes a GPT with experts, then saves or loads its checkpoint.

usage: megatron_job.py RANK WORLD RENDEZVOUS save|load CHECKPOINT TENSORS SEED
A process of its own, since Megatron's state is global and its writers start processes that import the main module.
`save` trains one step and saves; `load` loads into a model made with another seed. Both write what model and optimizer
hold, as their own parameters and states, to the file TENSORS.
"""

import faulthandler
import sys


def make_training(seed):
    import torch
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.transformer_config import TransformerConfig

    world = torch.distributed.get_world_size()
    parallel_state.initialize_model_parallel(expert_model_parallel_size=world)
    torch.manual_seed(seed)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        num_moe_experts=4,
        moe_ffn_hidden_size=64,
        moe_shared_expert_intermediate_size=64,
        expert_model_parallel_size=world,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        bf16=True,
        params_dtype=torch.bfloat16,
        use_cpu_initialization=True,
    )
    layers = get_gpt_layer_local_spec(num_experts=4, moe_grouped_gemm=False)
    model = GPTModel(config=config, transformer_layer_spec=layers, vocab_size=64, max_sequence_length=16).bfloat16()
    model = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), model)
    options = OptimizerConfig(bf16=True, use_distributed_optimizer=True, lr=1e-2, params_dtype=torch.bfloat16)
    optimizer = get_megatron_optimizer(options, [model])
    optimizer.reload_model_params()
    for parameter in model.parameters():
        parameter.main_grad.normal_()
    optimizer.step()
    return model.module, optimizer


def sharded_state(model, optimizer, is_loading):
    how = {"distrib_optim_sharding_type": "fully_reshardable", "distrib_optim_fully_reshardable_mem_efficient": False}
    state = {"model": model.sharded_state_dict()}
    state["optimizer"] = optimizer.sharded_state_dict(state["model"], is_loading=is_loading, metadata=how)
    return state | {"iteration": 0 if is_loading else 100, "args": {"num_experts": 4}}


def held_tensors(model, optimizer):
    """Every parameter and buffer, and every optimizer state of each parameter."""
    import torch

    held = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        for name, parameter in model.named_parameters():
            if parameter not in part.model_param_group_index_map:
                continue
            for state, value in part._get_main_param_and_optimizer_states(parameter).items():
                # Flat; with more than one data-parallel rank, a part of it.
                whole = value.numel() == parameter.numel()
                held[f"{state}/{name}"] = value.reshape(parameter.shape) if whole else value
    return {name: value.detach().clone().contiguous() for name, value in held.items()}


def main(rank, world, rendezvous, action, checkpoint, tensors, seed):
    import megatron_on_cpu

    # Where a process that writes files dies, Megatron waits for it for ever.
    faulthandler.dump_traceback_later(150, exit=True)
    megatron_on_cpu.install()
    import torch
    from megatron.core import dist_checkpointing
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=int(rank), world_size=int(world))
    # Each rank its own values, or expert parallelism would hold the same experts twice.
    model, optimizer = make_training(int(seed))
    if action == "save":
        dist_checkpointing.save(sharded_state(model, optimizer, False), checkpoint)
    else:
        loaded = dist_checkpointing.load(sharded_state(model, optimizer, True), checkpoint)
        assert loaded["iteration"] == 100 and loaded["args"] == {"num_experts": 4}
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
    save_file(held_tensors(model, optimizer), tensors)
    torch.distributed.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(*sys.argv[1:])
