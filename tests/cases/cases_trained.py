"""What a trainer saved of each family: its arguments and no record, one of them broken."""
import argparse
import json
import pathlib
import shutil

from case import REFUSED, Case, Run, both, config_changed, tensors_changed
from cases_arguments import read_common, write_common

def record_changed(**values):
    """Returns a check that changes entries of OUT's record, and takes away the sum that would tell."""

    def check(out: pathlib.Path) -> str:
        path = out / "release/glu_ckpt.json"
        record = json.loads(path.read_text()) | values
        del record["record_xxh3_128"]
        path.chmod(0o644)
        path.write_text(json.dumps(record))
        return ""

    return check


def rerecorded(says: str, name: str, value: str) -> Case:
    """An entry of the record that no conversion writes is refused by its name."""
    return Case("whole/deepseek_v3", "hf", [
        Run("convert SRC OUT --to megatron", check=record_changed(**{name: value})),
        Run("convert OUT OUT2 --to hf", 3, says=rf"{name}.*{says}.*\[record-invalid\]"),
    ], note=f"a record with {name} {value}")


# The model_type, where the folder has another name.
TYPES = {"llama3": "llama"}


def literal(word: str):
    """The value of an argument of megatron_args.txt, as Megatron-LM has it."""
    if word.startswith("[") and "*" in word:
        runs = [run.split("*") for run in word.split("+")]
        return [item for items, times in runs for item in json.loads(items) * int(times)]
    try:
        return json.loads(word) if word else True
    except ValueError:
        return tuple(int(item) for item in word.split(",")) if "," in word else word


def trained(**values):
    """Returns a check that makes of OUT what a trainer saves: its arguments, some of them changed, and no record."""

    def check(out: pathlib.Path) -> str:
        lines = (out / "megatron_args.txt").read_text().splitlines()
        args = {"moe_mlp_glu_interleave_size": None, "moe_shared_expert_glu_interleave_size": None,
                "moe_router_pre_softmax": False}
        for name, _, word in (line.removeprefix("--").partition(" ") for line in lines):
            args[name.replace("-", "_")] = literal(word)
        args["add_bias_linear"] = not args.pop("disable_bias_linear", False)
        state = read_common(out / "release/common.pt")
        kept = {name: value for name, value in (args | values).items() if value is not ...}
        write_common(out / "release/common.pt", state | {"args": argparse.Namespace(**kept)})
        for path in (out / "release/glu_ckpt.json", out / "megatron_args.txt"):
            path.unlink()
        shutil.rmtree(out / "hf")
        return ""

    return check


def retrained(family: str, says: str, **values) -> Case:
    """What a trainer saved with these arguments is refused by name; without them it is sound."""
    (name, value), *_ = values.items()
    return Case(f"whole/{family}", "hf", [
        Run("convert SRC OUT --to megatron", check=trained()),
        Run(f"convert OUT OUT2 --to hf:{TYPES.get(family, family)}"),
        Run("convert SRC OUT --to megatron", check=trained(**values)),
        Run(f"convert OUT OUT2 --to hf:{TYPES.get(family, family)}", REFUSED, says=says),
    ], note=f"a trainer's, {name} {value}")


def read_alike(family: str, **values) -> Case:
    """What a trainer saved with these arguments comes back as it was."""
    (name, value), *_ = values.items()
    return Case(f"whole/{family}", "hf", [
        Run("convert SRC OUT --to megatron", check=trained(**values)),
        Run(f"convert OUT OUT2 --to hf:{TYPES.get(family, family)}"),
        Run("verify SRC OUT2", plan=False),
    ], note=f"a trainer's, {name} {value}")


def recopied(says: str, copies: str) -> Case:
    """Copies that the record does not list are left out, and named."""
    return Case("whole/deepseek_v3", "hf", [
        Run("convert SRC OUT --to megatron", check=record_changed(hf_copies=copies)),
        Run("convert OUT OUT2 --to hf", says=says.replace(".", r"\.")),
        Run("verify SRC OUT2", plan=False),
    ], note=f"a record with the copies {copies}")


def with_mtp(tensors: dict) -> None:
    """Adds what K-EXAONE is published with: a dense layer of MTP, and what stands around it."""
    for name in [name for name in tensors if name.startswith("model.layers.0.")]:
        tensors[name.replace("model.", "mtp.", 1)] = tensors[name]
    dtype, (hidden,), norm = tensors["model.norm.weight"]
    for name in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding"):
        tensors[f"mtp.{name}.weight"] = (dtype, [hidden], norm)
    tensors["mtp.fc.weight"] = (dtype, [hidden, 2 * hidden], norm * 2 * hidden)


def mtp_of_no_map(command: str, status: int, says: str, *after: str) -> Case:
    """docs/targets.md says what becomes of K-EXAONE's MTP."""
    return Case("whole/exaone_moe", "hf", [
        Run(command, status, says=says), *(Run(line, plan=line.startswith("convert")) for line in after),
    ], change=both(tensors_changed(with_mtp), config_changed(num_nextn_predict_layers=1)), note=f"MTP, {command}")


def without_record(out: pathlib.Path) -> str:
    """Leaves what a trainer would, and hf/config.json."""
    for path in (out / "release/glu_ckpt.json", out / "megatron_args.txt"):
        path.unlink()
    return ""


def said_of_files(options: str, proof: str = "") -> Case:
    """--from-glu speaks of the files, also where the model is laid out anew before something is done to it."""
    proofs = [Run(f"verify SRC OUT2 {proof}", plan=False)] if proof else []
    return Case("whole/qwen3_moe", "hf", [
        Run("convert SRC OUT --to megatron --glu interleaved:4", check=without_record),
        Run(f"convert OUT OUT2 --to hf --from-glu interleaved:4 {options}"), *proofs,
        Run(f"convert OUT OUT2 --to hf --from-glu split {options}", (3, 4), says="glu-conflict"),
    ], note=f"--from-glu and {options}")


CASES = [
    said_of_files("--fill-from SRC", "--fill-from SRC"),
    said_of_files("--layers 0", "--layers 0"),
    said_of_files("--keep-experts 0-3", "--keep-experts 0-3"),
    said_of_files("--pad-experts 64"),
    said_of_files("--encode fp8:128x128", "--encode fp8:128x128"),
    said_of_files("--dtype *=f32", "--dtype *=f32"),
    retrained("nemotron_h", "num_layers is 12, where hybrid_layer_pattern has", num_layers=12),
    retrained("qwen3_next", r"linear_attention_freq \[0, 0, 0, 0\] instead of", linear_attention_freq=[0, 0, 0, 0]),
    retrained("qwen3_next", r"linear_attention_freq has 4 entries for 5 layers \(num_layers\)", num_layers=5),
    retrained("exaone_moe", r"window_attn_skip_freq is 0, where", window_attn_skip_freq=0),
    retrained("qwen3_next", "mtp_num_layers 7 .* 0 alone", mtp_num_layers=7),
    retrained("deepseek_v3", r"n_group is moe_router_num_groups", moe_router_num_groups=4, moe_router_group_topk=1),
    retrained("deepseek_v3", "q_lora_rank is None", q_lora_rank=None),
    retrained("deepseek_v32", r"intermediate_size is ffn_hidden_size", ffn_hidden_size=61),
    retrained("qwen3_moe", r"saved arguments \(tie_word_embeddings is untie_embeddings_and_output_weights",
              untie_embeddings_and_output_weights=False),
    retrained("gpt_oss", "position_embedding_type", position_embedding_type=...),
    retrained("qwen3_next", r"is missing.*saved arguments \(.*linear_attention_freq", linear_attention_freq=[0, 1, 1, 0]),
    retrained("glm_moe_dsa", r"is no tensor.*saved arguments \(.*dsa_indexer_topk_freq", dsa_indexer_topk_freq=2),
    retrained("llama3", "use_rope_scaling is the text 'False'", use_rope_scaling="False"),
    retrained("olmoe", "qk_layernorm False instead of True", qk_layernorm=False),
    retrained("olmoe", r"kv_channels 16 instead of 48 in all, which 'decoder\.layers\.", kv_channels=16),
    retrained("olmoe", "num_query_groups 3 of kv_channels 8 instead of 48", num_query_groups=3),
    retrained("olmoe", "do not say moe_router_pre_softmax", moe_router_pre_softmax=...),
    retrained("olmoe", "moe_router_topk is the text '2'", moe_router_topk="2"),
    retrained("minimax_m2", "rotary_percent is 0.3 of 16 dimensions", rotary_percent=0.3),
    retrained("minimax_m2", "do not say rotary_percent", rotary_percent=None),
    retrained("minimax_m2", r"moe_router_enable_expert_bias False \(a config.json .* can say True alone\)",
              moe_router_enable_expert_bias=False),
    retrained("minimax_m2", "moe_router_topk_scaling_factor 2.5", moe_router_topk_scaling_factor=2.5),
    Case("whole/minimax_m2", "hf", [Run("convert SRC OUT --to megatron", check=trained()),
                                    Run("convert OUT OUT2 --to hf", says="for a model of type 'minimax_m2'"),
                                    Run("verify SRC OUT2", plan=False)], note="a trainer's, of one type alone"),
    # No argument says how its heads are cut for pictures, and 12 dimensions are none of the class's sections.
    Case("whole/glm4v_moe", "hf", [
        Run("convert SRC OUT --to megatron --drop vision", check=trained()),
        Run("convert OUT OUT2 --to hf", 4, says="--to hf:glm4_moe, --to hf:glm4v_moe_text, --to hf:bailing_moe_v2"),
        Run("convert OUT OUT2 --to hf:glm4v_moe_text", 4, says=r"no argument says mrope_section .* turns 12\)"),
        Run("convert OUT OUT2 --to hf --from-config SRC/config.json"),
    ], note="a trainer's, without sections"),
    retrained("mistral", r"window_size \[6, 6\] instead of a number and 0", window_size=(6, 6),
              transformer_impl="local"),
    retrained("gpt_oss", r"window_size \[-1, 6\] instead of 0 or more", window_size=(-1, 6)),
    read_alike("mistral", window_size=(6, 6)),
    read_alike("gpt_oss", window_size=(6, -1)),
] + [
    rerecorded("'x' is not an expert grouping", "hf_experts", "x"),
    rerecorded("'splitx' is not a glu", "hf_glu", "splitx"),
    rerecorded("'' is not a glu", "hf_shared_glu", ""),
    rerecorded("'modelx\\.'.*deepseek_v3.*'model\\.'", "hf_root", "modelx."),
    # A copy under a name of none; the original itself; the head of a model whose head is its own.
    rerecorded(r"'model\.layers\.3\.x'.*'model\.layers\.N\.embed_tokens\.weight'", "hf_copies", "model.layers.3.x"),
    rerecorded(r"'model\.embed_tokens\.weight', which repeats no other", "hf_copies", "model.embed_tokens.weight"),
    rerecorded(r"'lm_head\.weight', which repeats no other", "hf_copies",
               "model.layers.3.embed_tokens.weight lm_head.weight"),
    recopied("no copy 'model.layers.3.embed_tokens.weight'", "model.layers.3.shared_head.head.weight"),
    recopied("no copy 'model.layers.3.embed_tokens.weight' and no 'model.layers.3.shared_head.head.weight'",
             "model.layers.9.embed_tokens.weight"),
    mtp_of_no_map("convert SRC OUT --to megatron", 4, r"'mtp\.layers\.0\.input_layernorm\.weight'.*\[unknown-tensor\]"),
    mtp_of_no_map("convert SRC OUT --to megatron --unknown keep", 0, r"whose tensors, such as 'mtp\.\S+', no map knows",
                  "convert OUT OUT2 --to hf", "verify SRC OUT2"),
    mtp_of_no_map("convert SRC OUT --to megatron --drop mtp", 0, "without multi-token prediction"),
    mtp_of_no_map("convert SRC OUT --to hf --experts grouped --glu contiguous", 0, "", "verify SRC OUT"),
]
