"""Names: what stands around a model's keys, spells them as a program has them in memory, or is no weight."""
import dataclasses
import json
import pathlib
import re
import struct

from case import (Case, Run, config_changed, copy_tree, read_safetensors, read_tensors, tensors_changed,
                  write_safetensors)

TO_HUB = "convert SRC OUT --to hf --from-config CASE/config.json"


def no_key(text: str):
    """Returns a check that no tensor of OUT has this text in its name."""

    def check(out: pathlib.Path) -> str:
        found = [name for name in read_tensors(out) if text in name]
        return f"{found[0]} is among the tensors" if found else ""

    return check


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def bias_added(name: str, dtype: str, data: bytes):
    """Returns a change that gives layer 0 of a hub's model of 4 experts a bias."""

    def edit(tensors: dict) -> None:
        tensors[name] = (dtype, [4], data)

    return tensors_changed(edit)


def from_truth(truth: str, config: str):
    """Returns a change that makes a hub's model of the folder's truth and configuration."""

    def change(source: pathlib.Path) -> None:
        case = source.parent
        (source / "config.json").write_text((case / config).read_text())
        write_safetensors(source / "model.safetensors", read_safetensors(case / truth))

    return change


def in_order(*changes):
    def change(source: pathlib.Path) -> None:
        for one in changes:
            one(source)

    return change


def prefix_added(text: str):
    def edit(tensors: dict) -> None:
        for name in list(tensors):
            tensors[text + name] = tensors.pop(name)

    return tensors_changed(edit)


def prefix_taken(text: str):
    def edit(tensors: dict) -> None:
        for name in list(tensors):
            tensors[name.removeprefix(text)] = tensors.pop(name)

    return tensors_changed(edit)


def all_begin_with(text: str):
    def check(out: pathlib.Path) -> str:
        other = [name for name in read_tensors(out) if not name.startswith(text)]
        return f"{other[0]} does not begin with {text}" if other else ""

    return check


BIAS = "model.layers.0.mlp.gate.e_score_correction_bias"
QWEN = from_truth("truth_megatron_zero.safetensors", "config.json")

CASES = [
    # ---- what stands in front of all keys ----
    *[Case("wrapper_prefixes", f"src_{source}", [
        Run(f"convert SRC OUT --to {to}", says=rf"all keys of the model begin with '{re.escape(text)}'"),
        Run("convert OUT OUT2 --to hf", truth="truth.safetensors"),
        Run("verify SRC OUT"),
        Run("inspect SRC", never_says="nothing but experts|loads in +transformers"),
    ], note=to) for source, text in (("orig_mod", "_orig_mod."), ("module", "module."), ("peft", "base_model.model."),
                                     ("accelerate_dcp", "model."), ("deepspeed", "module."))
      for to in ("megatron", "torchtitan")],
    Case("wrapper_prefixes", "src_orig_mod", [Run("convert SRC OUT --to hf", truth="truth.safetensors")], note="to hf"),
    Case("wrapper_prefixes", "src_megatron_module", [
        Run(f"{TO_HUB} --from-glu contiguous", says="all keys of the model begin with 'module.'",
            truth="truth.safetensors"),
        Run("convert SRC OUT --glu interleaved:4 --from-glu contiguous", never_says="begin with"),
        Run(f"convert OUT OUT2 --to hf --from-config CASE/config.json", truth="truth.safetensors"),
    ]),
    *[Case("wrapper_prefixes", "src_orig_mod", [
        Run("convert SRC OUT --to megatron", says=rf"begin with '{re.escape(text)}_orig_mod\.'"),
        Run("convert OUT OUT2 --to hf", truth="truth.safetensors"),
        Run("convert SRC OUT --experts grouped --glu contiguous", check=all_begin_with(text + "_orig_mod.")),
        Run("verify SRC OUT"),
    ], change=prefix_added(text), note=f"inside {text}") for text in ("module.", "any.thing.", "model.", "model.model.",
                                                                      "mp_rank_00/module.")],
    # The way of a model whose keys share their first word, as one with a tied head: it stays as it is.
    Case("wrapper_prefixes", "src_orig_mod", [
        Run("convert SRC OUT --to megatron", never_says="begin with"),
        Run("convert OUT OUT2 --to hf", check=all_begin_with("model.")),
        Run("verify SRC OUT2"),
    ], change=in_order(prefix_taken("_orig_mod."), tensors_changed(lambda tensors: tensors.pop("lm_head.weight")),
                       config_changed(tie_word_embeddings=True)), note="tied head"),
    Case("wrapper_prefixes", "src_orig_mod", [
        Run("convert SRC OUT --to megatron", 4, never_says="nothing but experts", says=r"'net\.model\..*\[no-map\]"),
    ], change=tensors_changed(lambda tensors: tensors.update(
        {("ema." if "layers.0" in name else "net.") + name: tensors.pop(name) for name in list(tensors)})),
         note="two texts in front"),
    # ---- Megatron's older format, a directory for each rank ----
    *[Case("legacy_directory", "src", [
        Run(f"convert {source} OUT --to hf --from-glu contiguous", truth="truth.safetensors"),
    ], note=source) for source in ("SRC", "SRC/iter_0000100", "SRC/iter_0000100/mp_rank_00/model_optim_rng.pt "
                                   "--from-config SRC/hf/config.json")],
    Case("legacy_directory", "src", [
        Run("convert SRC OUT --to hf --from-config CASE/src/hf/config.json", 4,
            says=r"older format.*mp_rank_00/ and 1 more.*--ckpt-format torch_dist.*\[no-map\]"),
        Run("inspect SRC"),
    ], change=lambda source: copy_tree(source / "iter_0000100/mp_rank_00", source / "iter_0000100/mp_rank_01"),
         note="two ranks"),
    Case("megatron/legacy_tp2", ".", [
        Run("convert SRC OUT --to hf", 4, says=r"--to hf: it is a checkpoint in Megatron's older format.*mp_rank_00_000/ and 1 more.*"
            r"--ckpt-format torch_dist.*\[no-map\]", never_says="--from-config"),
        Run("inspect SRC", says=r"loads in +unknown: it is a checkpoint in Megatron.s older format"),
    ], note="two ranks of no known model"),
    # ---- tables that programs make themselves ----
    Case("rotary_inv_freq", "src", [
        Run("convert SRC OUT --to megatron", says=r"no weights, such as '[^']*inv_freq', are left out"),
        Run("convert OUT OUT2 --to hf", truth="truth.safetensors", some=True),
        Run("verify SRC OUT"),
        Run("convert SRC OUT --to torchtitan"),
        Run("convert OUT OUT2 --to hf"),
        Run("convert SRC OUT --experts grouped", check=lambda out: "" if no_key("inv_freq")(out) else "lacks inv_freq"),
    ]),
    Case("rotary_inv_freq", "src", [Run("convert SRC OUT --to megatron", 4, says=r"inv_freqs.*\[unknown-tensor\]")],
         change=lambda source: rename_tensor(source, "rotary_emb.inv_freq", "rotary_emb.inv_freqs"), note="another name"),
    # ---- states of modules that are no weights ----
    *[Case("extra_state_tensors", "src", [
        Run(f"convert SRC/{form} OUT --to hf --from-config CASE/config.json --from-glu contiguous {more}",
            truth="truth.safetensors") for more in ("", "--unknown keep")
    ], note=form) for form in ("empty.pt", "fp8.pt", "dcp")],
    # ---- a router's bias of experts ----
    *[Case("expert_bias", source, [
        Run(f"{TO_HUB} {glu} {more}", says=r"all zero and left out", truth="truth_megatron_zero.safetensors")
        for more in ("", "--unknown keep")
    ]) for source, glu in (("src_megatron_zero", "--from-glu contiguous"), ("src_titan_zero", ""))],
    Case("expert_bias", "src_megatron_not_zero", [
        Run(f"{TO_HUB} --from-glu contiguous {more}", 4, says=r"expert_bias'.*not zero.*--from-config.*\[no-spelling\]")
        for more in ("", "--unknown keep")
    ]),
    *[Case("expert_bias", "", [
        Run("convert SRC OUT --to megatron", says=r"all zero and left out"),
        Run("convert OUT OUT2 --to hf", truth="truth_megatron_zero.safetensors"),
        Run("verify SRC OUT"),
    ], change=in_order(QWEN, bias_added(BIAS, dtype, data)), note=f"from the hub, {dtype}")
      for dtype, data in (("F32", floats(0, 0, -0.0, 0)), ("BF16", bytes(8)), ("F64", bytes(32)))],
    *[Case("expert_bias", "", [Run("convert SRC OUT --to megatron", 4, says=r"correction_bias'.*not zero")],
           change=in_order(QWEN, bias_added(BIAS, dtype, data)), note=f"from the hub, not zero, {dtype}")
      for dtype, data in (("F32", floats(0, 0, 0, 1e-40)), ("BF16", bytes(7) + b"\x40"), ("I8", b"\0\0\0\x80"))],
    Case("expert_bias", "", [
        Run("convert SRC OUT --experts grouped", check=lambda out: "" if no_key(BIAS)(out) else "lacks the bias"),
        Run("verify SRC OUT"),
    ], change=in_order(QWEN, bias_added(BIAS, "F32", floats(1, 2, 3, 4))), note="of experts that are regrouped"),
]


def rename_tensor(source: pathlib.Path, old: str, new: str) -> None:
    """Renames tensors in the headers of all shards, and in the index; the texts may differ in length."""
    for file in source.glob("*.safetensors"):
        tensors = read_safetensors(file)
        write_safetensors(file, {name.replace(old, new): tensor for name, tensor in tensors.items()})
    for index in source.glob("*.index.json"):
        index.write_text(index.read_text().replace(old, new))


# ---- as transformers holds families in memory ----
def matrix(rows: int, cols: int, seed: int) -> list[bytes]:
    """Rows of BF16 values that say where they are."""
    return [b"".join(struct.pack("<H", (seed * 4099 + r * cols + c) & 0x3FFF) for c in range(cols)) for r in range(rows)]


@dataclasses.dataclass
class Family:
    """One family's spelling on the hub and in memory; {E} is the expert."""

    type: str
    gate: str  # of one expert; packed families have gate and up in it
    up: str
    down: str
    memory: str  # in front of gate_up_proj and down_proj
    renamed: dict[str, tuple[str, list[int]]] = dataclasses.field(default_factory=dict)  # hub: memory, shape
    config: dict = dataclasses.field(default_factory=dict)
    shared: tuple[str, str] | None = None
    shared_rows: int = 4
    has_map: bool = False

    E, H, F, LAYERS = 3, 12, 8, 2

    def tensors(self, memory: bool) -> dict[str, tuple[str, list[int], bytes]]:
        made: dict[str, tuple[str, list[int], bytes]] = {}

        def add(name: str, shape: list[int], rows: list[bytes]) -> None:
            made[name] = ("BF16", shape, b"".join(rows))

        add("model.embed_tokens.weight", [20, self.H], matrix(20, self.H, 1))
        add("model.norm.weight", [self.H], matrix(1, self.H, 2))
        add("lm_head.weight", [20, self.H], matrix(20, self.H, 3))
        for layer in range(self.LAYERS):
            before, seed = f"model.layers.{layer}.", 10 + 100 * layer
            for i, (name, rows, cols) in enumerate([
                ("input_layernorm.weight", 1, self.H), ("post_attention_layernorm.weight", 1, self.H),
                ("self_attn.q_proj.weight", 8, self.H), ("self_attn.k_proj.weight", 4, self.H),
                ("self_attn.v_proj.weight", 4, self.H), ("self_attn.o_proj.weight", self.H, 8),
                *self.extra()]):
                add(before + name, [cols] if rows == 1 else [rows, cols], matrix(rows, cols, seed + i))
            for i, (hub, (there, shape)) in enumerate(self.renamed.items()):
                rows = shape[0] if len(shape) == 2 else 1
                add(before + (there if memory else hub), shape, matrix(rows, shape[-1], seed + 20 + i))
            if self.shared:
                width = self.shared_rows
                add(before + self.shared[memory], [width, self.H], matrix(width, self.H, seed + 30))
                for word, rows, cols in (("up", width, self.H), ("down", self.H, width)):
                    add(before + self.shared[memory].replace("gate", word), [rows, cols], matrix(rows, cols, seed + 31))
            gates, ups, downs = (
                [matrix(rows, cols, seed + 40 + n * 10 + e) for e in range(self.E)]
                for n, (rows, cols) in enumerate([(self.F, self.H), (self.F, self.H), (self.H, self.F)]))
            if memory or not self.up:
                fused, down = (self.memory + "gate_up_proj", self.memory + "down_proj") if memory else (self.gate, self.down)
                add(before + fused, [self.E, 2 * self.F, self.H], [r for g, u in zip(gates, ups) for r in g + u])
                add(before + down, [self.E, self.H, self.F], [r for d in downs for r in d])
            else:
                for e in range(self.E):
                    for name, rows, cols, parts in ((self.gate, self.F, self.H, gates), (self.up, self.F, self.H, ups),
                                                    (self.down, self.H, self.F, downs)):
                        add(before + name.replace("{E}", str(e)), [rows, cols], parts[e])
        return made

    def extra(self) -> list[tuple[str, int, int]]:
        if self.type == "minimax_m2":
            return [("self_attn.q_norm.weight", 1, 8), ("self_attn.k_norm.weight", 1, 4)]
        return []

    def make(self, wrapper: str = ""):
        def change(source: pathlib.Path) -> None:
            config = {"model_type": self.type, "hidden_size": self.H, "num_hidden_layers": self.LAYERS, "vocab_size": 20,
                      "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "hidden_act": "silu",
                      "num_experts_per_tok": 1, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, **self.config}
            (source / "config.json").write_text(json.dumps(config))
            write_safetensors(source / "model.safetensors",
                              {wrapper + name: tensor for name, tensor in self.tensors(True).items()})

        return change

    def is_hub(self, out: pathlib.Path) -> str:
        have, want = read_tensors(out), self.tensors(False)
        if have.keys() != want.keys():
            return f"names differ: {sorted(have.keys() ^ want.keys())[:4]}"
        unlike = [name for name in want if have[name] != want[name]]
        return f"{unlike[0]} differs" if unlike else ""

    def cases(self) -> list[Case]:
        runs = [Run("convert SRC OUT --to hf", check=self.is_hub), Run("verify SRC OUT"), Run("inspect OUT"),
                Run(f"convert SRC OUT --to hf:{self.type}", check=self.is_hub),
                Run("convert SRC OUT --to hf --from-naming hf:qwen3_moe", (0, 3, 4), check=self.is_hub),
                Run("convert SRC OUT --to hf --from-naming hf:llama4_text", (3, 4))]
        if self.has_map:
            runs += [Run("convert SRC OUT --to megatron"), Run("convert OUT OUT2 --to hf", check=self.is_hub)]
        return [Case("", "", runs, change=self.make(), note=f"{self.type} in memory"),
                Case("", "", [Run("convert SRC OUT --to hf", check=self.is_hub)], change=self.make("module._orig_mod."),
                     note=f"{self.type} in memory, wrapped")]


E = Family.E
ROUTER = [E, Family.H]
W123 = ("block_sparse_moe.experts.{E}.w1.weight", "block_sparse_moe.experts.{E}.w3.weight",
        "block_sparse_moe.experts.{E}.w2.weight", "mlp.experts.")
PROJ = ("mlp.experts.{E}.gate_proj.weight", "mlp.experts.{E}.up_proj.weight", "mlp.experts.{E}.down_proj.weight",
        "mlp.experts.")
GRANITE = ("block_sparse_moe.input_linear.weight", "", "block_sparse_moe.output_linear.weight",
           "block_sparse_moe.experts.")
GRANITE_ROUTER = {"block_sparse_moe.router.layer.weight": ("block_sparse_moe.router.weight", ROUTER)}
W123_ROUTER = {"block_sparse_moe.gate.weight": ("mlp.gate.weight", ROUTER)}
LOCAL = {"intermediate_size": Family.F, "num_local_experts": E}
MOE = {"intermediate_size": 16, "moe_intermediate_size": Family.F, "num_experts": E}
NORMS = {name: (name, [4]) for name in ("self_attn.q_norm.weight", "self_attn.k_norm.weight")}
FAMILIES = [
    Family("mixtral", *W123, renamed=W123_ROUTER, config=LOCAL, has_map=True),
    Family("minimax", *W123, renamed=W123_ROUTER, config=LOCAL),
    Family("minimax_m2", *W123, renamed={**W123_ROUTER, "block_sparse_moe.e_score_correction_bias":
                                         ("mlp.e_score_correction_bias", [E])},
           config={**LOCAL, "rotary_dim": 4}, has_map=True),
    Family("phimoe", *W123, renamed={"block_sparse_moe.gate.weight": ("mlp.router.weight", ROUTER)}, config=LOCAL),
    Family("granitemoe", *GRANITE, renamed=GRANITE_ROUTER, config={
        **LOCAL, "embedding_multiplier": 1.0, "logits_scaling": 1.0, "residual_multiplier": 1.0,
        "attention_multiplier": 0.5}, has_map=True),
    Family("granitemoehybrid", *GRANITE, renamed=GRANITE_ROUTER, config=LOCAL),
    Family("lfm2_moe", "feed_forward.experts.{E}.w1.weight", "feed_forward.experts.{E}.w3.weight",
           "feed_forward.experts.{E}.w2.weight", "feed_forward.experts.", config=MOE,
           renamed={"feed_forward.gate.weight": ("feed_forward.gate.weight", ROUTER),
                    "feed_forward.expert_bias": ("feed_forward.expert_bias", [E])}),
    Family("jamba", "feed_forward.experts.{E}.gate_proj.weight", "feed_forward.experts.{E}.up_proj.weight",
           "feed_forward.experts.{E}.down_proj.weight", "feed_forward.experts.", config=LOCAL,
           renamed={"feed_forward.router.weight": ("feed_forward.router.weight", ROUTER)}),
    Family("solar_open", *PROJ, config=MOE, shared=("mlp.shared_experts.gate_proj.weight",) * 2, shared_rows=Family.F, renamed={
        "mlp.gate.weight": ("mlp.gate.weight", ROUTER),
        "mlp.gate.e_score_correction_bias": ("mlp.gate.e_score_correction_bias", [E])}),
    Family("qwen3_moe", *PROJ, config=MOE, renamed={
        "mlp.gate.weight": ("mlp.gate.weight", ROUTER), **NORMS}),
    Family("exaone_moe", *PROJ, has_map=True, config={
        **MOE, "mlp_layer_types": ["sparse"] * Family.LAYERS, "sliding_window": None, "num_shared_experts": 0}, renamed={
        "mlp.gate.weight": ("mlp.gate.weight", ROUTER), **NORMS,
        "mlp.e_score_correction_bias": ("mlp.gate.e_score_correction_bias", [E])}),
    Family("hy_v3", *PROJ, config={**MOE, "mlp_layer_types": ["sparse"] * Family.LAYERS}, shared_rows=Family.F,
           shared=("mlp.shared_mlp.gate_proj.weight", "mlp.shared_experts.gate_proj.weight"), has_map=True,
           renamed={"mlp.router.gate.weight": ("mlp.gate.weight", ROUTER), **NORMS,
                    "mlp.expert_bias": ("mlp.e_score_correction_bias", [E])}),
    Family("laguna", *PROJ, config=MOE, shared=("mlp.shared_expert.gate_proj.weight", "mlp.shared_experts.gate_proj.weight"),
           renamed={"mlp.gate.weight": ("mlp.gate.weight", ROUTER), "mlp.experts.e_score_correction_bias":
                    ("mlp.gate.e_score_correction_bias", [E])}),
]

CASES += [
    Case("in_memory_names", "src_mixtral", [
        Run("convert SRC OUT --to hf", truth="truth_mixtral.safetensors", some=True),
        Run("convert SRC OUT --to megatron"),
        Run("convert OUT OUT2 --to hf", truth="truth_mixtral.safetensors", some=True),
        Run("convert SRC OUT --to hf --from-naming hf:qwen3_moe", truth="truth_mixtral.safetensors", some=True),
    ]),
    Case("in_memory_names", "src_ernie4_5_moe", [
        Run("convert SRC OUT --to hf", truth="truth_ernie4_5_moe.safetensors", some=True,
            check=no_key("gate.moe_statics")),
        Run("verify SRC OUT"),
        Run("convert SRC OUT --to megatron"),
        Run("convert SRC OUT --to hf --from-naming hf:qwen3_moe", (3, 4), check=no_key("gate.moe_statics")),
    ]),
    *[case for family in FAMILIES for case in family.cases()],
]
