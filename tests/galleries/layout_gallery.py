"""Tiny checkpoints whose headers are sound and whose layouts are not,
each with the command that must refuse it; and, in a folder of their own, sound ones of unusual composition.

manifest.tsv has one line per case and command: case, arguments of glu-ckpt ({IN} the case's directory, {OUT} a
path that does not exist), exit status, slug. In tiny/manifest.tsv the fields after the case are the
options of a conversion and those of the conversion back.
"""
import json
import shutil
import struct
from pathlib import Path

from gallery_bytes import filler, product
from quantized_gallery import E, F, H, HF0, QWEN3, quantized_cases, without

ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8, "F8_E4M3": 1, "U8": 1}


def safetensors(tensors, metadata=None):
    """`tensors`: name -> shape, or (dtype, shape)."""
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, spec in tensors.items():
        dtype, shape = spec if isinstance(spec, tuple) else ("BF16", spec)
        raw = filler(name, product(shape) * ITEM_BYTES[dtype])
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


# ---- pieces ---------------------------------------------------------------------------------------

def proj(experts=range(E), f=F, h=H, layer=0, prefix="model.layers.", bias=False):
    """Hugging Face, one tensor per expert and projection."""
    out = {}
    for e in experts:
        base = f"{prefix}{layer}.mlp.experts.{e}."
        out[base + "gate_proj.weight"] = [f, h]
        out[base + "up_proj.weight"] = [f, h]
        out[base + "down_proj.weight"] = [h, f]
        if bias:
            out[base + "gate_proj.bias"] = [f]
            out[base + "up_proj.bias"] = [f]
            out[base + "down_proj.bias"] = [h]
    return out


def packed(e=E, f=F, h=H, layer=0, in_out=False, bias=False, prefix="model.layers."):
    """Hugging Face, one tensor for all experts."""
    base = f"{prefix}{layer}.mlp.experts."
    out = {base + "gate_up_proj": [e, h, 2 * f] if in_out else [e, 2 * f, h],
           base + "down_proj": [e, f, h] if in_out else [e, h, f]}
    if bias:
        out[base + "gate_up_proj_bias"] = [e, 2 * f]
        out[base + "down_proj_bias"] = [e, h]
    return out


def megatron(experts=range(E), f=F, h=H, layer=0, gated=True, bias=False, prefix="decoder.layers.", inner="."):
    out = {}
    base = f"{prefix}{layer}{inner}mlp.experts."
    for e in experts:
        out[f"{base}linear_fc1.weight{e}"] = [2 * f if gated else f, h]
        out[f"{base}linear_fc2.weight{e}"] = [h, f]
        if bias:
            out[f"{base}linear_fc1.bias{e}"] = [2 * f if gated else f]
            out[f"{base}linear_fc2.bias{e}"] = [h]
    return out


def megatron_grouped(e=E, f=F, h=H, layer=0):
    base = f"decoder.layers.{layer}.mlp.experts."
    return {base + "linear_fc1.weight": [e, 2 * f, h], base + "linear_fc2.weight": [e, h, f]}


def mixtral(layer):
    out = {}
    for e in range(E):
        base = f"model.layers.{layer}.block_sparse_moe.experts.{e}."
        out.update({base + "w1.weight": [F, H], base + "w3.weight": [F, H], base + "w2.weight": [H, F]})
    return out


def shared(name="shared_expert", f=F, h=H, layer=0):
    base = f"model.layers.{layer}.mlp.{name}."
    return {base + "gate_proj.weight": [f, h], base + "up_proj.weight": [f, h], base + "down_proj.weight": [h, f]}


def dense(layer=0, h=H):
    base = f"model.layers.{layer}."
    return {base + "mlp.gate_proj.weight": [8, h], base + "mlp.up_proj.weight": [8, h],
            base + "mlp.down_proj.weight": [h, 8], base + "input_layernorm.weight": [h]}


def record(**fields):
    return {"glu_ckpt." + k: v for k, v in fields.items()}


MEG0 = "decoder.layers.0.mlp.experts."
WRONG_DIGEST = "gck2:00112233445566778899aabbccddeeff:9:576"


class Gallery:
    def __init__(self, root):
        self.root, self.lines, self.seen = root, [], set()
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)

    def files(self, case, tensors, config=None, metadata=None, sidecar=None):
        assert case not in self.seen, case
        self.seen.add(case)
        directory = self.root / case
        directory.mkdir()
        (directory / "model.safetensors").write_bytes(safetensors(tensors, metadata))
        for name, content in (("config.json", config), ("glu_ckpt.json", sidecar)):
            if content is not None:
                (directory / name).write_text(json.dumps(content, indent=2) + "\n")

    def add_shard(self, case, tensors):
        """Makes the case's file the first of two shards that no index lists."""
        directory = self.root / case
        (directory / "model.safetensors").rename(directory / "a.safetensors")
        (directory / "b.safetensors").write_bytes(safetensors(tensors))

    def expect(self, case, command, status, slug):
        self.lines.append(f"{case}\t{command}\t{status}\t{slug}\n")

    def case(self, case, tensors, command, status, slug, **files):
        self.files(case, tensors, **files)
        self.expect(case, command, status, slug)

    def finish(self, note):
        (self.root / "manifest.tsv").write_text(f"# {note}\n" + "".join(self.lines))


def experts(g):
    to_grouped = "convert {IN} {OUT} --experts grouped --glu contiguous"
    interleave = "convert {IN} {OUT} --experts grouped --glu interleaved:2"
    g.case("expert_missing_middle", proj([0, 2]), to_grouped, 3, "expert-missing", config=QWEN3)
    g.case("expert_missing_middle_without_config", proj([0, 2]), to_grouped, 3, "expert-missing")
    g.case("expert_missing_first", proj([1, 2]), to_grouped, 3, "expert-missing")
    g.case("expert_missing_last", proj([0, 1]), to_grouped, 3, "expert-missing", config=QWEN3)
    g.expect("expert_missing_last", "digest {IN}", 3, "expert-missing")
    g.expect("expert_missing_last", "inspect {IN}", 3, "expert-missing")
    g.case("expert_missing_one_part", without(proj(), HF0 + "1.up_proj.weight"), to_grouped, 3, "expert-missing",
           config=QWEN3)
    g.case("expert_missing_grouped", packed(2), "convert {IN} {OUT} --experts indexed", 3, "expert-missing",
           config=QWEN3)
    g.case("expert_extra", proj(range(E + 1)), to_grouped, 3, "expert-extra", config=QWEN3)
    g.case("expert_extra_one_part", {**proj(), HF0 + "3.up_proj.weight": [F, H]}, to_grouped, 3, "expert-extra",
           config=QWEN3)
    g.case("expert_extra_one_part_without_config", {**proj(), HF0 + "3.up_proj.weight": [F, H]}, to_grouped, 3,
           "expert-extra")
    g.case("expert_index_huge", {**proj(), HF0 + "999999999.up_proj.weight": [F, H]}, to_grouped, 3,
           "expert-missing")
    g.case("expert_index_beyond_numbers", {**proj(), HF0 + "99999999999999999999.up_proj.weight": [F, H]}, to_grouped,
           3, "unexplained-key")
    g.case("expert_index_leading_zero", {**proj(), HF0 + "01.up_proj.weight": [F, H]}, to_grouped, 3,
           "unexplained-key")
    g.case("experts_of_two_hidden_sizes", {**proj([0, 1]), **proj([2], h=H + 8)}, to_grouped, 3, "expert-shape")
    g.case("experts_of_two_widths", {**proj([0, 1]), **proj([2], f=F + 2)}, to_grouped, 4, "ragged-experts")
    g.case("experts_of_two_dtypes", {**proj(), HF0 + "2.up_proj.weight": ("F32", [F, H])}, to_grouped, 3,
           "expert-dtype")
    g.case("gate_and_up_of_two_shapes", {**proj(), HF0 + "1.up_proj.weight": [F - 2, H]}, interleave, 3,
           "expert-shape")
    g.case("gate_and_up_transposed", {**proj(), HF0 + "1.up_proj.weight": [H, F]}, interleave, 3, "expert-shape")
    g.case("gate_and_up_of_two_dtypes",
           {k: ("F32", v) if "up_proj" in k else v for k, v in proj().items()}, interleave, 4, "not-exact")
    g.case("down_missing", without(proj(), *[HF0 + f"{e}.down_proj.weight" for e in range(E)]), interleave, 3,
           "part-missing")
    g.case("up_missing", without(proj(), *[HF0 + f"{e}.up_proj.weight" for e in range(E)]), interleave, 3,
           "part-missing")
    g.case("weight_of_no_elements", {k: [0 if d == F else d for d in v] for k, v in proj().items()}, interleave, 3,
           "expert-shape")
    g.case("indexed_and_grouped", {**megatron(), **megatron_grouped()},
           "convert {IN} {OUT} --from-glu contiguous --glu interleaved:2", 4, "redundant-keys")
    g.expect("indexed_and_grouped", "digest {IN} --from-glu contiguous", 4, "redundant-keys")
    g.case("fused_and_split", {**packed(), HF0 + "gate_proj": [E, F, H], HF0 + "up_proj": [E, F, H]},
           "convert {IN} {OUT} --glu interleaved:2", 4, "redundant-keys", config=QWEN3)
    g.case("weights_grouped_and_indexed_by_part",
           {**{MEG0 + f"linear_fc1.weight{e}": [2 * F, H] for e in range(E)}, MEG0 + "linear_fc2.weight": [E, H, F]},
           "convert {IN} {OUT} --from-glu contiguous --glu interleaved:2", 3, "not-supported")
    meg = megatron(bias=True)
    g.case("bias_on_some_experts", without(meg, MEG0 + "linear_fc1.bias1"),
           "convert {IN} {OUT} --from-glu contiguous --glu interleaved:2", 3, "bias-incomplete")
    g.case("bias_missing_on_last_expert", without(meg, MEG0 + "linear_fc1.bias2"),
           "convert {IN} {OUT} --from-glu contiguous --glu interleaved:2", 3, "bias-incomplete")
    g.case("bias_on_gate_only", without(proj(bias=True), *[HF0 + f"{e}.up_proj.bias" for e in range(E)]), interleave,
           3, "bias-incomplete")
    g.case("bias_of_other_length", {**meg, MEG0 + "linear_fc1.bias1": [2 * F + 1]},
           "convert {IN} {OUT} --from-glu contiguous --glu interleaved:2", 3, "expert-shape")
    g.case("bias_without_weight", {**megatron(), "decoder.layers.1.mlp.experts.linear_fc1.bias0": [2 * F]},
           "convert {IN} {OUT} --from-glu contiguous --glu interleaved:2", 3, "part-missing")
    g.case("gate_on_one_expert_only",
           {**{k: v for k, v in megatron([0, 1], gated=False).items()}, **megatron([2])},
           "convert {IN} {OUT} --experts grouped", 3, "expert-shape")
    g.expect("gate_on_one_expert_only", "digest {IN}", 3, "expert-shape")


def naming(g):
    g.case("packed_and_unnamed", packed(), "convert {IN} {OUT} --glu interleaved:2", 4, "ambiguous-naming")
    g.expect("packed_and_unnamed", "convert {IN} {OUT} --experts indexed --glu split", 4, "ambiguous-naming")
    g.expect("packed_and_unnamed", "digest {IN}", 4, "ambiguous-naming")
    g.expect("packed_and_unnamed", "stamp {IN} --shared-glu contiguous", 4, "ambiguous-naming")
    g.case("packed_of_unknown_family", packed(), "convert {IN} {OUT} --experts indexed --glu split", 4,
           "ambiguous-naming", config={"model_type": "brand_new_moe"})
    g.case("packed_in_out_unnamed", packed(in_out=True, bias=True), "convert {IN} {OUT} --experts indexed --glu split",
           4, "ambiguous-naming")
    g.case("packed_in_out_of_out_in_family", packed(in_out=True), "convert {IN} {OUT} --glu interleaved:2", 3,
           "expert-shape", config=QWEN3)
    g.case("packed_out_in_of_in_out_family", packed(), "convert {IN} {OUT} --glu contiguous", 3, "expert-shape",
           config={"model_type": "gpt_oss"})
    g.expect("packed_out_in_of_in_out_family",
             "convert {IN} {OUT} --from-naming hf:openai_privacy_filter --glu interleaved:2", 4, "glu-conflict")
    g.case("from_naming_against_config", packed(in_out=True, bias=True),
           "convert {IN} {OUT} --from-naming hf:gpt_oss --scope experts --naming megatron --experts indexed --glu contiguous", 4,
           "glu-conflict", config={"model_type": "openai_privacy_filter"})
    g.case("from_naming_against_text_config", packed(in_out=True, prefix="language_model.model.layers."),
           "convert {IN} {OUT} --from-naming hf:openai_privacy_filter --scope experts --naming megatron --experts indexed", 4,
           "glu-conflict", config={"model_type": "internvl", "text_config": {"model_type": "gpt_oss"}})
    g.case("router_counts_more_experts", {**proj(), "model.layers.0.mlp.gate.weight": [E + 1, H]},
           "convert {IN} {OUT} --experts grouped --glu contiguous", 3, "expert-missing")
    g.case("router_counts_fewer_experts", {**megatron_grouped(), "decoder.layers.0.mlp.router.weight": [E - 1, H]},
           "convert {IN} {OUT} --experts indexed", 3, "expert-extra")
    g.case("no_experts_in_the_expert_axis", megatron_grouped(e=0), "convert {IN} {OUT} --experts indexed", 3,
           "expert-shape")
    g.case("scoped_keys_without_a_place", megatron(prefix="language_model.decoder.layers."),
           "convert {IN} {OUT} --scope experts --naming torchtitan --from-glu contiguous --glu split --experts grouped", 4,
           "no-spelling")
    g.case("companion_named_like_the_shared_gate", {**proj(), HF0 + "0.gate_weight_scale": [F]},
           "convert {IN} {OUT} --experts grouped --glu contiguous", 3, "unexplained-key", config=QWEN3)
    g.case("bias_transposed", {**megatron_grouped(), MEG0 + "linear_fc1.bias": [2 * F, E]},
           "convert {IN} {OUT} --from-glu contiguous --glu interleaved:2", 3, "expert-shape")
    g.case("record_in_one_shard_only", megatron([0, 1]), "convert {IN} {OUT} --glu interleaved:2", 4, "unknown-glu",
           metadata=record(version="0.1.0", naming="megatron", experts="indexed", glu="contiguous"))
    g.add_shard("record_in_one_shard_only", megatron([0, 1], layer=1))
    g.case("from_naming_explains_nothing", proj(), "convert {IN} {OUT} --from-naming megatron --glu interleaved:2", 3,
           "unexplained-key", config=QWEN3)
    g.case("two_families", {**proj(), **{k: v for k, v in megatron(layer=1).items()}},
           "convert {IN} {OUT} --experts grouped", 3, "unexplained-key")
    g.case("target_without_shared_expert", {**proj(), **shared()}, "convert {IN} {OUT} --scope experts --naming hf:qwen3_moe", 4,
           "no-spelling", config={"model_type": "qwen2_moe", "num_experts": E})
    g.case("target_without_mtp_stack",
           {**megatron(), **megatron(prefix="mtp.layers.", inner=".transformer_layer.")},
           "convert {IN} {OUT} --scope experts --naming hf:qwen3_omni_moe --from-glu contiguous --glu split --experts indexed",
           4, "no-spelling")
    g.case("renamed_onto_another", {**proj(), MEG0 + "linear_fc2.weight": [2]},
           "convert {IN} {OUT} --scope experts --naming megatron --experts grouped --glu interleaved:2", 3, "unexplained-key")
    g.case("scales_that_nothing_explains",
           {**proj(), **{HF0 + f"{e}.{p}_proj.weight_scale": ("F32", []) for e in range(E)
                         for p in ("gate", "up", "down")}},
           "convert {IN} {OUT} --experts grouped --glu interleaved:2", 3, "unexplained-key", config=QWEN3)
    g.case("input_scales_that_nothing_explains",
           {**packed(), HF0 + "gate_up_proj_input_scale": ("F32", [E])},
           "convert {IN} {OUT} --glu interleaved:2", 3, "unexplained-key", config=QWEN3)
    base = "model.layers.0.block_sparse_moe."
    g.case("granite_scales_that_nothing_explains",
           {base + "input_linear.weight": [E, 2 * F, H], base + "output_linear.weight": [E, H, F],
            base + "input_linear.weight_scale": ("F32", [E, 2 * F])},
           "convert {IN} {OUT} --glu interleaved:2", 3, "unexplained-key", config={"model_type": "granitemoe"})
    base = "model.layers.0.moe."
    g.case("step_scales_that_nothing_explains",
           {base + "gate_proj.weight": [E, F, H], base + "up_proj.weight": [E, F, H],
            base + "down_proj.weight": [E, H, F], base + "gate_proj.weight_scale": ("F32", [E, F])},
           "convert {IN} {OUT} --glu interleaved:2", 3, "unexplained-key", config={"model_type": "step3p5"})
    g.case("lora_that_nothing_explains",
           {**megatron(), MEG0 + "linear_fc1.adapter.linear_out.weight": [2 * F, 2]},
           "convert {IN} {OUT} --from-glu contiguous --glu interleaved:2", 3, "unexplained-key")
    g.case("optimizer_state_of_other_shapes",
           {**megatron(), **{"optimizer.state.exp_avg." + k: ("F32", [*v, 1]) for k, v in megatron().items()}},
           "convert {IN} {OUT} --from-glu contiguous --glu interleaved:2", 3, "unexplained-key")
    states = {"optimizer.state.exp_avg." + k: ("F32", v) for k, v in megatron().items()}
    g.case("optimizer_state_lacks_an_expert",
           {**megatron(), **{k: v for k, v in states.items() if not k.endswith("linear_fc1.weight1")}},
           "convert {IN} {OUT} --from-glu contiguous --glu interleaved:2", 3, "expert-missing")
    g.case("optimizer_step_of_an_expert",
           {**megatron(), **{f"optimizer.state.{k}.step": ("F32", []) for k in megatron()}},
           "convert {IN} {OUT} --from-glu contiguous --experts grouped", 4, "not-exact")
    bucket = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.bfloat16).bucket_idx_0.param"
    g.case("optimizer_buckets", {**megatron(), bucket: ("F32", [64])},
           "convert {IN} {OUT} --from-glu contiguous --glu interleaved:2", 4, "optimizer-buckets")
    fp8 = {k: ("F8_E4M3", v) for k, v in proj(f=64, h=16).items()}
    scales = {k + "_scale_inv": ("F32", [1, 1]) for k in fp8}
    g.case("block_scales_in_an_order_of_nobody", {**fp8, **scales},
           "convert {IN} {OUT} --experts grouped --glu interleaved:32", 4, "foreign-order",
           config={"model_type": "deepseek_v3"})
    g.case("block_scales_of_other_shape", {**fp8, **{k: ("F32", [2, 1]) for k in scales}},
           "convert {IN} {OUT} --experts grouped", 3, "size-mismatch", config={"model_type": "deepseek_v3"})
    fused = {k: ("F8_E4M3", v) for k, v in packed(f=320, h=8).items()}
    g.case("block_scales_of_neither_one_nor_two", {**fused, **{k + "_scale_inv": ("F32", [E, 7, 1] if "up" in k else [E, 1, 3])
                                                           for k in fused}},
           "convert {IN} {OUT} --experts indexed", 3, "size-mismatch", config={"model_type": "qwen3_moe"})
    g.expect("block_scales_of_neither_one_nor_two", "convert {IN} {OUT} --decode bf16", 3, "size-mismatch")
    channels = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}
    words = {"targets": ["re:.*experts.*"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}
    for name, targets in (("scales_of_another_group", ["re:.*nothing.*"]), ("codes_of_another_group", ["re:.*experts.*"])):
        g.case(name, {**fp8, **{k + "_scale": ("F32", [1]) for k in fp8}},
               "convert {IN} {OUT} --decode bf16", 3, "quant-config-contradicts",
               config={"model_type": "deepseek_v3", "quantization_config": {
                   "quant_method": "compressed-tensors",
                   "config_groups": {"channels": channels, "words": words | {"targets": targets}}}})
    square = {k: ("F8_E4M3", v) for k, v in packed(f=8, h=8, in_out=True).items()}
    g.case("scales_of_either_axis", {"a.experts." + k.rsplit(".", 1)[1]: v for k, v in square.items()} | {
               "a.experts." + k.rsplit(".", 1)[1] + "_scale": ("F32", [E, 16 if "up" in k else 8, 1]) for k in square},
           "convert {IN} {OUT} --decode bf16", 3, "size-mismatch", config={"model_type": "llama4_text"})
    g.case("no_experts", dense(), "convert {IN} {OUT} --glu interleaved:2", 4, "no-experts",
           config={"model_type": "qwen3"})
    g.expect("no_experts", "stamp {IN} --glu contiguous", 4, "no-experts")


def glu(g):
    g.case("not_gated", megatron(gated=False), "convert {IN} {OUT} --glu interleaved:2", 4, "not-gated")
    g.expect("not_gated", "convert {IN} {OUT} --glu split", 4, "not-gated")
    g.expect("not_gated", "convert {IN} {OUT} --from-glu contiguous --glu split", 4, "glu-conflict")
    g.case("not_divisible", proj(), "convert {IN} {OUT} --scope experts --naming megatron --glu interleaved:3", 4, "not-divisible",
           config=QWEN3)
    g.expect("not_divisible", "convert {IN} {OUT} --scope experts --naming megatron --glu interleaved:8", 4, "not-divisible")
    g.expect("not_divisible", "convert {IN} {OUT} --scope experts --naming megatron --glu interleaved", 4, "not-divisible")
    g.expect("not_divisible", "convert {IN} {OUT} --scope experts --naming megatron --glu interleaved:9223372036854775807", 4,
             "not-divisible")
    g.case("already_in_layout", proj(), "convert {IN} {OUT}", 4, "already-in-layout", config=QWEN3)
    g.expect("already_in_layout", "convert {IN} {OUT} --glu split --experts indexed", 4, "already-in-layout")
    g.expect("already_in_layout", "plan {IN} {OUT} --scope experts --naming hf:qwen3_moe", 4, "already-in-layout")
    g.case("glu_unknown", megatron(), "convert {IN} {OUT} --glu interleaved:2", 4, "unknown-glu")
    g.expect("glu_unknown", "convert {IN} {OUT} --glu contiguous", 4, "unknown-glu")
    g.expect("glu_unknown", "convert {IN} {OUT} --scope experts --naming hf:qwen3_moe --glu split", 4, "unknown-glu")
    g.expect("glu_unknown", "convert {IN} {OUT} --scope experts --naming hf:qwen3_moe --experts grouped", 4, "unknown-glu")
    g.expect("glu_unknown", "convert {IN} {OUT} --scope experts --naming hf:gpt_oss --experts grouped", 4, "unknown-glu")
    g.expect("glu_unknown", "digest {IN}", 4, "unknown-glu")
    g.expect("glu_unknown", "verify {IN} {IN} --forward", 4, "unknown-glu")
    g.expect("glu_unknown", "verify {IN} {IN} --from-glu contiguous", 4, "unknown-glu")
    g.expect("glu_unknown", "convert {IN} {OUT} --from-glu interleaved:3 --glu contiguous", 4, "not-divisible")
    g.expect("glu_unknown", "convert {IN} {OUT} --from-glu interleaved:9223372036854775807 --glu contiguous", 4,
             "not-divisible")
    g.expect("glu_unknown", "convert {IN} {OUT} --from-glu split --glu interleaved:2", 4, "glu-conflict")
    g.expect("glu_unknown", "stamp {IN} --glu interleaved:3", 4, "not-divisible")
    g.expect("glu_unknown", "stamp {IN} --glu split", 4, "glu-conflict")
    g.case("glu_unknown_grouped", megatron_grouped(), "convert {IN} {OUT} --experts indexed --glu split", 4,
           "unknown-glu")
    fused_indexed = {HF0 + f"{e}.gate_up_proj.weight": [2 * F, H] for e in range(E)}
    downs = {HF0 + f"{e}.down_proj.weight": [H, F] for e in range(E)}
    # Grouped, these keys would mean contiguous; nothing says that these rows are.
    g.case("glu_unknown_in_a_form_of_ours", {**fused_indexed, **downs}, "convert {IN} {OUT} --experts grouped", 4,
           "unknown-glu", config=QWEN3)
    g.expect("glu_unknown_in_a_form_of_ours", "convert {IN} {OUT} --experts grouped --verify none", 4, "unknown-glu")
    mixed = {**{MEG0 + f"linear_fc1.weight{e}_{half}": [F, H] for e in range(E) for half in "wv"},
             **{MEG0 + f"linear_fc2.weight{e}": [H, F] for e in range(E)}, **megatron(layer=1)}
    # "split" is true of layer 0 only; it says nothing about layer 1.
    g.case("glu_of_one_layer_for_all", mixed, "convert {IN} {OUT} --from-glu split --glu interleaved:2", 4,
           "glu-conflict")
    g.expect("glu_of_one_layer_for_all", "digest {IN} --from-glu split", 4, "glu-conflict")
    g.expect("glu_of_one_layer_for_all", "convert {IN} {OUT} --glu interleaved:2", 4, "unknown-glu")
    g.case("glu_of_gpt_oss_denied", packed(in_out=True, bias=True),
           "convert {IN} {OUT} --from-glu contiguous --glu interleaved:2", 4, "glu-conflict",
           config={"model_type": "gpt_oss"})
    g.expect("glu_of_gpt_oss_denied", "convert {IN} {OUT} --from-glu interleaved:2 --glu contiguous", 4,
             "glu-conflict")
    g.expect("glu_of_gpt_oss_denied", "digest {IN} --from-glu contiguous", 4, "glu-conflict")
    g.expect("glu_of_gpt_oss_denied", "stamp {IN} --glu contiguous", 4, "glu-conflict")
    g.case("glu_of_split_denied", proj(), "convert {IN} {OUT} --from-glu contiguous --glu interleaved:2", 4,
           "glu-conflict", config=QWEN3)
    g.case("shared_glu_unknown",
           {**megatron(), "decoder.layers.0.mlp.shared_experts.linear_fc1.weight": [2 * F, H],
            "decoder.layers.0.mlp.shared_experts.linear_fc2.weight": [H, F]},
           "convert {IN} {OUT} --from-glu contiguous --shared-glu interleaved:2", 4, "unknown-glu")
    g.expect("shared_glu_unknown", "digest {IN} --from-glu contiguous", 4, "unknown-glu")
    g.expect("shared_glu_unknown", "convert {IN} {OUT} --from-shared-glu interleaved:3 --shared-glu contiguous", 4,
             "not-divisible")


def records(g):
    meta = dict(version="0.1.0", naming="megatron", experts="indexed")
    to = "convert {IN} {OUT} --glu interleaved:2"

    def case(name, command, slug, tensors=None, status=3, sidecar=None, **fields):
        g.case("record_" + name, megatron() if tensors is None else tensors, command, status, slug,
               metadata=record(**{**meta, **fields}), sidecar=sidecar)

    case("of_other_experts", to, "record-contradicts", experts="grouped", glu="contiguous")
    g.expect("record_of_other_experts", "inspect {IN}", 3, "record-contradicts")
    case("split_on_fused", to, "record-contradicts", glu="split")
    case("fused_on_split", "convert {IN} {OUT} --experts grouped", "record-contradicts", proj(), naming="hf:qwen3_moe",
         glu="contiguous")
    case("not_dividing", "convert {IN} {OUT} --glu contiguous", "record-contradicts", glu="interleaved:3")
    case("gated_on_plain", "convert {IN} {OUT} --experts grouped", "record-contradicts", megatron(gated=False),
         glu="contiguous")
    case("plain_on_gated", "convert {IN} {OUT} --experts grouped", "record-contradicts", proj(),
         naming="hf:qwen3_moe", glu="none")
    case("of_other_naming", to, "record-contradicts", naming="hf:qwen3_moe", glu="contiguous")
    case("of_unknown_naming", to, "record-invalid", naming="hf:nothing_like_it", glu="contiguous")
    case("of_garbage_glu", to, "record-invalid", glu="interleaved:0")
    g.expect("record_of_garbage_glu", "digest {IN}", 3, "record-invalid")
    case("of_garbage_layers", to, "record-invalid", glu="contiguous", num_hidden_layers="many")
    case("of_wrong_digest", to, "record-contradicts", glu="contiguous", digest=WRONG_DIGEST)
    g.expect("record_of_wrong_digest", "digest {IN}", 3, "record-contradicts")
    case("denied", "convert {IN} {OUT} --from-glu contiguous --glu interleaved:4", "glu-conflict", status=4,
         glu="interleaved:2")
    g.expect("record_denied", "digest {IN} --from-glu contiguous", 4, "glu-conflict")
    g.expect("record_denied", "stamp {IN} --glu contiguous", 4, "glu-conflict")
    case("in_two_voices", to, "record-contradicts", glu="contiguous", sidecar={**meta, "glu": "interleaved:2"})
    case("sidecar_not_strings", to, "record-invalid", glu="contiguous", sidecar={**meta, "glu": 2})
    case("sidecar_not_object", to, "record-invalid", glu="contiguous", sidecar=["glu"])


def usage(g):
    g.files("sound", {**megatron(bias=True)}, metadata=record(glu="contiguous"))
    for text in ("interleaved:0", "interleaved:-1", "interleaved:x", "interleaved:", "interleaved:1.5", "Split",
                 "interleaved:99999999999999999999", "unknown", "none"):
        g.expect("sound", "convert {IN} {OUT} --glu " + text, 2, "usage")
    for options in ("--from-glu interleaved:0", "--shared-glu x", "--experts flat", "--jobs 0", "--jobs -1", "--jobs x",
                    "--max-memory 12XB", "--max-memory -1", "--max-memory 4096", "--max-shard-size 0",
                    "--max-shard-size 99999999999999999999", "--max-shard-size 9999999TB", "--verify maybe",
                    "--progress loud", "--format floppy", "--gluu split", "--nonsense", "third_argument"):
        g.expect("sound", "convert {IN} {OUT} --glu interleaved:2 " + options, 2, "usage")
    g.expect("sound", "convert {IN} {OUT} --scope experts --naming hf:nothing_like_it", 2, "unknown-naming")
    g.expect("sound", "convert {IN} {OUT} --from-naming megatrn --glu interleaved:2", 2, "unknown-naming")
    g.expect("sound", "convert {IN}", 2, "usage")
    g.expect("sound", "verify {IN}", 2, "usage")
    g.expect("sound", "stamp {IN}", 2, "usage")
    g.expect("sound", "convrt {IN} {OUT}", 2, "usage")
    g.expect("sound", "convert {IN} {OUT}.safetensors --glu interleaved:2 --max-shard-size 64", 2, "usage")
    g.expect("sound", "convert {IN} {OUT} --glu interleaved:2 --device cuda:99", 5, "no-device")
    g.expect("sound", "convert {IN} {OUT} --glu interleaved:2 --device abacus", 2, "usage")
    g.expect("sound", "convert {IN}/missing {OUT} --glu interleaved:2", 3, "not-found")
    g.expect("sound", "inspect {IN}/missing", 3, "not-found")
    g.expect("sound", "convert {IN} {OUT}/deeper/down --glu interleaved:2", 3, "not-found")
    g.expect("sound", "convert {IN} {IN}/inside --glu interleaved:2", 4, "output-inside-source")
    g.expect("sound", "convert {IN} {IN} --glu interleaved:2", 4, "output-inside-source")
    g.expect("sound", "convert {IN} {IN}/ --glu interleaved:2 --overwrite", 4, "output-inside-source")
    g.expect("sound", "convert {IN} {IN}/../in --glu interleaved:2 --overwrite", 4, "output-inside-source")
    g.expect("sound", "convert {IN}/model.safetensors {IN} --glu interleaved:2 --overwrite", 4,
             "output-inside-source")
    g.expect("sound", "convert {IN}/model.safetensors {IN}/model.safetensors --glu interleaved:2 --overwrite", 4,
             "output-inside-source")
    g.expect("sound", "convert {IN} {IN}/.. --glu interleaved:2 --overwrite", 4, "output-inside-source")


def tiny(root):
    """Sound checkpoints of unusual composition: they convert, and back to the same digest."""
    g = Gallery(root)
    megatron_interleaved = "--scope experts --naming megatron --experts grouped --glu interleaved:2 --shared-glu contiguous"

    def case(name, tensors, there, back, **files):
        g.files(name, tensors, **files)
        g.lines.append(f"{name}\t{there}\t{back}\n")

    case("megatron_bias", megatron(bias=True), "--from-glu contiguous --glu interleaved:2 --experts grouped",
         "--glu contiguous --experts indexed")
    case("megatron_bias_indexed_beside_grouped",
         {**megatron_grouped(), **{k: v for k, v in megatron(bias=True).items() if ".bias" in k}},
         "--from-glu interleaved:2 --glu contiguous --experts indexed",
         "--glu interleaved:2 --experts grouped --bias-experts indexed")
    case("megatron_mtp",
         {**megatron(), **megatron(prefix="mtp.layers.", inner=".transformer_layer."),
          "embedding.word_embeddings.weight": [16, H]},
         "--from-glu contiguous --glu interleaved:2", "--glu contiguous")
    case("megatron_module_prefix", megatron(prefix="module.decoder.layers."),
         "--from-glu contiguous --glu interleaved:2", "--glu contiguous")
    case("megatron_two_scopes", {**megatron(prefix="student.decoder.layers."),
                                 **megatron([0, 1], f=6, prefix="teacher.decoder.layers.")},
         "--from-glu interleaved:2 --glu contiguous --experts grouped", "--glu interleaved:2 --experts indexed")
    case("megatron_not_gated", megatron(gated=False), "--experts grouped", "--experts indexed")
    case("megatron_ragged", {**megatron([0, 1]), **megatron([2], f=6)}, "--from-glu contiguous --glu interleaved:2",
         "--glu contiguous")
    dist = {"linear_fc1.weight": [2, E, 2 * F, H], "linear_fc2.weight": [2, E, H, F], "linear_fc1.bias": [2, E, 2 * F]}
    stacked = {**{"decoder.layers.mlp.experts.experts." + k: v for k, v in dist.items()},
               "decoder.layers.mlp.shared_experts.linear_fc1.weight": [2, 2 * F, H],
               "decoder.layers.mlp.shared_experts.linear_fc2.weight": [2, H, F],
               "decoder.layers.mlp.router.weight": [2, E, H], "decoder.layers.self_attention.linear_proj.weight": [2, H, H]}
    states = {f"optimizer.state.{s}.{k}": ("F32", v) for s in ("param", "exp_avg", "exp_avg_sq")
              for k, v in stacked.items()}
    case("megatron_dist_optimizer", {**stacked, **states},
         "--from-glu interleaved:2 --from-shared-glu contiguous "
         "--scope experts --naming megatron --experts indexed --glu interleaved:4 --shared-glu interleaved:2",
         "--scope experts --naming megatron-dist --experts grouped --glu interleaved:2 --shared-glu contiguous")
    halves = {f"{MEG0}linear_fc1.weight{e}_{half}": [F, H] for e in range(E) for half in "wv"}
    halves.update({f"{MEG0}linear_fc2.weight{e}": [H, F] for e in range(E)})
    case("megatron_fsdp",
         {**{"model.module." + k: v for k, v in halves.items()},
          **{f"optimizer.state.module.module.module.{k}.{s}": ("F32", v) for k, v in halves.items()
             for s in ("exp_avg", "exp_avg_sq")}},
         "--experts grouped --glu interleaved:2", "--experts indexed --glu split")
    case("megatron_legacy_shards",
         {**{f"mp_rank_00_00{r}/{k}": v for r in range(2) for k, v in megatron().items()},
          **{f"mp_rank_00_00{r}/{MEG0.replace('experts.', 'router.weight')}": [2 * E, H] for r in range(2)}},
         "--from-glu contiguous --glu interleaved:2", "--glu contiguous")
    case("deepseek_mtp",
         {**dense(), **proj(layer=1), **shared("shared_experts", layer=1), **proj(layer=2),
          **shared("shared_experts", layer=2), "model.layers.1.mlp.gate.e_score_correction_bias": ("F32", [E]),
          "model.layers.2.eh_proj.weight": [H, 2 * H]},
         megatron_interleaved, "--scope experts --naming hf:deepseek_v3 --experts indexed --glu split --shared-glu split",
         config={"model_type": "deepseek_v3", "n_routed_experts": E, "num_hidden_layers": 2,
                 "first_k_dense_replace": 1})
    case("layers_with_gaps", {**dense(0), **proj(layer=1), **dense(2), **proj(layer=7), **proj(layer=11)},
         megatron_interleaved, "--scope experts --naming hf:qwen3_moe --experts indexed --glu split",
         config={**QWEN3, "num_hidden_layers": 12})
    case("multimodal_prefix", {**proj(prefix="language_model.model.layers."), "vision_tower.patch.weight": [4, 4]},
         megatron_interleaved, "--scope experts --naming hf:qwen3_moe --experts indexed --glu split",
         config={"model_type": "a_multimodal_moe", "text_config": {"num_experts": E}})
    case("packed_with_split_mtp",
         {**packed(prefix="model.language_model.layers."), **proj(prefix="mtp.layers.")},
         "--scope experts --naming megatron", "--scope experts --naming hf:qwen3_5_moe",
         config={"model_type": "qwen3_5_moe", "text_config": {"num_experts": E}})
    case("split_and_packed_layers",
         {**proj(prefix="model.language_model.layers."), **packed(prefix="model.language_model.layers.", layer=1)},
         "--scope experts --naming megatron", "--scope experts --naming hf:qwen3_5_moe",
         config={"model_type": "qwen3_5_moe", "text_config": {"num_experts": E}})
    case("gpt_oss_square", packed(f=H, in_out=True, bias=True), megatron_interleaved,
         "--scope experts --naming hf:gpt_oss --experts grouped --glu interleaved:1", config={"model_type": "gpt_oss"})
    case("one_of_everything", proj([0], f=1, h=1), "--scope experts --naming megatron --experts grouped --glu interleaved:1",
         "--scope experts --naming hf:qwen3_moe --experts indexed --glu split",
         config={"model_type": "qwen3_moe", "num_experts": 1})
    case("k_is_f", proj(), "--scope experts --naming megatron --experts grouped --glu interleaved:4",
         "--scope experts --naming hf:qwen3_moe --experts indexed --glu split", config=QWEN3)
    case("many_experts", proj(range(12), f=2, h=2), "--scope experts --naming megatron --experts grouped --glu interleaved:1",
         "--scope experts --naming hf:qwen3_moe --experts indexed --glu split",
         config={"model_type": "qwen3_moe", "num_experts": 12})
    case("mtp_layers_by_number", {**mixtral(0), **mixtral(1)},
         "--scope experts --naming hf:deepseek_v3 --experts grouped --glu contiguous", "--scope experts --naming hf:mixtral --experts indexed --glu split",
         config={"model_type": "mixtral", "num_hidden_layers": 1})
    case("wrapped_language_model", packed(in_out=True, bias=True, prefix="language_model.model.layers."),
         "--scope experts --naming megatron --experts indexed --glu interleaved:2",
         "--scope experts --naming hf:gpt_oss --experts grouped --glu interleaved:1",
         config={"model_type": "internvl", "text_config": {"model_type": "gpt_oss"}})
    case("block_scales",
         {**{k: ("F8_E4M3", v) for k, v in proj([0, 1], f=256, h=8).items()},
          **{k + "_scale_inv": ("F32", [2, 1] if "down" not in k else [1, 2])
             for k in proj([0, 1], f=256, h=8)}},
         "--experts grouped --glu interleaved:128 --allow-foreign-order", "--experts indexed --glu split",
         config={"model_type": "deepseek_v3", "n_routed_experts": 2})
    case("unusual_names",
         {**proj(), "naïve.重み": [2], "a tensor with spaces": [3], "quote\"backslash\\": [1], "🙂": [1],
          "scalar": ("F32", []), "empty": [0, 4]},
         megatron_interleaved, "--scope experts --naming hf:qwen3_moe --experts indexed --glu split", config=QWEN3)
    g.finish("case, options of a conversion, options of the conversion back; see tests/galleries/layout_gallery.py")


def write(root):
    g = Gallery(root)
    experts(g)
    naming(g)
    quantized_cases(g)
    glu(g)
    records(g)
    usage(g)
    g.finish("case, arguments, exit status, slug; see tests/galleries/layout_gallery.py")
