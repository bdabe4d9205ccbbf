# A part of a model is a model: --layers, --drop.

parts() {
  local family out=$WORK/part in options one whole
  for family in qwen3_moe "deepseek_v3 --drop mtp" qwen3_next gpt_oss minimax_m2; do
    read -ra options <<<"$family"
    family=${options[0]}
    options=(--layers 0-1 "${options[@]:1}")
    in=$TESTDATA/whole/$family/hf
    status "$family: planned" 0 plan "$in" "$out" "${options[@]}"
    # Qwen3-MoE's two layers are all that it has here.
    whole=$([[ $family == qwen3_moe ]] && echo 1 || echo 0)
    if ((whole)); then
      says "$family: and said" "the output is the whole model"
    else
      says "$family: and said" "the output is a part of the model: layers 0-1 of"
    fi
    status "$family: a part" 0 convert "$in" "$out" "${options[@]}" -q
    check "$family: the configuration counts its layers" grep -q '"num_hidden_layers": 2' "$out/config.json"
    check "$family: the record says so" [ "$(grep -c '"part": "layers 0-1 of ' "$out/glu_ckpt.json")" == $((1 - whole)) ]
    status "$family: it is whole" 0 inspect "$out" --strict
    status "$family: its layers are the model's" 0 verify "$in" "$out" --layers 0-1
    status "$family: for Megatron" 0 convert "$in" "$out.megatron" "${options[@]}" --to megatron -q
    check "$family: the arguments count its layers" grep -q -- "--num-layers 2" "$out.megatron/megatron_args.txt"
    status "$family: and back" 0 convert "$out.megatron" "$out.back" --to hf -q
    check "$family: every byte comes back" [ "$(tensors "$out")" == "$(tensors "$out.back")" ]
    rm -rf "$out.back"
    # DeepSeek-V3's first layer has no experts, and a model needs some.
    one=$([[ $family == deepseek_v3 ]] && echo 1 || echo 0)
    status "$family: a part of Megatron's" 0 convert "$out.megatron" "$out.back" --layers "$one" --to hf -q
    check "$family: one layer" grep -q '"num_hidden_layers": 1' "$out.back/config.json"
    [[ $one == 1 ]] || status "$family: the same layer" 0 verify "$in" "$out.back" --layers 0
    rm -rf "$out" "$out.megatron" "$out.back"
  done
  in=$TESTDATA/whole/deepseek_v3/hf
  status "later layers are counted from 0" 0 convert "$in" "$out" --layers 1-2 -q
  check "no layer is dense" grep -q '"first_k_dense_replace": 0' "$out/config.json"
  check "multi-token prediction follows" grep -q '^model.layers.2.eh_proj.weight ' <(tensors "$out")
  status "it is whole" 0 inspect "$out" --strict
  rm -rf "$out"
  status "a last layer unlike that of MTP" 3 convert "$in" "$out" --layers 0
  says "the way on" "--drop mtp leaves it out, or let layer 2 be the last one"
  status "codes move with their scales" 0 convert "$TESTDATA/quantized/fp8_block128" "$out" --layers 0 -q
  status "codes are the same" 0 verify "$TESTDATA/quantized/fp8_block128" "$out" --layers 0
  rm -rf "$out"
  status "a part is encoded" 0 convert "$in" "$out" --layers 0-1 --drop mtp --encode fp8:channel -q
  status "a part is encoded: again" 0 verify "$in" "$out" --layers 0-1 --encode fp8:channel
  rm -rf "$out"
  in=$TESTDATA/whole/qwen3_moe/hf
  status "layers that there are not" 3 convert "$in" "$out" --layers 0-7
  says "which there are" "the model has layers 0 to 1"
  status "what is not there is not dropped" 3 convert "$in" "$out" --drop mtp
  status "no list" 2 convert "$in" "$out" --layers 1-0
  status "encoded for the next" 0 convert "$in" "$out" --encode fp8:channel -q
  status "modules that are named by their layers" 3 convert "$out" "$out.again" --layers 1
  says "the way on" "--layers 0-1 keeps their numbers"
  status "from the first layer on" 0 convert "$out" "$out.again" --layers 0 -q
  check "nothing else is written" absent "$out.megatron"
}
