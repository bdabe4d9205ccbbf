#!/usr/bin/env python3
"""Writes a checkpoint of real size whose tensor data is one hole, for measuring inspect and plan.

Usage: make_sparse_checkpoint.py OUT [--shards 200] [--tensors 200000] [--bytes 2000000000000] [--rows 2048]

Keys are those of a per-expert Hugging Face family. Needs a filesystem with sparse files.
"""

import argparse
import json
import os
import struct


def names(count):
    """model.layers.L.mlp.experts.E.{gate,up,down}_proj.weight for 256 experts a layer; the rest are norms."""
    layer = 0
    made = 0
    while made + 768 <= count:
        for expert in range(256):
            for part in ("gate", "up", "down"):
                yield f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"
                made += 1
        layer += 1
    for extra in range(count - made):
        yield f"model.norms.{extra}.weight"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--shards", type=int, default=200)
    parser.add_argument("--tensors", type=int, default=200000)
    parser.add_argument("--bytes", type=int, default=2_000_000_000_000)
    parser.add_argument("--rows", type=int, default=2048)
    args = parser.parse_args()
    os.makedirs(args.out)
    # [F, H] in bf16, F = 2048 as in DeepSeek-V3, H so that all experts together have the size asked for.
    rows = args.rows
    cols = max(1, args.bytes // args.tensors // (2 * rows))
    weight_map = {}
    per_shard = -(-args.tensors // args.shards)
    everything = list(names(args.tensors))
    for shard in range(args.shards):
        file = f"model-{shard + 1:05d}-of-{args.shards:05d}.safetensors"
        header = {}
        end = 0
        for name in sorted(everything[shard * per_shard:(shard + 1) * per_shard]):
            shape = [1] if "norms" in name else [cols, rows] if "down" in name else [rows, cols]
            size = 2
            for extent in shape:
                size *= extent
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
            end += size
            weight_map[name] = file
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(args.out, file), "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            out.truncate(8 + len(text) + end)
    with open(os.path.join(args.out, "model.safetensors.index.json"), "w", encoding="utf-8") as out:
        json.dump({"metadata": {}, "weight_map": weight_map}, out, indent=2)
    with open(os.path.join(args.out, "config.json"), "w", encoding="utf-8") as out:
        json.dump({"model_type": "qwen3_moe"}, out)


if __name__ == "__main__":
    main()
