"""The arguments that a trainer saved, the fields of config.json, and optimizer state that is no tensor."""
import argparse
import io
import pathlib
import pickle
import zipfile

from case import Case, Run, config_changed

REFUSED = (3, 4)


class Foreign:
    """Pickles as a call of a class that no reader knows."""

    def __init__(self, module: str, name: str):
        self.module, self.name = module, name

    def __setstate__(self, state) -> None:
        """Nobody needs it."""


class ForeignPickler(pickle._Pickler):
    dispatch = dict(pickle._Pickler.dispatch)

    def save_foreign(self, value: Foreign) -> None:
        self.write(pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode())
        self.save(("a",))
        self.write(pickle.REDUCE)

    dispatch[Foreign] = save_foreign


def read_common(path: pathlib.Path):
    class Reader(pickle.Unpickler):
        def find_class(self, module, name):
            return argparse.Namespace if name == "Namespace" else lambda *args: Foreign(module, name)

    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        return Reader(io.BytesIO(archive.read(name))).load()


def write_common(path: pathlib.Path, value) -> None:
    text = io.BytesIO()
    ForeignPickler(text, 2).dump(value)
    path.chmod(0o644)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("common/data.pkl", text.getvalue())
        archive.writestr("common/version", "3\n")


def args_changed(**values):
    """Returns a change that sets arguments in common.pt; an argument of `...` is removed."""

    def change(source: pathlib.Path) -> None:
        path = source / "iter_0000100" / "common.pt"
        state = read_common(path)
        for name, value in values.items():
            if value is ...:
                vars(state["args"]).pop(name, None)
            else:
                setattr(state["args"], name, value)
        write_common(path, state)

    return change


def hf_config_changed(**fields):
    """Returns a change that sets fields of hf/config.json."""
    return lambda source: config_changed(**fields)(source / "hf")


def refused_by_name(word: str) -> list[Run]:
    return [Run("convert SRC OUT --to hf", REFUSED, says=word)]


UNREADABLE = [
    Case("unreadable_arguments", "src", [
        Run("convert SRC OUT --to hf --from-glu contiguous", 4, says=r"glu-conflict"),
        Run("convert SRC OUT --to hf", 0, says=r"other_package\.arguments\.SchedulerType"),
        Run("inspect SRC", 0, says=r"lr_scheduler_type.*other_package\.arguments\.SchedulerType"),
        Run("inspect SRC --strict", 3, says=r"lr_scheduler_type"),
    ]),
    Case("unreadable_arguments", "src", [
        Run("convert SRC OUT --to hf --from-glu contiguous", 4, says=r"glu-conflict"),
        Run("convert SRC OUT --to hf", 0, never_says="not read"),
        Run("inspect SRC", 0, never_says="lr_scheduler_type"),
    ], change=args_changed(lr_scheduler_type="cosine", save=pathlib.PurePosixPath("runs/1")), note="all readable"),
    Case("unreadable_arguments", "src", [
        Run("convert SRC OUT --to hf --from-glu contiguous", 0, says=r"moe_mlp_glu_interleave_size.*a\.b\.C"),
        Run("convert SRC OUT --to hf", 4, says=r"unknown-glu"),
    ], change=args_changed(moe_mlp_glu_interleave_size=Foreign("a.b", "C")), note="the order itself"),
    Case("small_messages", "src_partial", [Run("convert SRC OUT --to hf", 4, says=r"functools\.partial"),
                                           Run("inspect SRC", 0, says=r"functools\.partial")]),
    Case("small_messages", "src_partial", [Run("convert SRC OUT --to hf", 0, says="the output loads in")],
         change=args_changed(hook=...), note="without the partial"),
]

WARNINGS = [
    Case("rope_interleave_with_yarn", source, [Run("convert SRC OUT --to megatron", 0, says="rope_interleave is false")])
    for source in ("src_plain", "src_yarn")
] + [
    Case("rope_interleave_with_yarn", source, [Run("convert SRC OUT --to megatron", 0, never_says="rope_interleave")],
         change=config_changed(rope_interleave=True), note="true")
    for source in ("src_plain", "src_yarn")
] + [
    Case("small_messages", "src_swish", [Run("convert SRC OUT --to megatron", 0, never_says="hidden_act")]),
    Case("small_messages", "src_swish", [Run("convert SRC OUT --to megatron", 0, says="hidden_act is 'gelu'")],
         change=config_changed(hidden_act="gelu"), note="gelu"),
]

IGNORED = [
    Case("trained_arguments_ignored", source, refused_by_name(word))
    for source, word in (
        ("src_clamp", "activation_func_clamp_value 7"),
        ("src_interpolation", "rotary_seq_len_interpolation_factor 4"),
        ("src_off_by_one", "softmax_type off-by-one"),
        ("src_offset", "glu_linear_offset 1"),
        ("src_rope_scaling", "use_rope_scaling True"),
        ("src_sinkhorn", "moe_router_load_balancing_type sinkhorn"),
    )
] + [
    Case("trained_arguments_ignored", "src_offset", refused_by_name(name),
         change=args_changed(glu_linear_offset=0.0, **{name: value}), note=name)
    for name, value in {
        "apply_residual_connection_post_layernorm": True, "softmax_scale": 0.1, "moe_expert_capacity_factor": 1.0,
        "mrope_section": [8, 4, 4], "rotary_of_tomorrow": 2.5, "moe_router_load_balancing_type": ["sinkhorn"],
        "moe_latent_size": 16, "window_size": (7, 0), "squared_relu": True, "qk_l2_norm": True,
    }.items()
] + [
    Case("trained_arguments_ignored", "src_offset", [Run("convert SRC OUT --to hf", 0, says="the output loads in")],
         change=args_changed(**{
             "glu_linear_offset": 0.0, "softmax_type": "vanilla", "rotary_seq_len_interpolation_factor": None,
             "use_rope_scaling": False, "rope_scaling_factor": 8.0, "activation_func_clamp_value": None,
             "moe_router_load_balancing_type": "aux_loss", "moe_router_bias_update_rate": 1e-3, "window_size": None,
             "rotary_scaling_factor": 1.0, "moe_router_topk_scaling_factor": None, "moe_router_num_groups": None,
             "softmax_scale": None, "lr": 1e-5, "attention_backend": "auto", "moe_expert_capacity_factor": None,
             "moe_router_dtype": "fp32", "qk_clip_threshold": 100, "linear_conv_kernel_dim": 4, "mscale": 1.0,
             "linear_key_head_dim": 128, "no_rope_freq": None, "hybrid_attention_ratio": 0.0, "spec": None,
         }), note="neutral values"),
]

CONTRADICTIONS = [
    Case("config_contradicts_arguments", source, [Run("convert SRC OUT --to hf", 0, says=f"warning.*{word}"),
                                                  Run("inspect SRC", 0, says=word)])
    for source, word in (
        ("src_rotary_base", "rotary_base 5000000 .* asks for 10000"),
        ("src_epsilon", "norm_epsilon 1e-05 .* asks for 1e-06"),
        ("src_topk", "moe_router_topk 1 .* asks for 2"),
        ("src_presoftmax", "moe_router_pre_softmax True .* asks for False"),
        ("src_sigmoid", "moe_router_score_function sigmoid .* asks for softmax"),
        ("src_yarn", "position_embedding_type yarn .* asks for rope"),
    )
] + [
    Case("config_contradicts_arguments", "src_topk", [Run("convert SRC OUT --to hf", 0, never_says="asks for"),
                                                      Run("inspect SRC", 0, never_says="asks for")],
         change=args_changed(moe_router_topk=2), note="agrees"),
    Case("config_contradicts_arguments", "src_rotary_base", [Run("convert SRC OUT --to hf", 0, never_says="asks for")],
         change=hf_config_changed(rope_theta=5000000), note="an integer for a float"),
    Case("config_contradicts_arguments", "src_topk", [Run("convert SRC OUT --to hf", 0, says="num_query_groups 2")],
         change=args_changed(moe_router_topk=2, num_query_groups=2), note="groups"),
]

CASES = UNREADABLE + WARNINGS + IGNORED + CONTRADICTIONS
