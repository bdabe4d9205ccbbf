"""Models without experts, and fields of config.json that say something of each layer: what is lost, left over, or said
twice."""
import math
import pathlib
import shutil

from case import REFUSED, TESTDATA, Case, Run, both, config_changed, read_safetensors, tensors_changed, write_safetensors
from cases_sparse import model, without

NOTHING = r"loads in +nothing as it is: "
COPY = "convert SRC OUT --to hf --force"


def codes(word: str, dtype: str, bits: int):
    """Returns a change after which the tensors of this word are so many bits an element, and have no scales."""

    def edit(tensors: dict) -> None:
        for name, (_, shape, data) in tensors.items():
            if word in name:
                elements = len(data) // 2
                tensors[name] = (dtype, shape, (data * 4)[: elements * bits // 8])

    return tensors_changed(edit)


def with_biases(*words: str):
    """Returns a change that gives the linear layers of these words biases."""

    def edit(tensors: dict) -> None:
        for name, (dtype, shape, _) in list(tensors.items()):
            if name.endswith(".weight") and any(word in name for word in words):
                tensors[name.replace(".weight", ".bias")] = (dtype, shape[:1], b"\x00\x3f" * shape[0])

    return tensors_changed(edit)


def fp4_mlps(source: pathlib.Path) -> None:
    """Gives the MLPs FP4 codes whose scales are there."""
    tensors = read_safetensors(source / "model.safetensors")
    for name, (_, shape, data) in list(tensors.items()):
        if ".mlp." in name:
            rows, cols = shape
            groups = -(-cols // 32)
            tensors[name] = ("F4", [rows, cols], data[: rows * cols // 2])
            tensors[name + "_scale"] = ("F8_E8M0", [rows, groups], b"\x7f" * (rows * groups))
    write_safetensors(source / "model.safetensors", tensors)


def widened(name: str):
    """Returns an edit that stores a BF16 tensor in F32."""

    def edit(tensors: dict) -> None:
        _, shape, data = tensors[name]
        wide = b"".join(b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2))
        tensors[name] = ("F32", shape, wide)

    return edit


def more_of(name: str, other: str):
    """Returns a change that stores a tensor once more, under another name."""

    def edit(tensors: dict) -> None:
        found = next(key for key in tensors if key.endswith(name))
        tensors[found.replace(name, other)] = tensors[found]

    return tensors_changed(edit)


def renamed_layer(old: str, new: str, word: str):
    """Returns a change that spells the layer of the tensors of this word in another way."""

    def edit(tensors: dict) -> None:
        for name in [name for name in tensors if old in name and word in name]:
            tensors[name.replace(old, new)] = tensors.pop(name)

    return tensors_changed(edit)


def begins_with(first: bytes):
    def change(source: pathlib.Path) -> None:
        (source / "model.safetensors").write_bytes(first + bytes(64))

    return change


def bitsandbytes(source: pathlib.Path) -> None:
    with_config("llama3", quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})(source)
    tensors = read_safetensors(source / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    tensors |= {name: ("U8", [1440, 1], bytes(1440)), name + ".absmax": ("F32", [45], bytes(180)),
                name + ".quant_map": ("F32", [16], bytes(64)),
                name + ".quant_state.bitsandbytes__nf4": ("U8", [80], bytes(80))}
    write_safetensors(source / "model.safetensors", tensors)


def int8(scales: str, **fields):
    """Returns a change that gives a Mistral's linear layers codes in I8, with scales of this name beside them."""

    def edit(tensors: dict) -> None:
        for name, (_, shape, data) in list(tensors.items()):
            if "_proj.weight" in name:
                tensors[name] = ("I8", shape, data[: len(data) // 2])
                tensors[name.replace("weight", scales)] = ("F32", shape[:1], b"\0\0\x80\x3c" * shape[0])
                tensors[name + "_format"] = ("U8", [], b"\0")

    return both(with_config("mistral", quantization_config=fields), tensors_changed(edit))


def stays(change, note: str, *commands: str) -> Case:
    runs = [Run("inspect SRC --strict", says="loads in +transformers")]
    return Case("", "", runs + [Run(command) for command in commands], change=change, note=note)


def is_lost(change, says: str, note: str) -> Case:
    return Case("", "", [
        Run("inspect SRC --strict", 3, says=rf"(?s){NOTHING}.*problem .*{says}", never_says="loads in +transformers"),
        Run("convert SRC OUT --to megatron", REFUSED, says=says),
        Run(COPY, says=NOTHING),
    ], change=change, note=note)


def config_refused(change, says: str, note: str) -> Case:
    runs = [Run("inspect SRC --strict", 3, says=says), Run("convert SRC OUT --to megatron", 3, says=rf"{says}.*\[config-json\]")]
    return Case("", "", runs, change=change, note=note)


def warned(change, says: str, note: str) -> Case:
    return Case("", "", [Run("convert SRC OUT --to megatron", says=rf"warning: .*{says}")], change=change, note=note)


def unwarned(change, word: str, note: str) -> Case:
    return Case("", "", [Run("convert SRC OUT --to megatron", never_says=word)], change=change, note=note)


def with_config(name: str, **fields):
    return both(model(name), config_changed(**fields))


THREE = ["full_attention"] * 3
LLAMA_ROPE = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
              "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}

LAYOUT = "convert SRC OUT --glu interleaved:2 --allow-foreign-order"


def gate_lost(name: str, shared: str, note: str) -> Case:
    """Layer 2's shared expert has no gate, and those of other layers have one."""
    says = r"layer 2's shared experts have no gate.*\[part-missing\]"
    return Case("", "", [Run(command, 3, says=says) for command in ("convert SRC OUT --to megatron", LAYOUT)],
                change=both(model(name), without(f"layers.2.mlp.{shared}.gate_proj")), note=note)  # fmt: skip


def granitemoe(source: pathlib.Path) -> None:
    shutil.copytree(TESTDATA / "hf/granitemoe", source, dirs_exist_ok=True)


def flattened(word: str):
    """Returns a change after which layer 1's tensor of this word has one axis."""

    def edit(tensors: dict) -> None:
        for name, (dtype, shape, data) in list(tensors.items()):
            if "layers.1." in name and word in name:
                tensors[name] = (dtype, [math.prod(shape)], data)

    return tensors_changed(edit)


CASES = [
    gate_lost("deepseek_v3", "shared_experts", "a lost gate"),
    gate_lost("qwen3_next", "shared_expert", "a lost gate"),
    stays(model("qwen3_next"), "all gates", LAYOUT),
    Case("", "", [Run("convert SRC OUT --to megatron", 3, says=r"has shape \[\d+\], expected .*\[expert-shape\]")],
         change=both(granitemoe, flattened("output_linear")), note="flat experts"),
    *[Case("", "", [Run("convert SRC OUT --to megatron", REFUSED, says=r"layers\.1\..* is missing"),
                    Run(COPY, says=NOTHING), Run("verify SRC SRC", 0)],
           change=both(model(name), renamed_layer("layers.1.", "layers.01.", word)), note=f"{name}, layers.01, {word}")
      for name, word in (("llama3", "k_proj"), ("qwen3", "input_layernorm"), ("qwen3_moe", "o_proj"),
                         ("deepseek_v3", "kv_b_proj"))],
    *[Case("", "", [Run("convert SRC OUT --to megatron", REFUSED, says=f"no {field} above 0"),
                    Run("inspect SRC", 0, says=f"no {field} above 0")],
           change=with_config(name, **{field: 0}), note=f"{name}, experts of no width")
      for name, field in (("gpt_oss", "intermediate_size"), ("olmoe", "intermediate_size"),
                          ("minimax_m2", "intermediate_size"), ("qwen3_moe", "moe_intermediate_size"),
                          ("deepseek_v3", "moe_intermediate_size"))],
    # Codes whose scales are lost load nowhere.
    *[is_lost(both(model(name), codes(word, dtype, bits)), rf"{word}.*", f"{dtype} in {word} of {name}")
      for name, word, dtype, bits in [
          ("llama3", "mlp.down_proj", "F8_E5M2", 8), ("llama3", "mlp.up_proj", "F4", 4),
          ("mistral", "self_attn.v_proj", "I8", 8), ("qwen2", "q_proj.bias", "I8", 8), ("qwen3", "q_norm", "F8_E4M3", 8),
          ("qwen3", "embed_tokens", "U8", 8), ("qwen3", "lm_head", "F8_E8M0", 8), ("hy_v3", "router.gate", "I8", 8),
          ("deepseek_v32", "indexer.wk.", "U32", 32), ("nemotron_h", "mixer.in_proj", "I8", 8),
          ("llama3", "mlp.down_proj", "BOOL", 8), ("mistral", "self_attn.o_proj", "I64", 64),
          ("qwen3", "model.norm", "U64", 64), ("olmoe", "experts", "I64", 64), ("exaone_moe", "down_proj", "C64", 64)]],
    Case("", "", [Run("inspect SRC", never_says="codes without scales"), Run("convert SRC OUT --to megatron")],
         change=both(model("llama3"), codes("mlp.down_proj", "F64", 64)), note="F64 weights"),
    Case("", "", [Run("inspect SRC", never_says=r"but config\.json makes it \[48, 60\]")],
         change=both(model("llama3"), codes("mlp.down_proj", "F4", 4)), note="F4 of the right shape"),
    Case("", "", [Run("inspect SRC", never_says="config.json contradicts|codes without scales")],
         change=both(model("llama3"), fp4_mlps), note="F4 with its scales"),
    # Layers behind the last one are read by nobody.
    *[Case("", "", [
        Run("inspect SRC --strict", 3, says=rf"(?s){NOTHING}.*does not count \(num_hidden_layers {layers}\)"),
        Run("convert SRC OUT --to megatron", 4, says=r"\[unknown-tensor\]"),
        Run(COPY, says=NOTHING),
    ], change=with_config(name, num_hidden_layers=layers, **fields), note=f"{name} of fewer layers than there are")
      for name, layers, fields in [
          ("llama3", 2, {}), ("qwen3", 1, {"layer_types": None}), ("mistral", 1, {}),
          ("nemotron_h", 3, {"layers_block_type": ["linear_attention", "moe", "linear_attention"]})]],
    # Biases that a flag declares.
    is_lost(with_config("llama3", mlp_bias=True), r"layers\.0\.mlp\.gate_proj\.bias", "mlp_bias without biases"),
    is_lost(both(with_config("llama3", attention_bias=True), with_biases("q_proj", "k_proj", "v_proj")),
            r"layers\.0\.self_attn\.o_proj\.bias", "attention_bias of three of four"),
    is_lost(with_config("deepseek_v3", attention_bias=True), r"q_a_proj\.bias", "attention_bias of MLA"),
    is_lost(with_config("qwen3_moe", attention_bias=True), r"q_proj\.bias", "attention_bias of Qwen3"),
    stays(both(with_config("llama3", mlp_bias=True), with_biases("mlp.")), "mlp_bias with its biases", COPY),
    stays(both(with_config("llama3", attention_bias=True), with_biases("self_attn.")), "attention_bias with them", COPY),
    stays(with_config("deepseek_v3", mlp_bias=True), "mlp_bias of a family that reads none",
          "convert SRC OUT --to megatron"),
    Case("", "", [Run("inspect SRC", says=r"k_proj\.bias' is missing", never_says="config.json says attention_bias")],
         change=both(model("qwen2"), without("layers.2.self_attn.k_proj.bias")), note="a bias that no field declares"),
    # Lists that say something of each layer.
    *[config_refused(with_config(name, **{field: value}), rf"{field} has {len(value)} entries for {layers} layers",
                     f"{field} of {len(value)} for {layers} of {name}")
      for name, field, value, layers in [
          ("qwen3", "layer_types", THREE[:2], 3), ("qwen2", "layer_types", THREE + THREE[:1], 3),
          ("exaone_moe", "layer_types", THREE, 4), ("exaone_moe", "mlp_layer_types", ["dense", "sparse"], 4),
          ("hy_v3", "mlp_layer_types", ["dense"], 3), ("gpt_oss", "layer_types", THREE * 3, 3)]],
    stays(with_config("qwen3", layer_types=None), "no layer_types", "convert SRC OUT --to megatron"),
    warned(with_config("qwen3", layer_types=["full_attention", "chunked_attention", "full_attention"]),
           "layer_types says 'chunked_attention' of layer 1", "a word that no argument is written for"),
    *[unwarned(model(name), "layer_types says", f"layer_types of {name}")
      for name in ("deepseek_v32", "exaone_moe", "glm_moe_dsa", "gpt_oss", "qwen2", "qwen3_next", "nemotron_h")],
    # Weights that no program reads.
    *[Case("", "", [
        Run("inspect SRC --strict", 3, says=rf"(?s){NOTHING}.*problem .*{word}.*leave (it|them) out"),
        Run("convert SRC OUT --to megatron", 4, says=r"\[unknown-tensor\]"),
        Run(COPY, says=NOTHING),
    ], change=change, note=note) for change, word, note in [
        (with_config("qwen3", model_type="llama"), r"layers\.0\.self_attn\.k_norm", "Qwen3 called Llama"),
        (both(model("mistral"), more_of("layers.1.mlp.up_proj.weight", "layers.1.mlp.router.weight")),
         r"layers\.1\.mlp\.router", "a weight of another model"),
        (both(model("hy_v3"), more_of("layers.1.input_layernorm.weight", "layers.1.self_attn.out_norm.weight")),
         r"layers\.1\.self_attn\.out_norm", "a norm of another model")]],
    stays(both(model("llama3"), more_of("layers.1.input_layernorm.weight", "layers.1.self_attn.rotary_emb.inv_freq")),
          "a table of rotary frequencies", "convert SRC OUT --to megatron"),
    stays(both(model("llama3"), more_of("model.norm.weight", "value_head.weight")), "a head beside the layers", COPY),
    # What is copied is judged as what is read.
    Case("", "", [
        Run("inspect SRC --strict", 3, says=rf"{NOTHING}config.json contradicts the tensors"),
        Run(COPY, says=rf"{NOTHING}config.json contradicts the tensors"),
    ], change=with_config("llama3", intermediate_size=61), note="a copy of what config.json contradicts"),
    Case("", "", [Run(command, says=r"loads in +transformers, versions that have 'llama' and its quantization, 'bitsandbytes'")
                  for command in ("inspect SRC", COPY)], change=bitsandbytes, note="bitsandbytes"),
    Case("", "", [
        Run("inspect SRC", says=r"its quantization, 'bitsandbytes'", never_says="without scales|download complete"),
        Run("convert SRC OUT --decode bf16", 3,
            says=r"with scales in 'model\.layers\.0\..*\.SCB', as bitsandbytes stores them.*\[not-supported\]"),
        Run("convert SRC OUT --to megatron", REFUSED), Run("verify SRC SRC"), Run("digest SRC"),
    ], change=int8("SCB", quant_method="bitsandbytes", load_in_8bit=True), note="LLM.int8()"),
    Case("", "", [Run("convert SRC OUT --decode bf16", 3, says=r"codes without scales.*\[scale-missing\]")],
         change=int8("SCALES", quant_method="bitsandbytes", load_in_8bit=True), note="LLM.int8() without its scales"),
    *[Case("", "", [Run("inspect SRC", 3, says=rf"no safetensors file: it is {says}.*\[header-too-large\]")],
           change=both(model("llama3"), begins_with(first)), note=f"{says} in place of the file")
      for first, says in [(b"GGUF\3\0\0\0", "a GGUF file"), (b"PK\3\4\x14\0\x08\x08", "a zip archive"),
                          (b"\x1f\x8b\x08\0\1\2\3\4", "a file that gzip packed")]],
    # Two spellings of the rotary embedding.
    warned(with_config("llama3", rope_parameters=LLAMA_ROPE | {"rope_theta": 10000.0}),
           r"rope_parameters\.rope_theta 10000\.0 and rope_theta 500000\.0", "two bases"),
    warned(with_config("llama3", rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
           r"rope_parameters\.rope_type 'default' and rope_scaling\.rope_type 'llama3'", "two kinds of scaling"),
    warned(with_config("qwen3", rope_theta=5000.0), r"rope_parameters\.rope_theta 10000\.0 and rope_theta 5000\.0",
           "a base beside rope_parameters"),
    unwarned(with_config("llama3", rope_parameters=LLAMA_ROPE), "programs differ", "one embedding in two spellings"),
    # One tensor for all layers.
    *[Case("", "", [Run("convert SRC OUT --to megatron --stack-layers", REFUSED, says=says)], change=model(family),
           note=f"{family}, stacked")
      for family, says in [
          ("deepseek_v3", r"layer 1 has 'decoder\.layers\.1\.mlp\..*', and layer 0 has none.*\[no-spelling\]"),
          ("nemotron_h", r"of models of type 'nemotron_h' each layer has tensors of its own.*\[no-spelling\]")]],
    Case("", "", [
        Run("convert SRC OUT --to megatron --stack-layers", REFUSED,
            says=r"'decoder\.layers\.0\.\S+' is BF16 .* and 'decoder\.layers\.1\.\S+' is F32 .*\[no-spelling\]"),
        Run("convert SRC OUT --to megatron"),
    ], change=both(model("qwen3"), tensors_changed(widened("model.layers.1.mlp.down_proj.weight"))),
         note="layers of two dtypes, stacked"),
    Case("", "", [
        Run("convert SRC OUT --to megatron --stack-layers", says=r"--hybrid-layer-pattern '\*-\*-'"),
        Run("convert OUT OUT2 --to megatron --stack-layers", REFUSED, says=r"\[already-in-layout\]"),
        Run("verify SRC OUT"), Run("check OUT"),
        Run("convert SRC OUT2 --to megatron"),
        Run("convert OUT2 OUT --to megatron --stack-layers", REFUSED, says=r"--to hf, and what that gives --to megatron"),
        Run("convert SRC OUT --to hf --stack-layers --force", REFUSED, says=r"in the naming .* each layer has tensors of its own"),
    ], change=model("mistral"), note="stacked"),
    # Words.
    Case("", "", [Run(command, status, says=r"of type 'qwen3_mo' \(config\.json's model_type; did you mean 'qwen3_moe'\?\)")
                  for command, status in [("inspect SRC", 0), ("convert SRC OUT --to megatron", REFUSED)]],
         change=with_config("qwen3", model_type="qwen3_mo"), note="model_type qwen3_mo"),
    *[Case("", "", [Run("inspect SRC", says=rf"of type '{typed}'", never_says="did you mean")],
           change=with_config("qwen3", model_type=typed), note=f"model_type {typed}")
      for typed in ("qwen4", "kimi_k7", "sarvam_moo", "olmo", "pixtral", "mllama")],
    config_refused(with_config("llama3", head_dim=8.0), r"head_dim is 8\.0, where a whole number", "8.0 for a whole number"),
    Case("", "", [Run("inspect SRC", says="the keys of the model have nothing in front", never_says="begin with ''")],
         change=both(model("qwen3"), tensors_changed(lambda tensors: [
             tensors.__setitem__(name.removeprefix("model."), tensors.pop(name)) for name in list(tensors)])),
         note="keys without model."),
]
