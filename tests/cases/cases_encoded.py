"""--encode: faults planted in what it wrote, in place, whose record and sizes stay; verify encodes the source again."""
import json
import random
import re
import struct

from case import TESTDATA, Case, Run, read_safetensors, read_tensors, write_safetensors

WIDTH, EXPERTS, VOCABULARY = 256, 3, 32


def model(source):
    """Makes a Qwen3 of one layer, in which a row has cells of every format, each with a scale of its own."""
    config = json.loads((TESTDATA / "whole/qwen3_moe/hf/config.json").read_text())
    config |= {"hidden_size": WIDTH, "moe_intermediate_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": 1,
               "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
               "head_dim": 128, "vocab_size": VOCABULARY, "tie_word_embeddings": False, "mlp_only_layers": []}  # fmt: skip
    (source / "config.json").write_text(json.dumps(config))
    layer = "model.layers.0."
    shapes = {name: [VOCABULARY, WIDTH] for name in ("model.embed_tokens.weight", "lm_head.weight")}
    shapes |= {"model.norm.weight": [WIDTH]}
    shapes |= {f"{layer}{name}_layernorm.weight": [WIDTH] for name in ("input", "post_attention")}
    shapes |= {f"{layer}self_attn.{name}_norm.weight": [128] for name in "qk"}
    shapes |= {f"{layer}self_attn.{name}_proj.weight": [WIDTH, WIDTH] for name in "qkvo"}
    shapes |= {f"{layer}mlp.gate.weight": [EXPERTS, WIDTH]}
    shapes |= {f"{layer}mlp.experts.{expert}.{name}_proj.weight": [WIDTH, WIDTH]
               for expert in range(EXPERTS) for name in ("gate", "up", "down")}  # fmt: skip
    rng = random.Random(3)
    tensors = {}
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        data = b"".join(struct.pack("<f", rng.gauss(0, 0.02))[2:] for _ in range(count))
        tensors[name] = ("BF16", shape, data)
    write_safetensors(source / "model.safetensors", tensors)


def changed_bytes(edit):
    """Returns a check that lets `edit` change the bytes of OUT's tensors, a bytearray by name, in place."""

    def check(out):
        path = next(out.glob("*.safetensors"))
        data = path.read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:begin])
        header.pop("__metadata__", None)
        places = {name: [begin + offset for offset in tensor["data_offsets"]] for name, tensor in header.items()}
        tensors = {name: bytearray(data[first:end]) for name, (first, end) in places.items()}
        edit(tensors)
        whole = bytearray(data)
        for name, (first, end) in places.items():
            whole[first:end] = tensors[name]
        assert len(whole) == len(data) and whole != data
        path.write_bytes(whole)
        return ""

    return check


def neighbour(suffix: str, size: int):
    """Gives the first of two neighbouring cells that differ the other's scale, of `size` bytes."""

    def edit(tensors):
        scales = tensors[f"model.layers.0.mlp.experts.2.down_proj.{suffix}"]
        at = next(i for i in range(0, len(scales) - size, size) if scales[i : i + size] != scales[i + size : i + 2 * size])
        scales[at : at + size] = scales[at + size : at + 2 * size]

    return changed_bytes(edit)


def other_second(suffix: str):
    """Gives an expert's up the second scale of another expert's gate."""

    def edit(tensors):
        name = f"model.layers.0.mlp.experts.2.{{}}_proj.{suffix}"
        assert tensors[name.format("gate")] == tensors[name.format("up")]
        others = [v for k, v in tensors.items() if re.search(r"layers\.0\..*gate_proj\." + suffix, k)]
        tensors[name.format("up")][:] = next(other for other in others if other != tensors[name.format("up")])

    return changed_bytes(edit)


def with_nan(source):
    """The model with a NaN in an expert's up, which shares its second scale with gate."""
    model(source)
    path = next(source.glob("*.safetensors"))
    tensors = read_safetensors(path)
    name = "model.layers.0.mlp.experts.1.up_proj.weight"
    dtype, shape, data = tensors[name]
    tensors[name] = (dtype, shape, data[:1554] + b"\xc0\x7f" + data[1556:])
    write_safetensors(path, tensors)


# Programs whose codes and scales are more than bf16 has where a weight is the greatest that it has, and those that have
# a value for it, or one beside it.
WITHOUT_END = {"fp8:128x128": ("compressed-tensors", "modelopt"), "fp8:128x128:ue8m0": ("deepgemm", "transformers"),
               "fp8:channel": ("compressed-tensors",), "mxfp8": ("modelopt", "triton", "compressed-tensors"),
               "mxfp4": ("modelopt", "compressed-tensors", "deepgemm", "triton"), "nvfp4": ("compressed-tensors",),
               "int4:g32": ("compressed-tensors",), "int4:g128": ("compressed-tensors",)}  # fmt: skip
WITH_A_VALUE = {"fp8:128x128": ("slime", "deepgemm", "transformers"), "fp8:channel": ("slime",), "mxfp8": ("torchao",),
                "mxfp4": ("torchao",), "nvfp4": ("modelopt",)}  # fmt: skip


def with_greatest(source):
    """The model with the least number of bf16 in an expert's up."""
    model(source)
    path = next(source.glob("*.safetensors"))
    tensors = read_safetensors(path)
    name = "model.layers.0.mlp.experts.1.up_proj.weight"
    dtype, shape, data = tensors[name]
    tensors[name] = (dtype, shape, data[:1554] + b"\x7f\xff" + data[1556:])
    write_safetensors(path, tensors)


def is_finite(out):
    for name, (dtype, _, data) in read_tensors(out).items():
        if any(value & 0x7F80 == 0x7F80 for (value,) in struct.iter_unpack("<H", data)):
            return f"{name} has infinite weights"
    return ""


def large_scale(tensors):
    """Gives a row a scale of which the codes of most weights are infinite."""
    tensors["model.layers.0.mlp.experts.2.down_proj.weight_scale"][:2] = b"\x7f\x7f"


def planted(word: str, edit, says: str, note: str) -> Case:
    return Case("", "", [
        Run(f"convert SRC OUT --encode {word}"),
        Run(f"verify SRC OUT --encode {word}", plan=False, check=edit),
        Run(f"verify SRC OUT --encode {word}", 1, plan=False, says=says),
        Run("check OUT", 1, plan=False, says="its data differ"),
    ], change=model, note=f"{word}: {note}")  # fmt: skip


DOWN = r"layers\.0\.mlp\.experts\.2\.down_proj"
UP = r"layers\.0\.mlp\.experts\.2\.up_proj"
CASES = [
    planted("fp8:128x128", neighbour("weight_scale_inv", 4), DOWN, "the scale of the block beside it"),
    planted("fp8:channel", neighbour("weight_scale", 2), DOWN, "the scale of the row beside it"),
    planted("mxfp8", neighbour("weight_scale", 1), DOWN, "the scale of the block beside it"),
    planted("mxfp4", neighbour("weight_scale", 1), DOWN, "the scale of the block beside it"),
    planted("nvfp4", neighbour("weight_scale", 1), DOWN, "the scale of the block beside it"),
    planted("int4:g32", neighbour("weight_scale", 2), DOWN, "the scale of the group beside it"),
    # Codes of one format are decoded and encoded to another; the output, which has those codes, is compared as it is.
    *[Case("quantized", source, [
        Run(f"convert SRC OUT --decode bf16 --encode {word}"),
        Run(f"verify SRC OUT --decode bf16 --encode {word}", plan=False, says="equal"),
        Run(f"diff SRC OUT --decode bf16 --encode {word}", plan=False),
        Run(f"convert OUT OUT2 --decode bf16 --encode {word}", 4, says="already-in-layout"),
      ], note=f"decoded, and encoded to {word}")
      for source, word in (("fp8_block128", "nvfp4"), ("fp8_block128", "nvfp4 --encode-as compressed-tensors"),
                           ("fp8_block128", "fp8:channel"), ("fp8_block128", "fp8:128x128:ue8m0"), ("ct_int4_asym", "int4:g32"),
                           ("nvfp4_modelopt", "mxfp4"), ("ct_int4_asym", "fp8:128x128"))],
    # Padded ones are compared without their padding, and not encoded once more for it.
    Case("quantized", "gptq_int4", [
        Run("convert SRC OUT --to hf --decode bf16 --pad-experts 7 --encode fp8:128x128:ue8m0"),
        Run("verify SRC OUT --decode bf16 --encode fp8:128x128:ue8m0", plan=False, says="equal")], note="padded and encoded"),
    # Codes of the same kind with other scales or zero points are others.
    *[Case("quantized", source, [Run(f"convert SRC OUT --to hf --force --encode {word}", 3, says=says)], note=f"no {word} yet")
      for source, word, says in (
          ("fp8_block128", "fp8:128x128:ue8m0", r"holds codes already, with scales that are no powers of two.*--decode bf16"),
          ("ct_int4_asym", "int4:g32", r"holds codes already, with zero points.*--decode bf16"),
          ("gptq_int4", "int4:g32", r"holds codes already, with .*--decode bf16"))],
    Case("quantized", "fp8_block128_ue8m0", [Run("convert SRC OUT --encode fp8:128x128:ue8m0", 4, says="already-in-layout")],
         note="powers of two already"),
    # The report says what the files have, and the model's own name of its experts' spelling.
    Case("whole/exaone_moe", "hf", [
        Run("convert SRC OUT --to megatron --glu interleaved:4"),
        Run("convert OUT OUT2 --to hf --encode fp8:128x128", plan=False,
            says=r"from +megatron-dist, grouped .*interleaved:4 .*shared expert contiguous\nto +hf:exaone_moe, indexed .*, split ")],
         note="from Megatron"),
    Case("", "", [Run("convert SRC OUT --encode nvfp4" + words, 4, says=r"experts\.1\.up_proj\.weight': a weight is NaN or infinite.*\[not-exact\]")
                  for words in ("", " --encode-as compressed-tensors")], change=with_nan, note="nvfp4: NaN in up"),
    *[Case("", "", [Run(f"convert SRC OUT --encode {word} --encode-as {program}", 4,
                        says=r"up_proj\.weight': element \[3, 9\] is -3\.3895314e\+38, and decodes to infinity.*--encode fp8:128x128.*\[not-exact\]")],
           change=with_greatest, note=f"{word} of {program}: infinite when decoded")
      for word, programs in WITHOUT_END.items() for program in programs],
    *[Case("", "", [Run(f"convert SRC OUT --encode {word} --encode-as {program}"),
                    Run("convert OUT OUT2 --decode bf16", plan=False, check=is_finite)],
           change=with_greatest, note=f"{word} of {program}: the greatest weight")
      for word, programs in WITH_A_VALUE.items() for program in programs],
    Case("", "", [Run("convert SRC OUT --encode fp8:channel", check=changed_bytes(large_scale)),
                  Run("convert OUT OUT2 --decode bf16", plan=False, says=r"\d+ decoded weights are NaN or infinite, as .*down_proj")],
         change=model, note="a scale that makes weights infinite"),
    planted("nvfp4", other_second("weight_scale_2"), UP, "a second scale of another gate"),
    planted("nvfp4 --encode-as compressed-tensors", other_second("weight_global_scale"), UP, "a second scale of another gate"),
]  # fmt: skip
