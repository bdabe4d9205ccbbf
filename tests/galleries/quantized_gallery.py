"""The quantized experts of layout_gallery.py."""

E, F, H = 3, 4, 8
QWEN3 = {"model_type": "qwen3_moe", "num_experts": E, "num_hidden_layers": 1}
HF0 = "model.layers.0.mlp.experts."


def without(tensors, *names):
    return {k: v for k, v in tensors.items() if k not in names}


def quantized(parts, f=32, h=64, layer=0):
    """Experts of codes and scales: `parts` gives the tensors of a [rows, cols] weight by their words."""
    out = {}
    for e in range(E):
        for name, rows, cols in (("gate_proj", f, h), ("up_proj", f, h), ("down_proj", h, f)):
            for word, spec in parts(rows, cols).items():
                out[f"model.layers.{layer}.mlp.experts.{e}.{name}.{word}"] = spec
    return out


def nvfp4(n, k):
    return {"weight": ("U8", [n, k // 2]), "weight_scale": ("F8_E4M3", [n, k // 16]), "weight_scale_2": ("F32", []),
            "input_scale": ("F32", [])}


def packed_int4(n, k):
    return {"weight_packed": ("I32", [n, k // 8]), "weight_scale": ("BF16", [n, k // 32]), "weight_shape": ("I64", [2])}


def awq(n, k):
    return {"qweight": ("I32", [k, n // 8]), "qzeros": ("I32", [k // 32, n // 8]), "scales": ("F16", [k // 32, n])}


def quantized_cases(g):
    g.case("mxfp4_without_fc2",
           {HF0 + "gate_up_proj_blocks": ("U8", [E, 2 * F, 1, 16]), HF0 + "gate_up_proj_scales": ("U8", [E, 2 * F, 1]),
            HF0 + "gate_up_proj_bias": [E, 2 * F], HF0 + "down_proj_bias": [E, H]},
           "convert {IN} {OUT} --glu contiguous", 3, "part-missing", config={"model_type": "gpt_oss"})
    g.expect("mxfp4_without_fc2", "inspect {IN}", 3, "part-missing")
    regroup = "convert {IN} {OUT} --experts grouped --glu contiguous"
    g.case("nvfp4_without_a_second_scale", without(quantized(nvfp4), HF0 + "1.up_proj.weight_scale_2"), regroup, 3,
           "scale-missing", config=QWEN3)
    g.case("nvfp4_scales_of_another_grid", {**quantized(nvfp4), HF0 + "1.up_proj.weight_scale": ("F8_E4M3", [32, 2])},
           regroup, 3, "size-mismatch", config=QWEN3)
    g.case("nvfp4_scales_of_another_dtype", {**quantized(nvfp4), HF0 + "1.up_proj.weight_scale": ("F32", [32, 4])},
           regroup, 3, "expert-dtype", config=QWEN3)
    g.case("nvfp4_fc2_of_another_width", {**quantized(nvfp4), HF0 + "0.down_proj.weight": ("U8", [64, 8])}, regroup, 3,
           "size-mismatch", config=QWEN3)
    g.case("int4_groups_that_do_not_divide",
           {**quantized(packed_int4), HF0 + "2.gate_proj.weight_scale": ("BF16", [32, 3])}, regroup, 3,
           "size-mismatch", config=QWEN3)
    g.case("int4_of_halves", {**quantized(packed_int4), HF0 + "2.gate_proj.weight_packed": ("I32", [32, 7])}, regroup, 3,
           "size-mismatch", config=QWEN3)
    g.case("int4_beside_awq", {**quantized(packed_int4), HF0 + "0.gate_proj.qweight": ("I32", [64, 4])}, regroup, 3,
           "not-supported", config=QWEN3)
    g.case("awq_without_scales", {k: v for k, v in quantized(awq).items() if not k.endswith("scales")}, regroup, 3,
           "not-supported", config=QWEN3)
    g.case("awq_words_cut", quantized(awq), "convert {IN} {OUT} --glu interleaved:4", 4, "not-exact", config=QWEN3)
    g.case("awq_zero_points_of_another_grid", {**quantized(awq), HF0 + "1.up_proj.qzeros": ("I32", [2, 5])}, regroup, 3,
           "unexplained-key", config=QWEN3)
    g.case("awq_zero_points_of_other_groups", {**quantized(awq), HF0 + "1.up_proj.qzeros": ("I32", [4, 4])}, regroup, 3,
           "expert-shape", config=QWEN3)
