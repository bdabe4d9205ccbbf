#!/usr/bin/env python3
"""Kills conversions that consume their source, at random moments or when some of it is gone, and resumes them.

usage: consume_kills.py PROGRAM FOLDER KILLS SEED

After each kill every block of rows of the source is in the source's file, or at its place in the output's, as it is or in
the dtype that was asked for: the model is whole at any moment. --resume ends with the bytes of a conversion that keeps its
source, and no file of tensors is left.
"""

import json
import math
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
# Of ways to convert: options, and what becomes of rows.
KINDS = {"plain": [], "decoded": ["--decode", "bf16"], "widened": ["--dtype", "*=f32"], "padded": ["--pad-experts", "320"]}
SCALED = 128


def bf16_of(code, exponent):
    """The bits of a code of E4M3 times 2 to the exponent, which is exact."""
    size = (8 + (code & 7)) * 2.0 ** ((code >> 3 & 15) - 10) if code >> 3 & 15 else (code & 7) * 2.0**-9
    return struct.unpack("<I", struct.pack("<f", -size * 2.0**exponent if code & 128 else size * 2.0**exponent))[0] >> 16


EXPONENTS = range(-2, 3)
TABLES = {e: [bytes(bf16_of(code, e) >> shift & 255 for code in range(256)) for shift in (0, 8)] for e in EXPONENTS}
WITHOUT_NAN = bytes(0 if code & 127 == 127 else code for code in range(256))


def spread(parts, step):
    """Bytes whose i-th of each `step` are those of parts[i]; without a part they are zero."""
    content = bytearray(step * len(parts[step - 1]))
    for i, part in parts.items():
        content[i::step] = part
    return bytes(content)


def decoded(codes, cols, exponents):
    content = b""
    for at in range(0, len(codes), SCALED):
        low, high = TABLES[exponents[at // cols // SCALED][at % cols // SCALED]]
        content += spread({0: codes[at:at + SCALED].translate(low), 1: codes[at:at + SCALED].translate(high)}, 2)
    return content


def stored_and_read(key, shape, kind):
    """The tensors by which a matrix is stored, and its bytes as the output has them."""
    chance = random.Random(key)
    if kind != "decoded" or len(shape) == 1:
        content = chance.randbytes(2 * math.prod(shape))
        wide = spread({2: content[0::2], 3: content[1::2]}, 4) if kind == "widened" else content
        return {key: ("BF16", shape, content)}, wide
    codes = chance.randbytes(shape[0] * shape[1]).translate(WITHOUT_NAN)
    grid = [size // SCALED for size in shape]
    exponents = [chance.choices(EXPONENTS, k=grid[1]) for _ in range(grid[0])]
    scales = struct.pack(f"<{grid[0] * grid[1]}f", *(2.0**e for row in exponents for e in row))
    return {key: ("F8_E4M3", shape, codes), f"{key}_scale_inv": ("F32", grid, scales)}, decoded(codes, shape[1], exponents)


def make_model(path, kind="plain"):
    """Writes a file for each layer. Returns the blocks of rows in each: what is moved as a whole."""
    path.mkdir()
    weight_map, blocks = {}, {}
    for layer in range(LAYERS):
        name = f"model-{layer + 1:05}-of-{LAYERS:05}.safetensors"
        header, data, blocks[name] = {}, b"", []
        tensors = [(f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight", shape) for expert in range(EXPERTS)
                   for part, shape in (("gate", [F, H]), ("up", [F, H]), ("down", [H, F]))]
        for tensor, shape in tensors + [("model.norm.weight", [H])] * (layer == 0):
            stored, read = stored_and_read(tensor, shape, kind)
            for key, (dtype, of, content) in stored.items():
                header[key] = {"dtype": dtype, "shape": of, "data_offsets": [len(data), len(data) + len(content)]}
                weight_map[key] = name
                data += content
            # Zeros come between the rows of what gets more columns.
            step = len(read) // shape[0] * (1 if kind == "padded" and "down" in tensor else ROWS)
            blocks[name] += [read[at:at + step] for at in range(0, len(read), step)]
        text = json.dumps(header).encode()
        (path / name).write_bytes(struct.pack("<Q", len(text)) + text + data)
    (path / EDGES[1]).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    quantized = {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [SCALED, SCALED]}}
    (path / EDGES[0]).write_text(json.dumps({
        "model_type": "qwen3_moe", "num_experts": EXPERTS, "num_experts_per_tok": 2, "num_hidden_layers": LAYERS,
        "hidden_size": H, "moe_intermediate_size": F, "intermediate_size": F, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 32, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
        "rope_theta": 1e4, "hidden_act": "silu", **(quantized if kind == "decoded" else {})}))
    return blocks


def files(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def places(blocks, reference):
    """Where the output has each block: file and offset."""
    found, name, at = {}, next(iter(reference)), 0
    for parts in blocks.values():
        for block in parts:
            # Most come behind the one before.
            if (near := reference[name].find(block, at, at + 8 * len(block))) >= 0:
                at = near
            else:
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


class Conversion:
    """One kind of conversion that consumes its source."""

    def __init__(self, program, folder, kind):
        self.model, self.source, self.out = (folder / f"{name}_{kind}" for name in ("model", "source", "out"))
        blocks = make_model(self.model, kind)
        options = [*OPTIONS, *KINDS[kind], *WORK]
        reference = folder / f"reference_{kind}"
        subprocess.run([program, "convert", self.model, reference, *options], check=True,
                       capture_output=True)
        self.reference = files(reference)
        self.reader = Reader(self.source, self.out, blocks, places(blocks, self.reference))
        self.command = [program, "convert", self.source, self.out, *options, "--consume-source"]
        took = []
        for _ in range(3):
            self.clear()
            start = time.monotonic()
            subprocess.run(self.command, check=True, capture_output=True)
            took.append(time.monotonic() - start)
        self.took = sorted(took)[1]

    def clear(self):
        for path in (self.source, self.out, pathlib.Path(f"{self.out}.partial")):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.model, self.source)

    def kill(self, rng, resume):
        """Kills a run. Returns what is lost then."""
        run = subprocess.Popen([*self.command, *(["--resume"] if resume else [])],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # The time in which files go is short beside that of the start, the more so under a sanitizer.
        if rng.random() < 0.5:
            time.sleep(rng.uniform(0, 1.05 * self.took))
        else:
            wait_for_removal(run, self.source, rng.randint(1, LAYERS - 1))
        run.send_signal(signal.SIGKILL)
        run.wait()
        # Another date of the status: what removed files gave counts all the same.
        if rng.random() < 0.3:
            for path in self.source.glob("*.safetensors"):
                path.chmod(rng.choice([0o600, 0o640, 0o644]))
        return self.reader.lost()

    def left(self):
        return len(list(self.source.glob("*.safetensors")))

    def resume(self):
        """Goes on to the end. Returns what is wrong then."""
        left = self.left()
        done = subprocess.run([*self.command, "--resume"], capture_output=True, text=True)
        if done.returncode != 0 and not (left == 0 and files(self.out) == self.reference):
            return f"{left} files left; --resume: exit {done.returncode}: {done.stderr[:400]}"
        if files(self.out) != self.reference:
            return "resumed to other bytes"
        if sorted(path.name for path in self.source.iterdir()) != sorted(EDGES):
            return f"the source has {sorted(path.name for path in self.source.iterdir())}"
        return "DST.partial is left" if os.path.lexists(f"{self.out}.partial") else ""


def main():
    program, folder, kills, seed = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    conversions = {kind: Conversion(program, folder, kind) for kind in KINDS}
    rng = random.Random(seed)
    bad, seen = [], {kind: {} for kind in KINDS}
    for number in range(kills):
        kind = list(KINDS)[number % len(KINDS)]
        conversion = conversions[kind]
        conversion.clear()
        for go in range(rng.choice([1, 1, 1, 2, 3])):
            if why := conversion.kill(rng, go > 0):
                bad.append(f"kill {number}, {kind}: {why}")
        left = conversion.left()
        seen[kind][left] = seen[kind].get(left, 0) + 1
        if why := conversion.resume():
            bad.append(f"kill {number}, {kind}: {why}")
    for kind, counts in seen.items():
        print(f"     {kind}: {sum(counts.values())} rounds of kills with seed {seed} in up to "
              f"{1.05 * conversions[kind].took:.2f} s; files of the source that were left: {dict(sorted(counts.items()))}",
              file=sys.stderr)
    for line in bad[:10]:
        print("FAIL", line)
    if sum(count for counts in seen.values() for left, count in counts.items() if 0 < left < LAYERS) < kills // 10:
        bad.append("")
        print(f"FAIL too few kills met a source that was gone in part: {seen}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
