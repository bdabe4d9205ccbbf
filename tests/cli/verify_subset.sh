# verify --layers, --sample and --part: less of the same comparison.

verify_subset() {
  local hf=$TESTDATA/hf/qwen2_moe dir=$WORK/verify_subset out bad all part found=0 compared=0 file text
  out=$dir/out bad=$dir/bad
  mkdir -p "$dir"
  status "convert" 0 convert "$hf" "$out" --naming megatron --experts grouped --glu interleaved:8 -q
  status "verify" 0 verify "$hf" "$out" --json -q
  all=$(json_get 'v["in_both"]')
  check "all of it is compared" [ "$(json_get 'v["compared"]')" == "$all" ]
  for text in --layers=0 --sample=10% --part=1/4; do
    status "verify $text" 0 verify "$hf" "$out" "$text"
    check "verify $text says that it is not all" has "$OUT" "equal as far as was asked: "
    check "verify $text says of how much" has "$OUT" " of $all matrices and tensors"
    check "verify $text prints no digest of a model" [ "$(grep -c gck2 <<<"$OUT")" == 0 ]
  done
  status "verify --layers" 0 verify "$hf" "$out" --layers 0-1 --json
  check "layers are not all" [ "$(json_get 'v["equal"], 0 < v["compared"] < v["in_both"]')" == "(True, True)" ]

  # One element of the head, which is in no layer, and of an expert of layer 1.
  for text in lm_head.weight model.layers.1.mlp.experts.3.up_proj.weight; do
    rm -rf "$bad"
    cp -r "$hf" "$bad"
    chmod -R u+w "$bad"
    file=$(grep -l "$text" "$bad"/*.safetensors | head -1)
    flip "$file" "$text"
    status "$text, layer 0" 0 verify "$bad" "$out" --layers 0 -q
    [[ $text == *experts* ]] && status "$text, layer 1" 1 verify "$bad" "$out" --layers 0-1 -q
    found=0 compared=0
    for part in 1 2 3; do
      "$PROGRAM" verify "$bad" "$out" --part $part/3 --json -q >"$WORK/part.json"
      found=$((found + $?))
      compared=$((compared + $(python3 -c "import json; print(json.load(open('$WORK/part.json'))['compared'])")))
    done
    check "$text: one part of three finds it" [ $found == 1 ]
    check "$text: the parts are all of it" [ $compared == "$all" ]
  done

  status "a sample again" 0 verify "$hf" "$out" --sample 7% --seed 3 --json
  text=$OUT
  status "a sample, in other threads" 0 verify "$hf" "$out" --sample 7 --seed 3 --json -j 1 --max-memory 1MiB
  check "is the same sample" [ "$OUT" == "$text" ]
  status "a sample by another seed" 0 verify "$hf" "$out" --sample 7% --seed 4 --json
  check "is another" [ "$OUT" != "$text" ]
  status "layers, computed, too" 0 verify "$hf" "$out" --layers 1 --forward --json
  check "of that one both" [ "$(json_get '{l["layer"] for l in v["forward"]}, v["compared"] < v["in_both"]')" == "({1}, True)" ]

  for text in --sample=0% --sample=101% --sample=% --sample=x --sample= --sample=nan% --sample=-5% --sample=5%% \
    --part=0/3 --part=4/3 --part=1 --part=1/ --part=/3 --part=a/b --part=1/2/3 --part=-1/3 --part= --layers= \
    --layers=1,,2 --layers=1-0; do
    status "$text" 2 verify "$hf" "$out" "$text"
  done
  status "layers that are not there" 3 verify "$hf" "$out" --layers 1,9
  status "--sample beside --forward" 2 verify "$hf" "$out" --sample 5% --forward
  status "--part beside --forward" 2 verify "$hf" "$out" --part 1/2 --forward
  status "--seed of nothing" 2 verify "$hf" "$out" --seed 1
  status "--seed of parts" 2 verify "$hf" "$out" --seed 1 --part 1/2
  rm -rf "$dir"
}
