"""Checkpoints in memory: tensors of random bits, under the names that glu-ckpt looks for."""

import re

import torch

LAYERS, EXPERTS, HIDDEN, INTERMEDIATE = 2, 4, 32, 64

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64,
    torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip


def random_bits(*shape, dtype=torch.bfloat16, seed=0):
    """Any bit pattern, NaNs included; a bool has only two."""
    generator = torch.Generator().manual_seed(seed)
    count = torch.Size(shape).numel() * dtype.itemsize
    values = torch.randint(0, 2 if dtype == torch.bool else 256, (count,), dtype=torch.uint8, generator=generator)
    return values.view(dtype).reshape(shape)


def fc_tensors(prefix, dtype, seed):
    """The experts of one layer, one tensor each, under Megatron's names."""
    tensors = {}
    for expert in range(EXPERTS):
        shapes = {
            f"linear_fc1.weight{expert}": (2 * INTERMEDIATE, HIDDEN),
            f"linear_fc2.weight{expert}": (HIDDEN, INTERMEDIATE),
            f"linear_fc1.bias{expert}": (2 * INTERMEDIATE,),
            f"linear_fc2.bias{expert}": (HIDDEN,),
        }
        for name, shape in shapes.items():
            seed += 1
            tensors[prefix + name] = random_bits(*shape, dtype=dtype, seed=seed)
    return tensors


def model(seed=0):
    tensors = {"embedding.word_embeddings.weight": random_bits(48, HIDDEN, seed=seed + 1)}
    for layer in range(LAYERS):
        prefix = f"decoder.layers.{layer}.mlp."
        tensors[prefix + "router.weight"] = random_bits(EXPERTS, HIDDEN, dtype=torch.float32, seed=seed + 2 + layer)
        tensors |= fc_tensors(prefix + "experts.", torch.bfloat16, seed + 100 * (layer + 1))
    return tensors


def optimizer(seed=1000, states=("exp_avg", "exp_avg_sq", "fp32_param")):
    """One float32 tensor per state for each expert tensor, as Megatron names them."""
    return {
        f"optimizer.state.{state}.{name}": random_bits(*tensor.shape, dtype=torch.float32, seed=seed + 1000 * i + j)
        for i, state in enumerate(states)
        for j, (name, tensor) in enumerate(model().items())
        if ".experts." in name
    }


def grouped(tensors):
    """The same with one tensor for all experts of a layer."""
    groups = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(.*\.experts\.linear_fc[12]\.(?:weight|bias))(\d+)", name)
        groups.setdefault(match[1] if match else name, {})[int(match[2]) if match else None] = tensor
    return {
        name: members[None] if None in members else torch.stack([members[i] for i in range(len(members))])
        for name, members in groups.items()
    }


def every_dtype():
    """Each dtype as a matrix, a scalar and an empty tensor, beside experts to convert."""
    tensors = fc_tensors("decoder.layers.0.mlp.experts.", torch.bfloat16, 7)
    for i, dtype in enumerate(DTYPES):
        name = str(dtype).removeprefix("torch.")
        tensors[f"extra.{name}.matrix"] = random_bits(5, 6, dtype=dtype, seed=i)
        tensors[f"extra.{name}.scalar"] = random_bits(dtype=dtype, seed=50 + i)
        tensors[f"extra.{name}.empty"] = random_bits(0, 3, dtype=dtype)
    return tensors


def interleave_rows(tensor, block, axis=0):
    """Contiguous gate and up rows, reordered into blocks, from the definition: row p of the result is row
    h*F + b*k + o of the source, b = p // 2k, h = (p // k) % 2, o = p % k."""
    rows = tensor.shape[axis]
    index = [(p // block) % 2 * (rows // 2) + p // (2 * block) * block + p % block for p in range(rows)]
    return tensor.index_select(axis, torch.tensor(index))


def interleaved(tensors, block, axis=0):
    """Every FC1 of routed experts in another row order: weights, biases and their optimizer states."""
    return {
        name: interleave_rows(tensor, block, axis) if ".experts." in name and ".linear_fc1." in name else tensor
        for name, tensor in tensors.items()
    }
