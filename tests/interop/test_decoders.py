"""Quantized weights as GPTQModel, ModelOpt and compressed-tensors pack them, decoded by glu-ckpt and by their own code:
all bits are equal. decoder_judges.py says how those run on a CPU."""

import json
import types

import pytest
import torch
from safetensors.torch import save_file

import decoder_judges
from decoder_judges import any_bits, weights
from glu_program import assert_same, bits, load_safetensors, need

HIDDEN, INTERMEDIATE = 256, 128
MODULES = {
    f"model.layers.0.mlp.experts.{expert}.{part}": shape
    for expert in range(2)
    for part, shape in (("gate_proj", (INTERMEDIATE, HIDDEN)), ("up_proj", (INTERMEDIATE, HIDDEN)),
                        ("down_proj", (HIDDEN, INTERMEDIATE)))
}


def checkpoint(path, pack, quantization_config):
    """`pack(rows, cols, seed)` gives a module's tensors, and the weight that the judge decodes them to."""
    path.mkdir()
    stored, wanted = {}, {}
    for seed, (name, (rows, cols)) in enumerate(MODULES.items()):
        parts, weight = pack(rows, cols, seed)
        stored |= {f"{name}.{part}": tensor.contiguous() for part, tensor in parts.items()}
        wanted[f"{name}.weight"] = weight
        assert weight.shape == (rows, cols) and weight.isfinite().all() and weight.abs().max() > 0
    save_file(stored, path / "model.safetensors", {"format": "pt"})
    config = {"model_type": "qwen3_moe", "num_experts": 2, "hidden_size": HIDDEN, "moe_intermediate_size": INTERMEDIATE,
              "quantization_config": quantization_config}
    (path / "config.json").write_text(json.dumps(config))
    return wanted


def judge(glu, path, pack, quantization_config, *options, dtypes=("bf16", "f32")):
    """The judge's weights are compared in bf16 and in fp32: what the judge computes in fewer bits is widened."""
    wanted = checkpoint(path, pack, quantization_config)
    for dtype in dtypes:
        out = glu.convert(path, "--decode", dtype, *options)
        of = torch.bfloat16 if dtype == "bf16" else torch.float32
        assert_same(load_safetensors(out), {name: weight.to(of) for name, weight in wanted.items()})


# GPTQ and AWQ

GPTQ_CASES = [(group, symmetric, order, version) for group in (32, 128, -1) for symmetric in (True, False)
              for order in (False, True) for version in (1, 2)]


@pytest.mark.parametrize("group, symmetric, order, version", GPTQ_CASES)
def test_gptq(glu, tmp_path, group, symmetric, order, version):
    """GPTQModel computes in the dtype of the scales, which its packing stores in F16. With zero points 0, version 1's
    subtraction borrows from the neighbour, which the addition gives back."""
    need("gptqmodel")
    linear_of = decoder_judges.gptqmodel("nn_modules.qlinear.torch").TorchLinear
    model = decoder_judges.gptqmodel("utils.model")

    def pack(rows, cols, seed):
        size = cols if group < 0 else group
        module = linear_of(bits=4, group_size=size, sym=symmetric, desc_act=order, in_features=cols, out_features=rows)
        columns = torch.arange(cols)
        groups = ((columns * 5 + seed) % cols if order else columns) // size
        source = torch.nn.Linear(cols, rows, bias=False)
        source.weight.data = weights(rows, cols, seed)
        generator = torch.Generator().manual_seed(seed)
        zeros = torch.full((rows, cols // size), 8)
        if not symmetric:
            zeros = torch.randint(0, 16, zeros.shape, generator=generator)
        scales = 10 ** -(1 + 3 * torch.rand(zeros.shape, generator=generator))
        module.pack_original(source, scales, zeros.float(), groups.to(torch.int32))
        wanted = module.eval().dequantize_weight().T
        assert wanted.dtype == torch.float16
        if version == 1:
            model.convert_gptq_v2_to_v1_format_module(module, types.SimpleNamespace(bits=4, pack_dtype=torch.int32))
        parts = {name: getattr(module, name) for name in ("qweight", "qzeros", "scales", "g_idx")}
        return {name: tensor.clone() for name, tensor in parts.items()}, wanted

    config = {"quant_method": "gptq", "bits": 4, "group_size": group, "sym": symmetric, "desc_act": order,
              "checkpoint_format": "gptq" if version == 1 else "gptq_v2"}
    judge(glu, tmp_path / "source", pack, config)


def test_gptq_of_eight_bits_is_refused(glu, tmp_path):
    need("gptqmodel")
    linear_of = decoder_judges.gptqmodel("nn_modules.qlinear.torch").TorchLinear

    def pack(rows, cols, seed):
        module = linear_of(bits=8, group_size=32, sym=True, desc_act=False, in_features=cols, out_features=rows)
        source = torch.nn.Linear(cols, rows, bias=False)
        source.weight.data = weights(rows, cols, seed)
        scales = torch.full((rows, cols // 32), 0.01)
        module.pack_original(source, scales, torch.full_like(scales, 128), torch.arange(cols, dtype=torch.int32) // 32)
        return {name: getattr(module, name).clone() for name in ("qweight", "qzeros", "scales", "g_idx")}, source.weight

    config = {"quant_method": "gptq", "bits": 8, "group_size": 32, "sym": True, "checkpoint_format": "gptq_v2"}
    checkpoint(tmp_path / "source", pack, config)
    refused = glu.run("convert", tmp_path / "source", glu.fresh(), "--decode", "bf16", status=3)
    assert "8 bits" in refused.stderr, refused.stderr


@pytest.mark.parametrize("group", [32, 128])
def test_awq(glu, tmp_path, group):
    need("gptqmodel")
    packing = decoder_judges.gptqmodel("quantization.awq.utils.packing_utils")

    def pack(rows, cols, seed):
        generator = torch.Generator().manual_seed(seed)
        codes = torch.randint(0, 16, (cols, rows), generator=generator)
        zeros = torch.randint(0, 16, (cols // group, rows), generator=generator)
        scales = (10 ** -(1 + 3 * torch.rand(zeros.shape, generator=generator))).half()
        qweight, qzeros = packing.pack_awq(codes, zeros, 4)
        wanted = packing.dequantize_gemm(qweight, qzeros, scales, 4, group).T
        return {"qweight": qweight, "qzeros": qzeros, "scales": scales}, wanted

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    judge(glu, tmp_path / "source", pack, config)


# compressed-tensors

def scheme_of(**fields):
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**fields))


def compressed(form, scheme, scale_dtype, fill=None):
    """Scales, codes and the decoded weight of compressed-tensors' own observer arithmetic, compressor and decoder.
    `fill` replaces the packed codes by random ones, which all occur."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    compressor = BaseCompressor.get_value_from_registry(form)
    args = scheme.weights

    def blocks(weight):
        rows, cols = weight.shape
        if args.strategy == "block":
            high, wide = args.block_structure
            padded = torch.nn.functional.pad(weight, (0, -cols % wide, 0, -rows % high))
            return padded.unflatten(1, (-1, wide)).unflatten(0, (-1, high)).transpose(1, 2).flatten(2)
        return {"tensor": lambda: weight.reshape(1, -1), "channel": lambda: weight.unsqueeze(1)}.get(
            args.strategy, lambda: weight.unflatten(1, (-1, args.group_size)))()

    def pack(rows, cols, seed):
        weight = weights(rows, cols, seed).to(scale_dtype)
        of = blocks(weight)
        state = {"weight": weight}
        if args.strategy == "tensor_group":
            state["weight_global_scale"] = generate_gparam(weight.min().float(), weight.max().float()).reshape(1)
        scale, zero = calculate_qparams(of.amin(-1), of.amax(-1), args, global_scale=state.get("weight_global_scale"))
        state |= {"weight_scale": scale if form == "nvfp4-pack-quantized" else scale.to(scale_dtype),
                  "weight_zero_point": zero}
        stored = compressor.compress(state, scheme)
        codes = "weight_packed" if "weight_packed" in stored else "weight"
        if fill:
            stored[codes] = any_bits(stored[codes], seed, fill)
        decoded = compressor.decompress(stored, scheme)["weight"]
        return stored, nvfp4_in_fp32(stored, args, decoded) if form == "nvfp4-pack-quantized" else decoded

    return pack


def nvfp4_in_fp32(stored, args, decoded):
    """NVFP4's decompress() decodes to bf16 alone; its two steps know fp32, too."""
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    codes = unpack_fp4_from_uint8(stored["weight_packed"], *decoded.shape, torch.float32)
    wide = dequantize(codes, stored["weight_scale"].float(), args=args, dtype=torch.float32,
                      global_scale=stored["weight_global_scale"])
    assert torch.equal(bits(wide.bfloat16()), bits(decoded))
    return wide


def config_of(form, scheme):
    from compressed_tensors.quantization import QuantizationConfig

    config = QuantizationConfig(config_groups={"group_0": scheme}, format=form, quantization_status="compressed")
    return json.loads(config.model_dump_json())


FP8 = {"num_bits": 8, "type": "float"}
INT4 = [{"strategy": "group", "group_size": 32}, {"strategy": "group", "group_size": 64},
        {"strategy": "group", "group_size": 128}, {"strategy": "channel"}]
COMPRESSED = {
    "nvfp4": ("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
                                       "scale_dtype": torch.float8_e4m3fn, "zp_dtype": torch.float8_e4m3fn}),
    "mxfp4": ("mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
                                       "scale_dtype": torch.uint8, "zp_dtype": torch.uint8}),
    "mxfp8": ("mxfp8-quantized", {**FP8, "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8,
                                  "zp_dtype": torch.uint8}),
    "fp8-tensor": ("float-quantized", {**FP8, "strategy": "tensor"}),
    "fp8-channel": ("float-quantized", {**FP8, "strategy": "channel"}),
    "fp8-block": ("float-quantized", {**FP8, "strategy": "block", "block_structure": [128, 128]}),
    "fp8-block-of-48": ("float-quantized", {**FP8, "strategy": "block", "block_structure": [48, 96]}),
    "int8-tensor": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "tensor"}),
    "int8-channel": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
}
COMPRESSED |= {f"int4-{fields.get('group_size', 'channel')}-{'symmetric' if symmetric else 'asymmetric'}":
               ("pack-quantized", {"num_bits": 4, "type": "int", "symmetric": symmetric, **fields})
               for fields in INT4 for symmetric in (True, False)}
# Any byte is a code, but FP8's NaNs; below 127 every code of FP8 is a number.
FILLS = {"float-quantized": 127, "mxfp8-quantized": 127}


@pytest.mark.parametrize("filled", [False, True], ids=["packed", "any-codes"])
@pytest.mark.parametrize("scale_dtype", [torch.bfloat16, torch.float32, torch.float16], ids=["bf16", "f32", "f16"])
@pytest.mark.parametrize("kind", COMPRESSED)
def test_compressed_tensors(glu, tmp_path, kind, scale_dtype, filled):
    """compressed-tensors computes in the dtype of its scales."""
    form, fields = COMPRESSED[kind]
    scheme = scheme_of(**fields)
    pack = compressed(form, scheme, scale_dtype, FILLS.get(form, 256) if filled else None)
    judge(glu, tmp_path / "source", pack, config_of(form, scheme), "--decode-as", "compressed-tensors")


def test_packed_codes_of_eight_bits_are_refused(glu, tmp_path):
    scheme = scheme_of(num_bits=8, type="int", strategy="group", group_size=32)
    checkpoint(tmp_path / "source", compressed("pack-quantized", scheme, torch.bfloat16),
               config_of("pack-quantized", scheme))
    refused = glu.run("convert", tmp_path / "source", glu.fresh(), "--decode", "bf16", status=3)
    assert "weights of 8 bits cannot be decoded" in refused.stderr


@pytest.mark.parametrize("group", [32, 64])
def test_reordered_columns_of_compressed_tensors(glu, tmp_path, group):
    """Packed by 0.20.0, which no longer reads an order of columns; decoded by 0.12.2, which does."""
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    fields = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group}
    scheme = scheme_of(**fields)
    plain = compressed("pack-quantized", scheme, torch.bfloat16, 256)
    dequantize = decoder_judges.dequantize_reordered()

    def pack(rows, cols, seed):
        stored, _ = plain(rows, cols, seed)
        order = ((torch.arange(cols) * 5 + seed) % cols // group).to(torch.int32)
        codes = unpack_from_int32(stored["weight_packed"], 4, torch.Size((rows, cols)))
        wanted = dequantize(codes, stored["weight_scale"], g_idx=order, args=QuantizationArgs(**fields))
        return stored | {"weight_g_idx": order}, wanted

    config = config_of("pack-quantized", scheme)
    config["config_groups"]["group_0"]["weights"]["actorder"] = "group"
    judge(glu, tmp_path / "source", pack, config)


# ModelOpt

def modelopt_config(algorithm, **fields):
    return {"quant_method": "modelopt", "quant_algo": algorithm, "producer": {"name": "modelopt", "version": "0.47.0"},
            **fields}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize("kind", ["NVFP4", "MXFP8", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO"])
def test_modelopt(glu, tmp_path, kind, dtype):
    """ModelOpt rounds scales of FP8 to the dtype that it decodes to, so each is asked for by itself."""
    need("nvidia-modelopt")
    qtensor = decoder_judges.modelopt()
    is_channel = "CHANNEL" in kind
    fields = {"NVFP4": {"group_size": 16}, "MXFP8": {"group_size": 32}}.get(kind, {})

    def pack(rows, cols, seed):
        weight = weights(rows, cols, seed)
        if kind == "NVFP4":
            codes, scale, second = qtensor.NVFP4QTensor.quantize(weight, 16)
            codes._quantized_data = any_bits(codes._quantized_data, seed)
            wanted = codes.dequantize(dtype, scale=scale, double_scale=second, block_sizes={-1: 16})
            return {"weight": codes._quantized_data, "weight_scale": scale, "weight_scale_2": second}, wanted
        if kind == "MXFP8":
            codes, scale = qtensor.MXFP8QTensor.quantize(weight)
            return {"weight": codes._quantized_data, "weight_scale": scale}, codes.dequantize(dtype, scale=scale)
        if kind == "FP8_PB_WO":
            codes, scale = qtensor.FP8QTensor.quantize(weight, block_sizes={-1: 128, -2: 128})
            wanted = codes.dequantize(dtype, scale=scale, block_sizes={-1: 128, -2: 128})
            return {"weight": codes._quantized_data, "weight_scale": scale[:, None, :, None]}, wanted
        codes, scale = qtensor.FP8QTensor.quantize(weight, axis=0 if is_channel else None)
        wanted = codes.dequantize(dtype, scale=scale)
        return {"weight": codes._quantized_data, "weight_scale": scale.flatten() if is_channel else scale.reshape([])}, wanted

    judge(glu, tmp_path / "source", pack, modelopt_config(kind, **fields), "--decode-as", "modelopt",
          dtypes=["bf16" if dtype == torch.bfloat16 else "f32"])
