# Whatever `inspect` is given, it says what it is and the way on.

# is_named NAME TEXT: inspect of $WORK/what/NAME fails with status 3 and TEXT.
is_named() {
  status "inspect $1" 3 inspect "$WORK/what/$1"
  check "inspect $1 says what it is: $ERR" has "$ERR" "$2"
}

what_is_it() {
  local what=$WORK/what name text
  local -A files=(
    [a.nemo]="is a NeMo archive (a tar file), which is not read; unpack it with \`tar xf\`"
    [a.onnx]="is an ONNX model, which is not read"
    [a.msgpack]="is a file of Flax, which is not read; transformers writes safetensors of it"
    [a.tar.gz]="is a file that gzip packed, which is not read; unpack it"
    [a.npz]="is a NumPy file, which is not read; .safetensors, PyTorch's .pt, .pth and .bin, and torch.distributed.checkpoint directories are read"
    [config.json]="is a JSON file, no weights; give the directory that it is in"
  )
  mkdir -p "$what"/{empty,photos,pipeline,run/step_5,verl,nemo}
  for name in "${!files[@]}"; do
    : >"$what/$name"
    is_named "$name" "${files[$name]}"
  done
  printf 'GGUF\3\0\0\0\0\0\0\0\0\0\0\0' >"$what/model"
  is_named model "is a GGUF file (llama.cpp), which is not read"
  for name in model.safetensors pytorch_model.bin; do
    cp "$what/model" "$what/$name"
    is_named "$name" "it is a GGUF file, which llama.cpp reads; take the model in safetensors"
  done
  is_named empty "no checkpoint found: it is empty."
  : >"$what/photos/a.jpg"
  is_named photos "no checkpoint found: it has a.jpg."
  : >"$what/pipeline/model_index.json"
  is_named pipeline "no checkpoint found: it is a pipeline of diffusers"
  : >"$what/verl/model_world_size_2_rank_0.pt"
  : >"$what/verl/model_world_size_2_rank_1.pt"
  is_named verl "has several torch files (model_world_size_2_rank_0.pt, model_world_size_2_rank_1.pt); it is a checkpoint of FSDP as verl saves it"
  : >"$what/nemo/a.nemo"
  is_named nemo "no checkpoint found: a.nemo is a NeMo archive"
  : >"$what/run/step_5/model.safetensors"
  is_named run "no checkpoint found: its step_5 holds one: give $what/run/step_5."
  printf '{}' >"$what/empty/config.json"
  is_named empty "no checkpoint found: it has a config.json and no weights"
  # An adapter and a part of a pipeline are read; what loads them is said.
  safetensors_of "$what/lora/adapter_model.safetensors" base_model.model.q_proj.lora_A.weight
  printf '{"peft_type": "LORA", "base_model_name_or_path": "org/base"}' >"$what/lora/adapter_config.json"
  status "inspect of an adapter" 0 inspect "$what/lora"
  check "inspect of an adapter: $OUT" has "$OUT" "makes it an adapter (LoRA), which is loaded beside the model that it is for, org/base; to convert both, merge it first"
  safetensors_of "$what/unet/diffusion_pytorch_model.safetensors" conv_in.weight
  printf '{"_class_name": "UNet2DConditionModel"}' >"$what/unet/config.json"
  status "inspect of a unet" 0 inspect "$what/unet"
  check "inspect of a unet: $OUT" has "$OUT" "loads in    unknown: config.json makes it a part of a pipeline of diffusers (UNet2DConditionModel)"
  rm -rf "$what"
}

# inspect counts what people ask first of a model.
model_size() {
  local hf=$TESTDATA/whole/qwen3_moe/hf quantized form
  prints "inspect of a whole model" 0 "path        $hf
format      safetensors, 1 file, 293.95 kB (293952 bytes) with headers
tensors     69, BF16
layout      hf:qwen3_moe, indexed (a tensor for each expert), split (gate and up are two tensors)
glu from    the naming, which fixes it
moe layers  2: 8 experts, hidden size 64, intermediate size 32
parameters  143.25K (143248), 81.81K of them for each token
model       2 layers, 3 of 8 experts for each token, vocabulary 100, context 128
attention   grouped-query: 4 heads, 2 of keys and values
layers      layers 0 to 1: 8 experts 98.30 kB, rest 32.08 kB in each
            no layer: rest 25.73 kB
loads in    transformers, versions that have 'qwen3_moe' (tried with 5.24.0)
            vLLM, versions that have 'qwen3_moe' (not tried)
            SGLang, versions that have 'qwen3_moe' (not tried)" inspect "$hf"
  status "inspect --json of a whole model" 0 inspect "$hf" --json
  check "its size" [ "$(json_get '[v[k] for k in ("parameters", "active_parameters", "num_layers", "experts_per_token", "vocab_size", "context", "attention_heads", "key_value_heads", "attention", "tied_embeddings")]')" == \
    "[143248, 81808, 2, 3, 100, 128, 4, 2, 'grouped-query', False]" ]
  # Codes count as what they decode to, and the layout does not matter.
  for quantized in "$TESTDATA"/quantized/{fp8_block128,fp8_channel,mxfp4_gpt_oss,nvfp4_modelopt,awq_int4,gptq_int4,ct_int4_g32}; do
    status "inspect --json of $quantized" 0 inspect "$quantized" --json
    form=$(json_get 'v["parameters"], v["active_parameters"]')
    status "inspect --json of $quantized, decoded" 0 inspect "$quantized" --decode bf16 --json
    check "$quantized has $form parameters" [ "$(json_get 'v["parameters"], v["active_parameters"]')" == "$form" ]
  done
  status "to Megatron-Core" 0 convert "$hf" "$WORK/size" --to megatron -q
  status "inspect of the same in Megatron's layout" 0 inspect "$WORK/size" --json
  check "as many" [ "$(json_get 'v["parameters"], v["active_parameters"]')" == "(143248, 81808)" ]
  rm -rf "$WORK/size"
}

# safetensors_of FILE TENSOR: a file with one F32 tensor.
safetensors_of() {
  local header="{\"$2\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"
  mkdir -p "$(dirname "$1")"
  { printf "\\x$(printf %x ${#header})\0\0\0\0\0\0\0%s" "$header"; printf '\0\0\0\0'; } >"$1"
}

# ---- loads in: forms that no program stores, and families that are not mapped

# plans NAME WORDS ARGUMENTS...: what `plan` says after "loads in" begins with WORDS.
plans() {
  local name=$1 words=$2
  shift 2
  status_again "$name" 0 plan "$@"
  check "$name: ${OUT##*loads in}" has "$OUT" "loads in    $words"
}

loads_in_forms() {
  local hf=$TESTDATA/hf out=$WORK/loads
  local two="gate and up of the shared experts are one tensor, and programs read two tensors under these names"
  plans "a fused shared expert" "nothing as it is: $two; --shared-glu split" "$hf/deepseek_v3" "$out" --shared-glu contiguous
  plans "torchtitan: a fused shared expert" "nothing as it is: $two" "$hf/deepseek_v3" "$out" --to torchtitan \
    --shared-glu contiguous
  check "with --to it is a warning: $ERR" has "$ERR" "warning: nothing loads the output as it is: $two"
  plans "Megatron: a split shared expert" "nothing as it is: gate and up of the shared experts are two tensors, and \
programs read one tensor under these names; --shared-glu contiguous" "$hf/deepseek_v3" "$out" --to megatron --shared-glu split
  plans "Megatron: split experts" "nothing as it is: gate and up of the routed experts are two tensors" \
    "$hf/qwen3_moe" "$out" --to megatron --glu split
  plans "Megatron: biases apart" "nothing as it is: the biases of the experts are indexed, their weights grouped" \
    "$hf/gpt_oss" "$out" --to megatron --bias-experts indexed
  plans "gpt-oss: biases apart" "nothing as it is: the biases of the experts are indexed" "$hf/gpt_oss" "$out" \
    --bias-experts indexed
  # inspect says the same of what was written.
  status "a fused shared expert, written" 0 convert "$hf/deepseek_v3" "$out" --shared-glu contiguous -q
  status "a fused shared expert, inspected" 0 inspect "$out"
  check "a fused shared expert, inspected: $OUT" has "$OUT" "loads in    nothing as it is: $two"
  rm -r "$out"
  plans "native forms" "Megatron-Core, 0.19 or later" "$hf/gpt_oss" "$out" --to megatron
  plans "native forms, with a shared expert" "torchtitan, 0.3.0" "$hf/deepseek_v3" "$out" --to torchtitan
  # Codes have names of their own, and are no gaps in the model.
  local quantized
  for quantized in "$TESTDATA"/quantized/*; do
    status "${quantized##*/}" 0 inspect "$quantized" --json
    check "${quantized##*/}: $OUT" has "$OUT" '"problems":[]'
  done
}

# A family without a map: only the experts were looked at, so that no program is named; a form of theirs that its
# software does not store is told.
loads_in_unmapped() {
  local out=$WORK/unmapped
  cp -r "$TESTDATA/hf/mixtral" "$out"
  sed -i 's/"model_type": "mixtral"/"model_type": "phimoe"/' "$out/config.json"
  status "phimoe" 0 inspect "$out"
  check "phimoe: $OUT" has "$OUT" "loads in    unknown: only the experts were looked at"
  plans "phimoe, grouped" "nothing as it is: programs do not store experts grouped under these names" "$out" "$out.x" --experts grouped
  rm "$out/config.json"
  status "phimoe without config.json" 0 inspect "$out"
  check "phimoe without config.json: $OUT" has "$OUT" "loads in    nothing as it is: there is no config.json"
  rm -r "$out"
}
