# Quantized experts that their naming turns. Sourced by run_cli.sh; quantized.sh has what these share with others.

# Experts that their naming turns: Llama-4's FP8 as transformers writes it (scales of FC1 [E, 1, 2F], of FC2 [E, H, 1]),
# with one scale for gate and one for up, and what ModelOpt packed and then turned.
TURNED="import hashlib
def codes(n, size): return bytes(b % 120 + 128 * (b // 128) for b in hashlib.shake_256(n.encode()).digest(size))
def floats(n, count): return struct.pack(f'<{count}f', *((3 + 7 * i + len(n)) / 4096 for i in range(count)))
experts = [n for n in t if n.endswith(('experts.gate_up_proj', 'experts.down_proj'))]
"
TURNED_CHANNELS="$TURNED
for n in experts:
  e, rows, cols = t[n][1]
  t[n] = ['F8_E4M3', [e, rows, cols], codes(n, e * rows * cols)]
  t[n + '_scale'] = ['F32', [e, 1, cols] if 'gate' in n else [e, cols, 1], floats(n, e * cols)]
c['quantization_config'] = {'quant_method': 'fbgemm_fp8', 'modules_to_not_convert': ['lm_head']}"
TURNED_TENSORS="$TURNED
for n in experts:
  e, rows, cols = t[n][1]
  t[n] = ['F8_E4M3', [e, rows, cols], codes(n, e * rows * cols)]
  t[n + '_weight_scale'] = ['F32', [e, 2] if 'gate' in n else [e], floats(n, e * (2 if 'gate' in n else 1))]
c['quantization_config'] = {'quant_method': 'modelopt', 'quant_algo': 'FP8', 'exclude_modules': ['lm_head']}"
TURNED_NVFP4="$TURNED
for n in experts:
  e, rows, cols = t[n][1]
  t[n] = ['U8', [e, rows // 2, cols], codes(n, e * rows * cols // 2)]
  t[n + '_weight_scale'] = ['F8_E4M3', [e, rows // 16, cols], codes(n + 's', e * rows * cols // 16)]
  t[n + '_weight_scale_2'] = ['F32', [e, 2] if 'gate' in n else [e], floats(n, e * (2 if 'gate' in n else 1))]
  t[n + '_input_scale'] = ['F32', [e], floats(n, e)]
c['quantization_config'] = {'quant_method': 'modelopt', 'quant_algo': 'NVFP4', 'exclude_modules': ['lm_head']}"

# As ModelOpt writes Llama-4: one second scale for all experts.
TURNED_NVFP4_OF_ALL="$TURNED_NVFP4
for n in experts:
  for word in '_weight_scale_2', '_input_scale': t[n + word] = ['F32', [], floats(n, 1)]"

# decodes_turned NAME MODEL CODE FORMAT SPOILED: what CODE makes of testdata/hf/MODEL decodes, whatever the layout, and
# with two scales of the first tensor that ends in SPOILED exchanged it is another model.
decodes_turned() {
  local name=$1 in=$WORK/quantized.in out=$WORK/quantized sum
  edited_checkpoint "$TESTDATA/hf/$2" "$in" "$3" || { bad "$name: no such edit" && return; }
  check "$name: inspect finds no fault" "$PROGRAM" inspect "$in" >"$WORK/.out" 2>/dev/null
  check "$name: inspect names $4" grep -q "^quantized   $4" "$WORK/.out"
  sum=$(digest "$in" --decode bf16)
  status "$name: decoded" 0 convert "$in" "$out" --decode bf16 -q
  status "$name: the same by another road" 0 verify "$in" "$out" --decode bf16
  check "$name: under the names of the unquantized model" \
    [ "$(tensors "$out" | sed 's/ [0-9a-f]*$//')" == "$(tensors "$TESTDATA/hf/$2" | sed 's/ [0-9a-f]*$//')" ]
  check "$name: the digest is that of the source" [ "$(digest "$out")" == "$sum" ]
  tokens "$WORK/x.safetensors"
  status "$name: forward from codes" 0 forward "$in" --decode bf16 --layer 1 --activation swiglu \
    --input "$WORK/x.safetensors" --output "$WORK/y.safetensors"
  status "$name: forward of what they decode to" 0 forward "$out" --layer 1 --activation swiglu \
    --input "$WORK/x.safetensors" --output "$WORK/y2.safetensors"
  check "$name: the same bits" cmp -s "$WORK/y.safetensors" "$WORK/y2.safetensors"
  rm -rf "$out" "$WORK"/{x,y,y2}.safetensors
  status "$name: in fp32" 0 convert "$in" "$out" --decode f32 -q
  status "$name: in fp32, the same by another road" 0 verify "$in" "$out" --decode f32
  rm -rf "$out"
  status "$name: for Megatron" 0 convert "$in" "$out" --decode bf16 --to megatron --glu interleaved:32 -q
  status "$name: for Megatron, it computes the same" 0 verify "$in" "$out" --decode bf16 --forward
  check "$name: for Megatron, the digest is that of the source" [ "$(digest "$out")" == "$sum" ]
  edited_checkpoint "$in" "$in.other" "n = next(n for n in t if n.endswith('$5')); d, s, v = t[n]
size = 1 if d == 'F8_E4M3' else 4
t[n] = [d, s, v[size:2 * size] + v[:size] + v[2 * size:]]"
  status "$name: two scales exchanged" 1 verify "$in.other" "$out" --decode bf16
  has "$OUT" "layer 0" && has "$OUT" "expert 0" && pass || bad "$name: verify does not say where: $OUT"
  rm -rf "$in" "$in.other" "$out"
}

quantized_turned() {
  local in=$WORK/quantized.in out=$WORK/quantized
  edited_checkpoint "$TESTDATA/hf/llama4_text" "$in" "$TURNED_NVFP4
n = 'model.layers.%d.feed_forward.experts.gate_up_proj_weight_scale_2'
t[n % 0][2] = struct.pack('<8f', 1, 1, 2, 2, 3, 3, 4, 4)
t[n % 1][2] = struct.pack('<8f', 1, 1, 2, 2, 3, 5, 4, 4)"
  "$PROGRAM" inspect "$in" >"$WORK/.out" 2>"$WORK/.err"
  check "inspect names turned grids" \
    grep -q "^scales      F8_E4M3, one for 16 x 1 weights, and F32, one for each gate and up" "$WORK/.out"
  ERR=$(<"$WORK/.err")
  says "a second scale of its own" "second scales (model.layers.1.feed_forward.experts.gate_up_proj_weight_scale_2)" \
    "unequal in 1 of 8 experts, first in expert 2 of it: 3 and 5"
  rm -rf "$in"
  decodes_turned "turned channels" llama4_text "$TURNED_CHANNELS" "FP8 per channel" gate_up_proj_scale
  decodes_turned "turned channels of FC2" llama4_text "$TURNED_CHANNELS" "FP8 per channel" down_proj_scale
  decodes_turned "a scale for gate and one for up" llama4_text "$TURNED_TENSORS" "FP8 per tensor" gate_up_proj_weight_scale
  decodes_turned "the same in another order" gpt_oss "$TURNED_TENSORS" "FP8 per tensor" gate_up_proj_weight_scale
  decodes_turned "turned NVFP4" llama4_text "$TURNED_NVFP4" NVFP4 down_proj_weight_scale
  decodes_turned "turned NVFP4 with one second scale" llama4_text "$TURNED_NVFP4_OF_ALL" NVFP4 gate_up_proj_weight_scale
  decodes_turned "turned NVFP4 of gate and up" gpt_oss "$TURNED_NVFP4" NVFP4 gate_up_proj_weight_scale_2
  # Codes that share bytes keep the axes of their format; what they decode to has those of the naming.
  edited_checkpoint "$TESTDATA/quantized/ct_int4_asym" "$in" "for n in [n for n in t if 'shared' in n]: del t[n]"
  status "INT4 beside turned experts" 0 convert "$in" "$out" --naming hf:qwen3_vl_moe --scope experts -q
  check "INT4 beside turned experts: it decodes to the same numbers" \
    [ "$(digest "$in" --decode bf16)" == "$(digest "$out" --decode bf16)" ]
  rm -rf "$in" "$out"
  edited_checkpoint "$TESTDATA/quantized/mxfp4_gpt_oss" "$in" "for n in [n for n in t if 'bias' in n]: del t[n]"
  status "gpt-oss's under other names" 0 convert "$in" "$out" --naming hf:qwen3_moe --scope experts --allow-foreign-order \
    --force -q
  check "gpt-oss's under other names: they decode to the same numbers" \
    [ "$(digest "$in" --decode bf16)" == "$(digest "$out" --decode bf16)" ]
  rm -rf "$in" "$out"
}
