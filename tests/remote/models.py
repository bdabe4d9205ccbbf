"""A model of experts as safetensors shards, made of bytes that say where they belong."""

import json
import random
import struct


def safetensors(tensors):
    """{name: (dtype, shape, bytes)} as a file."""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def moe_files(shards=4, layers=4, experts=8, width=32, hidden=64, seed=1):
    """The files of a directory: `shards` shards, their index, and a tokenizer."""
    random.seed(seed)
    tensors = {}
    for layer in range(layers):
        for expert in range(experts):
            for role, shape in (("gate", [width, hidden]), ("up", [width, hidden]), ("down", [hidden, width])):
                name = f"model.layers.{layer}.mlp.experts.{expert}.{role}_proj.weight"
                tensors[name] = ("BF16", shape, random.randbytes(2 * shape[0] * shape[1]))
        tensors[f"model.layers.{layer}.input_layernorm.weight"] = ("BF16", [hidden], random.randbytes(2 * hidden))
    names = list(tensors)
    files, where = {}, {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = names[shard * len(names) // shards : (shard + 1) * len(names) // shards]
        files[file] = safetensors({name: tensors[name] for name in part})
        where |= {name: file for name in part}
    files["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": where}).encode()
    files["tokenizer.json"] = random.randbytes(400_000)
    return files
