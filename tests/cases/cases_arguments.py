"""The arguments that a trainer saved, the fields of config.json, and optimizer state that is no tensor."""
import argparse
import io
import json
import pathlib
import pickle
import shutil
import zipfile

from case import Case, Run, both, config_changed
from cases_sparse import model

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
        Run("convert SRC OUT --to hf", 0, never_says="lr_scheduler_type"),
        Run("inspect SRC", 0, never_says="lr_scheduler_type"),
    ], change=args_changed(lr_scheduler_type="cosine", save=pathlib.PurePosixPath("runs/1")), note="all readable"),
    Case("unreadable_arguments", "src", [
        Run("convert SRC OUT --to hf --from-glu contiguous", 0, says=r"moe_mlp_glu_interleave_size.*a\.b\.C"),
        Run("convert SRC OUT --to hf", 4, says=r"unknown-glu"),
    ], change=args_changed(moe_mlp_glu_interleave_size=Foreign("a.b", "C")), note="the order itself"),
    Case("small_messages", "src_partial", [Run("convert SRC OUT --to hf", 4, says=r"functools\.partial"),
                                           Run("inspect SRC", 0, says=r"functools\.partial")]),
    Case("small_messages", "src_partial", [Run("convert SRC OUT --to hf", 0, says=r"loads in +(Megatron|transformers)")],
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
         change=args_changed(glu_linear_offset=0.0, **{name: value}), note=f"{name} {value}")
    for name, value in (
        ("apply_residual_connection_post_layernorm", True), ("softmax_scale", 0.1), ("moe_expert_capacity_factor", 1.0),
        ("mrope_section", [8, 4, 4]), ("rotary_of_tomorrow", 2.5), ("moe_router_load_balancing_type", ["sinkhorn"]),
        ("moe_latent_size", 16), ("window_size", (7, 0)), ("squared_relu", True), ("qk_l2_norm", True),
        # Of another type than Megatron-LM has, or what forces the routing.
        ("window_size", 128), ("window_size", "x"), ("moe_router_force_biased", 2.5),
    )
] + [
    Case("trained_arguments_ignored", "src_offset", [Run("convert SRC OUT --to hf", 0, says=r"loads in +(Megatron|transformers)")],
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

# There is no config.json but the one that the arguments make: what is wrong with it is wrong with them.
NAMED = [
    Case("trained_arguments_ignored", "src_offset", refused_by_name(word), note=f"{name} {value}",
         change=args_changed(glu_linear_offset=0.0, **{name: value}))
    for name, value, word in (
        ("moe_router_topk", 0, r"saved arguments \(num_experts_per_tok is moe_router_topk"),
        ("norm_epsilon", 3.0, r"saved arguments \(rms_norm_eps is norm_epsilon\)"),
        ("moe_ffn_hidden_size", 7, r"saved arguments \(.*is moe_ffn_hidden_size"),
        ("num_attention_heads", ..., r"no num_attention_heads"),
        ("moe_router_topk", True, r"moe_router_topk is True, where a whole number belongs"),
        ("rotary_scaling_factor", [1], r"rotary_scaling_factor is \[1\], where a number belongs"),
    )
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

CHANGE = "convert SRC OUT --from-glu contiguous --glu interleaved:8"


class Storage:
    """Pickles as a persistent id, which stands for the bytes of a tensor."""

    def __init__(self, elements: int):
        self.elements = elements


def tensor_zip(value, elements: int) -> bytes:
    """What torch.save(value) writes, with every Storage as `elements` zeros in F32."""

    class Pickler(ForeignPickler):
        def persistent_id(self, thing):
            if isinstance(thing, Storage):
                return ("storage", Name("torch", "FloatStorage"), "0", "cpu", thing.elements)
            return None

    text, out = io.BytesIO(), io.BytesIO()
    Pickler(text, 2).dump(value)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", text.getvalue())
        archive.writestr("archive/data/0", bytes(4 * elements))
        archive.writestr("archive/version", "3\n")
    return out.getvalue()


class Name:
    """Pickles as the name of a class or function."""

    def __init__(self, module: str, name: str):
        self.module, self.name = module, name


class Call:
    """Pickles as a call of a named function."""

    def __init__(self, module: str, name: str, *args):
        self.function, self.args = Name(module, name), args


def save_name(pickler, value: Name) -> None:
    pickler.write(pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode())


def save_call(pickler, value: Call) -> None:
    pickler.save(value.function)
    pickler.save(value.args)
    pickler.write(pickle.REDUCE)


ForeignPickler.dispatch[Name] = save_name
ForeignPickler.dispatch[Call] = save_call


def tensor(elements: int) -> Call:
    shape, stride = ((elements,), (1,)) if elements > 1 else ((), ())
    return Call("torch._utils", "_rebuild_tensor_v2", Storage(elements), 0, shape, stride, False, {})


def common_changed(elements: int, **entries):
    """Returns a change that adds entries to common.pt; `...` within stands for a tensor."""

    def filled(value):
        if value is ...:
            return tensor(elements)
        if isinstance(value, dict):
            return {name: filled(item) for name, item in value.items()}
        return [filled(item) for item in value] if isinstance(value, list) else value

    def change(source: pathlib.Path) -> None:
        path = source / "iter_0000100" / "common.pt"
        state = read_common(path)
        state.update(filled(entries))
        path.chmod(0o644)
        path.write_bytes(tensor_zip(state, elements))

    return change


def with_optimizer(out: pathlib.Path) -> str:
    """Adds an optimizer to common.pt of OUT."""
    path = next(out.rglob("common.pt"))
    path.write_bytes(tensor_zip(read_common(path) | {"optimizer": {"state": {0: {"exp_avg": tensor(40)}}}}, 40))
    return ""


def file_beside(name: str, value, elements: int, folder: str = "iter_0000100"):
    def change(source: pathlib.Path) -> None:
        path = source / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(tensor_zip(value, elements))

    return change


def lacks_word(word: str):
    """Returns a check that no file of OUT holds the word."""

    def check(out: pathlib.Path) -> str:
        found = [str(file) for file in out.rglob("*") if file.is_file() and word.encode() in file.read_bytes()]
        return f"{found[0]} holds {word}" if found else ""

    return check


ADAM = {"state": {0: {"exp_avg": tensor(40), "exp_avg_sq": tensor(40)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
GROUPS = {"param_groups": [{"lr": 0.1, "params": [0], "step": tensor(1)}]}


def state_found(word: str, gone: str) -> list[Run]:
    return [
        Run(CHANGE, 4, says=f"{word}.*\\[optimizer-buckets\\]"),
        Run("inspect SRC", 0, says=f"problem.*{word}"),
        Run(CHANGE + " --optimizer drop", 0, check=lacks_word(gone)),
    ]


TO_MEGATRON = "convert SRC OUT --to megatron"


def hub_state(name: str, told: str = "exp_avg") -> list[Run]:
    """What a trainer saved beside a model of the hub; a plain copy leaves it behind and says so."""
    return [
        Run(TO_MEGATRON, 4, says=f"{name}.*{told}.*\\[optimizer-buckets\\]"),
        Run("inspect SRC", 0, says=f"problem.*{name}"),
        Run(TO_MEGATRON + " --optimizer drop", 0, check=lacks_word("exp_avg")),
        Run("convert SRC OUT --to hf --force", 0, says=f"{name}.*left behind"),
        Run("convert SRC OUT --layers 0-0", 0, says=f"{name}.*left behind", check=lacks_word("exp_avg")),
    ]


SOUND = [Run(CHANGE, 0), Run("inspect SRC", 0, never_says="optimizer state")]
# A run of the same layout without optimizer state.
RUN = ("trained_arguments_ignored", "src_offset")

OPTIMIZER = [
    Case("optimizer_in_objects", "src", [
        Run(CHANGE, 4, says=r"param_state.*\[optimizer-buckets\]"),
        Run("inspect SRC", 0, says=r"problem.*param_state"),
        Run(CHANGE + " --optimizer drop", 0, check=lacks_word("param_state")),
        Run("inspect OUT", 0, never_says="optimizer state"),
    ]),
    Case(*RUN, state_found("common.pt", "exp_avg"), note="in common.pt",
         change=common_changed(40, optimizer={"state": {0: {"exp_avg": ...}}, "param_groups": []})),
    Case("whole/qwen3_moe", "hf", [
        Run(TO_MEGATRON, check=with_optimizer),
        Run("convert OUT OUT2 --layers 0-0 --to megatron", 4, says=r"common\.pt.*exp_avg.*\[optimizer-buckets\]"),
        Run("convert OUT OUT2 --layers 0-0 --to megatron --optimizer drop", check=lacks_word("exp_avg"))], note="in common.pt, of layers that go"),
    Case(*RUN, state_found("common.pt", "fp32_from_fp16"), note="in common.pt, in a list",
         change=common_changed(40, chained=[{"fp32_from_fp16_params": [[...]]}])),
    Case(*RUN, SOUND, note="param_groups with a step",
         change=common_changed(1, optimizer={"param_groups": [{"lr": 0.1, "params": [0], "step": ...}]})),
    Case(*RUN, SOUND, note="random states", change=common_changed(40, rng_state=[{"random_rng_state": ...}])),
    Case(*RUN, state_found("optimizer.pt", "exp_avg"), note="a file beside", change=file_beside("optimizer.pt", ADAM, 40)),
    Case(*RUN, state_found("engine.pt", "exp_avg"), note="a file of another name",
         change=file_beside("engine.pt", ADAM, 40)),
    Case(*RUN, SOUND, note="a file of groups", change=file_beside("optimizer.pt", GROUPS, 1)),
    *[Case("", "", hub_state(name), note=f"hub, {name}",
           change=both(model("llama3"), file_beside(name, value, 40, "")))
      for name, value in (("optimizer.pt", ADAM), ("optimizer.bin", ADAM), ("training_state.pt", {"optimizer": ADAM}),
                          ("global_step500/zero_pp_rank_0_mp_rank_00_optim_states.pt", ADAM))],
    *[Case("", "", hub_state(told, "optimizer state"), note=f"hub, {name}, by its name",
           change=both(model("llama3"), file_beside(name, ADAM, 40, "")))
      for name, told in (("optimizer.safetensors", "optimizer.safetensors"), ("optimizer/model.safetensors", "optimizer/"),
                         ("optimizer_0/__0_0.distcp", "optimizer_0/"))],
    *[Case("", "", [Run(TO_MEGATRON, 0), Run("inspect SRC", 0, never_says="optimizer state")],
           note=f"hub, sound {name}", change=both(model("llama3"), file_beside(name, value, elements, "")))
      for name, value, elements in (("optimizer.pt", GROUPS, 1), ("scheduler.pt", {"last_epoch": 3}, 1),
                                    ("pytorch_model.bin", {"model.norm.weight": tensor(40)}, 40),
                                    ("original/model.safetensors", {}, 1), ("dist/__0_0.distcp", {}, 1),
                                    ("rng_state_0.pth", {"cpu": tensor(40)}, 40))],
    Case(*RUN, SOUND, note="a file of generators", change=file_beside("rng_state_0.pth", {"cpu": tensor(40)}, 40)),
]

SOUND_BASE = {"max_position_embeddings": 4096, "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}}


ABSURD = {
    "rope_theta": ("500000", -1, 0, 1e300), "max_position_embeddings": (-1, 0, "4096", 1.5),
    "rms_norm_eps": (-1, 1e300, "1e-6", 0), "num_experts_per_tok": ("8", -1, 2**40), "n_group": ("x", -1),
    "topk_group": (2**63 - 1, -1), "layer_types": ("x", 5, [], [1]), "mlp_only_layers": ("x", [-1], [0.5]),
    "decoder_sparse_step": (0, -1, "1"), "hidden_act": (0.5, ["silu"]), "head_dim": ("16", 0, -4),
    "num_experts": ("8", -1, True), "tie_word_embeddings": ("true", 1), "norm_topk_prob": ("yes", 0),
    "quantization_config": ("fp8", 5, []), "rope_scaling": ("yarn", [4.0], 4), "rope_parameters": ("yarn", 4),
    "num_hidden_layers": (0, "2", 10**12), "hidden_size": (0, "64"), "num_key_value_heads": (0, "4"),
    "routed_scaling_factor": ("1", -2.5, 0), "sliding_window": (-1, "128"), "partial_rotary_factor": (0, 1.5, "0.5"),
}
SOUND_FIELDS = {
    "rope_theta": 1000000, "rope_scaling": None, "sliding_window": 128, "mlp_only_layers": [], "n_group": None,
    "topk_group": 1, "quantization_config": None, "swiglu_limit": 7, "partial_rotary_factor": 1, "hidden_act": "silu",
    "tie_word_embeddings": False, "bos_token_id": "x", "initializer_range": -1, "decoder_sparse_step": 1,
}


def sound_but(**fields):
    """Returns a change that sets fields of a sound config.json, None as null."""

    def change(source: pathlib.Path) -> None:
        path = source / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **SOUND_BASE, **fields}))

    return change


def yarn_but(**fields):
    yarn = {"rope_theta": 500000.0, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    return sound_but(rope_parameters={**yarn, **fields})


TYPED = [
    Case("grids_and_types", "typed", [Run("convert SRC OUT --to megatron", 3, says=rf"{name} is .*expected"),
                                      Run("inspect SRC --strict", 3, says=rf"{name} is .*expected")],
         change=sound_but(**{name: value}), note=f"{name} {value!r}")
    for name, values in ABSURD.items() for value in values
] + [
    Case("grids_and_types", "typed", [Run("convert SRC OUT --to megatron", 3, says=rf"rope_parameters\.{name} is .*expected")],
         change=yarn_but(**{name: value}), note=f"rope_parameters.{name} {value!r}")
    for name, values in {"factor": (-1, 0, "4"), "beta_fast": ("32", 0), "rope_type": (5,),
                         "original_max_position_embeddings": (-1, "4096"), "truncate": ("no",)}.items()
    for value in values
] + [
    Case("grids_and_types", "typed", [Run("convert SRC OUT --to megatron", 3, says="expected")]),
    Case("grids_and_types", "typed", [Run("convert SRC OUT --to megatron", 0)], change=sound_but(), note="sound"),
    Case("grids_and_types", "typed", [Run("convert SRC OUT --to megatron", 0)], change=yarn_but(), note="sound YaRN"),
] + [
    Case("grids_and_types", "typed", [Run("convert SRC OUT --to megatron", 0, never_says="expected")],
         change=sound_but(**{name: value}),
         note=f"sound {name} {value!r}")
    for name, value in SOUND_FIELDS.items()
]

def without_record(added: str = "", *gone: str):
    """Returns a check that takes the record away from OUT, and adds a text to its megatron_args.txt."""

    def check(out: pathlib.Path) -> str:
        (out / "release" / "glu_ckpt.json").unlink()
        for name in gone:
            shutil.rmtree(out / name)
        with open(out / "megatron_args.txt", "a") as file:
            file.write(added)
        return ""

    return check


def listed_orders(*lines: str):
    """Returns a check that these are the lines of OUT's megatron_args.txt that say an order."""

    def check(out: pathlib.Path) -> str:
        found = [line for line in (out / "megatron_args.txt").read_text().splitlines() if "interleave" in line]
        return "" if found == list(lines) else f"megatron_args.txt has {found}"

    return check


MIXED_ORDERS = TO_MEGATRON + " --glu interleaved:4 --shared-glu interleaved:10"

# A megatron_args.txt beside a checkpoint without a record says the order of gate and up as saved arguments do.
LISTED = [
    Case("whole/qwen3_moe", "hf", [
        Run(TO_MEGATRON + " --glu interleaved:4", check=without_record()),
        Run("inspect OUT", says="interleaved:4.*\n.*glu from +megatron_args.txt"),
        Run("convert OUT OUT2 --to hf --from-glu contiguous", 4,
            says=r"megatron_args\.txt says interleaved:4.*\[glu-conflict\]"),
        Run("digest SRC OUT --from-glu contiguous", 4,
            says="speaks of all 2 paths. Leave it out, and record the order of each path that needs one with `glu-ckpt "
            "stamp PATH --glu ORDER`"),
        Run("stamp OUT --glu contiguous", 4, says=r"megatron_args\.txt says interleaved:4.*\[glu-conflict\]"),
        Run("convert OUT OUT2 --to hf"),
        Run("verify SRC OUT2", says="^equal"),
        Run("convert OUT/release OUT2 --to hf"),
    ], note="listed order"),
    Case("whole/bailing_moe_v2", "hf", [
        Run(MIXED_ORDERS, check=without_record()),
        Run("convert OUT OUT2 --to hf --from-shared-glu contiguous", 4, says=r"megatron_args\.txt says interleaved:10"),
        Run("convert OUT OUT2 --to hf"),
        Run("verify SRC OUT2", says="^equal"),
    ], note="listed order of the shared expert"),
    Case("whole/bailing_moe_v2", "hf", [
        Run(MIXED_ORDERS, check=without_record("", "hf")),
        Run("convert OUT OUT2 --glu contiguous", check=listed_orders("--moe-shared-expert-glu-interleave-size 10")),
        Run("convert OUT OUT2 --glu interleaved:2 --shared-glu contiguous",
            check=listed_orders("--moe-mlp-glu-interleave-size 2")),
    ], note="listed order of no known model"),
    Case("hf/gpt_oss", ".", [
        Run("convert SRC OUT --to megatron", says="note: gate and up rows of the routed experts are interleaved:1 in the "
            "source, and contiguous in the output"),
        Run("convert SRC OUT --to megatron --glu contiguous --overwrite", never_says="gate and up rows of"),
    ], note="an order that the target has"),
    Case("whole/qwen3_moe", "hf", [
        Run(TO_MEGATRON, check=without_record()),
        Run("stamp OUT --glu interleaved:4", says=r"warning.*routed experts are interleaved:4, and its "
            r"megatron_args\.txt has no --moe-mlp-glu-interleave-size.*'--moe-mlp-glu-interleave-size 4'"),
        Run("inspect OUT --strict", 3, says=r"problem.*reads them as contiguous"),
        Run("convert OUT OUT2 --to hf", says=r"warning.*reads them as contiguous"),
        Run("convert OUT OUT2 --glu interleaved:2", check=listed_orders("--moe-mlp-glu-interleave-size 2")),
    ], note="a file that says no order beside a stamp"),
    Case("whole/bailing_moe_v2", "hf", [
        Run(MIXED_ORDERS, check=lambda out: (out / "megatron_args.txt").write_text("--moe-mlp-glu-interleave-size 4") and ""),
        Run("inspect OUT", says=r"problem.*shared expert are interleaved:10, and its megatron_args\.txt has no "
            r"--moe-shared-expert-glu-interleave-size", never_says="of the routed experts are"),
        Run("convert OUT OUT2 --glu contiguous --shared-glu contiguous", check=listed_orders()),
        Run("inspect OUT2", says="loads in", never_says="problem"),
    ], note="a file of another order beside a record"),
    *[Case("whole/qwen3_moe", "hf", [
        Run(TO_MEGATRON + " --glu interleaved:4", check=without_record(added)),
        Run("convert OUT OUT2 --to hf", 4, says=r"\[unknown-glu\]"),
        Run("convert OUT OUT2 --to hf --from-glu interleaved:4", says=f"warning.*{why}"),
        Run("inspect OUT", says=f"problem.*{why}"),
    ], note=f"listed order, {why}") for added, why in (
        ("--moe-mlp-glu-interleave-size 8\n", "cannot both be true"), ("\0", "is no text"),
        ("#" * (2 << 20), "at most 1048576"))],
]



def with_line(line: str):
    """Returns a check that adds a line to OUT's megatron_args.txt."""

    def check(out: pathlib.Path) -> str:
        with open(out / "megatron_args.txt", "a") as file:
            file.write(line)
        return ""

    return check


# The record and the arguments beside it are of one conversion.
RECORDED = [
    Case("whole/qwen3_moe", "hf", [
        Run(TO_MEGATRON, check=with_line("--moe-mlp-glu-interleave-size 4\n")),
        Run("convert OUT OUT2 --to hf", 4, says=r"the record says contiguous, but megatron_args\.txt says interleaved:4.*"
            r"put glu_ckpt\.json elsewhere.*\[glu-conflict\]"),
        Run("inspect OUT --strict", 4, says="record says contiguous, but megatron_args"),
    ], note="a record and other arguments"),
    Case("whole/qwen3_moe", "hf", [
        Run(TO_MEGATRON + " --glu interleaved:4"), Run("convert OUT OUT2 --glu contiguous"), Run("verify SRC OUT2"),
    ], note="a record and its own arguments"),
]


def config_of_out(**fields):
    """Returns a check that changes OUT's config.json."""

    def check(out: pathlib.Path) -> str:
        config_changed(**fields)(out)
        return ""

    return check


def vision_of_out(**fields):
    """Returns a check that changes the vision_config of OUT's config.json."""

    def check(out: pathlib.Path) -> str:
        path = out / "config.json"
        config = json.loads(path.read_text())
        config["vision_config"].update(fields)
        path.write_text(json.dumps(config))
        return ""

    return check


COPY = "convert SRC OUT --to hf --force"
OTHER_EPSILON = "rms_norm_eps is 1e-06 in A and 1e-05 in B"
SAME_SAY = {"transformers_version": "9.0", "torch_dtype": "float32", "architectures": ["B"], "pad_token_id": 7}

# Weights that are the same compute something else where config.json says so.
CONFIGURED = [
    Case("whole/qwen3_moe", "hf", [
        Run(COPY, check=config_of_out(rms_norm_eps=1e-5, **SAME_SAY)),
        Run("verify SRC OUT", says=rf"^equal.*\n(.*\n)?.*{OTHER_EPSILON}\n", never_says="pad_token|torch_dtype"),
        Run("diff SRC OUT", says=rf"^equal.*\n(.*\n)?.*{OTHER_EPSILON}\n"),
        Run("verify SRC OUT --json", says=r'"config_differences":\[\{"field":"rms_norm_eps","a":"1e-06","b":"1e-05"\}\]'),
        Run("digest SRC OUT", says="have one digest.*rms_norm_eps is 1e-06 in the first and 1e-05 in the other"),
        Run("digest SRC OUT --json", says=r'"config_differences":\[\{"path_a":.*"field":"rms_norm_eps"'),
    ], note="another epsilon"),
    Case("whole/glm4v_moe", "hf", [
        Run(COPY, check=vision_of_out(num_heads=1, initializer_range=0.5)),
        Run("verify SRC OUT", says=r"^equal.*\n(.*\n)?.*vision_config\.num_heads is \d+ in A and 1 in B\n",
            never_says="initializer_range"),
        Run("diff SRC OUT", says=r"vision_config\.num_heads is \d+ in A and 1 in B"),
    ], note="another vision_config"),
    Case("whole/qwen3_moe", "hf", [
        Run(COPY, check=config_of_out(**SAME_SAY)),
        Run("verify SRC OUT", says="^equal", never_says="config.json"),
        Run("diff SRC OUT", says="^equal", never_says="config.json"),
        Run("digest SRC OUT", never_says="config.json"),
        Run("convert SRC OUT2 --to megatron"),
        Run("verify SRC OUT2", says="^equal", never_says="config.json"),
    ], note="a config.json that says the same"),
]

CASES = CONFIGURED + RECORDED + LISTED + UNREADABLE + WARNINGS + IGNORED + NAMED + CONTRADICTIONS + OPTIMIZER + TYPED
