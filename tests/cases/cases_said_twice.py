"""What config.json says in two fields: where they contradict each other, a warning has both and says which one counts."""
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
CASES = [
    *(case for model, field, other in FIELDS for case in contradicted(model, field, other)),
    *(silent(model) for model in sorted({model for model, _, _ in FIELDS})),
]
