# Whole models that cannot be converted, or not without being told so: what is wrong is named, and nothing is written.

# edited_checkpoint SRC DST CODE: SRC's model*.safetensors in one file, after python CODE changed `t`,
# {name: [dtype, shape, bytes]}, or `c`, its config.json.
edited_checkpoint() {
  rm -rf "$2"
  python3 - "$1" "$2" "$3" <<'PY'
import glob, json, os, struct, sys
source, target, code = sys.argv[1:]
t = {}
for path in sorted(glob.glob(os.path.join(source, "model*.safetensors"))):
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header, data = json.loads(file.read(size)), file.read()
    header.pop("__metadata__", None)
    t |= {name: [v["dtype"], v["shape"], data[slice(*v["data_offsets"])]] for name, v in header.items()}
with open(os.path.join(source, "config.json"), encoding="utf-8") as file:
    c = json.load(file)
exec(code, {"t": t, "c": c, "struct": struct})
header, at = {}, 0
for name, (dtype, shape, value) in t.items():
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(value)]}
    at += len(value)
text = json.dumps(header).encode()
os.makedirs(target)
with open(os.path.join(target, "model.safetensors"), "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + b"".join(value for _, _, value in t.values()))
with open(os.path.join(target, "config.json"), "w", encoding="utf-8") as file:
    json.dump(c, file)
PY
}

# edited_model FAMILY DST CODE: testdata/whole's model after CODE.
edited_model() { edited_checkpoint "$TESTDATA/whole/$1/hf" "$2" "$3"; }

# says NAME WORD...: the last message has all words.
says() {
  local name=$1 word
  shift
  for word in "$@"; do
    check "$name: says '$word': $ERR" has "$ERR" "$word"
  done
}

# refuses_model STATUS FAMILY CODE WORD...: the model that CODE spoiled is refused with these words.
refuses_model() {
  local expected=$1 family=$2 code=$3 out=$WORK/whole
  local name="$family: $code"
  shift 3
  edited_model "$family" "$out.in" "$code" || { bad "$name: no such edit" && return; }
  status "$name" "$expected" convert "$out.in" "$out.out" --to megatron -q
  says "$name" "$@"
  check "$name: nothing is written" absent "$out.out"
  check "$name: nothing is left" absent "$out.out.partial"
  rm -rf "$out".*
}

# contradicts FAMILY FIELD VALUE WORD...: config.json with another value in a field is refused, and the field named.
contradicts() {
  local family=$1 field=$2 value=$3
  shift 3
  refuses_model 3 "$family" "c['$field'] = $value" "$field" "$@"
}

whole_models_incomplete() {
  local layer=model.layers.1
  refuses_model 3 qwen3_moe "del t['model.norm.weight']" "'model.norm.weight' is missing: norm/final"
  refuses_model 3 qwen3_moe "del t['model.embed_tokens.weight']" "'model.embed_tokens.weight' is missing"
  refuses_model 3 qwen3_moe "del t['lm_head.weight']" "'lm_head.weight' is missing: head"
  refuses_model 3 qwen3_moe "del t['$layer.post_attention_layernorm.weight']" \
    "'$layer.post_attention_layernorm.weight' is missing: layer 1's norm/mlp"
  refuses_model 3 qwen3_moe "del t['$layer.self_attn.q_norm.weight']" "'$layer.self_attn.q_norm.weight' is missing"
  refuses_model 3 qwen3_moe "[t.pop(n) for n in sorted(n for n in t if '.layers.1.' in n)[::2]]" "layer 1" \
    "$layer.mlp.experts."
  refuses_model 3 qwen3_moe "[t.pop(n) for n in list(t) if '.layers.1.' in n and '.self_attn.' in n]" \
    "'$layer.self_attn.q_proj.weight' is missing: layer 1's attention/q"
  refuses_model 3 qwen3_moe "[t.pop(n) for n in list(t) if '.layers.1.' in n]" "layer 1 is missing" \
    "num_hidden_layers 2"
  refuses_model 3 qwen3_moe "[t.pop(n) for n in list(t) if '.layers.1.' in n and '.experts.' in n]" \
    "'$layer.input_layernorm.weight'" "layer 1 a MoE layer"
  refuses_model 3 deepseek_v3 "[t.pop(n) for n in list(t) if '.layers.1.mlp.shared_experts.' in n]" \
    "'$layer.' has no shared expert" "n_shared_experts x moe_intermediate_size 40"
  refuses_model 3 qwen3_next "[t.pop(n) for n in list(t) if '.mlp.shared_expert.' in n]" \
    "'model.layers.0.' has no shared expert" "shared_expert_intermediate_size 28"
  refuses_model 3 deepseek_v3 "[t.pop(n) for n in list(t) if '.layers.3.mlp.experts.' in n]" \
    "'model.layers.3.' has no experts"
  refuses_model 3 deepseek_v3 "[t.__setitem__(n.replace('.layers.3.', '.layers.4.'), t.pop(n)) for n in list(t)]" \
    "MTP layer 0 is missing, but MTP layer 1 is there"
  refuses_model 3 deepseek_v3 "c['num_nextn_predict_layers'] = 2" "MTP layer 1 is missing" "there are 2"
  refuses_model 3 gpt_oss "del t['$layer.self_attn.k_proj.bias']" "'$layer.self_attn.k_proj.bias' is missing"
  refuses_model 3 gpt_oss "[t.pop(n) for n in list(t) if n.endswith('v_proj.bias')]" \
    "'model.layers.0.self_attn.v_proj.bias' is missing"
  refuses_model 3 gpt_oss "[t.pop(n) for n in list(t) if n.endswith('o_proj.bias')]" \
    "'model.layers.0.self_attn.o_proj.bias' is missing"
  refuses_model 3 gpt_oss "[t.pop(n) for n in list(t) if n.endswith('router.bias')]" \
    "'model.layers.0.mlp.router.bias' is missing"
  refuses_model 3 gpt_oss "[t.pop(n) for n in list(t) if n.endswith('_proj_bias')]" "model.layers.0.mlp.experts." \
    "biases, which a gpt_oss model has"
  refuses_model 3 gpt_oss "[t.pop(n) for n in list(t) if n.endswith('down_proj_bias')]" "model.layers.0.mlp.experts." \
    "no down biases"
  refuses_model 3 gpt_oss "del t['$layer.self_attn.sinks']" "'$layer.self_attn.sinks' is missing"
  refuses_model 3 deepseek_v3 "[t.pop(n) for n in list(t) if n.endswith('correction_bias')]" \
    "'$layer.mlp.gate.e_score_correction_bias' is missing"
  refuses_model 3 deepseek_v3 "del t['model.layers.3.eh_proj.weight']" mtp.0 \
    "'model.layers.3.eh_proj.weight' is missing"
  refuses_model 3 qwen3_next "del t['$layer.linear_attn.dt_bias']" "'$layer.linear_attn.dt_bias' is missing"
}

# Hubs have models without the MTP layers that their config.json promises: what is there is whole, and this is said.
whole_models_without_mtp() {
  local out=$WORK/whole
  edited_model deepseek_v3 "$out.in" "[t.pop(n) for n in list(t) if n.startswith('model.layers.3.')]"
  status "without MTP" 0 convert "$out.in" "$out.out" --to megatron -q
  says "without MTP" "config.json promises 1 MTP layer (num_nextn_predict_layers)" "warning"
  check "without MTP: the arguments have none" bash -c "! grep -q mtp-num-layers $out.out/megatron_args.txt"
  status "without MTP: back" 0 convert "$out.out" "$out.back" --to hf -q
  says "without MTP: back" "config.json promises 1 MTP layer"
  check "without MTP: the same tensors" [ "$(tensors "$out.in")" == "$(tensors "$out.back")" ]
  check "without MTP: the same config.json" cmp -s "$out.in/config.json" "$out.back/config.json"
  rm -rf "$out".*
}

# Python code: packs the experts of all layers that PREDICATE, about a layer's prefix, takes.
pack_layers() {
  cat <<PY
import re
parts = {}
for name in list(t):
    found = re.match(r"(.*\\.mlp\\.experts\\.)(\\d+)\\.(gate|up|down)_proj\\.weight", name)
    if found and ($1)(found[1]):
        parts.setdefault(found[1], {})[found[3], int(found[2])] = t.pop(name)
for prefix, have in parts.items():
    count = len(have) // 3
    for name, kinds in (("gate_up_proj", ("gate", "up")), ("down_proj", ("down",))):
        dtype, (rows, columns), _ = have[kinds[0], 0]
        t[prefix + name] = [dtype, [count, len(kinds) * rows, columns],
                            b"".join(have[kind, e][2] for e in range(count) for kind in kinds)]
PY
}

# mixed_forms FAMILY PREDICATE [OPTION...]: a model of which some layers are packed comes back as it was.
mixed_forms() {
  local family=$1 predicate=$2 out=$WORK/whole
  local name="$family, packed: $predicate $*"
  shift 2
  edited_model "$family" "$out.in" "$(pack_layers "$predicate")"
  status "$name" 0 convert "$out.in" "$out.out" "$@" --from-glu contiguous -q
  status "$name: back" 0 convert "$out.out" "$out.back" --to hf
  check "$name: back: $OUT" has "$OUT" "loads in    transformers"
  check "$name: the same tensors" [ "$(tensors "$out.in")" == "$(tensors "$out.back")" ]
  status_again "$name: inspected" 0 inspect "$out.back"
  check "$name: ${OUT##*loads in}" has "$OUT" "loads in    transformers, 5 or later"
}

# The hub has Qwen3.5 with packed experts in the main stack and single ones in the MTP layers.
whole_models_mixed_forms() {
  local out=$WORK/whole
  mixed_forms deepseek_v3 "lambda p: '.layers.3.' not in p" --to megatron
  rm -rf "$out".*
  mixed_forms deepseek_v3 "lambda p: '.layers.3.' in p" --to torchtitan
  rm -rf "$out".*
  mixed_forms qwen3_moe "lambda p: '.layers.1.' in p" --to megatron --glu interleaved:8
  # Earlier records say no more than that the forms differ; a form for all layers may be asked for.
  python3 -c "import json, sys; r = json.load(open(sys.argv[1])); del r['hf_forms'], r['record_xxh3_128']; json.dump(r, open(sys.argv[1], 'w'))" \
    "$out.out/release/glu_ckpt.json"
  rm -rf "$out.back"
  status "mixed forms of an earlier record" 4 convert "$out.out" "$out.back" --to hf -q
  says "mixed forms of an earlier record" "not which layer in which" "--experts indexed --glu split"
  check "mixed forms of an earlier record: nothing is written" absent "$out.back"
  status "mixed forms: one for all" 0 convert "$out.out" "$out.back" --to hf --experts indexed --glu split -q
  check "mixed forms: one for all" [ "$(tensors "$TESTDATA/whole/qwen3_moe/hf")" == "$(tensors "$out.back")" ]
  rm -rf "$out".*
}

whole_models_contradicted() {
  local attention=model.layers.0.self_attn delta=model.layers.0.linear_attn.conv1d.weight
  contradicts qwen3_moe hidden_size 32 "'lm_head.weight' is BF16 [100, 64]" "[100, 32]"
  contradicts qwen3_moe vocab_size 101 "'lm_head.weight' is BF16 [100, 64]" "[101, 64]"
  contradicts qwen3_moe vocab_size 99 "'lm_head.weight' is BF16 [100, 64]" "[99, 64]"
  contradicts qwen3_moe num_attention_heads 8 "'$attention.o_proj.weight' is BF16 [64, 80]" "[64, 160]"
  contradicts qwen3_moe num_key_value_heads 4 "'$attention.k_proj.weight' is BF16 [40, 64]" "[80, 64]"
  contradicts qwen3_moe head_dim 10 "'$attention.k_norm.weight' is BF16 [20]" "[10]"
  contradicts qwen3_moe moe_intermediate_size 16 "model.layers.0.mlp.experts." "map 64 to 32"
  contradicts qwen3_moe num_local_experts 4 "model.layers.0.mlp.experts." "8 experts are stored" "says 4"
  contradicts qwen3_moe num_local_experts 16 "model.layers.0.mlp.experts." "8 experts are stored" "says 16"
  contradicts qwen3_moe num_hidden_layers 3 "layer 2 is missing" "num_hidden_layers 3"
  contradicts qwen3_moe decoder_sparse_step 2 "'model.layers.0.input_layernorm.weight'" "layer 0 a dense layer"
  contradicts qwen3_moe mlp_only_layers "[1]" "'model.layers.1.input_layernorm.weight'" "layer 1 a dense layer"
  contradicts qwen3_moe attention_bias True "'$attention.q_proj.bias' is missing"
  contradicts qwen3_moe num_experts_per_tok 9 "num_experts_per_tok is 9" "8 experts to choose from"
  contradicts gpt_oss intermediate_size 40 "model.layers.0.mlp.experts." "map 48 to 32"
  contradicts gpt_oss attention_bias False "'$attention.q_proj.bias' is there"
  contradicts deepseek_v3 q_lora_rank 14 "'$attention.q_a_layernorm.weight' is BF16 [28]" "[14]"
  contradicts deepseek_v3 kv_lora_rank 12 "'$attention.kv_a_layernorm.weight' is BF16 [24]" "[12]"
  contradicts deepseek_v3 qk_rope_head_dim 4 "'$attention.kv_a_proj_with_mqa.weight' is BF16 [32, 56]" "[28, 56]"
  contradicts deepseek_v3 qk_nope_head_dim 8 "'$attention.kv_b_proj.weight' is BF16 [112, 24]" "[96, 24]"
  contradicts deepseek_v3 v_head_dim 8 "'$attention.kv_b_proj.weight' is BF16 [112, 24]" "[80, 24]"
  contradicts deepseek_v3 num_attention_heads 8 "'$attention.kv_b_proj.weight' is BF16 [112, 24]" "[224, 24]"
  contradicts deepseek_v3 first_k_dense_replace 0 "'model.layers.0.input_layernorm.weight'" "layer 0 a MoE layer"
  contradicts deepseek_v3 first_k_dense_replace 2 "'model.layers.1.input_layernorm.weight'" "layer 1 a dense layer"
  contradicts deepseek_v3 intermediate_size 30 "'model.layers.0.mlp.down_proj.weight' is BF16 [56, 60]" "[56, 30]"
  contradicts deepseek_v3 moe_intermediate_size 10 "model.layers.1.mlp.experts." "map 56 to 20"
  contradicts deepseek_v3 n_shared_experts 1 "model.layers.1.mlp.shared_experts." "map 56 to 40"
  contradicts deepseek_v3 n_shared_experts 0 "model.layers.1.mlp.shared_experts." "map 56 to 40"
  contradicts deepseek_v3 n_routed_experts 4 "model.layers.1.mlp.experts." "6 experts are stored"
  contradicts qwen3_next linear_num_key_heads 6 "'$delta' is BF16 [168, 1, 4]" "[264, 1, 4]"
  contradicts qwen3_next linear_num_value_heads 3 "'model.layers.0.linear_attn.A_log' is BF16 [6]" "[3]"
  contradicts qwen3_next linear_key_head_dim 8 "'$delta' is BF16 [168, 1, 4]" "[120, 1, 4]"
  contradicts qwen3_next linear_value_head_dim 6 "'$delta' is BF16 [168, 1, 4]" "[132, 1, 4]"
  contradicts qwen3_next linear_conv_kernel_dim 2 "'$delta' is BF16 [168, 1, 4]" "[168, 1, 2]"
  contradicts qwen3_next shared_expert_intermediate_size 14 "model.layers.0.mlp.shared_expert." "map 48 to 28"
  # A tied head is the embedding's copy; this one is another.
  refuses_model 3 qwen3_moe "c['tie_word_embeddings'] = True" "byte 0" \
    "'lm_head.weight' should repeat 'model.embed_tokens.weight'"
  # Fields that contradict each other, or say nothing that can be.
  refuses_model 3 qwen3_moe "c['num_attention_heads'] = 3" "num_attention_heads 3" "num_key_value_heads 2"
  refuses_model 3 qwen3_moe "c['num_key_value_heads'] = 3" "num_attention_heads 4" "num_key_value_heads 3"
  refuses_model 4 qwen3_moe "c['head_dim'] = None; c['num_attention_heads'] = 6" "hidden_size 64" "num_attention_heads 6"
  refuses_model 3 qwen3_moe "c['head_dim'] = 0" "head_dim is 0"
  refuses_model 4 qwen3_next "c['linear_num_value_heads'] = 4" "linear_num_value_heads 4" "linear_num_key_heads 3"
  refuses_model 3 qwen3_moe "c['hidden_size'] = -1" "hidden_size is -1"
  refuses_model 3 qwen3_moe "c['num_hidden_layers'] = 10**9" "num_hidden_layers is 1000000000"
  refuses_model 4 qwen3_moe "del c['vocab_size']" "vocab_size is missing"
  # A number of layers that is too small leaves tensors that nothing explains.
  refuses_model 4 qwen3_moe "c['num_hidden_layers'] = 1" "'model.layers.1.input_layernorm.weight'" "num_hidden_layers 1"
  refuses_model 4 deepseek_v3 "c['num_hidden_layers'] = 4" "'model.layers.3." "num_hidden_layers 4"
}

whole_models_refused() {
  local out=$WORK/whole name copy hf=$TESTDATA/whole/qwen3_moe/hf code
  # A model that transformers saves and loads, so it is not a broken one.
  code="c['attention_bias'] = False; [t.pop(n) for n in list(t) if '.self_attn.' in n and n.endswith('.bias')]"
  refuses_model 4 gpt_oss "$code" "attention_bias is false" "biases in all linear layers or in none" "[no-map]"
  for copy in embed_tokens shared_head.head; do
    code="n = 'model.layers.3.$copy.weight'; t[n][2] = t[n][2][:100] + b'xx' + t[n][2][102:]"
    refuses_model 3 deepseek_v3 "$code" "'model.layers.3.$copy.weight' should repeat" "byte 100"
  done
  code="n = 'model.layers.1.linear_attn.norm.weight'; t[n] = ['F32', [12], struct.pack('<12f', *[1.5] * 11, 1e-30)]"
  refuses_model 4 qwen3_next "$code" "'model.layers.1.linear_attn.norm.weight': element 11 does not come back"
  code="n = 'model.layers.1.self_attn.k_proj.weight'; t[n] = ['F32', t[n][1], t[n][2] * 2]"
  refuses_model 4 qwen3_moe "$code" "'model.layers.1.self_attn.k_proj.weight' is F32" "cannot hold both"
  code="n = 'model.layers.0.self_attn.o_proj.weight'; t[n][1] = [80, 64]"
  refuses_model 3 qwen3_moe "$code" "'model.layers.0.self_attn.o_proj.weight' is BF16 [80, 64]" "[64, 80]"

  code="t['model.layers.0.self_attn.rotary_emb.other_table'] = ['F32', [2], struct.pack('<2f', 1, 2)]"
  refuses_model 4 qwen3_moe "$code" "'model.layers.0.self_attn.rotary_emb.other_table' F32 [2]" "--unknown keep"
  edited_model qwen3_moe "$out.in" "$code"
  status "--unknown keep" 0 convert "$out.in" "$out.out" --to megatron --unknown keep -q
  status "--unknown keep: back" 0 convert "$out.out" "$out.back" --to hf --unknown keep -q
  check "--unknown keep: the same tensors after the round" [ "$(tensors "$out.in")" == "$(tensors "$out.back")" ]
  rm -rf "$out".*

  # The same through two other namings, of a tensor that is called as if it had travelled before.
  edited_model qwen3_moe "$out.in" "${code//model.layers.0.self_attn./glu_ckpt.unknown.}"
  status "--unknown keep: there" 0 convert "$out.in" "$out.one" --to torchtitan --unknown keep -q
  status "--unknown keep: further" 0 convert "$out.one" "$out.two" --to megatron -q
  status "--unknown keep: and back" 0 convert "$out.two" "$out.back" --to hf -q
  check "--unknown keep: the same tensors after both" [ "$(tensors "$out.in")" == "$(tensors "$out.back")" ]
  rm -rf "$out".*

  code="t['optimizer.state.exp_avg.model.norm.weight'] = ['F32', [64], bytes(256)]"
  refuses_model 4 qwen3_moe "$code" "optimizer.state.exp_avg.model.norm.weight" "--optimizer drop"
  edited_model qwen3_moe "$out.in" "$code"
  status "--optimizer drop" 0 convert "$out.in" "$out.out" --to megatron --optimizer drop -q
  status "--optimizer drop: the model" 0 verify "$hf" "$out.out"
  rm -rf "$out".*

  for name in nonsense megaton hf:; do
    status "--to '$name'" $([[ $name == hf: ]] && echo 4 || echo 2) convert "$hf" "$out.out" --to "$name" -q
    check "--to '$name': nothing is written" absent "$out.out"
  done
  status "--to another family" 4 convert "$hf" "$out.out" --to hf:gpt_oss -q
  says "--to another family" "'qwen3_moe'"
  status "--to hf without a config.json" 4 convert "$TESTDATA/megatron/homogeneous" "$out.out" --to hf \
    --from-glu contiguous -q
  says "--to hf without a config.json" "--from-config"
  check "--to hf without a config.json: nothing is written" absent "$out.out"
  check "--to hf without a config.json: nothing is left" absent "$out.out.partial"
  status "a model that lost its config.json" 0 convert "$hf" "$out.in" --to megatron -q
  rm "$out.in/hf/config.json"
  status "--to hf of it" 4 convert "$out.in" "$out.out" --to hf -q
  says "--to hf of it" "--from-config"
  status "--to hf of it, with --from-config" 0 convert "$out.in" "$out.out" --to hf --from-config "$hf/config.json" -q
  check "--to hf of it: the same tensors" [ "$(tensors "$hf")" == "$(tensors "$out.out")" ]
  check "--to hf of it: the same config.json" cmp -s "$hf/config.json" "$out.out/config.json"
  rm -rf "$out".*
}

# back_refused STATUS CODE WORD...: Megatron's form of the model goes back by a config.json that CODE spoiled: refused.
back_refused() {
  local expected=$1 code=$2 out=$WORK/whole
  local name="back: $code"
  shift 2
  python3 -c "import json, sys; c = json.load(open(sys.argv[1])); exec(sys.argv[2]); json.dump(c, open(sys.argv[3], 'w'))" \
    "$TESTDATA/whole/qwen3_moe/hf/config.json" "$code" "$out.json"
  status "$name" "$expected" convert "$out.there" "$out.back" --to hf --from-config "$out.json" -q
  says "$name" "$@"
  check "$name: nothing is written" absent "$out.back"
  check "$name: nothing is left" absent "$out.back.partial"
}

# Megatron pads the vocabulary, so there may be more rows than words, but never fewer.
whole_models_back_refused() {
  local out=$WORK/whole head=output_layer.weight
  status "there" 0 convert "$TESTDATA/whole/qwen3_moe/hf" "$out.there" --to megatron -q
  back_refused 3 "c['vocab_size'] = 101" "'$head' is BF16 [100, 64]" "[101, 64]" vocab_size
  back_refused 3 "c['hidden_size'] = 32" "'$head' is BF16 [100, 64]" hidden_size
  back_refused 3 "c['num_key_value_heads'] = 4" "linear_qkv.weight' is BF16 [160, 64]" "[240, 64]" num_key_value_heads
  back_refused 3 "c['num_hidden_layers'] = 3" "layer 2 is missing" "num_hidden_layers 3"
  back_refused 3 "c['mlp_only_layers'] = [0]" "layer 0 a dense layer" mlp_only_layers
  back_refused 3 "c['num_attention_heads'] = 3" "num_attention_heads 3" "num_key_value_heads 2"
  back_refused 4 "c['model_type'] = 'phimoe'" "'phimoe'" sparsemixer
  back_refused 3 "c['model_type'] = 'qwen2_moe'; c['shared_expert_intermediate_size'] = 24" "shared_expert_intermediate_size 24"
  # A configuration of another family would make a model of it that lacks norms, or has too many.
  back_refused 4 "c['model_type'] = 'mixtral'; c['intermediate_size'] = 32" "q_layernorm.weight'"
  rm -rf "$out".*
}

# Published models at their real size, all of it a hole: every tensor has a place, and a plan takes little memory. What
# is not quantized is as --decode finds it.
full_size_plans() {
  local out=$WORK/full model count status
  # Megatron-Core's tensors: of dense layers, of MoE layers, of MTP; the embedding, the last norm and the head.
  local -A tensors=(
    [qwen3-235b-a22b]=$((94 * 9 + 3)) [deepseek-v3]=$((3 * 11 + 58 * 15 + 19 + 3)) [kimi-k2]=$((11 + 60 * 15 + 3))
    [glm-4.6]=$((3 * 9 + 89 * 13 + 17 + 3)) [gpt-oss-120b]=$((36 * 13 + 3))
    [qwen3-next-80b]=$((36 * 21 + 12 * 12 + 16 + 3)) [deepseek-v3-fp8]=$((3 * 11 + 58 * 15 + 19 + 3))
    [deepseek-v3.2-fp8]=$((3 * 16 + 58 * 20 + 24 + 3)) [glm-5.2]=$((3 * 11 + 75 * 15 + 21 * 5 + 24 + 3))
    [kimi-k2.5-int4]=$((11 + 60 * 15 + 3 + 28)) [llama-3.1-405b]=$((126 * 6 + 3))
    [nemotron-3-super]=$((40 * 17 + 40 * 9 + 8 * 3 + 4 + 3 + 9 + 3))
  )
  # A sanitizer knows nothing of memory and time; two models have most of what there is.
  local -a models=("${!tensors[@]}")
  ((!SANITIZED)) || models=(deepseek-v3-fp8 qwen3-next-80b)
  for model in "${models[@]}"; do
    if ! python3 "$HERE/../../scripts/make_full_size.py" "$out" "$model" >"$WORK/.out" 2>"$WORK/.err"; then
      skip "$model at full size: $(tail -n 1 "$WORK/.err")"
      rm -rf "$out"
      continue
    fi
    # shellcheck disable=SC2016
    measure sh -c 'exec "$@" >"$0"' "$WORK/.plan" "$PROGRAM" plan "$out/$model" "$out/planned" --decode bf16 --to megatron \
      --unknown keep --json -q
    status=$?
    # A plan is whole where the disk is too small for it, too.
    grep -q '"error":"no-space"' "$WORK/.err" && status=0
    check "$model: plan: $(head -c 400 "$WORK/.err")" [ "$status" == 0 ]
    mv "$WORK/.plan" "$WORK/.out"
    count=$(json_get 'v["tensors_written"]')
    check "$model: $count tensors, not ${tensors[$model]}" [ "$count" == "${tensors[$model]}" ]
    check "$model: nothing is written" [ "$(ls "$out")" == "$model" ]
    ((SANITIZED)) || check "$model: $PEAK KiB" [ "$PEAK" -lt 524288 ]
    rm -rf "$out"
  done
}
