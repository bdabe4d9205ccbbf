"""What a config.json means, in few families: sizes, the tensors that the model has, and where Megatron keeps them."""
import array
import math
import struct

from checkpoint import Broken, Tensor, Unclear

COUNTS = {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size", "num_experts_per_tok"}
EXPERTS = {"qwen3_moe": "num_local_experts", "qwen2_moe": "num_experts", "qwen3_next": "num_experts", "deepseek_v3": "n_routed_experts"}
DENSE = {"llama", "mistral", "qwen2", "qwen3"}
LATENT = {"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}
LINEAR = {"linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"}
NORMS = ("input_layernorm", "post_attention_layernorm")
FLOATS = ("F32", "BF16", "F16")


class Model:
    """A checked configuration."""

    def __init__(self, config):
        self.config, self.type = config, config.get("model_type")
        if not isinstance(self.type, str) or self.type not in FAMILIES or "text_config" in config:
            raise Unclear("another family")
        self.hidden, self.layers, self.vocab = map(self.count, ("hidden_size", "num_hidden_layers", "vocab_size"))
        self.heads, self.groups = map(self.count, ("num_attention_heads", "num_key_value_heads"))
        self.dense = self.type in DENSE
        self.need(self.heads % self.groups == 0, "heads that do not fit their groups")
        if not self.dense:
            self.experts, self.chosen = self.count(EXPERTS.get(self.type, "num_local_experts")), self.count("num_experts_per_tok")
            self.need(self.chosen <= self.experts, "more experts are chosen than there are")
            self.need(self.experts < 2**16, "an absurd number of experts")
            self.expert_width = self.count("moe_intermediate_size" if self.type in EXPERTS else "intermediate_size")
        self.need(self.hidden < 2**31 and self.layers < 2**20 and self.vocab < 2**40, "an absurd size")
        self.latent, self.linear = self.type == "deepseek_v3", self.type == "qwen3_next"
        if self.type not in ("mixtral", "granitemoe", "gpt_oss"):
            field = "intermediate_size_mlp" if self.type == "llama4_text" else "intermediate_size"
            if config.get(field) == 0 and not self.dense:
                raise Unclear("a width that only dense layers have, of which there may be none")
            self.dense_width = self.count(field)
        for name in ("rms_norm_eps",):
            self.real(name)
        self.tied = self.flag("tie_word_embeddings", False)
        for name in LATENT if self.latent else LINEAR if self.linear else ():
            setattr(self, name, self.count(name))
        if not self.latent:
            self.head = self.count("head_dim") if config.get("head_dim") is not None else self.hidden // self.heads
            self.need(config.get("head_dim") is not None or self.hidden % self.heads == 0, "heads of no size")
        if self.latent:
            self.first = self.count("first_k_dense_replace", 0)
            self.groups_of_experts, self.chosen_groups = self.count("n_group"), self.count("topk_group")
            self.need(self.experts % self.groups_of_experts == 0, "experts that do not fit their groups")
            self.need(self.chosen_groups <= self.groups_of_experts, "more groups are chosen than there are")
            self.shared = self.count("n_shared_experts") * self.expert_width
            self.real("routed_scaling_factor")
        if self.type in ("qwen2_moe", "qwen3_next"):
            self.shared = self.count("shared_expert_intermediate_size")
        if self.type == "llama4_text":
            self.shared = self.expert_width
        types = config.get("layer_types")
        if types is not None:
            self.need(isinstance(types, list) and len(types) == self.layers, "as many layer_types as layers")
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        self.need(isinstance(rope, dict), "rope_parameters that are no object")
        for name in ("rope_theta", "factor"):
            if name in rope:
                self.real(name, rope)
        if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1 or config.get("moe_layers", [0, 1]) != [0, 1]:
            raise Unclear("dense layers by a list")
        if config.get("interleave_moe_layer_step", 1) != 1 or config.get("attention_bias", self.type == "gpt_oss") is not (self.type == "gpt_oss"):
            raise Unclear("another layout of layers, or biases")
        if config.get("qkv_bias", True) is not True or config.get("use_qk_norm", True) is not True:
            raise Unclear("without biases or norms")

    @staticmethod
    def need(good, text):
        if not good:
            raise Broken(f"config.json: {text}")

    def value(self, name, fields=None):
        fields = self.config if fields is None else fields
        if fields.get(name) is None:
            raise Unclear(f"{name} is what transformers' class says")
        return fields[name]

    def count(self, name, least=1):
        value = self.value(name)
        if isinstance(value, float) and value.is_integer():
            raise Unclear(f"{name} is a whole number with a point")
        self.need(isinstance(value, int) and not isinstance(value, bool) and value >= least, f"{name} is {value!r}")
        return value

    def real(self, name, fields=None):
        value = self.value(name, fields)
        self.need(isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf, f"{name} is {value!r}")
        return value

    def flag(self, name, otherwise):
        value = self.config.get(name, otherwise)
        self.need(value is None or isinstance(value, bool), f"{name} is {value!r}")
        return bool(value)

    def is_dense(self, layer):
        return self.dense or self.latent and layer < self.first

    def is_linear(self, layer):
        if self.linear and self.config.get("layer_types") is None:
            raise Unclear("layers whose types the class of the model makes")
        return self.linear and self.config["layer_types"][layer] == "linear_attention"


FAMILIES = DENSE | {"qwen3_moe", "qwen2_moe", "mixtral", "granitemoe", "gpt_oss", "llama4_text", "deepseek_v3", "qwen3_next"}


def attention(m, layer):
    if m.latent:
        width = m.qk_nope_head_dim + m.qk_rope_head_dim
        return {
            "q_a_proj.weight": [m.q_lora_rank, m.hidden], "q_a_layernorm.weight": [m.q_lora_rank],
            "q_b_proj.weight": [m.heads * width, m.q_lora_rank],
            "kv_a_proj_with_mqa.weight": [m.kv_lora_rank + m.qk_rope_head_dim, m.hidden], "kv_a_layernorm.weight": [m.kv_lora_rank],
            "kv_b_proj.weight": [m.heads * (m.qk_nope_head_dim + m.v_head_dim), m.kv_lora_rank],
            "o_proj.weight": [m.hidden, m.heads * m.v_head_dim],
        }  # fmt: skip
    q, kv = m.heads * m.head * (2 if m.linear else 1), m.groups * m.head
    parts = {"q_proj.weight": [q, m.hidden], "k_proj.weight": [kv, m.hidden], "v_proj.weight": [kv, m.hidden],
             "o_proj.weight": [m.hidden, m.heads * m.head]}  # fmt: skip
    if m.type in ("qwen3", "qwen3_moe", "qwen3_next"):
        parts |= {"q_norm.weight": [m.head], "k_norm.weight": [m.head]}
    if m.type in ("qwen2", "qwen2_moe", "gpt_oss"):
        parts |= {"q_proj.bias": [q], "k_proj.bias": [kv], "v_proj.bias": [kv]}
    if m.type == "gpt_oss":
        parts |= {"o_proj.bias": [m.hidden], "sinks": [m.heads]}
    return parts


def linear_attention(m):
    key, value = m.linear_num_key_heads * m.linear_key_head_dim, m.linear_num_value_heads * m.linear_value_head_dim
    m.need(m.linear_num_value_heads % m.linear_num_key_heads == 0, "value heads that do not fit key heads")
    heads = m.linear_num_value_heads
    return {
        "A_log": [heads], "dt_bias": [heads], "conv1d.weight": [2 * key + value, 1, m.linear_conv_kernel_dim],
        "in_proj_ba.weight": [2 * heads, m.hidden], "in_proj_qkvz.weight": [2 * key + 2 * value, m.hidden],
        "norm.weight": [m.linear_value_head_dim], "out_proj.weight": [m.hidden, value],
    }  # fmt: skip


def gated(width, hidden):
    return {"gate_proj.weight": [width, hidden], "up_proj.weight": [width, hidden], "down_proj.weight": [hidden, width]}


def feed_forward(m, layer):
    h = m.hidden
    if m.is_dense(layer):
        return {f"mlp.{name}": shape for name, shape in gated(m.dense_width, h).items()}
    f, e = m.expert_width, m.experts
    if m.type == "granitemoe":
        return {"block_sparse_moe.input_linear.weight": [e, 2 * f, h], "block_sparse_moe.output_linear.weight": [e, h, f],
                "block_sparse_moe.router.layer.weight": [e, h]}  # fmt: skip
    if m.type == "mixtral":
        experts = {f"experts.{i}.{w}.weight": [h, f] if w == "w2" else [f, h] for i in range(e) for w in ("w1", "w2", "w3")}
        return {f"block_sparse_moe.{name}": shape for name, shape in (experts | {"gate.weight": [e, h]}).items()}
    root = "feed_forward" if m.type == "llama4_text" else "mlp"
    if m.type in ("gpt_oss", "llama4_text"):
        parts = {"experts.gate_up_proj": [e, h, 2 * f], "experts.down_proj": [e, f, h], "router.weight": [e, h]}
        if m.type == "gpt_oss":
            parts |= {"experts.gate_up_proj_bias": [e, 2 * f], "experts.down_proj_bias": [e, h], "router.bias": [e]}
        else:
            parts |= {f"shared_expert.{name}": shape for name, shape in gated(m.shared, h).items()}
        return {f"{root}.{name}": shape for name, shape in parts.items()}
    parts = {f"experts.{i}.{name}": shape for i in range(e) for name, shape in gated(f, h).items()} | {"gate.weight": [e, h]}
    if m.latent:
        parts |= {"gate.e_score_correction_bias": [e]} | {f"shared_experts.{n}": s for n, s in gated(m.shared, h).items()}
    elif m.type != "qwen3_moe":
        parts |= {f"shared_expert.{n}": s for n, s in gated(m.shared, h).items()} | {"shared_expert_gate.weight": [1, h]}
    return {f"mlp.{name}": shape for name, shape in parts.items()}


def layer_tensors(m, layer):
    own = linear_attention(m) if layer < m.layers and m.is_linear(layer) else attention(m, layer)
    root = "linear_attn" if layer < m.layers and m.is_linear(layer) else "self_attn"
    parts = {f"{root}.{name}": shape for name, shape in own.items()} | feed_forward(m, layer)
    return parts | {f"{norm}.weight": [m.hidden] for norm in NORMS}


def all_tensors(m, tensors):
    """The shape of each tensor that the model has, by its name."""
    if len(tensors) < m.layers * 5:
        raise Broken("fewer tensors than its layers have")
    h, v = m.hidden, m.vocab
    wanted = {"model.embed_tokens.weight": [v, h], "model.norm.weight": [h]}
    if not m.tied:
        wanted["lm_head.weight"] = [v, h]
    elif "lm_head.weight" in tensors:
        raise Unclear("a head that is tied and there")
    for layer in range(m.layers):
        wanted |= {f"model.layers.{layer}.{name}": shape for name, shape in layer_tensors(m, layer).items()}
    mtp = m.config.get("num_nextn_predict_layers") or 0
    m.need(isinstance(mtp, int) and 0 <= mtp < 64, "num_nextn_predict_layers")
    if m.latent and any(name.startswith(f"model.layers.{layer}.") for name in tensors for layer in range(m.layers, m.layers + mtp)):
        for layer in range(m.layers, m.layers + mtp):
            own = {"enorm.weight": [h], "hnorm.weight": [h], "eh_proj.weight": [h, 2 * h], "embed_tokens.weight": [v, h],
                   "shared_head.norm.weight": [h], "shared_head.head.weight": [v, h]}  # fmt: skip
            wanted |= {f"model.layers.{layer}.{name}": shape for name, shape in (layer_tensors(m, layer) | own).items()}
    return wanted


# Moving rows.


def rows(tensor, begin, end):
    size = len(tensor.data) // max(tensor.shape[0], 1)
    return Tensor(tensor.dtype, [end - begin, *tensor.shape[1:]], tensor.data[begin * size : end * size])


def join(parts):
    if len({(part.dtype, *part.shape[1:]) for part in parts}) > 1:
        raise Broken("parts of one tensor whose dtypes differ")
    first = parts[0]
    return Tensor(first.dtype, [sum(p.shape[0] for p in parts), *first.shape[1:]], b"".join(p.data for p in parts))


def stack(parts):
    joined = join([Tensor(part.dtype, [1, *part.shape], part.data) for part in parts])
    return joined


def each(tensor):
    return [Tensor(tensor.dtype, tensor.shape[1:], rows(tensor, i, i + 1).data) for i in range(tensor.shape[0])]


def turned(tensor):
    """A matrix's transpose, of elements of two or four bytes."""
    width = len(tensor.data) // math.prod(tensor.shape)
    values = array.array({2: "H", 4: "I"}[width], tensor.data)
    return Tensor(tensor.dtype, tensor.shape[::-1], b"".join(values[i :: tensor.shape[1]].tobytes() for i in range(tensor.shape[1])))


def gate_up(gate, up, block):
    """One tensor: all gate rows, then all up rows; or by turns, `block` rows of each."""
    if not block:
        return join([gate, up])
    return join([rows(t, i, i + block) for i in range(0, gate.shape[0], block) for t in (gate, up)])


def by_twos(tensor):
    count = tensor.shape[0]
    return join([rows(tensor, i, i + 1) for i in range(0, count, 2)]), join([rows(tensor, i, i + 1) for i in range(1, count, 2)])


def in_groups(m, q, k, v):
    """Megatron's fused q, k and v: for each group its queries, their gates, one key, one value."""
    own, parts = m.heads // m.groups, []
    wide = q.shape[0] // m.heads
    for group in range(m.groups):
        heads = range(group * own, (group + 1) * own)
        parts += [rows(q, head * wide, head * wide + m.head) for head in heads]
        parts += [rows(q, head * wide + m.head, (head + 1) * wide) for head in heads if wide > m.head]
        parts += [rows(t, group * m.head, (group + 1) * m.head) for t in (k, v)]
    return join(parts)


def less_one(tensor):
    if tensor.dtype == "F16":
        values = struct.unpack(f"<{len(tensor.data) // 2}e", tensor.data)
    else:
        data = tensor.data if tensor.dtype == "F32" else b"".join(b"\0\0" + tensor.data[i : i + 2] for i in range(0, len(tensor.data), 2))
        values = struct.unpack(f"<{len(data) // 4}f", data)
    return Tensor("F32", tensor.shape, struct.pack(f"<{len(values)}f", *(value - 1 for value in values)))


MLA = {"q_a_proj.weight": "linear_q_down_proj.weight", "q_a_layernorm.weight": "linear_q_up_proj.layer_norm_weight",
       "q_b_proj.weight": "linear_q_up_proj.weight", "kv_a_proj_with_mqa.weight": "linear_kv_down_proj.weight",
       "kv_a_layernorm.weight": "linear_kv_up_proj.layer_norm_weight", "kv_b_proj.weight": "linear_kv_up_proj.weight"}  # fmt: skip


def megatron_attention(m, t, layer):
    if layer < m.layers and m.is_linear(layer):
        return megatron_linear(m, t)
    o = {f"linear_proj.{kind}": t[f"self_attn.o_proj.{kind}"] for kind in ("weight", "bias") if f"self_attn.o_proj.{kind}" in t}
    if m.latent:
        return o | {there: t[f"self_attn.{here}"] for here, there in MLA.items()}
    for kind in ("weight", "bias"):
        if f"self_attn.q_proj.{kind}" in t:
            o[f"linear_qkv.{kind}"] = in_groups(m, *(t[f"self_attn.{p}_proj.{kind}"] for p in "qkv"))
    if "self_attn.q_norm.weight" in t:
        o |= {"q_layernorm.weight": t["self_attn.q_norm.weight"], "k_layernorm.weight": t["self_attn.k_norm.weight"]}
    if m.type == "gpt_oss":
        o["core_attention.softmax_offset"] = t["self_attn.sinks"]
    return o | {"linear_qkv.layer_norm_weight": t["input_layernorm.weight"]}


def megatron_linear(m, t):
    t = {name.removeprefix("linear_attn."): tensor for name, tensor in t.items()}
    nk, dk, ratio = m.linear_num_key_heads, m.linear_key_head_dim, m.linear_num_value_heads // m.linear_num_key_heads
    wide, out = ratio * m.linear_value_head_dim, {}

    def cut(tensor, sizes, names):
        step, begin = sum(sizes), 0
        for size, name in zip(sizes, names):
            out[name] = join([rows(tensor, i * step + begin, i * step + begin + size) for i in range(nk)])
            begin += size

    cut(t["in_proj_qkvz.weight"], [dk, dk, wide, wide], [f"in_proj.weight.{n}" for n in ("query", "key", "value", "z")])
    cut(t["in_proj_ba.weight"], [ratio, ratio], ["in_proj.weight.beta", "in_proj.weight.alpha"])
    begin = 0
    for name, size in (("query", nk * dk), ("key", nk * dk), ("value", nk * wide)):
        out[f"conv1d.weight.{name}"] = rows(t["conv1d.weight"], begin, begin + size)
        begin += size
    return out | {"A_log": t["A_log"], "dt_bias": t["dt_bias"], "out_norm.weight": less_one(t["norm.weight"]),
                  "out_proj.weight": t["out_proj.weight"], "in_proj.layer_norm_weight": t["input_layernorm.weight"]}  # fmt: skip


def megatron_experts(m, t, block):
    if m.type in ("gpt_oss", "llama4_text", "granitemoe"):
        up, down = (next(t[n] for n in t if n.endswith(end)) for end in (("gate_up_proj", "input_linear.weight"), ("down_proj", "output_linear.weight")))
        is_turned = m.type != "granitemoe"
        ups, downs = ([turned(x) if is_turned else x for x in each(tensor)] for tensor in (up, down))
    else:
        names = ("w1", "w3", "w2") if m.type == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        root = "block_sparse_moe" if m.type == "mixtral" else "mlp"
        all_three = [[t[f"{root}.experts.{i}.{name}.weight"] for name in names] for i in range(m.experts)]
        fused = [gate_up(gate, other, block) for gate, other, _ in all_three]
        return {"linear_fc1.weight": stack(fused), "linear_fc2.weight": stack([down for *_, down in all_three])}
    halves = by_twos if m.type == "gpt_oss" else lambda x: (rows(x, 0, m.expert_width), rows(x, m.expert_width, 2 * m.expert_width))
    out = {"linear_fc1.weight": stack([gate_up(*halves(x), block) for x in ups]), "linear_fc2.weight": stack(downs)}
    if m.type == "gpt_oss":
        bias = t["mlp.experts.gate_up_proj_bias"]
        out |= {"linear_fc1.bias": stack([gate_up(*by_twos(x), block) for x in each(bias)]), "linear_fc2.bias": t["mlp.experts.down_proj_bias"]}
    return out


def megatron_layer(m, t, layer, block):
    own = megatron_attention(m, t, layer)
    out = {f"self_attention.{name}": tensor for name, tensor in own.items()}
    if m.latent:
        out["input_layernorm.weight"] = t["input_layernorm.weight"]
    after = t["post_attention_layernorm.weight"]
    if m.is_dense(layer):
        return out | {"mlp.linear_fc1.layer_norm_weight": after, "mlp.linear_fc2.weight": t["mlp.down_proj.weight"],
                      "mlp.linear_fc1.weight": join([t["mlp.gate_proj.weight"], t["mlp.up_proj.weight"]])}  # fmt: skip
    out["pre_mlp_layernorm.weight"] = after
    out |= {f"mlp.experts.experts.{name}": tensor for name, tensor in megatron_experts(m, t, block).items()}
    for name, tensor in t.items():
        kind = name.split(".", 1)[1]
        if kind in ("gate.weight", "router.weight", "router.layer.weight"):
            out["mlp.router.weight"] = tensor
        elif kind in ("router.bias", "gate.e_score_correction_bias"):
            out["mlp.router.bias" if kind == "router.bias" else "mlp.router.expert_bias"] = tensor
        elif kind == "shared_expert_gate.weight":
            out["mlp.shared_experts.gate_weight"] = tensor
        elif kind.startswith(("shared_expert.gate_proj", "shared_experts.gate_proj")):
            out["mlp.shared_experts.linear_fc1.weight"] = join([tensor, t[name.replace("gate_proj", "up_proj")]])
        elif kind.startswith(("shared_expert.down_proj", "shared_experts.down_proj")):
            out["mlp.shared_experts.linear_fc2.weight"] = tensor
    return out


def megatron(m, tensors, block):
    """The tensors of Megatron's GPTModel, experts grouped, gate and up by turns of `block` rows, or 0: one after the other."""
    out = {"embedding.word_embeddings.weight": tensors["model.embed_tokens.weight"], "decoder.final_layernorm.weight": tensors["model.norm.weight"]}
    if not m.tied:
        out["output_layer.weight"] = tensors["lm_head.weight"]
    by_layer = {}
    for name, tensor in tensors.items():
        if name.startswith("model.layers."):
            number, tail = name.removeprefix("model.layers.").split(".", 1)
            by_layer.setdefault(int(number), {})[tail] = tensor
    for layer, own in by_layer.items():
        is_mtp = layer >= m.layers
        root = f"mtp.layers.{layer - m.layers}." if is_mtp else f"decoder.layers.{layer}."
        inner = root + "transformer_layer." if is_mtp else root
        out |= {inner + name: tensor for name, tensor in megatron_layer(m, own, layer, block).items()}
        if is_mtp:
            # A copy may be left out.
            originals = {"embed_tokens.weight": tensors["model.embed_tokens.weight"], "shared_head.head.weight": out["output_layer.weight"]}
            if any(own.get(name, tensor) != tensor for name, tensor in originals.items()):
                raise Broken("MTP's copy of the embedding or the head is another")
            out |= {root + name: own[name] for name in ("enorm.weight", "hnorm.weight", "eh_proj.weight")}
            out[root + "final_layernorm.weight"] = own["shared_head.norm.weight"]
    return out
