"""Models that are not whole, sets of files that programs choose between, and messages that name what is there."""
import json
import shutil

from case import REFUSED, TESTDATA, Case, Run, both, config_changed, read_safetensors, tensors_changed, write_safetensors

CLAIM = r"(?i)loads in\s+(Megatron|transformers|vLLM|SGLang|torchtitan)"


def incomplete(source: str, names: str, status=0) -> Case:
    return Case("incomplete_model", source, [
        Run("inspect SRC --strict", 3, says=names, never_says=CLAIM),
        Run("inspect SRC --strict -q", 3, says=names),
        Run("check SRC", 0, says=names),
        Run("convert SRC OUT --experts grouped --glu contiguous", status, says=names if status == 0 else "",
            never_says=CLAIM),
    ])


def rename(before: str, after: str):
    def edit(tensors: dict) -> None:
        for name in [name for name in tensors if name.startswith(before)]:
            tensors[after + name[len(before) :]] = tensors.pop(name)

    return tensors_changed(edit)


def with_head(tensors: dict) -> None:
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]


def index_of_one_file(source) -> None:
    names = read_safetensors(source / "model-00001-of-00002.safetensors")
    names.update(read_safetensors(source / "model-00002-of-00002.safetensors"))
    for shard in source.glob("model-*.safetensors"):
        shard.unlink()
    write_safetensors(source / "model.safetensors", names)
    (source / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {name: "model.safetensors" for name in names}}))


def hf_config_changed(**fields):
    def change(source) -> None:
        path = source / "hf" / "config.json"
        config = json.loads(path.read_text())
        for name, value in fields.items():
            config.pop(name, None)
            if value is not None:
                config[name] = None if value == "null" else value
        path.write_text(json.dumps(config))

    return change


def rank_renamed(before: str, after: str):
    return lambda source: (source / "iter_0000100" / before).rename(source / "iter_0000100" / after) and None


def deepseek(edit, **fields):
    """Puts DeepSeek-V3 of testdata/whole there: three layers, one of multi-token prediction, 6 experts in 2 groups."""

    def model(source) -> None:
        shutil.copytree(TESTDATA / "whole" / "deepseek_v3" / "hf", source, dirs_exist_ok=True)

    return both(model, tensors_changed(edit), config_changed(**fields))


def embedding_of_layer(layer: int):
    """Gives the copy of the embedding the number of another layer."""

    def edit(tensors: dict) -> None:
        tensors[f"model.layers.{layer}.embed_tokens.weight"] = tensors.pop("model.layers.3.embed_tokens.weight")

    return edit


def wrapped(tensors: dict) -> None:
    for name in list(tensors):
        tensors["language_model." + name] = tensors.pop(name)


CASES = [
    *(Case("", "", [
        Run(f"convert SRC OUT --scope experts --naming {naming}"), Run("verify SRC OUT", plan=False),
    ], change=deepseek(wrapped), note=f"experts alone renamed to {naming} behind a text")
      for naming in ("megatron", "megatron-dist")),
    Case("", "", [
        Run("convert SRC OUT --scope experts --naming torchtitan", 4,
            says=r"torchtitan has no place for layers of stack 'language_model\.decoder'.*no-spelling"),
    ], change=deepseek(wrapped), note="nothing stands behind a text in torchtitan"),
    *(Case("", "", [
        Run("convert SRC OUT --to megatron", REFUSED, says=rf"model\.layers\.{layer}\.embed_tokens"),
    ], change=deepseek(embedding_of_layer(layer)), note=f"MTP's embedding in layer {layer}") for layer in (4, 7)),
    Case("", "", [
        Run("inspect SRC --strict", 0), Run("convert SRC OUT --to megatron", 0),
    ], change=deepseek(lambda tensors: tensors.pop("model.layers.3.embed_tokens.weight") and None),
         note="MTP's embedding left out"),
    *(Case("", "", [
        Run("inspect SRC", REFUSED, says=f"n_routed_experts is 6, which {groups} groups"),
        Run("convert SRC OUT --to megatron", REFUSED, says=f"n_routed_experts is 6, which {groups} groups"),
    ], change=deepseek(lambda tensors: None, n_group=groups), note=f"{groups} groups of 6 experts")
      for groups in (4, 5)),
    *(Case("", "", [Run("convert SRC OUT --to megatron", 0)], change=deepseek(lambda tensors: None, n_group=groups),
           note=f"{groups} groups of 6 experts") for groups in (1, 3)),
    incomplete("src_no_head", r"'lm_head\.weight' is missing"),
    incomplete("src_no_final_norm", r"'model\.norm\.weight' is missing"),
    incomplete("src_no_qk_norm", r"q_norm\.weight' is missing"),
    incomplete("src_layer_1_lost", r"layer 1 is missing"),
    incomplete("src_lora_unmerged", r"base_layer\.weight' is there: an adapter \(LoRA\)"),
    incomplete("src_prefix", r"language_model\."),
    incomplete("src_experts_lost", r"has no experts", REFUSED),
    Case("incomplete_model", "src_no_head", [
        Run("inspect SRC --strict", 0, says="loads in +transformers"),
        Run("convert SRC OUT --experts grouped --glu contiguous", 0, says=r"loads in +(Megatron|transformers)", never_says="missing"),
    ], change=config_changed(tie_word_embeddings=True), note="a tied head is not missed"),
    Case("incomplete_model", "src_no_head", [Run("inspect SRC --strict", 0, says="loads in +transformers")],
         change=tensors_changed(with_head), note="the head put back"),
    Case("incomplete_model", "src_no_head", [
        Run("inspect SRC --strict", 3, says="'lm_head.weight' is missing"),
    ], change=config_changed(num_nextn_predict_layers=1), note="promised MTP"),
    Case("model_safetensors_beside_index", "src", [
        Run("inspect SRC --strict", 3, says=r"/model\.safetensors: lies beside the 2 shards", never_says=CLAIM),
        *(Run(command, 0, says=r"warning.*/model\.safetensors: lies beside") for command in (
            "convert SRC OUT --to megatron", "verify SRC SRC -q", "digest SRC -q", "diff SRC SRC", "check SRC -q",
            "report SRC --html OUT2", "stamp SRC --glu contiguous --dry-run")[:6]),
    ]),
    Case("model_safetensors_beside_index", "src", [
        Run("inspect SRC --strict", 0, says="loads in +transformers", never_says="lies beside"),
        Run("convert SRC OUT --to megatron", 0, says="consolidated.safetensors is not part", never_says="lies beside"),
    ], change=lambda source: (source / "model.safetensors").rename(source / "consolidated.safetensors") and None,
        note="consolidated.safetensors is nobody's choice"),
    Case("model_safetensors_beside_index", "src", [
        Run("inspect SRC --strict", 0, says="loads in +transformers", never_says="lies beside"),
    ], change=index_of_one_file, note="an index of model.safetensors itself"),
    *(Case("more_mtp_than_config", source, [
        Run("inspect SRC --from-glu contiguous --from-shared-glu contiguous --strict", 3,
            says=f"has {has} MTP layers?, but config.json says {said} "),
        Run("convert SRC OUT --to hf --from-glu contiguous --from-shared-glu contiguous", 0,
            says=rf"warning.*has {has} MTP layers?, but config.json says {said} \(num_nextn_predict_layers\)",
            never_says=CLAIM),
        # The hub's form of it is told as well.
        Run("convert OUT OUT2 --experts grouped --glu contiguous", 0, says="warning.*MTP layer", never_says=CLAIM),
        Run("inspect OUT --strict", 3, says="problem.*MTP layer", never_says=CLAIM),
    ]) for source, said, has in (("src_says_0_has_1", 0, 1), ("src_says_1_has_2", 1, 2))),
    *(Case("more_mtp_than_config", "src_says_1_has_2", [
        Run("convert SRC OUT --to hf --from-glu contiguous --from-shared-glu contiguous", 0, says=says,
            never_says=never),
    ], change=hf_config_changed(num_nextn_predict_layers=said), note=f"config.json says {said}")
        for said, says, never in ((2, r"loads in +(Megatron|transformers)", "MTP layer"), ("null", "warning.*no number in", CLAIM),
                                  (None, "warning.*no number in num_nextn_predict_layers", CLAIM))),
    *(Case("legacy_rank_missing", source, [
        Run("stamp SRC --glu contiguous -q", 0, says="2 ranks .*1 is here"),
        Run("inspect SRC --strict", 3, says=f"problem .*{word}_model_parallel_size 2.*2 ranks .*1 is here"),
        Run("check SRC -q", 0, says="warning.*1 is here"),
        Run("convert SRC OUT --glu interleaved:4", 0, says=f"warning.*none of {word} rank 1", never_says=CLAIM),
    ]) for source, word in (("src_tp2", "tensor"), ("src_ep2", "expert"), ("src_pp2", "pipeline"))),
    Case("legacy_rank_missing", "src_pp2", [
        Run("stamp SRC --glu contiguous -q"),
        Run("inspect SRC --strict", 3, says="none of pipeline rank 0"),
    ], change=rank_renamed("mp_rank_00_000", "mp_rank_00_001"), note="the first rank"),
    Case("small_messages", "src_mlx", [
        Run("convert SRC OUT --to megatron", REFUSED, says="switch_mlp"),
        Run("inspect SRC --strict", 3, says="switch_mlp", never_says="nothing but experts"),
    ]),
    Case("small_messages", "src_subfolder", [
        Run("convert SRC OUT --to megatron", 0, never_says="left behind"),
    ]),
    Case("small_messages", "src_hole", [
        Run("inspect SRC", REFUSED, says=r"\[0, 0, 8\]"),
    ]),
    Case("small_messages", "src_titan_old", [
        Run("convert SRC OUT --to hf", 0, truth="truth_titan_old.safetensors"),
    ]),
    Case("small_messages", "src_local_spec", [
        Run("convert SRC OUT --to hf --from-config CASE/config.json --from-glu contiguous", 0,
            truth="truth_local_spec.safetensors"),
    ]),
]
