"""Hybrid models (Nemotron-H): one mixer a layer, experts without a gate, and what Megatron-Core's mixers cannot be."""
import pathlib
import shutil

from case import Case, Run, both, config_changed, read_tensors, tensors_changed

WHOLE = pathlib.Path(__file__).resolve().parent.parent.parent / "testdata" / "whole"
LATENT = 16


def model(source: pathlib.Path) -> None:
    """Puts the model of testdata/whole there: M, E, M, *, -."""
    shutil.copytree(WHOLE / "nemotron_h" / "hf", source, dirs_exist_ok=True)


def edited(edit, **fields):
    """Returns a change that makes the model, with other tensors and fields."""
    return both(model, tensors_changed(edit), config_changed(**fields))


def latent(tensors: dict) -> None:
    """Lets the experts map a state that is narrower than the hidden one."""
    for name, (dtype, shape, data) in list(tensors.items()):
        if ".experts." in name:
            up = "up_proj" in name
            rows, cols = (shape[0], LATENT) if up else (LATENT, shape[1])
            tensors[name] = (dtype, [rows, cols], data[: 2 * rows * cols])
    dtype, (vocab, hidden), data = tensors["lm_head.weight"]
    one = data[: 2 * LATENT * hidden]
    tensors["backbone.layers.1.mixer.fc1_latent_proj.weight"] = (dtype, [LATENT, hidden], one)
    tensors["backbone.layers.1.mixer.fc2_latent_proj.weight"] = (dtype, [hidden, LATENT], one[::-1])


def narrow_kernel(tensors: dict) -> None:
    """Leaves three of the four taps of each convolution."""
    for name, (dtype, shape, data) in list(tensors.items()):
        if name.endswith("conv1d.weight"):
            tensors[name] = (dtype, [shape[0], 1, 3], data[: 2 * shape[0] * 3])


def without(name: str):
    return lambda tensors: tensors.pop(name)


def renamed(old: str, new: str):
    def edit(tensors: dict) -> None:
        for name in [name for name in tensors if old in name]:
            tensors[name.replace(old, new)] = tensors.pop(name)

    return edit


def as_f32(name: str):
    """Returns an edit that stores a vector of BF16 in F32."""

    def edit(tensors: dict) -> None:
        _, shape, data = tensors[name]
        tensors[name] = ("F32", shape, b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2)))

    return edit


def with_mtp(steps: int, like=(3, 1)):
    """Returns an edit that adds steps of multi-token prediction, with layers inside like those of the model."""

    def edit(tensors: dict) -> None:
        for step in range(steps):
            for inside, layer in enumerate(like):
                old, new = f"backbone.layers.{layer}.", f"mtp.layers.{step * len(like) + inside}."
                for name in [name for name in tensors if name.startswith(old)]:
                    tensors[name.replace(old, new)] = tensors[name]
            dtype, (hidden,), norm = tensors["backbone.norm_f.weight"]
            first, last = step * len(like), step * len(like) + len(like) - 1
            for name in (f"{first}.enorm", f"{first}.hnorm", f"{last}.final_layernorm"):
                tensors[f"mtp.layers.{name}.weight"] = (dtype, [hidden], norm)
            tensors[f"mtp.layers.{first}.eh_proj.weight"] = (dtype, [hidden, 2 * hidden], norm * 2 * hidden)

    return edit


def mtp_keys(*wanted: str):
    """Returns a check of the tensors around and inside the steps of multi-token prediction."""

    def check(out: pathlib.Path) -> str:
        names = {name for name in read_tensors(out) if name.startswith("mtp.")}
        inside = {name for name in names if ".mtp_model_layer." in name}
        missing = sorted(set(wanted) - names)
        around = sorted(name for name in names - inside if name not in wanted)
        return f"lacks {missing}, has {around}" if missing or around else ""

    return check


def around(steps: int) -> list[str]:
    return [f"mtp.layers.{step}.{name}.weight" for step in range(steps)
            for name in ("enorm", "hnorm", "eh_proj", "final_layernorm")]


INSIDE = ["mtp.layers.0.mtp_model_layer.layers.0.self_attention.linear_qkv.weight",
          "mtp.layers.0.mtp_model_layer.layers.1.mlp.experts.experts.linear_fc1.weight",
          "mtp.layers.0.mtp_model_layer.layers.1.mlp.router.expert_bias"]


def mtp_case(change, arguments: str, keys: list[str], note: str) -> Case:
    """The output is written as safetensors too, where its keys are read."""
    runs = [Run("convert SRC OUT --to megatron", check=args_say(arguments)), Run("convert OUT OUT2 --to hf"),
            Run("verify SRC OUT2"), Run("convert SRC OUT --to megatron --format safetensors", check=mtp_keys(*keys)),
            Run("convert OUT OUT2 --to hf"), Run("verify SRC OUT2")]
    return Case("", "", runs, change=change, note=note)


def args_say(wanted: str):
    def check(out: pathlib.Path) -> str:
        text = " ".join(next(out.rglob("megatron_args.txt")).read_text().split())
        return "" if wanted in text else f"megatron_args.txt is {text}"

    return check


def converts(change, arguments: str, note: str, says: str = "") -> Case:
    return Case("", "", [Run("convert SRC OUT --to megatron", says=says, check=args_say(arguments)),
                         Run("convert OUT OUT2 --to hf"), Run("verify SRC OUT2")], change=change, note=note)


def refused(change, says: str, note: str, options: str = "") -> Case:
    return Case("", "", [Run(f"convert SRC OUT --to megatron{options}", (3, 4), says=says)], change=change, note=note)


PATTERN = {"layers_block_type": None, "hybrid_override_pattern": "MEM*-"}
OLD_WORDS = {"layers_block_type": ["mamba", "moe", "mamba", "attention", "mlp"]}
MAMBA = "backbone.layers.0.mixer."

CASES = [
    converts(both(model, config_changed(**PATTERN, num_hidden_layers=None)), "--hybrid-layer-pattern MEM*-", "hybrid letters"),
    converts(both(model, config_changed(**OLD_WORDS)), "--hybrid-layer-pattern MEM*-", "hybrid words of old"),
    converts(edited(latent, moe_latent_size=LATENT), f"--moe-latent-size {LATENT}", "hybrid latent experts"),
    converts(edited(as_f32(MAMBA + "A_log")), "--mamba-num-heads 4", "hybrid decay in F32"),
    converts(edited(renamed("backbone.", "model.")), "--mamba-num-heads 4", "hybrid behind model."),
    converts(both(model, config_changed(layer_norm_epsilon=1e-6)), "--norm-epsilon 1e-06", "hybrid epsilon",
             says="norm inside of Megatron-Core's Mamba has 1e-05"),
    mtp_case(edited(with_mtp(1), num_nextn_predict_layers=1), "--hybrid-layer-pattern MEM*-/*E", around(1) + INSIDE,
             "hybrid one step of MTP"),
    mtp_case(edited(with_mtp(2), num_nextn_predict_layers=2), "--hybrid-layer-pattern MEM*-/*E/*E", around(2) + INSIDE,
             "hybrid two steps of MTP"),
    mtp_case(edited(with_mtp(1, (0, 3, 1)), num_nextn_predict_layers=1, mtp_layers_block_type=None,
                    mtp_hybrid_override_pattern="M*E"), "--hybrid-layer-pattern MEM*-/M*E", around(1),
             "hybrid MTP of three layers"),
    mtp_case(edited(with_mtp(1), num_nextn_predict_layers=3, mtp_use_repeated_layer=True),
             "--hybrid-layer-pattern MEM*-/*E/*E/*E", around(1) + INSIDE, "hybrid MTP that repeats"),
    refused(edited(with_mtp(1), num_nextn_predict_layers=2), r"MTP layer 2 is missing.*\[model-incomplete\]",
            "hybrid a step of MTP too few"),
    refused(both(edited(with_mtp(1), num_nextn_predict_layers=1), tensors_changed(without("mtp.layers.1.final_layernorm.weight"))),
            r"'mtp\.layers\.1\.final_layernorm\.weight' is missing", "hybrid MTP without its last norm"),
    refused(both(edited(with_mtp(1), num_nextn_predict_layers=1), tensors_changed(renamed("mtp.layers.0.enorm", "mtp.layers.1.enorm"))),
            r"'mtp\.layers\.0\.enorm\.weight' is missing|unknown-tensor", "hybrid MTP with a norm of another layer"),
    refused(edited(with_mtp(1, (1, 3)), num_nextn_predict_layers=1), r"mtp\.layers\.", "hybrid MTP of other mixers"),
    refused(both(model, config_changed(layers_block_type=None)), r"layers_block_type is missing", "hybrid no mixers"),
    refused(both(model, config_changed(hybrid_override_pattern="MMM*-")), r"are not the same layers", "hybrid two lists"),
    refused(both(model, config_changed(**PATTERN | {"hybrid_override_pattern": "MEMX-"})), r"'X'", "hybrid unknown letter"),
    refused(both(model, config_changed(**PATTERN | {"hybrid_override_pattern": "MEM-*"})),
            r"layers\.[34]\..*\[(model-incomplete|unknown-tensor)\]", "hybrid exchanged letters"),
    refused(both(model, config_changed(**PATTERN | {"hybrid_override_pattern": "EMM*-"})), r"\[model-(incomplete|shape)\]",
            "hybrid experts elsewhere"),
    refused(both(model, config_changed(**PATTERN | {"hybrid_override_pattern": "MEM*--"})), r"layer 5 is missing",
            "hybrid a layer too many"),
    refused(both(model, config_changed(**PATTERN | {"hybrid_override_pattern": "MEM*"})), r"layers\.4\.",
            "hybrid a layer too few"),
    refused(both(model, config_changed(n_groups=1)), r"'backbone\.layers\.\d\.mixer.*n_groups x ssm_state_size.*\[model-shape\]",
            "hybrid other groups"),
    refused(both(model, config_changed(moe_latent_size=LATENT)), r"moe_latent_size 16|fc1_latent_proj", "hybrid no latent"),
    refused(edited(latent), r"\[model-shape\]|\[unknown-tensor\]", "hybrid a latent too many"),
    refused(edited(without(MAMBA + "conv1d.bias")), r"'backbone\.layers\.0\.mixer\.conv1d\.bias' is missing", "hybrid no bias"),
    refused(edited(without(MAMBA + "D")), r"'backbone\.layers\.0\.mixer\.D' is missing", "hybrid no skip"),
    refused(edited(renamed("experts.3.up_proj", "experts.3.gate_proj")), r"experts", "hybrid an expert with a gate alone"),
    refused(model, r"\[not-gated\]", "hybrid nothing to interleave", " --glu interleaved:4"),
    *[refused(both(model, config_changed(**{field: value})), rf"{field} is .*no argument changes it.*\[no-map\]",
              f"hybrid {field}")
      for field, value in [("use_conv_bias", False), ("use_bias", True), ("mamba_proj_bias", True), ("mlp_bias", True)]],
    refused(edited(narrow_kernel, conv_kernel=3), r"conv_kernel is 3.*has 4.*\[no-map\]", "hybrid conv_kernel"),
    refused(both(model, config_changed(attention_bias=True)), r"attention_bias", "hybrid attention_bias"),
]
