# Quantized checkpoints (testdata/quantized): --decode in every command, and what is refused by name.

# refuses_quantized STATUS KIND CODE WORD...: the checkpoint that CODE spoiled is refused with these words.
refuses_quantized() {
  local expected=$1 kind=$2 code=$3 out=$WORK/quantized
  local name="$kind: $code"
  shift 3
  edited_checkpoint "$TESTDATA/quantized/$kind" "$out.in" "$code" || { bad "$name: no such edit" && return; }
  status "$name" "$expected" convert "$out.in" "$out.out" --decode bf16 -q
  says "$name" "$@"
  check "$name: nothing is written" absent "$out.out"
  check "$name: nothing is left" absent "$out.out.partial"
  rm -rf "$out".*
}

quantized_decodes() {
  local kind in=$TESTDATA/quantized/fp8_block128 out=$WORK/quantized
  declare -A formats=(
    [awq_int4]="AWQ in groups of 32" [ct_int4_g32]="INT4 in groups of 32" [fp8_block128]="FP8 in 128x128 blocks"
    [fp8_block128_ue8m0]="FP8 in 128x128 blocks" [fp8_channel]="FP8 per channel" [fp8_per_tensor]="FP8 per tensor"
    [mxfp4_gpt_oss]="MXFP4" [nvfp4_modelopt]="NVFP4" [gptq_int4]="GPTQ in groups of 32"
    [ct_int4_asym]="INT4 in groups of 32, asymmetric"
  )
  declare -A scales=(
    [awq_int4]="F16, one for 1 x 32 weights" [ct_int4_g32]="BF16, one for 1 x 32 weights"
    [fp8_block128]="F32, one for 128 x 128 weights" [fp8_block128_ue8m0]="F32, one for 128 x 128 weights"
    [fp8_channel]="BF16, one for each row" [fp8_per_tensor]="BF16, one for each matrix"
    [mxfp4_gpt_oss]="U8, one for 1 x 32 weights" [gptq_int4]="F16, one for 1 x 32 weights"
    [nvfp4_modelopt]="F8_E4M3, one for 1 x 16 weights, and F32, one for each matrix"
    [ct_int4_asym]="BF16, one for 1 x 32 weights"
  )
  for kind in "${!formats[@]}"; do
    "$PROGRAM" inspect "$TESTDATA/quantized/$kind" >"$WORK/.out" 2>/dev/null
    check "$kind: inspect names the scales, ${scales[$kind]}" grep -qF "scales      ${scales[$kind]}" "$WORK/.out"
    check "$kind: inspect names ${formats[$kind]}" grep -q "^quantized .*${formats[$kind]}" "$WORK/.out"
    "$PROGRAM" inspect "$TESTDATA/quantized/$kind" --decode bf16 >"$WORK/.out" 2>/dev/null
    check "$kind: decoded, it is not quantized" [ "$(grep -c '^quantized' "$WORK/.out")" == 0 ]
    check "$kind: decoded, Megatron's layout is a matter of plan" \
      "$PROGRAM" plan "$TESTDATA/quantized/$kind" "$out" --decode bf16 --to megatron -q
  done
  status "into Megatron's model" 0 convert "$in" "$out" --decode bf16 --to megatron --glu interleaved:32
  says "what is decoded is said" "20 quantized weights are decoded (FP8 in 128x128 blocks), as deepseek decodes them"
  status "nothing to decode" 0 plan "$TESTDATA/hf/qwen3_moe" "$out.plain" --decode f32 --to megatron -q
  says "it is said" "warning: --decode changes nothing: no weight here is quantized"
  "$PROGRAM" inspect "$in" --decode f32 >"$WORK/.out" 2>/dev/null
  check "inspect says what it decodes" grep -q "^decoded     20 weights from FP8 in 128x128 blocks" "$WORK/.out"
  check "the digest is that of the decoded source" [ "$(digest "$out")" == "$(digest "$in" --decode bf16)" ]
  check "it is not that of the codes" [ "$(digest "$out")" != "$(digest "$in")" ]
  status "the source decodes to it" 0 verify "$in" "$out" --decode bf16
  status "with the experts run" 0 verify "$in" "$out" --decode bf16 --forward
  status "no difference" 0 diff "$in" "$out" --decode bf16
  status "the codes are another model" 1 verify "$in" "$out"
  says "how to compare them" "was decoded from FP8 in 128x128 blocks; --decode bf16 compares with what $in decodes to"
  status "diff calls them other models, too" 1 diff "$in" "$out"
  says "and says how to compare them" "was decoded from FP8 in 128x128 blocks; --decode bf16 compares with what $in decodes to"
  check "the record says from what" grep -q '"decoded_from": "FP8 in 128x128 blocks"' "$out/release/glu_ckpt.json"
  check "and by whose rule" grep -q '"decoded_as": "deepseek"' "$out/release/glu_ckpt.json"
  status "once more" 0 convert "$in" "$out" --decode bf16 --to megatron --glu interleaved:32 --resume -q
  status "f32 is another model" 1 verify "$in" "$out" --decode f32
  status "no such dtype" 2 convert "$in" "$out.f16" --decode f16
  rm -rf "$out"
}

# Programs that decode one format to other bits.
quantized_decoders() {
  local in=$TESTDATA/quantized/nvfp4_modelopt fp8=$TESTDATA/quantized/fp8_block128 out=$WORK/quantized
  status "the writer's own decoder by name" 0 verify "$in" "$in" --decode bf16 --decode-as modelopt
  check "it is the default" [ "$(digest "$in" --decode bf16)" == "$(digest "$in" --decode bf16 --decode-as modelopt)" ]
  check "the sign of zero is another one's" \
    [ "$(digest "$in" --decode bf16)" != "$(digest "$in" --decode bf16 --decode-as compressed-tensors)" ]
  check "ModelOpt rounds FP8's scales first" \
    [ "$(digest "$fp8" --decode bf16)" != "$(digest "$fp8" --decode bf16 --decode-as modelopt)" ]
  check "in fp32 there is nothing to round" \
    [ "$(digest "$fp8" --decode f32)" == "$(digest "$fp8" --decode f32 --decode-as modelopt)" ]
  status "decoded as another program does" 0 convert "$in" "$out" --decode bf16 --decode-as compressed-tensors -q
  check "the record says whose bits" grep -q '"decoded_as": "compressed-tensors"' "$out/glu_ckpt.json"
  status "the source decodes to it" 0 verify "$in" "$out" --decode bf16 --decode-as compressed-tensors
  status "by another decoder it differs" 1 verify "$in" "$out" --decode bf16
  says "what to do" "was decoded as compressed-tensors decodes; --decode-as compressed-tensors reads $in so"
  rm -rf "$out"
  status "it decodes no such format" 3 convert "$in" "$out" --decode bf16 --decode-as awq
  says "who does" "--decode-as takes modelopt, compressed-tensors for it"
  status "no such program" 2 convert "$in" "$out" --decode bf16 --decode-as vllm
  status "nothing says that weights are decoded" 2 convert "$in" "$out" --decode-as modelopt
  check "nothing is written" absent "$out"
}

# Experts run from decoded weights, on both sides: of whichever format.
quantized_forward() {
  local kind out=$WORK/quantized
  for kind in awq_int4 gptq_int4 ct_int4_g32 ct_int4_asym fp8_block128_ue8m0 fp8_channel fp8_per_tensor mxfp4_gpt_oss nvfp4_modelopt; do
    status "$kind: grouped and decoded" 0 convert "$TESTDATA/quantized/$kind" "$out" --decode bf16 --experts grouped -q
    status "$kind: the experts compute the same" 0 verify "$TESTDATA/quantized/$kind" "$out" --decode bf16 --forward
    rm -rf "$out"
  done
  # The command forward, from codes and from what they decode to.
  local hidden experts
  for kind in "$TESTDATA"/quantized/*/; do
    kind=$(basename "$kind")
    status "$kind: sizes" 0 inspect "$TESTDATA/quantized/$kind" --decode bf16 --json
    hidden=$(json_get 'v["hidden_size"]') experts=$(json_get 'v["num_experts"]')
    tokens "$WORK/x.safetensors" hidden="$hidden" experts="$experts"
    status "$kind: decoded" 0 convert "$TESTDATA/quantized/$kind" "$out" --decode bf16 -q
    status "$kind: forward from codes" 0 forward "$TESTDATA/quantized/$kind" --decode bf16 --layer 1 \
      --input "$WORK/x.safetensors" --output "$WORK/y.safetensors"
    status "$kind: forward of what they decode to" 0 forward "$out" --layer 1 --input "$WORK/x.safetensors" \
      --output "$WORK/y2.safetensors"
    check "$kind: the same bits" cmp -s "$WORK/y.safetensors" "$WORK/y2.safetensors"
    status "$kind: forward in fp32" 0 forward "$TESTDATA/quantized/$kind" --decode f32 --compute fp32 --layer 1 \
      --input "$WORK/x.safetensors" --output "$WORK/y2.safetensors" --overwrite
    rm -rf "$out" "$WORK"/{x,y,y2}.safetensors
  done
}

# Two scales where programs keep one: said, with numbers.
quantized_unequal_scales() {
  local proj=model.layers.1.mlp.experts.2.up_proj.weight_scale_2 out=$WORK/quantized
  "$PROGRAM" inspect "$TESTDATA/quantized/nvfp4_modelopt" >/dev/null 2>"$WORK/.err"
  check "ModelOpt made them equal" [ "$(grep -c "of their own" "$WORK/.err")" == 0 ]
  edited_checkpoint "$TESTDATA/quantized/nvfp4_modelopt" "$out" "t['$proj'][2] = b'\\0\\0\\0\\x3f'"
  status "one is another" 0 inspect "$out"
  says "which" "second scales (weight_scale_2) of their own, unequal in 1 of 8 experts, first in layer 1, expert 2:"
  says "and what" "and 0.5."
  status "regrouped" 0 convert "$out" "$out.grouped" --experts grouped --glu contiguous
  says "no one scale is exact" "keep a second scale (NVFP4) each" "and '$proj' 0.5, whose ratio is no power of two"
  status "in one tensor" 0 inspect "$out.grouped"
  says "as well" "unequal in 1 of 8 experts, first in layer 1, expert 2:"
  status "the same codes and scales" 0 verify "$out" "$out.grouped"
  rm -rf "$out" "$out.grouped"
  # FP8 per tensor: equal but for one pair, apart and in one tensor.
  edited_checkpoint "$TESTDATA/quantized/fp8_per_tensor" "$out" "for n in t:
  if n.endswith('w3.weight_scale') or n.endswith('w1.weight_scale'): t[n][2] = b'\0\x3c'
t['model.layers.1.block_sparse_moe.experts.3.w3.weight_scale'][2] = b'\x80\x3c'"
  status "one scale of FP8 is another" 0 inspect "$out"
  says "which of FP8" "scales (weight_scale) of their own, unequal in 1 of 8 experts, first in layer 1, expert 3: 0.0078125 and 0.015625"
  status "in one tensor of FP8" 0 convert "$out" "$out.grouped" --experts grouped --glu interleaved:32 -q
  status "in one tensor of FP8, as well" 0 inspect "$out.grouped"
  says "which of FP8, in one tensor" "unequal in 1 of 8 experts, first in layer 1, expert 3: 0.0078125 and 0.015625"
  rm -rf "$out" "$out.grouped"
  edited_checkpoint "$TESTDATA/quantized/nvfp4_modelopt" "$out" "import struct
g = t['${proj/up_proj/gate_proj}'][2]; t['$proj'][2] = struct.pack('<f', struct.unpack('<f', g)[0] * 4)"
  status "a power of two" 0 convert "$out" "$out.grouped" --experts grouped --glu interleaved:32 --allow-foreign-order
  says "becomes one" "in 1 expert their second scales (NVFP4) differ by powers of two: they become one"
  check "the record says so" grep -q '"second_scales": "one"' "$out.grouped/glu_ckpt.json"
  "$PROGRAM" inspect "$out.grouped" >/dev/null 2>"$WORK/.err"
  check "it is one" [ "$(grep -c "of their own" "$WORK/.err")" == 0 ]
  check "the decoded weights are the same" \
    [ "$(digest "$out.grouped" --decode bf16)" == "$(digest "$out" --decode bf16)" ]
  status "they are the same weights" 0 verify "$out" "$out.grouped"
  status "no difference" 0 diff "$out" "$out.grouped"
  rm -rf "$out" "$out.grouped"
}

quantized_moves() {
  local kind in out=$WORK/quantized
  for kind in awq_int4 ct_int4_g32 fp8_block128 fp8_block128_ue8m0 fp8_channel fp8_per_tensor mxfp4_gpt_oss \
    nvfp4_modelopt; do
    in=$TESTDATA/quantized/$kind
    status "$kind: codes and scales in another order" 0 convert "$in" "$out" --experts grouped --glu interleaved:32 \
      --allow-foreign-order -q
    status "$kind: they are the same" 0 verify "$in" "$out"
    status "$kind: no difference" 0 diff "$in" "$out"
    status "$kind: and back" 0 convert "$out" "$out.back" --experts indexed --glu split -q
    status "$kind: as it was" 0 verify "$in" "$out.back"
    check "$kind: without a record of decoding" [ "$(grep -c decoded_from "$out/glu_ckpt.json")" == 0 ]
    rm -rf "$out" "$out.back"
  done
  status "MXFP8 of powers of two" 0 convert "$TESTDATA/quantized/fp8_block128_ue8m0" "$out" --encode mxfp8 -q
  status "proved" 0 verify "$TESTDATA/quantized/fp8_block128_ue8m0" "$out" --encode mxfp8
  status "stored, they are others" 1 verify "$TESTDATA/quantized/fp8_block128_ue8m0" "$out"
  says "how to compare them" "--encode mxfp8 compares with"
  check "the same weights" \
    [ "$(digest "$out" --decode f32)" == "$(digest "$TESTDATA/quantized/fp8_block128_ue8m0" --decode f32)" ]
  status "once more" 0 convert "$out" "$out.again" --encode mxfp8 --force
  says "there is nothing to do" "--encode changes nothing"
  local gpt_oss=$TESTDATA/quantized/mxfp4_gpt_oss sum
  rm -rf "$out" "$out.again"
  status "MXFP8 of gpt-oss's" 0 convert "$gpt_oss" "$out" --encode mxfp8
  says "MXFP8 of gpt-oss's" "nothing loads the output as it is: no program reads gpt-oss's blocks as MXFP8"
  written model.layers.0.mlp.experts.gate_up_proj_blocks F8_E4M3 "[4, 192, 2, 32]"
  written model.layers.0.mlp.experts.gate_up_proj_scales U8 "[4, 192, 2]"
  "$PROGRAM" inspect "$out" >"$WORK/.out" 2>/dev/null
  check "MXFP8 of gpt-oss's: inspect names it" grep -q "^quantized   MXFP8" "$WORK/.out"
  check "MXFP8 of gpt-oss's: it has no problem" [ "$(grep -c "^problem" "$WORK/.out")" == 0 ]
  status "MXFP8 of gpt-oss's: proved" 0 verify "$gpt_oss" "$out" --encode mxfp8
  sum=$(digest "$gpt_oss" --decode bf16)
  check "MXFP8 of gpt-oss's: the same weights" [ "$(digest "$out" --decode bf16)" == "$sum" ]
  status "MXFP8 of gpt-oss's in another order" 0 convert "$out" "$out.again" --experts indexed --glu interleaved:32 \
    --allow-foreign-order -q
  check "MXFP8 of gpt-oss's in another order: the same weights" [ "$(digest "$out.again" --decode bf16)" == "$sum" ]
  status "MXFP8 of gpt-oss's: and back" 0 convert "$out.again" "$out.back" --experts grouped --glu interleaved:1 -q
  check "MXFP8 of gpt-oss's: every byte comes back" [ "$(tensors "$out")" == "$(tensors "$out.back")" ]
  rm -rf "$out.again" "$out.back"
  status "MXFP8 of gpt-oss's for Megatron" 0 convert "$out" "$out.back" --decode bf16 --to megatron -q
  status "MXFP8 of gpt-oss's computes the same" 0 verify "$gpt_oss" "$out.back" --decode bf16 --forward
  rm -rf "$out.back"
  status "other scales are no exponents" 4 convert "$TESTDATA/quantized/fp8_block128" "$out.no" --encode mxfp8 -q
  says "which" "weight_scale_inv': scale [0, 0] is no power of two"
  check "nothing is written" absent "$out.no"
  rm -rf "$out" "$out.again"
}

# moves_and_back NAME IN BACK OPTION...: codes and scales move, decode to the same numbers, and with the options BACK
# every byte comes back. What was written is left in $WORK/quantized.
moves_and_back() {
  local name=$1 in=$2 out=$WORK/quantized
  local -a back
  read -ra back <<<"$3"
  shift 3
  rm -rf "$out" "$out.back"
  status "$name" 0 convert "$in" "$out" "$@" -q || return
  status "$name: they are the same weights" 0 verify "$in" "$out"
  status "$name: no difference" 0 diff "$in" "$out"
  check "$name: they decode to the same numbers" \
    [ "$(digest "$in" --decode bf16)" == "$(digest "$out" --decode bf16)" ]
  status "$name: and back" 0 convert "$out" "$out.back" "${back[@]}" -q
  check "$name: every byte comes back" [ "$(tensors "$in")" == "$(tensors "$out.back")" ]
  rm -rf "$out.back"
}

# written NAME DTYPE SHAPE: $WORK/quantized has such a tensor.
written() { check "$1 is $2 $3" grep -q "^$1 $2 ${3//[/\\[} " <(tensors "$WORK/quantized"); }

# ModelOpt's FP8 in blocks: scales [n, 1, k, 1].
MODELOPT_BLOCKS="for n in [n for n in t if n.endswith('_scale_inv')]:
  d, (rows, cols), v = t.pop(n)
  t[n[:-4]] = [d, [rows, 1, cols, 1], v]
c['quantization_config'] = {'quant_method': 'modelopt', 'quant_algo': 'FP8_PB_WO', 'exclude_modules': ['lm_head']}"
MODELOPT_BLOCKS_GROUPED=${MODELOPT_BLOCKS/(rows, cols), v = t.pop(n)/(*e, rows, cols), v = t.pop(n)}
MODELOPT_BLOCKS_GROUPED=${MODELOPT_BLOCKS_GROUPED/[rows, 1/[*e, rows, 1}
quantized_modelopt_blocks() {
  local in=$WORK/quantized.in experts=model.layers.1.mlp.experts
  edited_checkpoint "$TESTDATA/quantized/fp8_block128" "$in" "$MODELOPT_BLOCKS"
  moves_and_back "ModelOpt's blocks in order" "$in" "--experts indexed --glu split" --glu contiguous
  written "$experts.1.gate_up_proj.weight_scale" F32 "[4, 1, 2, 1]"
  moves_and_back "ModelOpt's blocks grouped" "$in" "--experts indexed" --experts grouped
  written "$experts.up_proj_scale" F32 "[2, 2, 1, 2, 1]"
  moves_and_back "ModelOpt's blocks grouped and interleaved" "$in" "--experts indexed --glu split" --experts grouped \
    --glu interleaved:128 --allow-foreign-order
  written "$experts.gate_up_proj_scale" F32 "[2, 4, 1, 2, 1]"
  moves_and_back "ModelOpt's blocks renamed" "$in" "--naming hf:qwen3_moe --scope experts" --naming hf:mixtral \
    --scope experts
  written model.layers.1.block_sparse_moe.experts.1.w3.weight_scale F32 "[2, 1, 2, 1]"
  rm -rf "$in" "$WORK/quantized"
}

# Blocks that an order cuts get a scale each where quantization_config has a field for their rows.
quantized_finer_blocks() {
  local in=$WORK/quantized.in out=$WORK/quantized
  local blocks="for n in [n for n in t if n.endswith('_scale_inv')]: t[n[:-4]] = t.pop(n)
c['quantization_config'] = {'quant_method': 'compressed-tensors', 'format': 'float-quantized', 'ignore': ['lm_head'],
  'config_groups': {'group_0': {'targets': ['Linear'], 'weights': {'num_bits': 8, 'type': 'float', 'strategy': 'block',
  'symmetric': True, 'block_structure': [128, 128]}}}}"
  edited_checkpoint "$TESTDATA/quantized/fp8_block128" "$in" "$blocks"
  moves_and_back "compressed-tensors' blocks in order" "$in" "--experts indexed --glu split" --experts grouped \
    --glu contiguous
  rm -rf "$out"
  status "finer blocks" 0 convert "$in" "$out.finer" --experts grouped --glu interleaved:32 --allow-foreign-order
  says "finer blocks" "each scale is written for blocks of 32 rows" "block_structure in config.json says so"
  check "quantization_config says it" grep -q '"block_structure": \[32, 128\]' "$out.finer/config.json"
  status "finer blocks: they are the same weights" 0 verify "$in" "$out.finer"
  status "finer blocks: no difference" 0 diff "$in" "$out.finer"
  check "finer blocks: they decode to the same numbers" \
    [ "$(digest "$in" --decode bf16)" == "$(digest "$out.finer" --decode bf16)" ]
  status "finer blocks: and back" 0 convert "$out.finer" "$out" --experts indexed --glu split -q
  check "finer blocks: back, they decode to the same numbers" \
    [ "$(digest "$in" --decode bf16)" == "$(digest "$out" --decode bf16)" ]
  written model.layers.1.mlp.experts.1.up_proj.weight_scale F32 "[8, 2]"
  rm -rf "$out" "$out.finer"
  # Without a quantization_config the record alone says it, and the text stays what it is.
  edited_checkpoint "$TESTDATA/quantized/fp8_block128" "$in" "c['quantization_config'] = None"
  status "blocks that only the record says" 0 convert "$in" "$out" --experts grouped --glu interleaved:32 \
    --allow-foreign-order
  says "blocks that only the record says" "There is no quantization_config to say so"
  check "config.json is as it was" python3 -c "import json, sys; a, b = (json.load(open(p)) for p in sys.argv[1:])
sys.exit(a != b)" "$in/config.json" "$out/config.json"
  check "blocks that only the record says: they decode to the same numbers" \
    [ "$(digest "$in" --decode bf16)" == "$(digest "$out" --decode bf16)" ]
  rm -rf "$out"
  edited_checkpoint "$TESTDATA/quantized/fp8_block128" "$in" "$MODELOPT_BLOCKS"
  status "ModelOpt has no field for it" 4 convert "$in" "$out" --glu interleaved:32 -q
  says "ModelOpt has no field for it" "weight_scale': each scale is for 128 x 128 weights" \
    "cut into blocks of 32 rows" "quantization_config of ModelOpt has no field for the rows of a block" \
    "Keep K, or F, a multiple of 128" "--decode bf16"
  check "nothing is written" absent "$out"
  rm -rf "$in"
}

# A fused FC1 of 2 x 320 rows: as one matrix it has 5 rows of scales, one of them for gate and for up, and from gate and
# up behind each other 6.
SHARED_BLOCKS="import hashlib
def codes(n, size): return bytes(b % 120 + 128 * (b // 128) for b in hashlib.shake_256(n.encode()).digest(size))
def put(n, shape, grid):
  size = lambda s: s[0] * s[1] * s[2]
  t[n] = ['F8_E4M3', shape, codes(n, size(shape))]
  t[n + '_scale_inv'] = ['F32', grid, struct.pack(f'<{size(grid)}f', *((len(n) + 7 * i) / 4096 for i in range(size(grid))))]
layers = {n[:n.index('.experts.') + 9] for n in t if '.mlp.experts.' in n}
for n in [n for n in t if '.mlp.experts.' in n]: del t[n]
for base in sorted(layers):
  put(base + 'gate_up_proj', [2, 640, 144], [2, rows, 2])
  put(base + 'down_proj', [2, 144, 320], [2, 2, 3])
c['moe_intermediate_size'] = 320"
quantized_shared_blocks() {
  local in=$WORK/quantized.in out=$WORK/quantized rows sum order experts=model.layers.1.mlp.experts
  for rows in 5 6; do
    edited_checkpoint "$TESTDATA/quantized/fp8_block128" "$in" "rows = $rows
$SHARED_BLOCKS"
    sum=$(digest "$in" --decode bf16)
    for order in "--experts indexed" "--experts indexed --glu split" "--glu interleaved:64 --allow-foreign-order" \
      "--glu interleaved:32 --allow-foreign-order"; do
      # shellcheck disable=SC2086
      status "$rows rows, $order" 0 convert "$in" "$out" $order
      status "$rows rows, $order: the same weights" 0 verify "$in" "$out"
      status "$rows rows, $order: no difference" 0 diff "$in" "$out"
      check "$rows rows, $order: the same numbers" [ "$(digest "$out" --decode bf16)" == "$sum" ]
      status "$rows rows, $order: and back" 0 convert "$out" "$out.back" --experts grouped --glu contiguous --force -q
      check "$rows rows, $order: back, the same numbers" [ "$(digest "$out.back" --decode bf16)" == "$sum" ]
      rm -rf "$out" "$out.back"
    done
    status "$rows rows: grouped otherwise alone" 0 convert "$in" "$out" --experts indexed -q
    written "$experts.1.gate_up_proj.weight_scale_inv" F32 "[$rows, 2]"
    status "$rows rows: grouped again" 0 convert "$out" "$out.back" --experts grouped -q
    check "$rows rows: every byte comes back" [ "$(tensors "$in")" == "$(tensors "$out.back")" ]
    rm -rf "$out" "$out.back"
    status "$rows rows decoded for Megatron" 0 convert "$in" "$out" --decode bf16 --to megatron --glu interleaved:32 -q
    status "$rows rows decoded: it computes the same" 0 verify "$in" "$out" --decode bf16 --forward
    rm -rf "$out"
    status "$rows rows to split" 0 convert "$in" "$out" --experts indexed --glu split
    if [[ $rows == 5 ]]; then
      says "a finer grid" "each scale is written for blocks of 64 rows: 216 bytes more" "weight_block_size in config.json"
      check "the record names it" grep -q '"scale_rows": "64"' "$out/glu_ckpt.json"
      check "config.json, too" grep -q '"weight_block_size": \[64, 128\]' "$out/config.json"
      written "$experts.1.up_proj.weight_scale_inv" F32 "[5, 2]"
    else
      # Both have whole blocks of their own.
      check "no finer grid" [ "$(grep -c '"scale_rows"' "$out/glu_ckpt.json")" == 0 ]
      written "$experts.1.up_proj.weight_scale_inv" F32 "[3, 2]"
    fi
    # The block that both share is the third of the first.
    edited_checkpoint "$in" "$in.other" "v = t['$experts.gate_up_proj_scale_inv']; v[2] = v[2][:16] + v[2][24:32] + v[2][16:24] + v[2][32:]"
    status "$rows rows, two of them exchanged" 1 verify "$in.other" "$out"
    has "$OUT" "layer 1" && has "$OUT" "expert 0" && pass || bad "verify does not say where: $OUT"
    rm -rf "$in.other" "$out"
  done
  edited_checkpoint "$TESTDATA/quantized/fp8_block128" "$in" "rows = 7
$SHARED_BLOCKS"
  status "no such number of blocks" 3 convert "$in" "$out" --decode bf16 -q
  says "no such number of blocks" "gate_up_proj_scale_inv': [2, 7, 2] scales" "[2, 640, 144]; expected [2, 5, 2]"
  edited_checkpoint "$TESTDATA/quantized/fp8_block128" "$in" "rows = 5
$SHARED_BLOCKS
$MODELOPT_BLOCKS_GROUPED"
  status "ModelOpt's have no field for finer ones" 4 convert "$in" "$out" --experts indexed --glu split -q
  says "ModelOpt's have no field for finer ones" "each scale is for 128 x 128 weights" "blocks of 64 rows"
  check "nothing is written" absent "$out"
  rm -rf "$in"
}

# compressed-tensors' groups of modules in several forms: FC2 in blocks, all else with a scale for each channel.
GROUPS_BY_TARGETS="weights = {'num_bits': 8, 'type': 'float', 'symmetric': True}
for n in [n for n in t if 'experts' in n and n.endswith('down_proj.weight')]:
  rows, cols = t[n][1]
  cells = [-(-rows // 128), -(-cols // 128)]
  t[n + '_scale'] = ['F32', cells, struct.pack(f'<{cells[0] * cells[1]}f', *((len(t) + 7 * i) / 512 for i in range(cells[0] * cells[1])))]
c['quantization_config'] |= {'format': 'float-quantized', 'config_groups': {
  'channels': {'targets': ['Linear'], 'weights': weights | {'strategy': 'channel'}},
  'blocks': {'targets': [target], 'weights': weights | {'strategy': 'block', 'block_structure': [128, 128]}}}}"
quantized_groups() {
  local in=$WORK/quantized.in out=$WORK/quantized sum
  edited_checkpoint "$TESTDATA/quantized/fp8_channel" "$in" "target = 're:.*experts.*\\\\.down_proj\$'
$GROUPS_BY_TARGETS"
  "$PROGRAM" inspect "$in" >"$WORK/.out" 2>/dev/null
  check "groups by targets: inspect names both" grep -q "^quantized .*FP8 in 128x128 blocks, FP8 per channel" "$WORK/.out"
  moves_and_back "groups by targets, grouped" "$in" "--experts indexed --glu split" --experts grouped --glu contiguous
  sum=$(digest "$in" --decode bf16)
  rm -rf "$out"
  status "groups by targets for Megatron" 0 convert "$in" "$out" --decode bf16 --to megatron --glu interleaved:8 -q
  status "groups by targets for Megatron, it computes the same" 0 verify "$in" "$out" --decode bf16 --forward
  check "groups by targets for Megatron, the digest" [ "$(digest "$out")" == "$sum" ]
  rm -rf "$out"
  edited_checkpoint "$TESTDATA/quantized/fp8_channel" "$in" "target = 're:.*experts.*proj\$'
$GROUPS_BY_TARGETS"
  status "another group's form" 3 convert "$in" "$out" --decode bf16 -q
  says "another group's form" "weight_scale': [" "expected ["
  edited_checkpoint "$TESTDATA/quantized/fp8_channel" "$in" "target = 're:.*nothing.*'
$GROUPS_BY_TARGETS"
  status "a group that means nothing" 3 convert "$in" "$out" --decode bf16 -q
  says "a group that means nothing" "down_proj.weight_scale': [1, 1] scales" \
    "group 'channels' of quantization_config, whose targets mean it (Linear), has one scale for each channel"
  rm -rf "$in"
}

# compressed-tensors' INT4 with reordered columns: weight_g_idx.
quantized_reordered_columns() {
  local in=$WORK/quantized.in out=$WORK/quantized experts=model.layers.1.mlp.experts
  local reordered="for n in [n for n in t if n.endswith('weight_packed')]:
  cols = 8 * t[n][1][1]
  shift = 5 if 'down_proj' in n else 3 * int(n.split('.experts.')[1][0])
  t[n[:-6] + 'g_idx'] = ['I32', [cols], struct.pack(f'<{cols}i', *((7 * i + shift) % cols // 32 for i in range(cols)))]"
  edited_checkpoint "$TESTDATA/quantized/ct_int4_asym" "$in" "$reordered"
  moves_and_back "reordered columns fused" "$in" "--experts indexed --glu split" --glu contiguous
  written "$experts.1.gate_up_proj.weight_g_idx" I32 "[2, 64]"
  moves_and_back "reordered columns grouped" "$in" "--experts indexed" --experts grouped
  written "$experts.down_proj_weight_g_idx" I32 "[5, 96]"
  moves_and_back "reordered columns interleaved" "$in" "--experts indexed --glu split" --experts grouped \
    --glu interleaved:16 --allow-foreign-order
  written "$experts.gate_up_proj_weight_g_idx" I32 "[5, 2, 64]"
  moves_and_back "reordered columns renamed" "$in" "--naming hf:deepseek_v3 --scope experts" --naming hf:mixtral \
    --scope experts
  written model.layers.1.block_sparse_moe.experts.1.w3.weight_g_idx I32 "[64]"
  # Packed codes keep the axes of their format, so a naming that turns its experts turns no column.
  edited_checkpoint "$in" "$in.other" "for n in [n for n in t if 'shared' in n]: del t[n]"
  rm -rf "$out"
  status "beside turned experts" 0 convert "$in.other" "$out" --naming hf:qwen3_vl_moe --scope experts -q
  written model.language_model.layers.1.mlp.experts.1.up_proj_weight_g_idx I32 "[64]"
  status "beside turned experts: and back" 0 convert "$out" "$out.back" --naming hf:deepseek_v3 --scope experts -q
  check "beside turned experts: every byte comes back" [ "$(tensors "$in.other")" == "$(tensors "$out.back")" ]
  rm -rf "$out.back"
  edited_checkpoint "$in" "$in.other" "v = t['$experts.3.up_proj.weight_g_idx']; v[2] = v[2][:160] + b'\\1' + v[2][161:]
w = t['$experts.3.gate_proj.weight_g_idx']; w[2] = w[2][:160] + b'\\0' + w[2][161:]"
  rm -rf "$out"
  status "reordered apart, they stay apart" 0 convert "$in.other" "$out" --experts grouped -q
  rm -rf "$out"
  for command in plan convert; do
    status "two orders of columns in one tensor" 4 "$command" "$in.other" "$out" --glu contiguous -q
    says "two orders of columns in one tensor" "'$experts.3.gate_proj.weight_g_idx' has column 40 in group 0, and" \
      "'$experts.3.up_proj.weight_g_idx' in group 1 (expert 3)" "Keep gate and up apart"
  done
  check "nothing is written" absent "$out"
  rm -rf "$in" "$in.other"
}

# DeepSeek-V4: experts as bytes of two FP4 codes, a shared expert in FP8 blocks, and scales (E8M0) called `scale`.
quantized_scale_words() {
  local in=$WORK/quantized.in out=$WORK/quantized
  local v4="blocks = {n: t[n] for n in t if '.layers.1.mlp.experts.' in n and n.endswith('proj.weight')}
words = {'gate_proj': 'w1', 'up_proj': 'w3', 'down_proj': 'w2'}
t.clear()
def put(prefix, dtype, rows, cols, codes, block, kept):
  cells = -(-rows // block[0]), -(-cols // block[1])
  t[prefix + 'weight'] = [dtype, [rows, kept], codes[:rows * kept]]
  t[prefix + 'scale'] = ['F8_E8M0', [*cells], bytes(100 + (7 * i + len(t)) % 40 for i in range(cells[0] * cells[1]))]
for n, (d, (rows, cols), v) in blocks.items():
  expert, word = n.split('.')[5], words[n.split('.')[6]]
  put(f'layers.0.ffn.experts.{expert}.{word}.', 'I8', rows, cols, v, (1, 32), cols // 2)
  if expert == '0': put(f'layers.0.ffn.shared_experts.{word}.', d, rows, cols, v, (128, 128), cols)
  if expert != '2': put(f'mtp.0.ffn.experts.{expert}.{word}.', 'I8', rows, cols, v[9:], (1, 32), cols // 2)
for k in set(c) - {'n_routed_experts', 'quantization_config'}: del c[k]
c |= {'model_type': 'deepseek_v4', 'num_hidden_layers': 1}"
  edited_checkpoint "$TESTDATA/quantized/fp8_block128_ue8m0" "$in" "$v4"
  moves_and_back "V4's scales grouped" "$in" "--experts indexed --glu split" --experts grouped --glu interleaved:8
  written layers.0.ffn.experts.w13_scale_inv F8_E8M0 "[3, 384, 5]"
  moves_and_back "V4's scales renamed" "$in" "--naming hf:deepseek_v4 --scope experts" --naming hf:deepseek_v3 \
    --scope experts
  written model.layers.0.mlp.experts.1.up_proj.weight_scale_inv F8_E8M0 "[192, 5]"
  written model.layers.0.mlp.shared_experts.down_proj.weight_scale_inv F8_E8M0 "[2, 2]"
  written model.layers.1.mlp.experts.1.down_proj.weight_scale_inv F8_E8M0 "[160, 6]"
  moves_and_back "V4's scales renamed, in one tensor" "$in" \
    "--naming hf:deepseek_v4 --scope experts --experts indexed --glu split" --naming hf:deepseek_v3 --scope experts \
    --experts grouped --glu contiguous
  edited_checkpoint "$in" "$in.routed" "for n in [n for n in t if 'shared' in n]: del t[n]"
  moves_and_back "V4's scales under Qwen3's names" "$in.routed" "--naming hf:deepseek_v4 --scope experts" \
    --naming hf:qwen3_moe --scope experts
  written model.layers.0.mlp.experts.1.gate_proj.weight_scale_inv F8_E8M0 "[192, 5]"
  # What somebody calls weight_scale_inv under V4's names stays so.
  edited_checkpoint "$in" "$in.routed" "for n in [n for n in t if n.endswith('.scale')]:
  t[n[:-5] + 'weight_scale_inv'] = t.pop(n)"
  moves_and_back "V4's names with the common word" "$in.routed" "--glu split" --glu contiguous
  written layers.0.ffn.experts.1.w13.weight_scale_inv F8_E8M0 "[384, 5]"
  edited_checkpoint "$in" "$in.routed" "n = 'layers.0.ffn.experts.1.w1.'; t[n + 'weight_scale_inv'] = t.pop(n + 'scale')"
  status "two words for scales" 4 plan "$in.routed" "$out.no" --glu contiguous -q
  says "two words for scales" "some of its scales are called"
  rm -rf "$in" "$in.routed" "$out"
}

# A file that --from-config names says what the weights are, as one beside them does.
quantized_named_config() {
  local kind in
  for kind in awq_int4 fp8_block128; do
    in=$TESTDATA/quantized/$kind
    rm -rf "$WORK/bare" "$WORK/direct" "$WORK/named"
    cp -r "$in" "$WORK/bare"
    rm "$WORK/bare/config.json"
    status "$kind: decoded" 0 convert "$in" "$WORK/direct" --decode bf16 -q
    status "$kind: decoded by a named config.json" 0 convert "$WORK/bare" "$WORK/named" --decode bf16 \
      --from-config "$in/config.json" -q
    check "$kind: a named config.json decodes to the same bytes" same_tensors "$WORK"/direct/*.safetensors "$WORK"/named/*.safetensors
  done
  # What AutoGPTQ, AutoAWQ and ModelOpt say in files of their own is not true of a decoded model.
  rm -rf "$WORK/bare" "$WORK/direct" "$WORK/named"
  cp -r "$TESTDATA/quantized/gptq_int4" "$WORK/bare"
  for kind in quantize_config.json quant_config.json generation_config.json; do echo '{"bits": 4}' >"$WORK/bare/$kind"; done
  status "files beside config.json: decoded" 0 convert "$WORK/bare" "$WORK/direct" --decode bf16 -q
  check "files beside config.json: those of the quantization are left" \
    [ "$(cd "$WORK/direct" && ls -- *config.json | xargs)" == "config.json generation_config.json" ]
  status "files beside config.json: moved" 0 convert "$WORK/bare" "$WORK/named" --force -q
  check "files beside config.json: codes keep them" [ -e "$WORK/named/quantize_config.json" ]
}

quantized_refusals() {
  local proj=model.layers.1.mlp.experts.1.up_proj kind
  refuses_quantized 3 fp8_block128 "del t['$proj.weight_scale_inv']" "'$proj.weight': F8_E4M3 codes without scales"
  refuses_quantized 3 fp8_block128 "del t['$proj.weight']" "'$proj.weight_scale_inv': F32 [2, 2], scales of no quantized weight"
  refuses_quantized 3 fp8_block128 "c['quantization_config']['weight_block_size'] = [64, 64]" "expected [3, 4]"
  refuses_quantized 3 fp8_block128 "c['quantization_config']['quant_method'] = 'awq'" "quantization_config says 'awq'"
  refuses_quantized 3 awq_int4 "c['quantization_config']['quant_method'] = 'fp8'" "which only quantization_config tells"
  refuses_quantized 3 awq_int4 "del c['quantization_config']" "which only quantization_config tells"
  refuses_quantized 3 awq_int4 "c['quantization_config']['group_size'] = 64" "in groups of 64"
  refuses_quantized 3 awq_int4 "c['quantization_config']['version'] = 'gemv'" "version 'gemv'"
  refuses_quantized 3 awq_int4 "c['quantization_config']['bits'] = 8" "weights of 8 bits"
  refuses_quantized 3 nvfp4_modelopt "del t['$proj.weight_scale_2']" "'$proj.weight': U8 codes without scales"
  refuses_quantized 3 nvfp4_modelopt "t['$proj.weight_scale_2'][1] = [1, 1, 0]; t['$proj.weight_scale_2'][2] = b''" \
    "'$proj.weight_scale_2'"
  refuses_quantized 3 ct_int4_g32 "c['quantization_config']['config_groups']['group_0']['weights']['group_size'] = 16" \
    "expected"
  refuses_quantized 4 fp8_block128 "t['$proj.weight_scale_inv'][2] = b'\\0\\0\\xc0\\x7f' * 4" \
    "a scale of '$proj.weight' is NaN"
  refuses_quantized 4 mxfp4_gpt_oss "v = t['model.layers.0.mlp.experts.down_proj_scales']; v[2] = v[2][:-1] + b'\\xff'" \
    "down_proj_scales'"
  # Quantized matrices beside unquantized ones are a whole model: it decodes, but its codes do not move.
  edited_checkpoint "$TESTDATA/quantized/ct_int4_g32" "$WORK/quantized.in" "n = '${proj/up/down}.weight'
rows, columns = struct.unpack('<2q', t.pop(n + '_shape')[2])
del t[n + '_packed'], t[n + '_scale']
t[n] = ['BF16', [rows, columns], bytes(2 * rows * columns)]"
  status "one matrix unquantized" 4 convert "$WORK/quantized.in" "$WORK/quantized" --experts grouped -q
  says "one matrix unquantized" "holds codes" "are not quantized" "--decode bf16" "[not-exact]"
  check "one matrix unquantized: nothing is written" absent "$WORK/quantized"
  rm -rf "$WORK/quantized.in"
  # Without --decode the way out is named.
  for kind in mxfp4_gpt_oss nvfp4_modelopt awq_int4 ct_int4_g32 fp8_block128; do
    "$PROGRAM" convert "$TESTDATA/quantized/$kind" "$WORK/quantized" --to megatron -q >"$WORK/.out" 2>"$WORK/.err"
    check "$kind without --decode is refused" [ $? != 0 ]
    check "$kind: --decode is named: $(head -c 400 "$WORK/.err")" grep -qF -- "--decode bf16" "$WORK/.err"
    check "$kind: nothing is written" absent "$WORK/quantized"
  done
}
