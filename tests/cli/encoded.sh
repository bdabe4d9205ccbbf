# --encode: what it costs is said, it is proved, and it is compared. Sourced by run_cli.sh.

quantized_encodes() {
  local in=$TESTDATA/whole/qwen3_moe/hf out=$WORK/quantized word
  for word in fp8:128x128 "fp8:128x128 --encode-as deepgemm" "fp8:128x128 --encode-as compressed-tensors" \
    "fp8:128x128 --encode-as modelopt" fp8:128x128:ue8m0 fp8:channel "fp8:channel --encode-as slime" nvfp4 \
    "nvfp4 --encode-as compressed-tensors"; do
    local -a encode=(--encode)
    read -ra encode <<<"--encode $word"
    rm -rf "$out"
    status "$word: planned" 0 plan "$in" "$out" "${encode[@]}"
    says "$word: with what it costs" "attention: SNR "
    status "$word" 0 convert "$in" "$out" "${encode[@]}"
    says "$word: with what it costs" "routed experts: SNR "
    status "$word: encoded again, by another road" 0 verify "$in" "$out" "${encode[@]}"
    status "$word: stored, they are others" 1 verify "$in" "$out"
    says "$word: how to compare them" "--encode ${word%% *}"
    says "$word: how to measure what was lost" "\`glu-ckpt diff $in $out --decode bf16\` measures what it lost"
    status "$word: diff as they are stored" 1 diff "$in" "$out"
    check "$word: diff leads to what measures: $ERR" eval 'has "$ERR" "; --decode bf16 compares the numbers that the codes stand for" && ! has "$ERR" "--encode"'
    status "$word: diff measures" 1 diff "$in" "$out" --decode bf16
    check "$word: diff measures: no note is left: $ERR$OUT" eval '[ -z "$ERR" ] && has "$OUT" ", 0 only in A, 0 only in B"'
    status "$word: inspected" 0 inspect "$out" --strict
    status "$word: decoded" 0 convert "$out" "$out.back" --decode bf16 -q
    status "$word: once more" 4 convert "$out" "$out.again" "${encode[@]}"
    rm -rf "$out.back"
  done
  rm -rf "$out"
  status "in another layout" 0 convert "$in" "$out" --encode fp8:channel --experts grouped \
    --glu contiguous -q
  status "in another layout: encoded again" 0 verify "$in" "$out" --encode fp8:channel
  rm -rf "$out"
  status "a router stays as it is" 0 convert "$in" "$out" --encode fp8:128x128 -q
  written model.layers.0.mlp.gate.weight BF16 "[8, 64]"
  written model.layers.0.mlp.experts.0.down_proj.weight F8_E4M3 "[64, 32]"
  written model.layers.0.mlp.experts.0.down_proj.weight_scale_inv F32 "[1, 1]"
  check "the configuration says which" grep -q '"modules_to_not_convert": \["lm_head", "model.layers.0.mlp.gate"' \
    "$out/config.json"
  rm -rf "$out"
  local gptq=$TESTDATA/quantized/gptq_int4
  status "codes of other codes" 0 convert "$gptq" "$out" --decode bf16 --encode fp8:128x128 -q
  status "codes of other codes: verify" 1 verify "$gptq" "$out"
  check "codes of other codes: verify: one way: $ERR" eval 'has "$ERR" "; --decode bf16 --encode fp8:128x128 --encode-as slime compares with" && ! has "$ERR" "was decoded from"'
  status "codes of other codes: the way" 0 verify "$gptq" "$out" --decode bf16 --encode fp8:128x128 --encode-as slime
  status "codes of other codes: diff" 1 diff "$gptq" "$out"
  check "codes of other codes: diff: one way: $ERR" eval 'has "$ERR" "holds others, so they are compared as different tensors; --decode bf16" && ! has "$ERR" "decode f32"'
  rm -rf "$out"
  status "codes are not encoded again" 3 convert "$TESTDATA/quantized/fp8_channel" "$out" --encode fp8:128x128
  says "what to do" "--decode bf16 beside it"
  status "rows that are no multiple of a cell" 4 convert "$in" "$out" --encode mxfp4
  says "which" "o_proj.weight': rows of 80 weights are not a multiple of 32, the weights of a row that share a scale in mxfp4"
  local megatron=$WORK/encoded.megatron oss=$TESTDATA/hf/gpt_oss family glu=(--glu interleaved:8)
  for family in qwen3_moe deepseek_v3 qwen3_next; do
    in=$TESTDATA/whole/$family/hf
    status "$family: for Megatron" 0 convert "$in" "$megatron" --to megatron "${glu[@]}" -q
    status "$family: codes of Megatron's" 0 convert "$megatron" "$out" --to hf --encode fp8:128x128 -q
    status "$family: codes of Hugging Face's" 0 convert "$in" "$out.hf" --encode fp8:128x128 -q
    check "$family: every byte is the same" [ "$(tensors "$out")" == "$(tensors "$out.hf")" ]
    check "$family: the configuration, too" cmp -s "$out/config.json" "$out.hf/config.json"
    status "$family: encoded again" 0 verify "$megatron" "$out" --encode fp8:128x128
    rm -rf "$out" "$out.hf"
    status "$family: Megatron's names have no codes" 4 convert "$megatron" "$out" --encode fp8:128x128
    says "$family: what to do" "--to hf writes it as servers read it"
    rm -rf "$megatron"
    glu=()
  done
  in=$TESTDATA/whole/qwen3_moe/hf
  status "gpt-oss's form" 0 convert "$oss" "$out" --encode mxfp4 -q
  written model.layers.0.mlp.experts.down_proj_blocks U8 "[4, 64, 2, 16]"
  check "gpt-oss's form: attention stays" grep -q '"model.layers.\*.self_attn"' "$out/config.json"
  status "gpt-oss's form: encoded again" 0 verify "$oss" "$out" --encode mxfp4
  rm -rf "$out"
  status "cells along no row" 3 convert "$oss" "$out" --encode fp8:channel
  says "which" "its naming stores experts as [in, out]"
  status "a program that has no such encoder" 2 convert "$in" "$out" --encode nvfp4 --encode-as slime
  says "which do" "there are modelopt, compressed-tensors"
  status "no format" 2 convert "$in" "$out" --encode-as slime
  check "nothing is written" absent "$out"
}
