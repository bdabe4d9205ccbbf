#!/usr/bin/env python3
"""Kills conversions that consume their source, at random moments or when some of it is gone, and resumes them.

usage: consume_kills.py PROGRAM FOLDER KILLS SEED

After each kill every block of rows of the source is in the source's file, or at its place in the output's: the model is
whole at any moment. --resume ends with the bytes of a conversion that keeps its source, and no file of tensors is left.
"""

import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import time

LAYERS, EXPERTS, F, H, ROWS = 6, 4, 256, 256, 32
OPTIONS = ["--scope", "experts", "--naming", "megatron", "--glu", "interleaved:32", "--max-shard-size", "700KB"]
# Small buffers, so that there are many pieces to be in the middle of.
WORK = ["-j", "2", "--max-memory", "1MiB", "-q"]
EDGES = ("config.json", "model.safetensors.index.json")


def make_model(path):
    """Writes a file for each layer. Returns the blocks of rows in each: what is moved as a whole."""
    path.mkdir()
    weight_map, blocks = {}, {}
    for layer in range(LAYERS):
        name = f"model-{layer + 1:05}-of-{LAYERS:05}.safetensors"
        header, data = {}, b""
        for expert in range(EXPERTS):
            for part, shape in (("gate", [F, H]), ("up", [F, H]), ("down", [H, F])):
                key = f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"
                content = random.Random(key).randbytes(2 * F * H)
                header[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
                weight_map[key] = name
                data += content
        step = 2 * ROWS * H
        blocks[name] = [data[at:at + step] for at in range(0, len(data), step)]
        text = json.dumps(header).encode()
        (path / name).write_bytes(struct.pack("<Q", len(text)) + text + data)
    (path / EDGES[1]).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (path / EDGES[0]).write_text(json.dumps({"model_type": "qwen3_moe", "num_experts": EXPERTS}))
    return blocks


def files(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def places(blocks, reference):
    """Where the output has each block: file and offset."""
    found = {}
    for parts in blocks.values():
        for block in parts:
            name, at = next((name, at) for name, text in reference.items() if (at := text.find(block)) >= 0)
            found[block] = (name, at)
    return found


class Reader:
    """Takes each block from whichever side has it."""

    def __init__(self, source, out, blocks, where):
        self.source, self.out, self.blocks, self.where = source, out, blocks, where

    def output_file(self, name):
        partial = pathlib.Path(f"{self.out}.partial")
        for path in (self.out / name, partial / name, partial / f"{name}.partial"):
            if path.is_file():
                return path.read_bytes()
        return b""

    def lost(self):
        texts = {}
        for name, parts in self.blocks.items():
            if (self.source / name).exists():
                continue
            for block in parts:
                file, at = self.where[block]
                if file not in texts:
                    texts[file] = self.output_file(file)
                if texts[file][at:at + len(block)] != block:
                    return f"{name} was removed, and {file} lacks bytes [{at}, {at + len(block)})"
        return ""


def wait_for_removal(run, source, gone):
    """Returns when so many files of the source are gone, or the run has ended."""
    while run.poll() is None and len(list(source.glob("*.safetensors"))) > LAYERS - gone:
        time.sleep(0.0005)


def main():
    program, folder, kills, seed = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    model, source, out = folder / "model", folder / "source", folder / "out"
    blocks = make_model(model)
    subprocess.run([program, "convert", model, folder / "reference", *OPTIONS, *WORK], check=True)
    reference = files(folder / "reference")
    reader = Reader(source, out, blocks, places(blocks, reference))
    command = [program, "convert", source, out, *OPTIONS, *WORK, "--consume-source"]

    def clear():
        for path in (source, out, pathlib.Path(f"{out}.partial")):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(model, source)

    took = []
    for _ in range(3):
        clear()
        start = time.monotonic()
        subprocess.run(command, check=True)
        took.append(time.monotonic() - start)
    took = sorted(took)[1]
    rng = random.Random(seed)
    bad, seen = [], {}
    for number in range(kills):
        clear()
        for go in range(rng.choice([1, 1, 1, 2, 3])):
            run = subprocess.Popen([*command, *(["--resume"] if go > 0 else [])],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            # The time in which files go is short beside that of the start, the more so under a sanitizer.
            if rng.random() < 0.5:
                time.sleep(rng.uniform(0, 1.05 * took))
            else:
                wait_for_removal(run, source, rng.randint(1, LAYERS - 1))
            run.send_signal(signal.SIGKILL)
            run.wait()
            if why := reader.lost():
                bad.append(f"kill {number}: {why}")
            # Another date of the status: what removed files gave counts all the same.
            if rng.random() < 0.3:
                for path in source.glob("*.safetensors"):
                    path.chmod(rng.choice([0o600, 0o640, 0o644]))
        left = len(list(source.glob("*.safetensors")))
        seen[left] = seen.get(left, 0) + 1
        done = subprocess.run([*command, "--resume"], capture_output=True, text=True)
        if done.returncode != 0 and not (left == 0 and files(out) == reference):
            bad.append(f"kill {number}: {left} files left; --resume: exit {done.returncode}: {done.stderr[:400]}")
        elif files(out) != reference:
            bad.append(f"kill {number}: resumed to other bytes")
        elif sorted(path.name for path in source.iterdir()) != sorted(EDGES):
            bad.append(f"kill {number}: the source has {sorted(path.name for path in source.iterdir())}")
        elif os.path.lexists(f"{out}.partial"):
            bad.append(f"kill {number}: DST.partial is left")
    print(f"     {kills} kills with seed {seed} in up to {1.05 * took:.2f} s; files of the source that were left: "
          f"{dict(sorted(seen.items()))}", file=sys.stderr)
    for line in bad[:10]:
        print("FAIL", line)
    if sum(count for left, count in seen.items() if 0 < left < LAYERS) < kills // 10:
        bad.append("")
        print(f"FAIL too few kills met a source that was gone in part: {seen}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
