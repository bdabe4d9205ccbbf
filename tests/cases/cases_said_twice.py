"""What config.json says in two fields: where they contradict each other, a warning has both and says which one counts.
And what it says, or leaves to the default of its class, that transformers stops at or computes with otherwise."""
import json

from case import TESTDATA, Case, Run, config_changed


def number(model: str, field: str) -> int:
    return json.loads((TESTDATA / "whole" / model / "hf" / "config.json").read_text())[field]


def contradicted(model: str, field: str, other: str) -> list[Case]:
    """The field one more and one less than it is."""
    is_said = number(model, field)
    return [
        Case(f"whole/{model}", "hf", [Run("plan SRC OUT --to megatron", 0, says=rf"warning: {field} is {said}, .*{other}")],
             change=config_changed(**{field: said}), note=f"{field} {said}")
        for said in (is_said + 1, is_said - 1)
    ]


def silent(model: str) -> Case:
    return Case(f"whole/{model}", "hf", [Run("plan SRC OUT --to megatron", 0, never_says="counts here")], note="as it is")


FIELDS = (
    ("nemotron_h", "num_hidden_layers", "layers_block_type lists 5 layers"),
    ("deepseek_v32", "first_k_dense_replace", "mlp_layer_types makes 1 layer"),
    ("glm_moe_dsa", "first_k_dense_replace", "mlp_layer_types makes 1 layer"),
    ("exaone_moe", "first_k_dense_replace", "mlp_layer_types makes 1 layer"),
    ("exaone_moe", "sliding_window_pattern", "layer_types says"),
    ("minimax_m2", "rotary_dim", "make it 8"),
    ("deepseek_v3", "qk_head_dim", "make it 20"),
    ("deepseek_v32", "qk_head_dim", "make it 24"),
    ("deepseek_v3", "head_dim", "makes it 8"),
)
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}


def rope_changed(**fields):
    """Returns a change that sets fields of rope_parameters; `...` takes one away."""

    def change(source):
        path = source / "config.json"
        config = json.loads(path.read_text())
        text = config.get("text_config", config)
        rope = text.setdefault("rope_parameters", text.pop("rope_scaling", None) or {})
        rope.setdefault("rope_theta", text.get("rope_theta", 10000.0))
        rope.update(fields)
        path.write_text(json.dumps(config))

    return change


def null(field: str):
    """Returns a change that sets a field of config.json to null."""

    def change(source):
        path = source / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), field: None}))

    return change


def told(model: str, change, says: str, note: str, status: int = 0) -> Case:
    return Case(f"whole/{model}", "hf", [Run("plan SRC OUT --to megatron --unknown keep", status, says=says)],
                change=change, note=note)


# Each was silent: transformers 5.24.0 stops at it, or computes something else than the arguments say.
TOLD = [
    *(told(model, null(field), rf"warning: config\.json says null of {field}, .*leave it out", f"{field} null")
      for model, field in (("qwen3", "hidden_act"), ("exaone_moe", "num_shared_experts"), ("deepseek_v3", "n_group"),
                           ("deepseek_v3", "head_dim"), ("qwen3_moe", "decoder_sparse_step"), ("glm_moe_dsa", "topk_group"),
                           ("nemotron_h", "mamba_hidden_act"), ("qwen3_next", "shared_expert_intermediate_size"))),
    told("qwen3_moe", rope_changed(rope_type=None), r"rope_parameters\.rope_type is null: give it a value", "type null", 3),
    told("qwen3_moe", config_changed(rope_scaling={"type": "mrope"}, rope_parameters={"rope_type": "default"}),
         r"warning: config\.json says rope_parameters\.rope_type 'default' and rope_scaling\.type 'mrope': programs",
         "a bare mrope beside rope_parameters"),
    told("qwen3_moe", config_changed(rope_scaling=YARN, rope_parameters={**YARN, "attention_factor": 1.7}),
         r"warning: config\.json says rope_parameters\.attention_factor 1\.7, and nothing of it in rope_scaling",
         "a scale in one of two"),
    told("deepseek_v3", rope_changed(**YARN, truncate=False), r"warning: truncate of the rotary embedding is false",
         "YaRN that does not round"),
    told("deepseek_v3", rope_changed(partial_rotary_factor=0.5), "warning: partial_rotary_factor is 0.5 of 8 dimensions",
         "a part of latent heads"),
    told("glm4v_moe", rope_changed(mrope_section=[1]), "warning: the sections of mrope_section make 1, but", "sections"),
    told("deepseek_v3", config_changed(n_shared_experts=None), r"'model\.layers\.\d+\.mlp\.shared_experts.*config\.json says "
         r".*n_shared_experts x moe_intermediate_size 20", "without n_shared_experts", 3),
    told("qwen3_next", config_changed(shared_expert_intermediate_size=None),
         "shared_expert_intermediate_size 512", "without the width of the shared expert", 3),
    told("deepseek_v3", config_changed(num_key_value_heads=None),
         r"warning: num_key_value_heads is 128 \(the default of its class\), but num_attention_heads makes it",
         "without num_key_value_heads"),
    told("deepseek_v3", config_changed(n_group=1, topk_group=None),
         r"n_group is 1, of which topk_group chooses 4 \(the default of its class\)", "without topk_group", 3),
    told("qwen3_moe", config_changed(sliding_window=0), "warning: sliding_window is 0", "a window of nothing"),
    told("nemotron_h", config_changed(time_step_min=0.5), "warning: time_step_min is 0.5", "a least step of Mamba"),
]


def unread(model: str, field: str, value, never: str) -> Case:
    """What the class does not read makes no argument."""
    return Case(f"whole/{model}", "hf", [Run("plan SRC OUT --to megatron", never_says=f"--{never}")],
                change=config_changed(**{field: value}), note=f"{field} {value}")


def disputed(model: str, says: str, note: str, **fields) -> Case:
    """Programs read one or the other of two fields. Those that read the first take the model."""
    return Case(f"whole/{model}", "hf", [
        Run("inspect SRC --strict", 3, says=f"problem.*{says}"),
        Run("inspect SRC", 0),
        Run("convert SRC OUT --experts grouped", 0, says=f"warning: .*{says}"),
    ], change=config_changed(**fields), note=note)


def agreed(model: str, note: str, **fields) -> Case:
    return Case(f"whole/{model}", "hf", [Run("inspect SRC --strict")], change=config_changed(**fields), note=note)


EXPERTS = number("qwen3_moe", "num_local_experts")
DISPUTED = [
    disputed("qwen3_moe", r"model_type qwen3_moe, and .MixtralForCausalLM. in architectures is the class of mixtral models",
             "the class of another family", architectures=["MixtralForCausalLM"]),
    disputed("olmoe", r"model_type olmoe, and .Qwen3MoeForCausalLM. in architectures", "OLMoE with another's class",
             architectures=["Qwen3MoeForCausalLM"]),
    agreed("qwen3_moe", "a class of its own", architectures=["Qwen3MoeForSequenceClassification"]),
    agreed("qwen3_moe", "no class", architectures=None),
    disputed("qwen3_moe", f"num_experts {EXPERTS} and num_local_experts 16: programs read", "two numbers of experts",
             num_experts=EXPERTS, num_local_experts=16),
    agreed("qwen3_moe", "one number of experts, twice", num_experts=EXPERTS),
]

UNREAD = [
    unread("qwen3_moe", "routed_scaling_factor", 3.0, "moe-router-topk-scaling-factor"),
    unread("qwen3_moe", "scoring_func", "sigmoid", "moe-router-score-function sigmoid"),
]

CASES = [
    *TOLD, *UNREAD, *DISPUTED,
    *(case for model, field, other in FIELDS for case in contradicted(model, field, other)),
    *(silent(model) for model in sorted({model for model, _, _ in FIELDS})),
]
