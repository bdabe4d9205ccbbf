"""What a type checker finds in a caller's file: nothing where it is right, each wrong field where it is not."""

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("mypy")

RIGHT = """
    import glu_ckpt
    from glu_ckpt import results

    def look(found: results.Inspection) -> int:
        return found["bytes"] + (found["num_experts"] or 0)

    look(glu_ckpt.inspect("A"))
    print(glu_ckpt.convert("A", "B", to="hf")["loads_in"][0]["program"])
    print(glu_ckpt.plan("A", "B")["megatron_args"][0].split())
    first = glu_ckpt.verify("A", "B")["first_difference"]
    print(first["tensor"].upper() if first is not None else "")
    print(glu_ckpt.diff("A", "B", tensors="x")["tensors"][0]["relative_norm"])
    print(glu_ckpt.diff(object(), object())["nan_in_both"])
    print(glu_ckpt.report("A")["output"], glu_ckpt.digest("A")["digest"], glu_ckpt.check("A")["ok"])
    print(glu_ckpt.stamp("A")["file"])
"""
WRONG = {
    'glu_ckpt.verify("A", "B")["equall"]': 'TypedDict "Verdict" has no key "equall"',
    'glu_ckpt.inspect("A")["layout"]["naming"]': "is not indexable",
    'glu_ckpt.diff("A", "B")["layers"][0]["cosin"]': 'TypedDict "LayerDiff" has no key "cosin"',
    'glu_ckpt.diff("A", "B", too="x")': 'Unexpected keyword argument "too"',
    'glu_ckpt.convert("A", "B", jobs="x")': "incompatible type",
}


def mypy(path, text):
    path.write_text(textwrap.dedent(text))
    words = [sys.executable, "-m", "mypy", "--cache-dir", str(path.parent / "cache"), str(path)]
    return subprocess.run(words, capture_output=True, text=True, cwd=path.parent)


def test_a_right_file_has_no_finding(tmp_path):
    found = mypy(tmp_path / "right.py", RIGHT)
    assert found.returncode == 0, found.stdout


def test_each_wrong_line_is_found(tmp_path):
    found = mypy(tmp_path / "wrong.py", "import glu_ckpt\n" + "\n".join(WRONG) + "\n")
    lines = found.stdout.splitlines()
    for number, wanted in enumerate(WRONG.values(), 2):
        assert any(line.startswith(f"wrong.py:{number}: error") and wanted in line for line in lines), (wanted, lines)
