"""The examples of docs/python.md, as they stand there."""

import pathlib
import re
import shutil
import subprocess
import sys

import glu_ckpt
import pytest

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "python.md"
EXAMPLES = dict(re.findall(r"<!-- example: (\w+) -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL))


def run(name, *definitions):
    """Runs an example in a process of its own, and returns what it prints."""
    code = "\n".join(definitions) + "\n" + EXAMPLES[name]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def define(name, value):
    return f"{name} = {str(value)!r}"


def test_every_example_is_run():
    assert set(EXAMPLES) == {"convert", "nightly", "interleave", "state_dict", "train", "recipes", "look",
                             "compare"}


def test_convert_after_training(hub, tmp_path):
    glu_ckpt.convert(hub, tmp_path / "iter", to="megatron")
    printed = run("convert", define("ITER", tmp_path / "iter"), define("HUB", tmp_path / "hub"))
    assert printed.startswith("digest gck2:") and glu_ckpt.verify(hub, tmp_path / "hub")["equal"]


def test_nightly_check(hub, tmp_path):
    found = glu_ckpt.convert(hub, tmp_path / "model", to="megatron")
    names = define("CHECKPOINT", tmp_path / "model"), define("EXPECTED", found["digest"])
    run("nightly", *names)
    damaged = next((tmp_path / "model").rglob("*.distcp"))
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(AssertionError):
        run("nightly", *names)


def test_interleave_in_a_training_script():
    pytest.importorskip("torch")
    run("interleave")


def test_a_state_dict_in_memory():
    run("state_dict")


def test_train_the_experts_of_a_layer():
    pytest.importorskip("torch")
    run("train")


def test_recipes_of_8_bits():
    pytest.importorskip("torch")
    run("recipes")


def test_look_into_a_torch_dist_directory(testdata, tmp_path):
    source = testdata / "torch" / "full.safetensors"
    glu_ckpt.convert(source, tmp_path / "dist", format="torch-dist", force=True)
    with glu_ckpt.open(tmp_path / "dist") as checkpoint:
        name = next(name for name in checkpoint if checkpoint[name].dtype == "F32")
        count = len(checkpoint)
    printed = run("look", define("DISTRIBUTED", tmp_path / "dist"), define("NAME", name))
    assert len(printed.splitlines()) == count + 1


def test_compare_two_checkpoints(hub, tmp_path):
    glu_ckpt.convert(hub, tmp_path / "a", naming="megatron")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    names = define("A", tmp_path / "a"), define("B", tmp_path / "b")
    assert run("compare", *names) == ""
    file = max((tmp_path / "b").glob("*.safetensors"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[-1] ^= 0x40
    file.write_bytes(data)
    printed = run("compare", *names)
    assert printed.startswith("layer ") and "1 of" in printed
