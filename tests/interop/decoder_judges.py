"""The decoders of GPTQModel, ModelOpt and compressed-tensors, and their packing, each in its own code on a CPU.

GPTQModel and ModelOpt ask for a hundred packages to train, serve and calibrate with, of which packing and decoding use
none. A stand-in takes the place of each that is not installed, so that their modules can be imported.
"""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import pathlib
import sys
import types
from unittest import mock

import torch

# A compressed-tensors that still reads reordered columns (weight_g_idx): scripts/interop_env.sh puts it there.
BEFORE = pathlib.Path(sys.prefix) / "before"
UNUSED = {"datasets", "device_smi", "dill", "logbar", "omegaconf", "pcre", "pulp", "pynvml", "requests", "scipy",
          "threadpoolctl", "torchao"}


class _StandIn(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock(name=name)


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in UNUSED else None

    def create_module(self, spec):
        return _StandIn(spec.name)

    def exec_module(self, module):
        pass


@contextlib.contextmanager
def _stand_ins():
    """Stand-ins are found last, and forgotten again: another test may ask whether a package is installed."""
    finder = _StandIns()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name, module in sys.modules.items() if isinstance(module, _StandIn)]:
            del sys.modules[name]


def modelopt():
    with _stand_ins():
        return importlib.import_module("modelopt.torch.quantization.qtensor")


def gptqmodel(module):
    """A module of GPTQModel, without what `import gptqmodel` does: it patches transformers and loads every model."""
    with _stand_ins():
        root = importlib.metadata.distribution("gptqmodel").locate_file("gptqmodel")
        for name, path in (("gptqmodel", root), ("gptqmodel.models", root / "models")):
            if name not in sys.modules:
                package = types.ModuleType(name)
                package.__path__, package.DEBUG_ON = [str(path)], False
                sys.modules[name] = package
        return importlib.import_module(f"gptqmodel.{module}")


def dequantize_reordered():
    """compressed-tensors 0.12.2's dequantize, which takes an order of columns."""
    mine = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "compressed_tensors"}
    sys.path.insert(0, str(BEFORE))
    try:
        return importlib.import_module("compressed_tensors.quantization.lifecycle.forward").dequantize
    finally:
        sys.path.remove(str(BEFORE))
        for name in [name for name in sys.modules if name.split(".")[0] == "compressed_tensors"]:
            del sys.modules[name]
        sys.modules.update(mine)


def weights(rows, cols, seed):
    """Of a model's size, with a few that are large, as trained ones are, and a group of zeros."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(rows, cols, generator=generator) * 0.02
    made[torch.rand(rows, cols, generator=generator) < 0.01] *= 20
    made[0, :16] = 0
    return made


def any_bits(like, seed, below=256):
    """As many bytes as `like` has, each of which may be any code."""
    generator = torch.Generator().manual_seed(seed)
    size = like.numel() * like.element_size()
    return torch.randint(0, below, (size,), generator=generator, dtype=torch.uint8).view(like.dtype).reshape(like.shape)
