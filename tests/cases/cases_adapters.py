"""Adapters of PEFT. testdata/adapters.tar.xz has models and adapters as PEFT 0.18.1, 0.19.1 and 0.21.2 wrote them, and
the experts after its own merge_and_unload(), and with safe_merge=True where that gives other bytes."""
import json
import pathlib

from case import REFUSED, Case, Run, both, read_safetensors, write_safetensors

MERGE = "convert SRC OUT --merge CASE/adapter"
SAFE = MERGE + " --merge-as peft-safe"
FACTORS = "adapter/adapter_model.safetensors"

# Adapters, and whether the safe merge has other bytes.
MERGED = {
    "gpt_oss_packed_peft018": False,
    "gpt_oss_packed_peft021": False,
    "mixtral_sep_bf16_peft018": True,
    "mixtral_sep_loaded_and_saved_bf16_peft021": False,
    "mixtral_sep_rslora_pattern_peft018": True,
    "qwen3_packed_bf16_pattern_peft021": False,
    "qwen3_packed_peft018": False,
    "qwen3_packed_peft019": False,
    "qwen3_packed_peft021": False,
    "qwen3_sep_equalA_peft018": True,
    "qwen3_sep_loaded_and_saved_equalA_peft021": False,
    "qwen3_sep_loaded_and_saved_peft021": False,
    "qwen3_sep_peft018": True,
}


def config(**fields):
    """Returns a change of adapter_config.json."""

    def change(source: pathlib.Path) -> pathlib.Path:
        path = source.parent / "adapter/adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
        return source.parent / "base"

    return change


def factors(edit):
    """Returns a change of the adapter's tensors."""

    def change(source: pathlib.Path) -> pathlib.Path:
        tensors = read_safetensors(source.parent / FACTORS)
        edit(tensors)
        write_safetensors(source.parent / FACTORS, tensors)
        return source.parent / "base"

    return change


def lost(word: str):
    def edit(tensors: dict) -> None:
        for name in [name for name in tensors if word in name]:
            del tensors[name]

    return factors(edit)


def renamed(old: str, new: str):
    def edit(tensors: dict) -> None:
        for name in [name for name in tensors if old in name]:
            tensors[name.replace(old, new)] = tensors.pop(name)

    return factors(edit)


def widened(tensors: dict) -> None:
    """Gives each B a column more, and leaves A as it is."""
    for name, (dtype, (rows, cols), data) in list(tensors.items()):
        if "lora_B" in name:
            size = len(data) // rows // cols
            lines = [data[i * cols * size : (i + 1) * cols * size] + bytes(size) for i in range(rows)]
            tensors[name] = (dtype, [rows, cols + 1], b"".join(lines))


def adapter(name: str, *runs: Run, change=None, note: str = "") -> Case:
    return Case(f"adapter_{name}", "base", list(runs), change=change, note=note)


def refused(name: str, change, says: str, note: str, status=3) -> Case:
    return adapter(name, Run(MERGE, status, says=says), Run("convert SRC OUT --force"), change=change, note=note)


CASES = [
    adapter(name, Run(MERGE, truth="merged_default.safetensors", some=True, says="is merged .peft."),
            Run("verify SRC OUT --merge CASE/adapter"), Run("verify SRC OUT", 1),
            Run(SAFE, truth=f"merged_{'safe' if is_other else 'default'}.safetensors", some=True))
    for name, is_other in MERGED.items()
] + [
    # The model in other layouts, before and after.
    adapter(name, Run("convert SRC OUT --to megatron --glu interleaved:4"),
            Run("convert OUT OUT2 --to hf --merge CASE/adapter", truth="merged_default.safetensors", some=True),
            Run(MERGE + " --to megatron"), Run("convert OUT OUT2 --to hf", truth="merged_default.safetensors", some=True),
            Run("convert SRC OUT --experts grouped --glu contiguous --allow-foreign-order"),
            Run("convert OUT OUT2 --to hf --experts indexed --glu split --merge CASE/adapter --max-memory 64MB",
                truth="merged_default.safetensors", some=True), note="other layouts")
    for name in ("qwen3_sep_peft018", "qwen3_packed_peft018", "qwen3_packed_bf16_pattern_peft021", "mixtral_sep_bf16_peft018")
] + [
    adapter("gpt_oss_packed_peft021", Run("convert SRC OUT --to megatron --glu contiguous"),
            Run("convert OUT OUT2 --to hf --merge CASE/adapter", truth="merged_default.safetensors", some=True), note="other layouts"),
    adapter("qwen3_sep_peft018", Run("convert SRC OUT --to megatron --format safetensors"),
            Run("convert OUT OUT2 --merge CASE/adapter --force --from-glu interleaved:2", REFUSED), note="an order that contradicts"),
    # What is more than a product of two factors, or not whole, or for another model.
    refused("qwen3_packed_peft021", config(auto_mapping={"base_model_class": "MixtralForCausalLM"}),
            "it is for a MixtralForCausalLM, and config.json of the model says Qwen3MoeForCausalLM", "another architecture"),
    adapter("qwen3_packed_peft021", Run(MERGE), change=config(auto_mapping={"base_model_class": "Qwen3MoeModel"}), note="another head"),
    adapter("qwen3_packed_peft021", Run(MERGE), change=config(auto_mapping=None), note="nobody says the class"),
    # Merged twice, and an adapter by itself.
    adapter("qwen3_packed_peft021", Run(MERGE), Run("convert OUT OUT2 --merge CASE/adapter", says="warning: .*'adapter' is merged already"),
            Run("convert CASE/adapter OUT2 --to megatron", REFUSED, says="makes it an adapter .LoRA.*merge it first"), note="twice"),
    refused("qwen3_dora_peft018", None, "use_dora is set", "DoRA"),
    refused("qwen3_sep_peft018", config(bias="all"), "bias is set", "biases"),
    refused("qwen3_sep_peft018", config(init_lora_weights="pissa"), "'pissa', which begins from other weights", "PiSSA"),
    refused("qwen3_sep_peft018", config(modules_to_save=["lm_head"]), "modules_to_save is set", "whole modules"),
    refused("qwen3_sep_peft018", config(use_newlora=True), "use_newlora is set", "a method that is not known"),
    refused("qwen3_sep_peft018", config(peft_type="IA3"), "peft_type is 'IA3'", "another kind"),
    refused("qwen3_sep_peft018", config(lora_alpha="8"), 'lora_alpha is "8", where a number', "no number"),
    refused("qwen3_sep_peft018", config(r=8), "says rank 8", "another rank"),
    refused("qwen3_sep_peft018", config(alpha_pattern={"(?<=x)gate": 3}), "is not read here", "a pattern of another kind"),
    refused("qwen3_sep_peft018", lost("experts.1.up_proj.lora_B"), r"its other factor is not.*\[part-missing\]", "a lost B"),
    refused("qwen3_sep_peft018", factors(widened), r"lora_B.*\[size-mismatch\]", "another width"),
    refused("qwen3_packed_peft021", factors(widened), r"lora_B.*\[size-mismatch\]", "another width"),
    refused("qwen3_sep_peft018", renamed("layers.1.", "layers.7."), r"which the model does not have.*\[unknown-tensor\]",
            "another model", 4),
    refused("qwen3_packed_peft021", renamed("layers.1.", "layers.7."), r"the model has none there.*\[unknown-tensor\]", "another model", 4),
    refused("qwen3_sep_peft018", renamed("0.gate_proj.lora_A", "0.gate_proj.lora_magnitude_vector"), "neither lora_A nor lora_B", "other parts"),
    adapter("qwen3_sep_peft018", Run("convert SRC OUT --merge CASE/base", 3, says="has no adapter_config.json")),
    adapter("qwen3_sep_peft018", Run("convert SRC OUT --merge-as peft", 2, says="--merge ADAPTER says which")),
    # Some modules only, a start that changes nothing, other fields of PEFT.
    adapter("qwen3_sep_peft018", Run(MERGE, says="is merged"), Run("verify SRC OUT --merge CASE/adapter"),
            change=lost("experts.1.up_proj.lora"), note="some experts"),
    adapter("qwen3_packed_peft021", Run(MERGE), Run("verify SRC OUT --merge CASE/adapter"),
            change=both(lost("experts.base_layer"), config(target_parameters=["mlp.experts.down_proj"])), note="down alone"),
    adapter("qwen3_sep_peft018", Run(MERGE, truth="merged_default.safetensors", some=True),
            change=config(init_lora_weights="gaussian", use_rslora=False, lora_dropout=0.1, megatron_config=None, inference_mode=False),
            note="other fields"),
]
