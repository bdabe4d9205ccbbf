"""The program under test, and what its outputs hold according to the safetensors library."""

import importlib.metadata
import itertools
import pathlib
import platform
import subprocess

import pytest
import torch
from safetensors import safe_open


def version(package):
    """None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions():
    """What judges, for the top of the log."""
    packages = ("torch", "safetensors", "transformers", "megatron-core", "megatron-bridge", "torchtitan", "peft")
    said = [f"{name} {version(name) or 'not installed'}" for name in packages]
    return ", ".join([f"python {platform.python_version()}"] + said)


def need(package):
    """Skips what asks, a test or a whole file, where the package did not install. One that is broken is a failure."""
    if version(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)


class Program:
    def __init__(self, path, scratch):
        self.path = path
        self.scratch = scratch
        self.numbers = itertools.count()
        self.warnings = ""

    def run(self, *arguments, status=0):
        command = [self.path, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert status is None or done.returncode == status, f"{' '.join(command)}\nstatus {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def fresh(self, suffix=""):
        return self.scratch / f"out{next(self.numbers)}{suffix}"

    def convert(self, source, *options, suffix=""):
        """Converts into a new place, and returns that; `warnings` is then what was printed."""
        target = self.fresh(suffix)
        self.warnings = self.run("convert", source, target, "-q", *options).stderr
        return target

    def read(self, source):
        """The tensors of any checkpoint: as glu-ckpt reads it, as the safetensors library loads the result."""
        return load_safetensors(self.convert(source, "--format", "safetensors", "--force"))

    def digest(self, checkpoint, *options):
        return self.run("digest", checkpoint, *options).stdout.split()[0]


def load_safetensors(path):
    files = sorted(pathlib.Path(path).glob("*.safetensors")) if pathlib.Path(path).is_dir() else [path]
    tensors = {}
    for file in files:
        with safe_open(file, "pt") as shard:
            tensors.update({name: shard.get_tensor(name) for name in shard.keys()})
    return tensors


def bits(tensor):
    """What is stored, NaN payloads and signs of zeros included."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def assert_same(got, want):
    """Two dicts of tensors are equal to the last bit."""
    assert sorted(got) == sorted(want)
    for name, tensor in want.items():
        assert got[name].dtype == tensor.dtype, name
        assert got[name].shape == tensor.shape, name
        assert torch.equal(bits(got[name]), bits(tensor)), name
