"""Changes of a checkpoint: some break it, some leave it sound, and the oracle, not these functions, says which.

Each takes random numbers and a Checkpoint, changes that, and says what it did.
"""
import json
import math

import checkpoint
from checkpoint import Tensor
from models import COUNTS, LATENT, LINEAR

FIELDS = sorted(COUNTS | LATENT | LINEAR | {
    "head_dim", "intermediate_size", "intermediate_size_mlp", "moe_intermediate_size", "shared_expert_intermediate_size",
    "num_experts", "num_local_experts", "n_routed_experts", "n_shared_experts", "n_group", "topk_group", "first_k_dense_replace",
    "rms_norm_eps", "routed_scaling_factor", "tie_word_embeddings", "num_nextn_predict_layers", "rope_theta", "layer_types",
    "rope_parameters", "rope_scaling", "model_type", "max_position_embeddings", "norm_topk_prob", "scoring_func", "hidden_act",
    "sliding_window", "torch_dtype", "dtype", "architectures", "mlp_only_layers", "decoder_sparse_step", "attention_bias",
})  # fmt: skip
FORGED = ["", "8", "many", -1, 0, 1, 2, 3, 7, 0.5, 1e308, 2**31, 2**63, 2**64, 10**30, True, False, None, [], [1], {}, {"a": 1}]
WORDS = {"model_type": ["qwen3_moe", "mixtral", "deepseek_v3", "gpt_oss", "llama", "olmoe", "no_such"],
         "hidden_act": ["gelu", "relu2"], "scoring_func": ["softmax", "sigmoid", "x"], "dtype": ["float32", "float16", "int8"],
         "torch_dtype": ["float32", "x"]}  # fmt: skip


def _fields(rng, c):
    known = [name for name in FIELDS if name in c.config]
    return rng.choice(known or FIELDS)


def config_value(rng, c):
    name = _fields(rng, c)
    value = rng.choice(FORGED + WORDS.get(name, []) * 4)
    c.config[name] = value
    return f"config.json: {name} = {json.dumps(value)}"


def config_near(rng, c):
    numbers = [name for name in FIELDS if isinstance(c.config.get(name), (int, float)) and not isinstance(c.config[name], bool)]
    if not numbers:
        return config_value(rng, c)
    name = rng.choice(numbers)
    old = c.config[name]
    c.config[name] = rng.choice([old + 1, old - 1, old * 2, old // 2, -old, str(old), [old], float(old)])
    return f"config.json: {name} = {json.dumps(c.config[name])}, was {old}"


def config_lost(rng, c):
    name = _fields(rng, c)
    c.config.pop(name, None)
    return f"config.json: no {name}"


def config_inner(rng, c):
    inner = [name for name in ("rope_parameters", "rope_scaling", "quantization_config") if isinstance(c.config.get(name), dict) and c.config[name]]
    if not inner:
        return config_value(rng, c)
    fields = c.config[rng.choice(inner)]
    while isinstance(value := fields[name := rng.choice(sorted(fields))], dict) and value and rng.random() < 0.8:
        fields = value
    if rng.random() < 0.3:
        del fields[name]
        return f"config.json: no {name} inside"
    fields[name] = rng.choice([*FORGED, "x", [64, 64], [128, 128], 32, 64, 128, 4, 8])
    return f"config.json: {name} = {json.dumps(fields[name])} inside, was {json.dumps(value)}"


def quantization_moved(rng, c):
    if "quantization_config" in c.config:
        del c.config["quantization_config"]
        return "config.json: no quantization_config"
    c.config["quantization_config"] = rng.choice([
        {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3"},
        {"quant_method": "mxfp4", "modules_to_not_convert": []}, {"quant_method": "awq", "bits": 4, "group_size": 32},
    ])  # fmt: skip
    return "config.json: a quantization_config of another model"


def field_unknown(rng, c):
    c.config[f"x_{rng.randrange(100)}"] = rng.choice(FORGED)
    return "config.json: a field that no one reads"


def _tensor(rng, c, fits=lambda tensor: True):
    c.shards = {file: held for file, held in c.shards.items() if held} or c.shards
    shard = rng.choice(sorted(c.shards))
    fitting = [name for name, tensor in c.shards[shard].items() if fits(tensor)] or list(c.shards[shard])
    return shard, rng.choice(fitting)


def _places(c):
    """The files of the index; an empty one where there is none, or an earlier change has broken it."""
    where = c.index.get("weight_map") if isinstance(c.index, dict) else None
    return where if isinstance(where, dict) else {}


def _put(c, shard, old, new, tensor):
    """Replaces `old` by `new`, in its place, and in the index."""
    c.shards[shard] = {new if name == old else name: tensor if name == old else t for name, t in c.shards[shard].items() if name == old or name != new}
    if old != new:
        _places(c).pop(old, None)
        _places(c)[new] = shard


def lost(rng, c):
    shard, name = _tensor(rng, c)
    del c.shards[shard][name]
    _places(c).pop(name, None)
    return f"no {name}"


def renamed(rng, c):
    shard, name = _tensor(rng, c)
    parts = name.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdigit()]
    kind = rng.randrange(5)
    if kind == 0 and numbers:
        parts[rng.choice(numbers)] = rng.choice(["0", "1", "7", "99", "-1", "01", "1e0", str(2**63)])
    elif kind == 1:
        parts[rng.randrange(len(parts))] = rng.choice(["x", "", "weight", "bias", "gate_proj", "up_proj", "w1", "w3"])
    elif kind == 2:
        parts.insert(rng.randrange(len(parts)), rng.choice(["module", "x", "0", "lora_A", "base_layer"]))
    elif kind == 3:
        parts.append(rng.choice(["absmax", "weight", "x", "lora_A.weight"]))
    else:
        del parts[rng.randrange(len(parts))]
    new = ".".join(parts)
    _put(c, shard, name, new, c.shards[shard][name])
    return f"{name} is called {new}"


def prefixed(rng, c):
    prefix = rng.choice(["module.", "_orig_mod.", "base_model.model.", "model.", "x.", "language_model."])
    for shard, tensors in list(c.shards.items()):
        for name in list(tensors):
            _put(c, shard, name, prefix + name, tensors[name])
            tensors = c.shards[shard]
    return f"all names begin with {prefix}"


def swapped(rng, c):
    shard, name = _tensor(rng, c)
    other = rng.choice(list(c.shards[shard]))
    tensors = c.shards[shard]
    tensors[name], tensors[other] = tensors[other], tensors[name]
    return f"{name} and {other} trade places"


def doubled(rng, c):
    shard, name = _tensor(rng, c)
    if len(c.shards) > 1 and rng.random() < 0.5:
        other = rng.choice([file for file in sorted(c.shards) if file != shard])
        c.shards[other][name] = c.shards[shard][name]
        return f"{name} is in {shard} and in {other}"
    _put(c, shard, name, name, c.shards[shard][name])
    c.shards[shard][name + ".copy"] = c.shards[shard][name]
    _places(c)[name + ".copy"] = shard
    return f"{name} is there twice, once as .copy"


COMPANIONS = ("scale", "zero", "qzeros", "g_idx", "shape")


def _wide(tensor):
    return bool(tensor.shape)


def reshaped(rng, c):
    shard, name = _tensor(rng, c, _wide)
    companions = [n for n in c.shards[shard] if any(word in n.rpartition(".")[2] for word in COMPANIONS) and c.shards[shard][n].shape]
    if companions and rng.random() < 0.7:
        name = rng.choice(companions)
    tensor = c.shards[shard][name]
    shape, size = list(tensor.shape), len(tensor.data)
    if not shape or not math.prod(shape):
        return lost(rng, c)
    kind = rng.randrange(6)
    if kind == 0:
        new, data = shape[::-1], tensor.data
    elif kind == 1:
        new, data = [shape[0] - 1, *shape[1:]], tensor.data[: size - size // shape[0]]
    elif kind == 2:
        new, data = [shape[0] + 1, *shape[1:]], tensor.data + tensor.data[: size // shape[0]]
    elif kind == 3:
        new, data = [1, *shape], tensor.data
    elif kind == 4:
        new, data = [math.prod(shape)], tensor.data
    else:
        new, data = [0, *shape[1:]], b""
    c.shards[shard][name] = Tensor(tensor.dtype, new, data)
    return f"{name} is {new}, was {shape}"


def retyped(rng, c):
    shard, name = _tensor(rng, c)
    tensor = c.shards[shard][name]
    dtype = rng.choice([d for d, bits in checkpoint.BITS.items() if bits == checkpoint.BITS[tensor.dtype] and d != tensor.dtype])
    c.shards[shard][name] = Tensor(dtype, tensor.shape, tensor.data)
    return f"{name} is {dtype}, was {tensor.dtype}"


def halved(rng, c):
    """Codes of one byte where an element has two, as if quantized."""
    shard, name = _tensor(rng, c, lambda tensor: tensor.dtype == "BF16")
    tensor = c.shards[shard][name]
    dtype = rng.choice(["F8_E4M3", "U8", "I8", "F8_E5M2"])
    c.shards[shard][name] = Tensor(dtype, tensor.shape, tensor.data[: math.prod(tensor.shape)])
    return f"{name} is {dtype}"


def valued(rng, c):
    shard, name = _tensor(rng, c, lambda tensor: tensor.data)
    tensor = c.shards[shard][name]
    at = rng.randrange(max(len(tensor.data), 1))
    c.shards[shard][name] = Tensor(tensor.dtype, tensor.shape, tensor.data[:at] + bytes([rng.randrange(256)]) + tensor.data[at + 1 :])
    return f"{name}: another byte at {at}"


def indexed(rng, c):
    if not _places(c):
        c.index = {"metadata": {}, "weight_map": {name: shard for shard, tensors in c.shards.items() for name in tensors}}
    where = _places(c)
    name, kind = rng.choice(sorted(where)), rng.randrange(6)
    if kind == 0:
        del where[name]
    elif kind == 1:
        where[name] = rng.choice([*c.shards, "no_such.safetensors", "../x.safetensors", "config.json", "", "/etc/passwd"])
    elif kind == 2:
        where[rng.choice(["x.weight", "model.layers.0.x"])] = where[name]
    elif kind == 3:
        where[name] = rng.choice([1, None, [], {}])
    elif kind == 4 and isinstance(c.index, dict):
        c.index["metadata"] = rng.choice([{"total_size": 1}, {"total_size": "x"}, None, []])
    else:
        c.index = rng.choice([[], {}, {"weight_map": []}, "x", None])
    return f"the index, {name}: kind {kind}"


def stale_file(rng, c):
    shard = rng.choice(sorted(c.shards))
    target = rng.choice(["model.safetensors", "model-00009-of-00009.safetensors", "old/model.safetensors", "consolidated.safetensors"])
    if target in c.shards:
        target = "stale.safetensors"
    c.shards[target], c.metadata[target] = dict(c.shards[shard]), {}
    return f"a copy of {shard} beside it as {target}"


def record(rng, c):
    shard = rng.choice(sorted(c.shards))
    key = rng.choice(["glu_ckpt.glu", "glu_ckpt.naming", "glu_ckpt.experts", "glu_ckpt.version", "glu_ckpt.digest", "format", "x"])
    c.metadata[shard] = dict(c.metadata[shard] or {}) | {key: rng.choice(["interleaved:8", "split", "contiguous", "megatron", "hf:mixtral", "0", ""])}
    return f"{shard} has metadata {key} = {c.metadata[shard][key]}"


def shuffled(rng, c):
    for shard, tensors in c.shards.items():
        names = list(tensors)
        rng.shuffle(names)
        c.shards[shard] = {name: tensors[name] for name in names}
    return "the tensors lie in another order"


def sharded(rng, c):
    tensors = c.tensors()
    count = rng.randrange(1, 5)
    c.shards = {f"model-{i + 1:05d}-of-{count:05d}.safetensors": {} for i in range(count)}
    for name, tensor in tensors.items():
        c.shards[rng.choice(sorted(c.shards))][name] = tensor
    c.shards = {file: held for file, held in c.shards.items() if held}
    c.metadata = {file: {"format": "pt"} for file in c.shards}
    c.index = {"metadata": {}, "weight_map": {name: file for file, held in c.shards.items() for name in held}}
    return f"the tensors lie in {len(c.shards)} files"


def side_file(rng, c):
    name = rng.choice(["generation_config.json", "glu_ckpt.json", "quantize_config.json", "hf_quant_config.json", "adapter_config.json",
                       "pytorch_model.bin", "latest_checkpointed_iteration.txt", "megatron_args.txt", ".metadata", "common.pt"])  # fmt: skip
    c.others[name] = rng.choice([b"", b"{}", b"[]", b"x", b'{"quant_method": "fp8"}', b"version https://git-lfs.github.com/spec/v1\n", bytes(64)])
    return f"a file {name} of {c.others[name]!r}"


# Those that leave a model the model that it was.
HARMLESS = (shuffled, sharded, field_unknown)
SEMANTIC = (config_value, config_value, config_near, config_near, config_lost, config_inner, config_inner, quantization_moved, field_unknown,
            lost, lost, renamed, renamed, prefixed, swapped, doubled, reshaped, reshaped, reshaped, retyped, halved, valued, indexed,
            stale_file, record, shuffled, sharded, side_file)  # fmt: skip


def bytes_of(rng, files):
    """Changes bytes of one file in place; headers and small files oftener than data."""
    name = rng.choice(sorted(files))
    data = files[name]
    near = min(len(data), rng.choice([16, 256, 4096, len(data)]))
    near = rng.choice([near, -near]) if near < len(data) else near
    place = rng.randrange(near) if near > 0 else len(data) + rng.randrange(near, 0) if near < 0 else 0
    kind = rng.randrange(6)
    if kind == 0:
        new = data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)] if data else b"x") + data[place + 1 :]
    elif kind == 1:
        new = data[:place] + bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9))) + data[place + rng.randrange(9) :]
    elif kind == 2:
        new = data[:place]
    elif kind == 3:
        new = data[:place] + data[place + rng.randrange(1, 64) :]
    elif kind == 4:
        new = data[:place] + rng.choice([b"\xff" * 8, b"\0" * 8, b"[" * 2000, b'"', b"\\u0000", b"1e999", b"}"]) + data[place:]
    else:
        new = data + data[place : place + 100]
    files[name] = new
    return f"{name}: bytes at {place}, kind {kind}"
