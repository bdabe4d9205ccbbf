"""Lets megatron-core run without a GPU: GPTModel with local layers, the distributed optimizer, dist_checkpointing.

What stands in for what:
- torch.compile and torch.jit.script: the identity. Nothing is timed here, and there is no triton to compile for.
- the device: `cuda` in a factory's arguments becomes `cpu`, and Tensor.cuda() returns the tensor.
- Tensor.type(): says torch.cuda.BFloat16Tensor where the tensor lies on the CPU, for the optimizer sorts by it.
- streams and synchronization of torch.cuda: nothing.
- Adam: torch's own, as Apex and Transformer Engine are not there. It counts steps per parameter and not per group,
  which megatron-core 0.16.1's loader of fully reshardable states does not expect: it is handed the count that is there.
triton is not installed, so Megatron's own fallbacks for its absence are in force, but for one file that has none.
"""

import contextlib
import sys
import types
import warnings

import torch
import torch._dynamo  # now, while the functions replaced below are torch's own
from torch.overrides import TorchFunctionMode


class _OnCpu(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.cuda:
            return args[0]
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        result = function(*args, **kwargs)
        if function is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.")
        return result


class _NoStream:
    def __init__(self, *arguments, **options):
        pass

    def wait_stream(self, other):
        pass

    def synchronize(self):
        pass


def _identity(function=None, *arguments, **options):
    return function if function is not None else lambda inner: inner


def _do_without_triton():
    # 0.19.2 imports it here without asking whether it is there; these kernels of a GPU are never called on a CPU.
    name = "megatron.core.transformer.moe.ops.paged_stash"
    kernels = types.ModuleType(name)
    kernels.GLOBAL_BLOCK_SIZE, kernels.paged_stash_copy_kernel, kernels.paged_stash_pop_kernel = 1024, None, None
    sys.modules[name] = kernels


def install():
    """Before the first import of megatron.core, in a process that does nothing else."""
    warnings.simplefilter("ignore")
    torch.compile = torch.jit.script = _identity
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = torch.cuda.empty_cache = torch.cuda.set_device = lambda *arguments: None
    torch.cuda.Stream = torch.cuda.current_stream = torch.cuda.default_stream = _NoStream
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    _OnCpu().__enter__()
    _do_without_triton()
    _let_torch_adam_load()


def _let_torch_adam_load():
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    set_states = DistributedOptimizer._set_main_param_and_optimizer_states

    def set_states_but_step(self, parameter, tensors):
        held = self._get_main_param_and_optimizer_states(parameter)
        set_states(self, parameter, {"step": held["step"]} | tensors)

    DistributedOptimizer._set_main_param_and_optimizer_states = set_states_but_step
