# verify --forward and convert --verify forward: the experts of both sides on the same tokens.

# Where experts run: GLU_CKPT_TEST_DEVICE, for machines with a GPU, or the CPU.
forward_device=(--device "${GLU_CKPT_TEST_DEVICE:-cpu}")

# same NAME A B ARGUMENTS...: every layer of A and B computes the same, and the control was caught.
same() {
  local name=$1
  shift
  status "$name" 0 verify "$@" --forward "${forward_device[@]}" --json -q || return
  check "$name: zero bits" [ "$(json_get 'v["equal"] and len(v["forward"]) > 0 and all(
    l["differing_bits"] == 0 and l["max_abs"] == 0 and l["max_rel"] == 0 and l["control_caught"] is True
    and l["tokens"] > 0 and l["fault"] == "" for l in v["forward"])')" == True ]
}

# Every checkpoint of a family beside three layouts of it, and those beside each other.
forward_families() {
  local hf name third dir=$WORK/families i j
  for hf in "$TESTDATA"/hf/*; do
    name=$(basename "$hf")
    rm -rf "$dir"
    mkdir -p "$dir"
    status "$name to contiguous" 0 convert "$hf" "$dir/1" --naming megatron --glu contiguous --shared-glu contiguous -q
    status "$name to blocks" 0 convert "$hf" "$dir/2" --naming megatron --experts grouped --glu interleaved:8 -q
    case $name in
      granitemoe | mixtral | qwen3_moe) third="--scope experts --naming hf:gpt_oss --experts grouped --glu interleaved:1" ;;
      *) third="--naming megatron --glu interleaved:4 --format torch" ;; # no spelling there, or that layout already
    esac
    # shellcheck disable=SC2086
    status "$name $third" 0 convert "$hf" "$dir/3" $third -q
    local -a all=("$hf" "$dir/1" "$dir/2" "$dir/3")
    for i in 0 1 2 3; do
      for ((j = i; j < 4; ++j)); do same "$name: layouts $i and $j" "${all[i]}" "${all[j]}"; done
    done
    same "$name in fp32" "$hf" "$dir/2" --compute fp32 -j 1 --max-memory 1MiB
  done
  rm -rf "$dir"
}

# The conversions that the gallery of tiny checkpoints lists.
forward_tiny() {
  local name there out=$WORK/tiny_out activation expected
  while IFS=$'\t' read -r name there _; do
    [[ $name == \#* || -z $name ]] && continue
    rm -rf "$out"
    # shellcheck disable=SC2086 -- the manifest's arguments are separated by blanks
    status "$name: convert" 0 convert "$GALLERIES/tiny/$name" "$out" $there -q || continue
    activation=swiglu expected=0
    [[ $name == megatron_not_gated ]] && activation=squared_relu
    # One gate, one up and one down of values that multiply to nothing.
    [[ $name == one_of_everything ]] && expected=1
    [[ $name == block_scales ]] && expected=3
    # shellcheck disable=SC2046
    status "$name: forward" "$expected" verify "$GALLERIES/tiny/$name" "$out" --forward "${forward_device[@]}" \
      --activation "$activation" \
      $(grep -oE -- '--from-(naming|glu|shared-glu|optimizer-glu) [^ ]+' <<<"$there")
    [[ $expected == 1 ]] && check "$name: says that it proves nothing" has "$OUT" "equal outputs prove nothing"
    [[ $expected == 3 ]] && check "$name: says where" has "$ERR" "$GALLERIES/tiny/$name/model.safetensors: byte"
  done <"$GALLERIES/tiny/manifest.tsv"
  rm -rf "$out"
}

# flip FILE TENSOR: turns the sign of the tensor's first element.
flip() {
  chmod u+w "$1"
  python3 - "$@" <<'PY'
import json, struct, sys
path, name = sys.argv[1:]
data = bytearray(open(path, "rb").read())
size = struct.unpack("<Q", data[:8])[0]
at = 8 + size + json.loads(data[8:8 + size])[name]["data_offsets"][0]
data[at + 1] ^= 0x80
open(path, "wb").write(data)
PY
}

verify_forward() {
  local hf=$TESTDATA/hf/qwen2_moe dir=$WORK/verify_forward out first
  mkdir -p "$dir"
  out=$dir/out
  status "convert --verify forward" 0 convert "$hf" "$out" --naming megatron --experts grouped --glu interleaved:8 \
    --verify forward --json
  check "it says so" [ "$(json_get 'v["verified"]')" == forward ]
  status "verify --forward" 0 verify "$hf" "$out" --forward
  check "verify --forward says what it ran" has "$OUT" "forward: the experts of 2 layers compute the same: 0 bits differ on"
  status "verify alone runs nothing" 0 verify "$hf" "$out" --json
  check "verify alone: no forward" [ "$(json_get 'v["forward"]')" == "[]" ]
  status "verify --forward --json" 0 verify "$hf" "$out" --forward --json
  check "the fields of a layer" [ "$(json_get 'all(set(l) >= {"layer", "tokens", "differing_bits", "max_abs", "max_rel",
    "control_caught", "set"} for l in v["forward"])')" == True ]
  check "routed and shared experts of each layer" \
    [ "$(json_get '[(l["layer"], l["set"]) for l in v["forward"]]')" == \
    "[(0, 'routed'), (0, 'shared'), (1, 'routed'), (1, 'shared')]" ]
  status "--layers" 0 verify "$hf" "$out" --forward --json --layers 1
  check "--layers: that one" [ "$(json_get '{l["layer"] for l in v["forward"]}')" == "{1}" ]
  status "--layers that are not there" 3 verify "$hf" "$out" --forward --layers 1,9
  check "it lists what is there" has "$ERR" "layers with experts: 0, 1"
  status "--layers that is no list" 2 verify "$hf" "$out" --forward --layers 1,,2
  status "--seed without --forward" 2 verify "$hf" "$out" --seed 1
  local seed
  for seed in -1 18446744073709551616 1x ''; do
    status "--seed '$seed'" 2 verify "$hf" "$out" --forward "--seed=$seed"
  done
  status "the largest seed" 0 verify "$hf" "$out" --forward --seed 18446744073709551615

  # A sign of one weight of layer 1: the bytes and the answers of that layer differ, and the seed chooses by how much.
  cp -r "$hf" "$dir/bad"
  chmod -R u+w "$dir/bad"
  local file
  file=$(grep -l "model.layers.1.mlp.experts.3.up_proj.weight" "$dir"/bad/*.safetensors | head -1)
  flip "$file" model.layers.1.mlp.experts.3.up_proj.weight
  status "another weight" 1 verify "$dir/bad" "$out" --forward --json -q
  first=$OUT
  check "in that layer" [ "$(json_get '[(l["layer"], l["set"], l["first_expert"], l["differing_experts"])
    for l in v["forward"] if l["differing_bits"] != 0]')" == "[(1, 'routed', 3, 1)]" ]
  check "not equal" [ "$(json_get 'v["equal"]')" == False ]
  status "again" 1 verify "$dir/bad" "$out" --forward --json -q -j 1 --max-memory 1MiB
  check "the same figures" [ "$OUT" == "$first" ]
  status "another seed" 1 verify "$dir/bad" "$out" --forward --json -q --seed 1
  check "other figures" [ "$OUT" != "$first" ]
  status "for people" 1 verify "$dir/bad" "$out" --forward
  check "it names the layer and the expert" has "$OUT" "forward: layer 1, routed experts:"
  status "a layer beside it" 0 verify "$dir/bad" "$out" --forward --layers 0 --json
  check "is as it was" [ "$(json_get 'sum(l["differing_bits"] for l in v["forward"])')" == 0 ]

  # What the experts compute.
  rm "$out/config.json"
  cp -r "$out" "$dir/bare"
  status "A's config.json speaks for both" 0 verify "$hf" "$out" --forward -q
  status "and B's" 0 verify "$out" "$hf" --forward -q
  status "without any" 4 verify "$out" "$out" --forward
  check "it says how" has "$ERR" "say --activation"
  status "--activation" 0 verify "$out" "$out" --forward --activation geglu_erf -q
  sed 's/"silu"/"gelu"/' "$hf/config.json" >"$out/config.json"
  status "two that disagree" 2 verify "$hf" "$out" --forward
  check "it names both" has "$ERR" "geglu_erf"
  status "and --activation" 0 verify "$hf" "$out" --forward --activation swiglu -q
  python3 - "$dir/none.safetensors" <<'PY'
import json, struct, sys
text = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + b"0000")
PY
  status "no experts" 4 verify "$dir/none.safetensors" "$dir/none.safetensors" --forward
  check "there is nothing to run" has "$ERR" "[no-experts]"
  status "convert --verify forward without experts" 4 convert "$dir/none.safetensors" "$dir/none_out" --verify forward
  check "nothing is left" absent "$dir/none_out"
  status "convert --verify forward without config.json" 4 convert "$dir/bare" "$dir/no" --glu contiguous --verify forward
  check "nothing is left behind" absent "$dir/no"
  status "and with --activation" 0 convert "$dir/bare" "$dir/yes" --glu contiguous --verify forward --activation reglu -q
  status "a device that is none" 2 verify "$hf" "$hf" --forward --device gpu
  rm -rf "$dir"
}

# ---- verify --layers, --sample and --part: less of the same comparison

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
