"""What programs put among a model's keys that is no name of the model: words of wrappers (torch.compile, FSDP, activation
checkpointing, DDP) between components, values of a dict that a module returns as its extra state."""
import collections
import io
import json
import pathlib
import pickle
import re
import zipfile
from typing import Callable

from case import Case, Run, read_tensors, tensors_changed, write_safetensors
from cases_arguments import Call, ForeignPickler, Name


def respelled(spell: Callable[[str], str]):
    """Returns a change that spells the keys of the model, without the text that the input has in front of them."""

    def edit(tensors: dict) -> None:
        for name in list(tensors):
            tensors[spell(name.removeprefix("_orig_mod."))] = tensors.pop(name)

    return tensors_changed(edit)


def in_layers(word: str, part: str = ""):
    """Returns a spelling with the word behind each layer's number and its `part`."""
    return lambda name: re.sub(rf"(layers\.\d+\.{part})", rf"\1{word}", name)


def model_only(name: str) -> str:
    return name.replace("model.", "model._orig_mod.")


def everywhere(name: str) -> str:
    name = in_layers("_fsdp_wrapped_module._checkpoint_wrapped_module.")(in_layers("_orig_mod.", r"mlp\.")(name))
    return "_fsdp_wrapped_module." + name.replace("model.", "model._fsdp_wrapped_module.")


def without_words(out: pathlib.Path) -> str:
    found = [name for name in read_tensors(out) if re.search(r"_orig_mod|_wrapped_module|module\.", name)]
    return f"{found[0]} has a wrapper's word in it" if found else ""


SPELLINGS = {
    "compiled layers": in_layers("_orig_mod."),
    "compiled model": model_only,
    "FSDP in layers": in_layers("_fsdp_wrapped_module.", r"mlp\."),
    "checkpointed attention": in_layers("_checkpoint_wrapped_module.", r"self_attn\."),
    "DDP in layers": in_layers("module."),
    "some keys": lambda name: "_orig_mod." + name if name.startswith("model.") else name,
    "one key": lambda name: name.replace("layers.0.input_layernorm", "layers.0._orig_mod.input_layernorm"),
    "wrappers of wrappers": everywhere,
}
SAYS = r"keys have words in them that torch\.compile"


def twice(tensors: dict) -> None:
    name = "model.layers.0.input_layernorm.weight"
    tensors["_orig_mod.model.layers.0._orig_mod.input_layernorm.weight"] = tensors["_orig_mod." + name]


class Stored:
    """Pickles as the persistent id of one tensor's bytes."""

    def __init__(self, kind: str, shape: list[int], data: bytes):
        self.kind, self.shape, self.data = kind, list(shape), data


def stored_tensor(stored: Stored) -> Call:
    strides = [1]
    for extent in reversed(stored.shape[1:]):
        strides.insert(0, strides[0] * extent)
    return Call("torch._utils", "_rebuild_tensor_v2", stored, 0, tuple(stored.shape),
                tuple(strides[:len(stored.shape)]), False, {})


def torch_zip(value) -> bytes:
    """What torch.save(value) writes."""
    storages: list[Stored] = []

    class Pickler(ForeignPickler):
        def persistent_id(self, thing):
            if not isinstance(thing, Stored):
                return None
            storages.append(thing)
            elements = 1
            for extent in thing.shape:
                elements *= extent
            return ("storage", Name("torch", thing.kind), str(len(storages) - 1), "cpu", elements)

    text, out = io.BytesIO(), io.BytesIO()
    Pickler(text, 2).dump(value)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", text.getvalue())
        for i, stored in enumerate(storages):
            archive.writestr(f"archive/data/{i}", stored.data)
        archive.writestr("archive/version", "3\n")
    return out.getvalue()


def read_torch(path: pathlib.Path):
    """Returns what a torch file holds, with calls for its tensors."""
    with zipfile.ZipFile(path) as archive:
        root = archive.namelist()[0].split("/")[0]

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, text):
                return text[1], archive.read(f"{root}/data/{text[2]}")

            def find_class(self, module, name):
                if name == "_rebuild_tensor_v2":
                    return lambda storage, offset, shape, *_: stored_tensor(Stored(storage[0], shape, storage[1]))
                return collections.OrderedDict if name == "OrderedDict" else name

        return Unpickler(archive.open(f"{root}/data.pkl")).load()


def extra_states(state):
    """Returns a change of a torch file after which modules have this extra state."""

    def replaced(value, key: str = ""):
        if key.endswith("_extra_state"):
            return state
        return {name: replaced(item, name) for name, item in value.items()} if isinstance(value, dict) else value

    def change(source: pathlib.Path) -> pathlib.Path:
        path = source.with_suffix(".pt")
        path.write_bytes(torch_zip(replaced(read_torch(source))))
        return path

    return change


def objects_without(word: str):
    def check(out: pathlib.Path) -> str:
        return f".metadata says {word}" if word.encode() in (out / ".metadata").read_bytes() else ""

    return check


STATES = {
    "dict": {"recipe": "delayed", "scale": [1.0, 2.0]},
    "nested dict": {"recipe": {"margin": 0, "amax": {"length": 1024}}},
    "tensors in a dict": {"scale": stored_tensor(Stored("FloatStorage", [4], bytes(16))), "name": "fp8"},
    "bytes": b"state",
    "nothing": None,
}

DEEPSEEK = {  # in memory: the hub's (conversion_mapping.py of transformers 5.24.0)
    "model.embed_tokens.weight": "embed.weight", "lm_head.weight": "head.weight", "model.norm.weight": "norm.weight",
    "model.hc_head.hc_fn": "hc_head_fn", "model.layers.0.input_layernorm.weight": "layers.0.attn_norm.weight",
    "model.layers.0.post_attention_layernorm.weight": "layers.0.ffn_norm.weight",
    "model.layers.0.attn_hc.fn": "layers.0.hc_attn_fn", "model.layers.0.ffn_hc.scale": "layers.0.hc_ffn_scale",
    "model.layers.0.mlp.gate.e_score_correction_bias": "layers.0.ffn.gate.bias",
    "model.layers.0.mlp.gate.weight": "layers.0.ffn.gate.weight",
    "model.layers.0.mlp.gate.tid2eid": "layers.0.ffn.gate.tid2eid",
    **{f"model.layers.0.self_attn.{memory}": f"layers.0.attn.{hub}" for memory, hub in {
        "q_a_proj.weight": "wq_a.weight", "q_b_proj.weight": "wq_b.weight", "q_a_norm.weight": "q_norm.weight",
        "kv_proj.weight": "wkv.weight", "kv_norm.weight": "kv_norm.weight", "o_a_proj.weight": "wo_a.weight",
        "o_b_proj.weight": "wo_b.weight", "sinks": "attn_sink", "compressor.kv_proj.weight": "compressor.wkv.weight",
        "compressor.gate_proj.weight": "compressor.wgate.weight", "compressor.kv_norm.weight": "compressor.norm.weight",
        "compressor.position_bias": "compressor.ape", "compressor.indexer.q_b_proj.weight": "indexer.wq_b.weight",
        "compressor.indexer.scorer.weights_proj.weight": "indexer.weights_proj.weight",
        "compressor.indexer.kv_proj.weight": "indexer.compressor.wkv.weight",
        "compressor.indexer.position_bias": "indexer.compressor.ape",
    }.items()},
}
NEMOTRON = {
    "model.embeddings.weight": "backbone.embeddings.weight", "model.norm_f.weight": "backbone.norm_f.weight",
    "lm_head.weight": "lm_head.weight", "model.layers.0.mixer.A_log": "backbone.layers.0.mixer.A_log",
    "model.layers.1.mixer.gate.weight": "backbone.layers.1.mixer.gate.weight",
}


def numbered(shape: list[int], seed: int) -> bytes:
    count = 1
    for extent in shape:
        count *= extent
    return b"".join((0x3C00 + (seed * 37 + i) % 256).to_bytes(2, "little") for i in range(count))


def in_memory(model_type: str, names: dict[str, str], experts: str, gated: bool):
    """Returns a change that makes a model of 3 experts, width 4 and hidden size 8, and a check of it on the hub."""
    width, hidden, count = 4, 8, 3
    small = {memory: ("BF16", [2, 3], numbered([2, 3], i)) for i, memory in enumerate(names)}
    first, second = "gate_up_proj" if gated else "up_proj", "down_proj"
    rows = 2 * width if gated else width
    packed = {first: [count, rows, hidden], second: [count, hidden, width]}

    def change(source: pathlib.Path) -> None:
        (source / "config.json").write_text(json.dumps({
            "model_type": model_type, "num_hidden_layers": 2, "n_routed_experts": count, "hidden_size": hidden,
            "moe_intermediate_size": width, "num_experts_per_tok": 1}))
        write_safetensors(source / "model.safetensors", small | {
            f"{experts}.{part}": ("BF16", shape, numbered(shape, 90 + i)) for i, (part, shape) in enumerate(packed.items())})

    def check(out: pathlib.Path) -> str:
        found = read_tensors(out)
        wanted = {names[memory]: tensor for memory, tensor in small.items()}
        up, down = (numbered(shape, 90 + i) for i, shape in enumerate(packed.values()))
        hub = "layers.0.ffn.experts" if gated else "backbone.layers.1.mixer.experts"
        words = ("w1", "w3", "w2") if gated else (None, "up_proj", "down_proj")
        one, part = 2 * rows * hidden, 2 * width * hidden
        for e in range(count):
            halves = up[e * one:(e + 1) * one]
            if gated:
                wanted[f"{hub}.{e}.{words[0]}.weight"] = ("BF16", [width, hidden], halves[:part])
            wanted[f"{hub}.{e}.{words[1]}.weight"] = ("BF16", [width, hidden], halves[-part:])
            wanted[f"{hub}.{e}.{words[2]}.weight"] = ("BF16", [hidden, width], down[e * part:(e + 1) * part])
        wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        return f"{wrong[0]} is not as on the hub" if wrong else ""

    return change, check


def memory_case(model_type: str, *model) -> Case:
    change, check = in_memory(model_type, *model)
    return Case("", "", [
        Run("convert SRC OUT --to hf", check=check), Run(f"convert SRC OUT --to hf:{model_type}", check=check),
        Run("convert SRC OUT --experts indexed"), Run("verify SRC OUT"), Run("convert OUT OUT2 --to hf"),
    ], change=change, note=f"{model_type} in memory")


def unmapped(model_type: str, root: str, packed: bool):
    """Returns a change that makes a model of a wrapper's, with experts in layer 1, and a check that it came back."""
    width, hidden, count = 4, 8, 3
    layer = f"{root}layers.1."
    shapes = {root + "embed_tokens.weight": [6, hidden], layer + "input_layernorm.weight": [hidden],
              layer + "mlp.gate.weight": [count, hidden], "vision_tower.blocks.0.weight": [2, 3]}
    if packed:
        shapes |= {layer + "mlp.experts.gate_up_proj": [count, 2 * width, hidden],
                   layer + "mlp.experts.down_proj": [count, hidden, width]}
    for e in range(0 if packed else count):
        shapes |= {f"{layer}mlp.experts.{e}.{part}_proj.weight": [hidden, width] if part == "down" else [width, hidden]
                   for part in ("gate", "up", "down")}
    tensors = {name: ("BF16", shape, numbered(shape, i)) for i, (name, shape) in enumerate(shapes.items())}

    def change(source: pathlib.Path) -> None:
        text = {"model_type": model_type + "_text", "num_hidden_layers": 2, "num_experts": count, "hidden_size": hidden,
                "moe_intermediate_size": width, "num_experts_per_tok": 1, "hidden_act": "silu"}
        (source / "config.json").write_text(json.dumps({"model_type": model_type, "text_config": text}))
        write_safetensors(source / "model.safetensors", tensors)

    def check(out: pathlib.Path) -> str:
        found = read_tensors(out)
        wrong = sorted(name for name in tensors.keys() | found.keys() if tensors.get(name) != found.get(name))
        return f"{wrong[0]} is not as it was" if wrong else ""

    return change, check


def unmapped_case(model_type: str, root: str, naming: str, packed: bool) -> Case:
    change, check = unmapped(model_type, root, packed)
    form = "--experts grouped --glu contiguous" if packed else "--experts indexed --glu split"
    other = "--experts indexed --glu split" if packed else "--experts grouped --glu contiguous"
    return Case("", "", [
        Run("convert SRC OUT --to megatron --scope experts"), Run("verify SRC OUT"), Run("diff SRC OUT"),
        Run(f"convert OUT OUT2 --to {naming} --scope experts {form}", check=check),
        Run(f"convert SRC OUT {other}"), Run(f"convert OUT OUT2 {form}", check=check),
        Run("convert SRC OUT --to megatron", 4, says=r"--experts, --glu and --decode change it.*\[no-map\]"),
        Run("inspect SRC", never_says=r"loads in +(transformers|vLLM|SGLang)"), Run("digest SRC"),
    ], change=change, note=f"{model_type} behind {root or 'nothing'}")


# What transformers 5.24.0 holds in memory of these is not the hub's under other names: it joins and parts tensors.
LAYER = "model.language_model.layers.1."
JOINED = {
    "minimax_m3_vl": {
        LAYER + "mlp.experts.gate_up_proj": [3, 8, 8], LAYER + "mlp.experts.down_proj": [3, 8, 4],
        LAYER + "mlp.shared_experts.gate_up_proj.weight": [8, 8], LAYER + "mlp.shared_experts.down_proj.weight": [8, 4],
        LAYER + "mlp.gate.weight": [3, 8], LAYER + "self_attn.indexer.q_proj.weight": [8, 8]},
    "kimi_linear": {
        "model.layers.1.mlp.experts.gate_up_proj": [3, 8, 8], "model.layers.1.mlp.experts.down_proj": [3, 8, 4],
        **{f"model.layers.1.mlp.shared_experts.{part}_proj.weight": shape
           for part, shape in [("gate", [4, 8]), ("up", [4, 8]), ("down", [8, 4])]},
        "model.layers.1.mlp.gate.weight": [3, 8], "model.layers.1.self_attn.conv1d.weight": [24, 1, 4]},
    "ernie4_5_vl_moe": {
        LAYER + "mlp.text_moe.experts.gate_up_proj": [3, 8, 8], LAYER + "mlp.text_moe.experts.down_proj": [3, 8, 4],
        LAYER + "mlp.vision_moe.experts.gate_up_proj": [3, 4, 8], LAYER + "mlp.vision_moe.experts.down_proj": [3, 8, 2],
        LAYER + "mlp.text_moe.gate.weight": [3, 8], LAYER + "mlp.vision_moe.gate.weight": [3, 8]},
}


def joined_case(model_type: str, shapes: dict[str, list[int]]) -> Case:
    def change(source: pathlib.Path) -> None:
        fields = {"num_hidden_layers": 2, "num_experts": 3, "hidden_size": 8, "moe_intermediate_size": 4}
        config = {"model_type": model_type} | fields
        if LAYER in next(iter(shapes)):
            config = {"model_type": model_type, "text_config": {"model_type": model_type + "_text"} | fields}
        (source / "config.json").write_text(json.dumps(config))
        write_safetensors(source / "model.safetensors", {
            name: ("BF16", shape, numbered(shape, i)) for i, (name, shape) in enumerate(shapes.items())})

    return Case("", "", [
        Run("inspect SRC", never_says=r"loads in +(transformers|vLLM|SGLang)"),
        *[Run(f"convert SRC OUT --to {target}", 4, says=rf"no map of models of type '{model_type}.*\[no-map\]")
          for target in ("hf", f"hf:{model_type}", "megatron")],
    ], change=change, note=f"{model_type} as transformers joins it")


CASES = [
    *[joined_case(model_type, shapes) for model_type, shapes in JOINED.items()],
    # ---- families without a map: their experts alone, there and back ----
    *[unmapped_case("muse_spark", root, "hf:qwen3_moe", False)
      for root in ("model.language_model.", "language_model.model.", "model.", "")],
    unmapped_case("cohere2_moe", "model.language_model.", "hf:cohere2_moe", True),
    # ---- as transformers 5 has them in memory ----
    memory_case("deepseek_v4", DEEPSEEK, "model.layers.0.mlp.experts", True),
    memory_case("nemotron_h", NEMOTRON, "model.layers.1.mixer.experts", False),
    # ---- a module's extra state that is a dict ----
    *[Case("extra_state_tensors", "src/empty.pt", [
        Run(f"convert SRC OUT --to {to} --from-glu contiguous --from-config CASE/config.json",
            check=objects_without("extra_state") if to == "torchtitan" else None,
            truth="truth.safetensors" if to == "hf" else ""),
        *[Run("convert OUT OUT2 --to hf", truth="truth.safetensors")] * (to == "torchtitan"),
    ], change=extra_states(state), note=f"extra state: {note}, to {to}")
      for note, state in STATES.items() for to in ("torchtitan", "hf")],
    # ---- words of wrappers ----
    *[Case("wrapper_prefixes", "src_orig_mod", [
        Run(f"convert SRC OUT --to {to}", says=SAYS),
        Run("convert OUT OUT2 --to hf", truth="truth.safetensors"),
        Run("verify SRC OUT"),
        Run("inspect SRC", says=SAYS, never_says=r"loads in +transformers"),
        Run("inspect SRC --strict", 3),
    ], change=respelled(spell), note=f"{note} to {to}")
      for note, spell in SPELLINGS.items() for to in ("megatron", "torchtitan")],
    *[Case("wrapper_prefixes", "src_orig_mod", [
        Run("convert SRC OUT --to hf", says=SAYS, truth="truth.safetensors"),
        Run("inspect OUT --strict"),
        Run("diff SRC OUT"),
        Run("convert SRC OUT --experts grouped --glu contiguous", check=without_words),
        Run("convert SRC OUT --to megatron --scope experts", check=without_words),
    ], change=respelled(spell), note=note) for note, spell in SPELLINGS.items() if spell is not everywhere],
    # Two keys that become one: nothing says which of them is the model's.
    Case("wrapper_prefixes", "src_orig_mod", [
        Run(command, 4, says=r"layers\.0\._orig_mod\.input_layernorm.*are one key.*\[redundant-keys\]")
        for command in ("convert SRC OUT --to megatron", "convert SRC OUT --to hf", "digest SRC", "verify SRC SRC",
                        "inspect SRC")
    ], change=tensors_changed(twice), note="one key twice"),
]
