"""torchtitan's state-dict adapters alone: they turn Hugging Face's tensors into torchtitan's, and back.

The adapters are torchtitan's own files, and so are the two base classes. What they import only for annotations and for
the class of the rotary embedding is stood in for: the models' modules need triton, which is left out here for its
size, spmd_types, tyro and torch's compiler, and nothing is computed. An adapter reads a few numbers from the model's
configuration, which config_of() takes from config.json.
"""

import importlib
import importlib.util
import json
import pathlib
import sys
import types

# By model_type: torchtitan's package, the adapter's class, the class that its annotations name, the rotary embedding.
MODELS = {
    "llama": ("llama3", "Llama3StateDictAdapter", "Llama3Model", "ComplexRoPE"),
    "qwen3": ("qwen3", "Qwen3StateDictAdapter", "Qwen3Model", "CosSinRoPE"),
    "qwen3_moe": ("qwen3", "Qwen3StateDictAdapter", "Qwen3Model", "CosSinRoPE"),
    "deepseek_v2": ("deepseek_v3", "DeepSeekV3StateDictAdapter", "DeepSeekV3Model", "ComplexRoPE"),
    "deepseek_v3": ("deepseek_v3", "DeepSeekV3StateDictAdapter", "DeepSeekV3Model", "ComplexRoPE"),
    "qwen3_5_moe_text": ("qwen3_5", "Qwen35StateDictAdapter", "Qwen35Model", None),
}


def _stand_in(name, classes=(), folder=None):
    """A module with empty classes that have an empty Config each; or a package whose other files are the real ones."""
    if name in sys.modules:
        return
    module = types.ModuleType(name)
    if folder is not None:
        module.__path__ = [str(folder)]
    for class_name in classes:
        setattr(module, class_name, type(class_name, (), {"Config": type("Config", (), {})}))
    sys.modules[name] = module


def adapter_class(model_type):
    package, adapter, model, _ = MODELS[model_type]
    root = pathlib.Path(importlib.util.find_spec("torchtitan").origin).parent
    for name in ("protocols", "models.common", f"models.{package}"):
        _stand_in(f"torchtitan.{name}", folder=root.joinpath(*name.split(".")))
    _stand_in("torchtitan.protocols.model", ["BaseModel"])
    _stand_in("torchtitan.models.common.decoder", ["Decoder"])
    _stand_in("torchtitan.models.common.rope", ["CosSinRoPE", "ComplexRoPE"])
    _stand_in(f"torchtitan.models.{package}.model", [model])
    return getattr(importlib.import_module(f"torchtitan.models.{package}.state_dict_adapter"), adapter)


def make_adapter(folder):
    """The adapter for the model in that folder of Hugging Face."""
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    adapter = adapter_class(config["model_type"])
    return adapter(config_of(config), None)


def config_of(config):
    """What the adapters read of torchtitan's configuration of the model."""
    rope_name = MODELS[config["model_type"]][3]
    rope = rope_name and getattr(sys.modules["torchtitan.models.common.rope"], rope_name).Config()
    experts = config.get("n_routed_experts") or config.get("num_local_experts") or config.get("num_experts")
    moe = types.SimpleNamespace(num_experts=experts)
    dense = config.get("first_k_dense_replace", 0) if experts else config["num_hidden_layers"]
    attention = types.SimpleNamespace(
        q_lora_rank=config.get("q_lora_rank") or 0,
        rope=rope,
        n_heads=config["num_attention_heads"],
        n_kv_heads=config.get("num_key_value_heads"),
        head_dim=config.get("head_dim"),
    )
    layers = []
    for i in range(config["num_hidden_layers"]):
        layer = types.SimpleNamespace(attention=attention, moe=None if i < dense else moe, delta_net=None)
        if "linear_num_key_heads" in config:
            layer.delta_net = types.SimpleNamespace(
                in_proj_q=_linear(config["linear_num_key_heads"] * config["linear_key_head_dim"]),
                in_proj_v=_linear(config["linear_num_value_heads"] * config["linear_value_head_dim"]),
            )
        layers.append(layer)
    return types.SimpleNamespace(
        layers=layers,
        mtp_layers=layers[: config.get("num_nextn_predict_layers", 0)],
        dim=config["hidden_size"],
        enable_weight_tying=config["tie_word_embeddings"],
    )


def _linear(out_features):
    return types.SimpleNamespace(out_features=out_features)
