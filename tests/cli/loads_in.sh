# `loads in` of forms that no program stores, and of families that are not mapped.

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
