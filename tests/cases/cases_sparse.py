"""Models with sparse attention (DSA): the layers that have an indexer, and what is told apart from them."""
import pathlib
import shutil

from case import Case, Run, both, config_changed, read_safetensors, tensors_changed, write_safetensors

WHOLE = pathlib.Path(__file__).resolve().parent.parent.parent / "testdata" / "whole"
INDEXER = ".self_attn.indexer."
BACK = Run("convert OUT OUT2 --to hf")


def model(model_type: str):
    """Returns a change that puts the model of testdata/whole there."""

    def change(source: pathlib.Path) -> None:
        shutil.copytree(WHOLE / model_type / "hf", source, dirs_exist_ok=True)

    return change


def without(*parts: str):
    """Returns a change that removes the tensors whose names contain one of the parts."""

    def edit(tensors: dict) -> None:
        for name in [name for name in tensors if any(part in name for part in parts)]:
            del tensors[name]

    return tensors_changed(edit)


def more_layers(count: int):
    """Returns a change that repeats the last layer until there are so many."""

    def edit(tensors: dict) -> None:
        for name in [name for name in tensors if name.startswith("model.layers.2.")]:
            for layer in range(3, count):
                tensors[name.replace("layers.2.", f"layers.{layer}.")] = tensors[name]

    return both(tensors_changed(edit), config_changed(num_hidden_layers=count, mlp_layer_types=None, layer_types=None))


def indexers(types: str, **fields):
    """Returns a change that leaves the indexers of the layers with an F; `fields` say so to config.json."""
    shared = [f"layers.{layer}{INDEXER}" for layer, kind in enumerate(types) if kind == "S"]
    changes = [model("glm_moe_dsa")] + [more_layers(len(types))] * (len(types) > 3)
    return both(*changes, without(*shared), config_changed(**({"indexer_types": None} | fields)))


def with_mtp(source: pathlib.Path) -> None:
    """Adds a layer of multi-token prediction like the last one, with an indexer of its own."""
    tensors = read_safetensors(source / "model.safetensors")
    for name in [name for name in tensors if name.startswith("model.layers.2.")]:
        tensors[name.replace("layers.2.", "layers.3.")] = tensors[name]
    dtype, (hidden,), norm = tensors["model.norm.weight"]
    for name in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"model.layers.3.{name}.weight"] = (dtype, [hidden], norm)
    tensors["model.layers.3.eh_proj.weight"] = (dtype, [hidden, 2 * hidden], norm * 2 * hidden)
    write_safetensors(source / "model.safetensors", tensors)


def words(types: str) -> list[str]:
    return [{"F": "full", "S": "shared"}[letter] for letter in types]


def args_say(wanted: str, unwanted: str = "--mtp-num-layers"):
    """Returns a check of OUT's megatron_args.txt."""

    def check(out: pathlib.Path) -> str:
        text = " ".join(next(out.rglob("megatron_args.txt")).read_text().split())
        return "" if wanted in text and unwanted not in text else f"megatron_args.txt is {text}"

    return check


def converts(change, arguments: str, note: str, unwanted: str = "--mtp-num-layers", says: str = "") -> Case:
    there = Run("convert SRC OUT --to megatron", says=says, check=args_say(arguments, unwanted))
    return Case("", "", [there, BACK, Run("verify SRC OUT2")], change=change, note=note)


def refused(change, says: str, note: str) -> Case:
    return Case("", "", [Run("convert SRC OUT --to megatron", (3, 4), says=says)], change=change, note=note)


def steps(freq: int, offset: int) -> str:
    return f"--dsa-indexer-topk-freq {freq} --dsa-indexer-skip-topk-offset {offset}"


CASES = [
    # GLM-5.2 says it in one of three ways.
    converts(indexers("FFS", indexer_types=words("FFS")), steps(2, 2), "indexers of two layers, types"),
    converts(indexers("FFS", index_topk_pattern="FFS"), steps(2, 2), "indexers of two layers, letters"),
    converts(indexers("FFS", index_topk_pattern=words("FFS")), steps(2, 2), "indexers of two layers, words as letters"),
    converts(indexers("FFS", index_topk_freq=2), steps(2, 2), "indexers of two layers, steps from the second on"),
    converts(indexers("FFFSSSFS", index_topk_freq=4, index_skip_topk_offset=3), steps(4, 3), "indexers in steps of 4"),
    converts(indexers("FSFSFS", index_topk_freq=2, index_skip_topk_offset=1), steps(2, 1), "indexers in steps of 2"),
    converts(indexers("FSSSS", indexer_types=words("FSSSS")), steps(5, 1), "one indexer"),
    converts(indexers("FFF", index_topk_freq=1), "--experimental-attention-variant dsa", "all indexers",
             unwanted="topk-freq"),
    refused(indexers("FSFF", indexer_types=words("FSFF")), r"indexer_types.*cannot build.*\[no-map\]", "no steps"),
    refused(indexers("SFF", indexer_types=words("SFF")), r"indexer_types.*\[no-map\]", "a first layer that shares"),
    refused(indexers("FFS", indexer_types=words("FF")), r"indexer_types has 2 entries for 3 layers.*\[no-map\]",
            "too few indexer types"),
    refused(indexers("FFS", indexer_types=["full", "full", "half"]), r"'half' of layer 2.*\[no-map\]",
            "an unknown indexer type"),
    refused(indexers("FFS", index_topk_pattern="FFX"), r"'X' of layer 2.*\[no-map\]", "an unknown letter"),
    refused(indexers("FFS", index_topk_pattern=7), r"index_topk_pattern is neither.*\[no-map\]", "a pattern of no letters"),
    refused(indexers("FFS"), r"'model\.layers\.2\.self_attn\.indexer\.wq_b\.weight' is missing.*\[model-incomplete\]",
            "a layer without its indexer"),
    refused(both(model("deepseek_v32"), without(f"layers.1{INDEXER}k_norm.bias")),
            r"layers\.1\.self_attn\.indexer\.k_norm\.bias' is missing.*\[model-incomplete\]", "a norm without its bias"),
    refused(both(model("deepseek_v32"), config_changed(index_head_dim=12)),
            r"indexer.*index_head_dim.*\[model-shape\]", "indexers of another width"),
    refused(both(model("deepseek_v32"), config_changed(q_lora_rank=None)), r"indexer.*of q_lora_rank\).*\[model-shape\]",
            "no latent that indexers read"),
    # Megatron-Core 0.19.2 stops where it is asked for both.
    converts(both(model("glm_moe_dsa"), with_mtp, config_changed(num_nextn_predict_layers=1)),
             "--experimental-attention-variant dsa", "sparse attention and MTP", says="no --mtp-num-layers"),
    converts(both(model("deepseek_v32"), with_mtp, config_changed(num_nextn_predict_layers=1, mlp_layer_types=None)),
             "--rope-type yarn", "YaRN, sparse attention and MTP", says="no --mtp-num-layers"),
    refused(both(model("glm_moe_dsa"), with_mtp, without(f"layers.3{INDEXER}wk"),
                 config_changed(num_nextn_predict_layers=1)),
            r"layers\.3\.self_attn\.indexer\.wk\.weight' is missing", "MTP without its indexer"),
]
