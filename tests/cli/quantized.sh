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
  for kind in "${!formats[@]}"; do
    "$PROGRAM" inspect "$TESTDATA/quantized/$kind" >"$WORK/.out" 2>/dev/null
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
  says "how to compare them" "was decoded from FP8 in 128x128 blocks; --decode compares with what $in decodes to"
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
  status "other scales are no exponents" 4 convert "$TESTDATA/quantized/fp8_block128" "$out.no" --encode mxfp8 -q
  says "which" "weight_scale_inv': scale [0, 0] is no power of two"
  check "nothing is written" absent "$out.no"
  rm -rf "$out" "$out.again"
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
  # Without --decode the way out is named.
  for kind in mxfp4_gpt_oss nvfp4_modelopt awq_int4 ct_int4_g32 fp8_block128; do
    "$PROGRAM" convert "$TESTDATA/quantized/$kind" "$WORK/quantized" --to megatron -q >"$WORK/.out" 2>"$WORK/.err"
    check "$kind without --decode is refused" [ $? != 0 ]
    check "$kind: --decode is named: $(head -c 400 "$WORK/.err")" grep -qF -- "--decode bf16" "$WORK/.err"
    check "$kind: nothing is written" absent "$WORK/quantized"
  done
}
