#!/usr/bin/env python3
"""Runs the program on the checkpoints of testdata/cases.tar.xz, each rebuilt from a fault that people met.

usage: run_cases.py PROGRAM [WORD...]   only the cases whose title contains one of the words
Beside what a case says itself, of each run: a refusal leaves neither OUT nor OUT.partial, a refusal names its slug, and
`plan` ends as `convert` does, with the same slug. The last line is `N passed, M failed`.
"""
import importlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from case import REFUSED, TESTDATA, Case, Run, copy_tree, read_safetensors, read_tensors, reported  # noqa: E402

SLUG = re.compile(r"\[([a-z0-9]+(?:-[a-z0-9]+)*)\]\s*$", re.MULTILINE)


def all_cases() -> list[Case]:
    """The cases of every file beside this one whose name begins with `cases_`."""
    files = sorted(file.stem for file in HERE.glob("cases_*.py"))
    return [case for file in files for case in importlib.import_module(file).CASES]


def difference(out: pathlib.Path, truth: pathlib.Path, some: bool) -> str:
    """Says how the tensors of OUT differ from the right ones; "" where they do not."""
    have, want = read_tensors(out), read_safetensors(truth)
    if missing := sorted(want.keys() - have.keys()):
        return f"lacks {missing[0]} and {len(missing) - 1} more"
    if not some and (extra := sorted(have.keys() - want.keys())):
        return f"has {extra[0]} and {len(extra) - 1} more that should not be there"
    for name, tensor in want.items():
        if have[name] != tensor:
            return f"{name} is {have[name][0]} {have[name][1]}, right is {tensor[0]} {tensor[1]}, or its bytes differ"
    return ""


class Bench:
    """One case in its own folder, and what was wrong of it."""

    def __init__(self, program: str, case: Case, folder: pathlib.Path):
        self.program, self.case, self.folder = program, case, folder
        self.faults: list[str] = []
        self.checks = 0
        self.paths = {"CASE": folder / "case", "SRC": folder / "case" / case.source,
                      "OUT2": folder / "out2", "OUT": folder / "out"}
        self.paths["CASE"].mkdir()
        if case.name:
            base = next(base for base in (reported(), TESTDATA) if (base / case.name).is_dir())
            shutil.copytree(base / case.name, self.paths["CASE"], dirs_exist_ok=True)
        if case.change:
            changed = folder / "case" / "changed"
            if case.source:
                copy_tree(self.paths["SRC"].resolve(), changed)
            else:
                changed.mkdir()
            self.paths["SRC"] = case.change(changed) or changed

    def expect(self, good: bool, run: Run, what: str) -> None:
        self.checks += 1
        if not good:
            self.faults.append(f"{self.case.title()}: {run.command}\n    {what}")

    def call(self, words: list[str]) -> tuple[int, str]:
        done = subprocess.run([self.program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=300, cwd=self.folder, env={**os.environ, "NO_COLOR": "1"})
        return done.returncode, done.stdout.decode(errors="replace")

    def words(self, run: Run) -> list[str]:
        pattern = re.compile(r"\b(" + "|".join(self.paths) + r")\b")
        return [pattern.sub(lambda m: str(self.paths[m.group()]), word) for word in run.command.split()]

    def run_alike(self, commands: list[str], word: str) -> None:
        first = None
        for run in map(Run, commands):
            status, text = self.call([*self.words(run), "--json"])
            errors = [json.loads(line) for line in text.splitlines() if line.startswith('{"error"')]
            end = (status, *(errors[-1][field] if errors else "" for field in ("error", "tensor")))
            first = first or end
            good = status in REFUSED and end == first and errors and word in errors[-1]["tensor"]
            self.expect(bool(good), run, f"ends with {end}, right is {first} of '{word}':\n{indented(text[-2000:])}")

    def run(self, run: Run) -> None:
        words = self.words(run)
        out = next((self.paths[w] for w in ("OUT2", "OUT") if w in run.command.split()[2:]), None)
        writes = words[0] == "convert" and out is not None
        if writes:
            for path in (out, pathlib.Path(f"{out}.partial")):
                shutil.rmtree(path, ignore_errors=True)
        planned = self.call(["plan", *words[1:]]) if writes and run.plan else None
        status, text = self.call(words)
        allowed = run.status if isinstance(run.status, tuple) else (run.status,)
        self.expect(status in allowed, run, f"status {status}, right is {run.status}:\n{indented(text)}")
        if run.says:
            self.expect(re.search(run.says, text) is not None, run, f"does not say /{run.says}/:\n{indented(text)}")
        if run.never_says:
            self.expect(re.search(run.never_says, text) is None, run, f"says /{run.never_says}/:\n{indented(text)}")
        if writes and status in REFUSED:
            left = [p.name for p in (out, pathlib.Path(f"{out}.partial")) if os.path.lexists(p)]
            self.expect(not left, run, f"a refusal leaves {left}")
        if planned:
            slugs = [SLUG.findall(words)[-1:] if code in REFUSED else [] for code, words in (planned, (status, text))]
            self.expect(planned[0] == status and slugs[0] == slugs[1], run,
                        f"plan ends with {planned[0]} {slugs[0]}, convert with {status} {slugs[1]}:\n{indented(planned[1])}")
        if status == 0 and out is not None and run.truth:
            wrong = difference(out, self.paths["CASE"] / run.truth, run.some)
            self.expect(not wrong, run, f"beside {run.truth}, the output {wrong}")
        if status == 0 and out is not None and run.check:
            wrong = run.check(out)
            self.expect(not wrong, run, wrong)


def indented(text: str) -> str:
    return "\n".join("      " + line for line in text.strip().splitlines()[-14:])


def main() -> int:
    program = str(pathlib.Path(sys.argv[1]).resolve())
    passed = failed = 0
    # Neighbours follow one another, so that a part of them has each kind.
    for case in all_cases()[:: int(os.environ.get("CASES_EVERY", "1"))]:
        if len(sys.argv) > 2 and not any(word in case.title() for word in sys.argv[2:]):
            continue
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(program, case, pathlib.Path(folder))
            for run in case.runs:
                bench.run(run)
            if case.alike:
                bench.run_alike(*case.alike)
        passed += bench.checks - len(bench.faults)
        failed += len(bench.faults)
        print(*bench.faults, sep="\n", end="\n" if bench.faults else "")
    print(f"{passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
