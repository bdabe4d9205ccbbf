"""Runs of Megatron-LM without a config.json: their saved arguments say what the model is."""
import json
import pathlib
import shutil

from case import Case, Run
from cases_arguments import args_changed

LOST = ("decoder.final_layernorm.weight", "output_layer.weight", "embedding.word_embeddings.weight",
        "decoder.layers.0.self_attention.linear_proj.weight", "decoder.layers.0.self_attention.q_layernorm.weight",
        "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight", "decoder.layers.0.mlp.router.weight",
        "decoder.layers.0.pre_mlp_layernorm.weight")
RUN = "the run that it is of loads it"


def no_config(source: pathlib.Path) -> None:
    for name in ("hf", "iter_0000100/hf"):
        shutil.rmtree(source / name, ignore_errors=True)


def lost(name: str):
    """Returns a change after which a tensor has another name."""

    def change(source: pathlib.Path) -> None:
        no_config(source)
        path = source / "iter_0000100" / ".metadata"
        data = path.read_bytes()
        assert name.encode() in data
        path.chmod(0o644)
        path.write_bytes(data.replace(name.encode(), name[:-1].encode() + b"X"))

    return change


def more_layers(source: pathlib.Path) -> None:
    no_config(source)
    args_changed(num_layers=2, moe_layer_freq=1)(source)


def misplaced(source: pathlib.Path) -> None:
    """The index says of a tensor that it is in the other one of two shards."""
    (source / "model.safetensors").unlink()
    path = source / "model.safetensors.index.json"
    path.chmod(0o644)
    index = json.loads(path.read_text())
    name = "model.layers.0.mlp.experts.0.down_proj.weight"
    files = sorted(set(index["weight_map"].values()))
    files.remove(index["weight_map"][name])
    index["weight_map"][name] = files[0]
    path.write_text(json.dumps(index))


CASES = [
    Case("model_safetensors_beside_index", "src", [
        Run(command, 3, says=r"model\.safetensors\.index\.json: .*layers\.0\.mlp\.experts\.0\.down_proj.*\[index-stale\]")
        for command in ("inspect SRC", "check SRC", "convert SRC OUT --to megatron", "verify SRC SRC", "digest SRC")
    ], change=misplaced, note="an index that misplaces a tensor"),
    Case("config_contradicts_arguments", "src_topk", [
        Run("inspect SRC --strict", says=RUN), Run("convert SRC OUT --glu interleaved:8", says=RUN),
        Run("check SRC"),
    ], change=no_config, note="without config.json"),
    *[Case("config_contradicts_arguments", "src_topk", [
        Run("inspect SRC --strict", 3, says=rf"(?s)problem .*{name}", never_says=RUN),
        Run("convert SRC OUT --glu interleaved:8", says=name, never_says=RUN),
    ], change=change, note=f"without config.json and {name}")
      for name, change in [(name, lost(name)) for name in LOST] + [("layer 1", more_layers)]],
]
