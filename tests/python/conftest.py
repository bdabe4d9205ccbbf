"""The installed wheel under test, on the repository's checkpoints."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

TESTDATA = pathlib.Path(os.environ["GLU_CKPT_TESTDATA"])


@pytest.fixture(scope="session")
def testdata():
    return TESTDATA


@pytest.fixture(scope="session")
def galleries(tmp_path_factory):
    """Broken checkpoints, one for each way to be broken."""
    root = tmp_path_factory.mktemp("galleries")
    subprocess.run([sys.executable, pathlib.Path(__file__).parents[1] / "galleries" / "make_galleries.py", root], check=True)
    return root


@pytest.fixture
def hub():
    """A small checkpoint as it comes from the hub."""
    return TESTDATA / "hf" / "qwen3_moe"


@pytest.fixture(scope="session")
def program():
    """The console command that the wheel installed."""
    path = pathlib.Path(sys.executable).parent / "glu-ckpt"
    assert path.exists(), shutil.which("glu-ckpt")

    def run(*words):
        return subprocess.run([path, *map(str, words)], capture_output=True, text=True)

    return run
