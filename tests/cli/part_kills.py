#!/usr/bin/env python3
"""Conversions in parts (convert --part I/N): their bytes, and kills at random moments.

usage: part_kills.py PROGRAM FOLDER ROUNDS SEED

1, 2 and 4 processes give the bytes of one process. In each round some are killed, and started again with the same I/N,
until all have ended: the output has the same bytes, and nothing is left beside it.
"""

import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

from consume_kills import WORK, files, make_model

TARGETS = {
    "safetensors": ["--scope", "experts", "--naming", "megatron", "--experts", "grouped", "--glu", "interleaved:32",
                    "--max-shard-size", "700KB"],
    "torch": ["--scope", "experts", "--naming", "megatron", "--experts", "grouped", "--format", "torch"],
    "torch-dist": ["--scope", "experts", "--naming", "megatron-dist", "--experts", "grouped", "--format", "torch-dist"],
    "one.safetensors": ["--scope", "experts", "--naming", "megatron", "--experts", "grouped", "--max-shard-size", "1GB"],
}


def tree(path):
    return files(path) if path.is_dir() else {"": path.read_bytes()} if path.exists() else {}


def main():
    program, folder, rounds, seed = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    model = folder / "model"
    make_model(model)
    rng = random.Random(seed)
    bad, killed = [], 0

    def command(target, part, of):
        out = folder / ("out.safetensors" if target.startswith("one") else "out")
        return [program, "convert", model, out, *TARGETS[target], *WORK, "--reflink", "never", "--part", f"{part}/{of}"]

    def out_of(target):
        return folder / ("out.safetensors" if target.startswith("one") else "out")

    def clear():
        for name in ("out", "out.partial", "out.safetensors.partial"):
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / "out.safetensors").unlink(missing_ok=True)

    reference = {}
    for target, options in TARGETS.items():
        path = folder / f"reference_{target}"
        subprocess.run([program, "convert", model, path, *options, *WORK, "--reflink", "never"], check=True,
                       capture_output=True)
        reference[target] = tree(path)

    def judge(what, target):
        if tree(out_of(target)) != reference[target]:
            bad.append(f"{what}: other bytes: {sorted(tree(out_of(target)))}")
        if os.path.lexists(f"{out_of(target)}.partial"):
            bad.append(f"{what}: DST.partial is left")

    took = 0.0
    for target in TARGETS:
        for of in (1, 2, 4):
            clear()
            for part in rng.sample(range(1, of + 1), of):  # one after the other, in any order
                start = time.monotonic()
                done = subprocess.run(command(target, part, of), capture_output=True, text=True)
                took = max(took, time.monotonic() - start)
                if done.returncode != 0:
                    bad.append(f"{target} {part}/{of}: exit {done.returncode}: {done.stderr[:300]}")
            judge(f"{target} in {of}", target)
            again = subprocess.run(command(target, of, of), capture_output=True, text=True)
            if again.returncode != 0:
                bad.append(f"{target} {of}/{of} again: exit {again.returncode}: {again.stderr[:300]}")
            judge(f"{target} in {of}, again", target)

    for number in range(rounds):
        clear()
        target, of = rng.choice(list(TARGETS)), rng.choice([2, 4])
        left = set(range(1, of + 1))
        for go in range(20):
            runs = {part: subprocess.Popen(command(target, part, of), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                           text=True) for part in left}
            if go < 2:
                for part in rng.sample(sorted(left), rng.randint(1, len(left))):
                    time.sleep(rng.uniform(0, 1.5 * took))
                    killed += runs[part].poll() is None
                    runs[part].send_signal(signal.SIGKILL)
            again = set()
            for part, run in runs.items():
                said = run.communicate()[1]
                # Another part may be at its end; whoever runs parts starts one again that has failed.
                if run.returncode != 0:
                    again.add(part)
                if run.returncode not in (0, 4, -signal.SIGKILL):
                    bad.append(f"round {number}, {target} {part}/{of}: exit {run.returncode}: {said[:300]}")
            # A part may have been the last one and been killed while it finished the output.
            left = again
            if not left:
                break
        judge(f"round {number}, {target} in {of}", target)
    print(f"     {rounds} rounds with seed {seed}: {killed} parts were killed at work", file=sys.stderr)
    for line in bad[:10]:
        print("FAIL", line)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
