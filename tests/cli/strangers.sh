# What the third round of strangers stumbled over, by the matter.

# `help WORD` knows every word that the program itself prints.
stranger_help() {
  local word text
  while read -r word; do
    status "help $word" 0 help "$word" && check "help $word: $OUT" has "$OUT" "$word, an option of "
    check "help $word: at most 80 columns" [ -z "$(awk 'length > 80' "$WORK/.out")" ]
  done < <(grep -oE '^\| `(-.*, )?--[a-z-]+' "$HERE/../../docs/cli.md" | grep -oE -- '--[a-z-]+' | grep -vxE -- '--(help|version|man|page|color)' | sort -u)
  # Each line: a word, and what is said of it.
  while IFS='|' read -r word text; do
    # shellcheck disable=SC2086
    status "help $word" 0 help $word && check "help $word: $OUT" has "$OUT" "$text"
  done <<'LINES'
pad-experts|      --pad-experts N      experts get zero rows and columns
-j|  -j, --jobs N             worker threads
convert --glu|--glu, an option of convert:
megatron|megatron, a value of --to:
interleaved|--glu, --shared-glu,
interleaved:4|interleaved:32, a value of --from-glu
grouped|grouped, a value of --experts, --bias-experts:
mxfp4|mxfp4, a value of --encode:
qwen3_moe|`glu-ckpt layouts qwen3_moe` has its keys, its forms and what loads it.
attention/q|attention/q, a role:
experts/gate|experts/gate, a role:
megatron_args.txt|megatron_args.txt, a file:
glu_ckpt.json|glu_ckpt.json, a file:
HF_ENDPOINT|HF_TOKEN, HF_ENDPOINT, of the environment:
parameters|Multi-token prediction counts in both
relative|RELATIVE, COSINE, in what is printed:
RMS|RMS, in what is printed:
matrices|matrices, matrix, MATRIX, in what is printed:
payload|payload, headers, in what is printed:
problem|problem, in what is printed:
LINES
  prints "help journal" 0 "Nothing is called 'journal'; these speak of it:

DST.partial, a file:
  The output while it is written. A run that was stopped leaves it with its
  journal, and --resume goes on there; without that it may be deleted.

glu_ckpt.journal, a file:
  The journal of a conversion, in DST.partial: what is written already. No
  output has one when it is complete." help journal
  status "help record" 0 help record && check "help record: $OUT" has "$OUT" "glu_ckpt.json, a file:"
  status "help of an option that is mistyped" 2 help --pad-expert && check "it is suggested: $ERR" has "$ERR" "did you mean --pad-experts?"
  status "help of a value that is mistyped" 2 help megatorn && check "it is suggested: $ERR" has "$ERR" "did you mean megatron?"
}

# `inspect` says of a part, and of padding, what verify and diff say.
stranger_inspect() {
  local hf=$TESTDATA/hf/qwen3_moe
  status "a part" 0 convert "$hf" "$WORK/part" --keep-experts 0-3 -q
  status "inspect of a part" 0 inspect "$WORK/part" && check "of experts: $OUT" has "$OUT" "
part        of a larger model: experts 0-3 of 8
"
  status "inspect --json of a part" 0 inspect "$WORK/part" --json && check "in JSON" [ "$(json_get 'v["part"]')" == "experts 0-3 of 8" ]
  status "a layer" 0 convert "$hf" "$WORK/layer" --layers 0-0 --to megatron -q
  status "inspect of a layer" 0 inspect "$WORK/layer" && check "of layers: $OUT" has "$OUT" "
part        of a larger model: layer 0 alone, of 2
"
  status "padding" 0 convert "$hf" "$WORK/padded" --pad-experts 256 -q
  status "inspect of padding" 0 inspect "$WORK/padded" && check "padded: $OUT" has "$OUT" "
padded      experts, with zeros, from a width of 64 to 256
"
  status "inspect --json of padding" 0 inspect "$WORK/padded" --json && check "in JSON" [ "$(json_get 'v["padded_from"]')" == 64 ]
  status "inspect of a whole model" 0 inspect "$hf"
  check "nothing of a part: $OUT" [ "$(grep -cE '^(part|padded) ' "$WORK/.out")" == 0 ]
  status "a trainer's own" 0 inspect "$TESTDATA/megatron/ep2"
  check "its run loads it: $OUT" has "$OUT" "loads in    unknown: there is no config.json that says what model this is; the run that it is of loads it, with its own arguments"
  status "a trainer's older one" 0 inspect "$TESTDATA/megatron/legacy_tp2"
  check "Megatron-LM loads it: $OUT" has "$OUT" "loads in    unknown: it is a checkpoint in Megatron's older format"
  status "nobody's" 0 inspect "$TESTDATA/torch/dcp1"
  check "without a trainer's arguments nothing is known to: $OUT" has "$OUT" "loads in    nothing as it is: there is no config.json"
  rm -rf "$WORK/part" "$WORK/layer" "$WORK/padded"
}

# adapter_config FOLDER EDIT: runs the Python on `v`, its adapter_config.json.
edited_adapter() {
  python3 -c 'import json, sys
v = json.load(open(sys.argv[1]))
exec(sys.argv[2])
json.dump(v, open(sys.argv[1], "w"))' "$1/adapter_config.json" "$2"
}

stranger_adapters() {
  local all=$WORK/adapters one
  mkdir "$all" && tar -xf "$TESTDATA/adapters.tar.xz" -C "$all"
  for one in "$all"/*/; do
    status "inspect ${one##*/}" 0 inspect "${one}adapter" && check "no word of targets that fit: $ERR" [ "${ERR/target_modules/}" == "$ERR" ]
  done
  one=$all/adapter_mixtral_sep_rslora_pattern_peft018/adapter
  status "ranks and alphas of patterns" 0 inspect "$one"
  check "each is said: $OUT" has "$OUT" "ranks       2 4, lora_alpha 3 7: lora_alpha/sqrt(r) from 2.121 to 3.5, rslora"
  one=$all/adapter_qwen3_sep_peft018/adapter
  status "one alpha" 0 inspect "$one" && check "no range: $OUT" has "$OUT" "ranks       4, lora_alpha 8
"
  edited_adapter "$one" "v['target_modules'] = ['gate_proj', 'q_proj']"
  status "targets that contradict" 0 inspect "$one"
  check "factors that PEFT leaves out: $ERR" has "$ERR" "glu-ckpt: warning: target_modules of adapter_config.json does not name 16 of the 24 modules that have factors, such as 'model.layers.0.mlp.experts.0.down_proj': PEFT leaves these factors out without an error"
  check "and modules without factors: $ERR" has "$ERR" "names q_proj, of which the adapter has no factors: PEFT starts such modules as zeros"
  status "a copy" 0 convert "$one" "$WORK/copy" --force -q && check "is warned of: $ERR" has "$ERR" "does not name 16 of the 24 modules"
  status "merged" 0 convert "${one%/*}/base" "$WORK/merged_all" --merge "$one" -q && check "is warned of: $ERR" has "$ERR" "does not name 16 of the 24 modules"
  edited_adapter "$one" "v['target_modules'] = r'.*\.(gate|up)_proj'"
  status "a pattern" 0 inspect "$one" && check "is read: $ERR" has "$ERR" "does not name 8 of the 24 modules"
  edited_adapter "$one" "v['target_modules'] = ['gate_proj', 'up_proj', 'down_proj']; v['exclude_modules'] = ['up_proj']"
  status "left out" 0 inspect "$one" && check "is read: $ERR" has "$ERR" "target_modules without exclude_modules of adapter_config.json does not name 8 of the 24 modules"
  edited_adapter "$one" "v['target_modules'] = 'all-linear'; del v['exclude_modules']"
  status "all" 0 inspect "$one" && check "all are named: $ERR" [ -z "$ERR" ]
  # One matrix of one expert by two pairs: a merge would add both, and a conversion keep one.
  one=$all/adapter_qwen3_packed_peft021
  cp -r "$one/adapter" "$WORK/two_pairs"
  python3 - "$WORK/two_pairs/adapter_model.safetensors" <<'PYTHON'
import json, struct, sys
with open(sys.argv[1], "rb") as file:
    data = file.read()
size = struct.unpack_from("<Q", data)[0]
header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
for factor, shape in (("A", [4, 24]), ("B", [32, 4])):
    more = struct.pack(f"<{shape[0] * shape[1]}f", *[0.5] * (shape[0] * shape[1]))
    header[f"base_model.model.model.layers.0.mlp.experts.0.down_proj.lora_{factor}.weight"] = {
        "dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + len(more)]}
    body += more
text = json.dumps(header).encode()
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + body)
PYTHON
  status "two pairs: convert" 4 convert "$WORK/two_pairs" "$WORK/no_pair" --to hf --from-config "$one/base/config.json"
  check "two pairs: $ERR" has "$ERR" "are factors of one matrix of one expert; take one of the two pairs out [redundant-keys]"
  status "two pairs: merge" 4 convert "$one/base" "$WORK/no_pair" --merge "$WORK/two_pairs"
  check "two pairs, merged: $ERR" has "$ERR" "are factors of one matrix, in '"
  rm -rf "$all" "$WORK/copy" "$WORK/two_pairs"
}

stranger_outputs() {
  local hf=$TESTDATA/hf/qwen3_moe src=$WORK/holds out=$WORK/held
  # A directory in SRC that is an output for Megatron goes whole or not at all: its files without tensors look like one.
  cp -r "$hf" "$src"
  status "an output in its source" 0 convert "$hf" "$src/mcore" --to megatron -q
  mkdir -p "$src/ranks/mp_rank_00" "$src/notes" && : >"$src/ranks/mp_rank_00/args.json" && : >"$src/notes/a.txt"
  status "a conversion of both" 0 convert "$src" "$out" --experts grouped --glu contiguous
  check "the other checkpoint is left behind, and said: $ERR" has "$ERR" "note: mcore/ is not part of the checkpoint and is left behind"
  check "one of ranks, too: $ERR" has "$ERR" "note: ranks/ is not part of the checkpoint and is left behind"
  check "nothing of it is there" [ ! -e "$out/mcore" -a ! -e "$out/ranks" ]
  check "what is no checkpoint is copied" [ -e "$out/notes/a.txt" ]
  rm -rf "$src" "$out"
  # Padding of experts that are wide enough already is taken away again.
  status "no padding" 0 convert "$hf" "$out" --pad-experts 64 --to megatron
  check "it is said: $ERR" has "$ERR" "experts are 64 wide, without padding"
  status "and back" 0 convert "$out" "$WORK/back" --to hf --unpad -q
  status "the same" 0 verify "$hf" "$WORK/back" -q
  status "inspect" 0 inspect "$out" && check "no padding is told: $OUT" [ "$(grep -c '^padded' "$WORK/.out")" == 0 ]
  status "what nobody padded" 3 convert "$hf" "$WORK/none" --to megatron --unpad
  check "is still refused: $ERR" has "$ERR" "no record says that anything was: experts are 64 wide [record-contradicts]"
  rm -rf "$out" "$WORK/back"
  # What needs no less room with --consume-source is told so, with both sizes.
  cp -r "$TESTDATA/whole/llama3/hf" "$src"
  status "one file to consume" 0 plan "$src" "$out" --to megatron --consume-source
  check "the sizes: $ERR" grep -qE 'warning: --consume-source saves no room here: it needs [0-9.]+ kB, and a run without it [0-9.]+ kB. SRC is one file' "$WORK/.err"
  rm -rf "$src"
  cp -r "$hf" "$src"
  status "two to consume" 0 plan "$src" "$out" --to megatron --consume-source && check "no such word: $ERR" [ "${ERR/saves no room/}" == "$ERR" ]
  rm -rf "$src"
}

# Sentences that were missing, or were read twice.
stranger_sentences() {
  local hf=$TESTDATA/hf/qwen3_moe run=$WORK/run one=$WORK/adapters/adapter_qwen3_sep_equalA_peft018
  # A line for each path says how it went.
  status "an output" 0 convert "$hf" "$run" --to megatron -q
  cp -r "$run" "$WORK/bad" && printf x >>"$WORK/bad/megatron_args.txt"
  status "check of three" 1 check "$run" "$WORK/bad" "$hf"
  check "the first: $OUT" has "$OUT" "
$run: ok: 7 files ok, 0 differ, 0 missing, 0 without a checksum"
  check "the second: $OUT" has "$OUT" "
$WORK/bad: damaged: 6 files ok, 1 differ, 0 missing, 0 without a checksum"
  check "the third: $OUT" has "$OUT" "
$hf: not compared: 0 files ok, 0 differ, 0 missing, 4 without a checksum"
  # What of a run goes along to the hub's form.
  rm "$run/release/glu_ckpt.json"
  status "a run to the hub" 0 convert "$run" "$WORK/hub" --to hf --from-glu contiguous
  check "what travels: $ERR" has "$ERR" "note: common.pt and what else is no tensor (glu_ckpt.extras) of the run travel along for the way back to its trainer; programs that load the output do not read them"
  check "it is there" [ -e "$WORK/hub/common.pt" -a -e "$WORK/hub/glu_ckpt.extras" ]
  status "between hub models" 0 convert "$hf" "$WORK/other" --experts grouped --glu contiguous
  check "nothing travels: $ERR" [ "${ERR/travel/}" == "$ERR" ]
  # How far codes are off.
  status "codes" 0 plan "$TESTDATA/whole/qwen3_moe/hf" "$WORK/codes" --encode nvfp4
  check "as a share of the greatest: $ERR" grep -qE 'attention: SNR [0-9.]+ dB, each weight off by at most 1[0-9]\.[0-9]+% of the greatest one under its scale' "$WORK/.err"
  # One adapter in two layouts gives two sums.
  mkdir "$WORK/adapters" && tar -xf "$TESTDATA/adapters.tar.xz" -C "$WORK/adapters"
  status "the adapter, packed" 0 convert "$one/adapter" "$WORK/packed" --to hf --experts grouped --from-config "$one/base/config.json" -q
  status "the model, merged" 0 convert "$one/base" "$WORK/merged" --merge "$one/adapter" -q
  status "merged with the packed one" 1 verify "$one/base" "$WORK/merged" --merge "$WORK/packed"
  check "may differ by roundings: $ERR" has "$ERR" "note: no more differs than roundings may: PEFT rounds the products of packed experts before it adds them"
  status "merged with itself" 0 verify "$one/base" "$WORK/merged" --merge "$one/adapter" && check "no such note: $ERR" [ -z "$ERR" ]
  cp -r "$one/base" "$WORK/other_base"
  python3 - "$WORK"/other_base/model*.safetensors <<'PYTHON'
import json, struct, sys
with open(sys.argv[1], "r+b") as file:
    size = struct.unpack("<Q", file.read(8))[0]
    at = json.loads(file.read(size))["model.embed_tokens.weight"]["data_offsets"][0]
    file.seek(8 + size + at)
    value = file.read(1)[0]
    file.seek(8 + size + at)
    file.write(bytes([value ^ 1]))
PYTHON
  status "merged into another base" 1 verify "$WORK/other_base" "$WORK/merged" --merge "$one/adapter"
  check "no rounding: $ERR" has "$ERR" "note: $WORK/merged: embedding weight differs, which is in no expert, so roundings are not the reason"
  status "the unmerged one" 1 verify "$one/base" "$WORK/merged" && check "no such note: $ERR" [ "${ERR/roundings/}" == "$ERR" ]
  status "merged with another" 1 verify "$one/base" "$WORK/merged" --merge "$WORK/adapters/adapter_qwen3_sep_peft018/adapter"
  check "nor of what is another: $ERR" [ "${ERR/roundings/}" == "$ERR" ]
  rm -rf "$run" "$WORK"/{bad,hub,other,adapters,packed,merged}
}

# asks NAME LINE ARGUMENTS...: a refusal that ends with the command line, completed by LINE.
asks() {
  local name=$1 line=$2
  shift 2
  status "$name" 4 "$@" && check "$name: all at once: $ERR" [ "$(tail -n 1 "$WORK/.err")" == "  glu-ckpt $* $line" ]
}

# What several options are wanted for is asked for at once, with one line to paste.
stranger_obstacles() {
  local run=$TESTDATA/megatron/homogeneous no=$WORK/no codes=$WORK/codes out=$WORK/out all="--from-config FILE --from-shared-glu ORDER --optimizer drop"
  status "codes of a model that sees" 0 convert "$TESTDATA/whole/glm4v_moe/hf" "$codes" --encode fp8:128x128 -q
  asks "codes, and what sees" "--decode bf16 --unknown keep" plan "$codes" "$no" --to megatron
  check "each is said: $ERR" has "$ERR" "decode the weights (--decode bf16). Beyond that, $codes/model.safetensors: 'model.visual."
  asks "convert does the same" "--decode bf16 --unknown keep" convert "$codes" "$no" --to megatron
  check "nothing is left" [ ! -e "$no" -a ! -e "$no.partial" ]
  status "the line works" 0 convert "$codes" "$out" --to megatron --decode bf16 --unknown keep -q
  check "no note of what was tried: $ERR" [ -z "$ERR" ]
  asks "what sees alone" "--unknown keep" plan "$TESTDATA/whole/glm4v_moe/hf" "$no" --to megatron
  asks "a part of a run" "$all" plan "$run" "$no" --layers 0
  asks "padding of a run" "$all" plan "$run" "$no" --pad-experts 128
  asks "codes of a run" "$all" plan "$run" "$no" --encode mxfp4
  asks "what a run lacks" "$all" plan "$run" "$no" --fill-from "$TESTDATA/whole/qwen3_moe/hf"
  asks "rounding, and the hub" "--allow-narrowing $all" plan "$run" "$no" --to hf --dtype decoder.layers.mlp.router.expert_bias=bf16
  status "a name that is taken" 4 convert "$codes" "$out" --to megatron
  check "is said before all: $ERR" has "$ERR" "[output-exists]"
  rm -rf "$codes" "$out"
}

# Numbers say what they count, and `loads in` who does not take a block size.
stranger_numbers() {
  local hf=$TESTDATA/hf/qwen3_moe
  status "a model with MTP" 0 inspect "$TESTDATA/whole/deepseek_v3/hf" && check "counts it: $OUT" has "$OUT" "of them for each token; both count multi-token prediction
"
  status "one without" 0 inspect "$hf" && check "does not say so: $OUT" [ "${OUT/multi-token/}" == "$OUT" ]
  check "files: $OUT" has "$OUT" "bytes) with headers
"
  status "16 rows" 0 plan "$hf" "$WORK/none" --to megatron --glu interleaved:16 -v
  check "no fused kernel: $OUT" has "$OUT" "without TransformerEngine's fused grouped MLP, which reads interleaved:32 alone"
  check "tensors: $OUT" has "$OUT" "bytes) without headers
"
  check "no GPU is opened: $ERR" [ "${ERR/before a GPU/}" == "$ERR" ]
  status "32 rows" 0 plan "$hf" "$WORK/none" --to megatron --glu interleaved:32
  check "the fused kernel takes them: $OUT" [ "${OUT/without TransformerEngine/}" == "$OUT" ]
}

# Wrong turns of ten tasks, and where each is shown the way.
stranger_wrong_turns() {
  local hf=$TESTDATA/whole/qwen3_moe/hf no=$WORK/no line text shard=$TESTDATA/hf/qwen3_moe/model-00001-of-00002.safetensors
  while IFS='|' read -r line text; do
    # shellcheck disable=SC2086
    status "$line" 2 $line && check "$line: $ERR" has "$ERR" "$text [usage]"
  done <<LINES
decode a b|'decode' is not a command; \`glu-ckpt convert SRC DST --decode bf16\` makes weights of codes
swap a b|'swap' is not a command; \`glu-ckpt convert SRC DST --glu ORDER\` puts gate and up rows in another order
pad a b|\`glu-ckpt convert SRC DST --pad-experts N\` pads experts, and --unpad takes that away
convert a b --dequantize|--dequantize is no option of glu-ckpt convert; --decode bf16 makes weights of codes
verify a|B is missing: glu-ckpt verify [OPTIONS] A B; \`glu-ckpt check PATH\` compares one checkpoint with its own record and checksums
convert a b --drop mtp --drop vision|--drop was given twice; one may be several, between commas: --drop mtp,vision
LINES
  mkdir "$WORK/adapters" && tar -xf "$TESTDATA/adapters.tar.xz" -C "$WORK/adapters"
  status "the adapter first" 2 convert "$WORK/adapters/adapter_qwen3_sep_peft018/adapter" "$no" --merge "$WORK/adapters/adapter_qwen3_sep_peft018/base"
  check "the other way round: $ERR" has "$ERR" "SRC is the model and --merge names the adapter, and this SRC is an adapter: \`glu-ckpt convert MODEL DST --merge ADAPTER\`"
  status "an adapter that is what was asked for" 4 plan "$WORK/adapters/adapter_qwen3_sep_peft018/adapter" "$no" --to vllm --from-config "$WORK/adapters/adapter_qwen3_sep_peft018/base"
  check "can be used: $ERR" has "$ERR" "that is what these options ask for, so its files can be used as they are"
  status "codes in a form of numbers" 0 plan "$TESTDATA/quantized/gptq_int4" "$no" --to hf --experts grouped
  check "the form of codes: $ERR" has "$ERR" "software that reads hf:qwen3_moe does not store codes so; it stores indexed split"
  status "a directory for its config.json" 0 plan "$WORK/adapters/adapter_qwen3_packed_peft021/adapter" "$no" --to hf --experts indexed --from-config "$WORK/adapters/adapter_qwen3_packed_peft021/base" -q
  status "one expert" 3 plan "$hf" "$no" --keep-experts 2 && check "in the singular: $ERR" has "$ERR" "--keep-experts keeps 1 expert of each layer"
  status "one shard" 3 plan "$shard" "$no" --to megatron
  check "is said to be one: $ERR" has "$ERR" ". $shard: is one of 2 shards by its name"
  status "inspect of one" 0 inspect "$shard" && check "the reason: $OUT" has "$OUT" "loads in    nothing as it is: $shard: is one of 2 shards"
  status "merged" 0 convert "$WORK/adapters/adapter_qwen3_sep_peft018/base" "$no" --merge "$WORK/adapters/adapter_qwen3_sep_peft018/adapter" -q
  check "the record has the model" grep -q "\"merged_into\": \"$WORK/adapters/adapter_qwen3_sep_peft018/base\"" "$no/glu_ckpt.json"
  rm -r "$no"
  status "another model's config.json" 3 plan "$TESTDATA/megatron/homogeneous" "$no" --to hf --from-config "$TESTDATA/hf/mixtral" --from-shared-glu contiguous --optimizer drop
  check "is asked for: $ERR" has "$ERR" "Is $TESTDATA/hf/mixtral/config.json the config.json of this model?"
  # One block of all rows is gate, then up.
  status "blocks of all rows" 0 convert "$hf" "$no" --experts grouped --glu interleaved:$(json_width "$hf")
  check "are what the hub's names have: $OUT" has "$OUT" "to          hf:qwen3_moe, grouped (one tensor for all experts), contiguous"
  check "is no foreign order: $ERR" [ "${ERR/cannot see the difference/}" == "$ERR" ]
  rm -r "$no"
  rm -rf "$WORK/adapters"
}

# json_width DIRECTORY: the width of experts that config.json says.
json_width() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1] + "/config.json"))["moe_intermediate_size"])' "$1"; }

# A model that sees says so.
stranger_sees() {
  local out=$WORK/sees
  status "what sees" 0 inspect "$TESTDATA/whole/glm4v_moe/hf"
  check "what sees: $OUT" grep -qE '^beside      the language model: vision [0-9.]+ kB, in the rest; --drop vision leaves it out$' <<<"$OUT"
  status "what hears, too" 0 inspect "$TESTDATA/whole/qwen3_omni_moe/hf"
  check "what hears, too: $OUT" grep -qE '^beside      the language model: audio [0-9.]+ kB, code2wav [0-9]+ B, talker [0-9.]+ kB, vision [0-9.]+ kB' <<<"$OUT"
  status "as JSON" 0 inspect "$TESTDATA/whole/qwen3_omni_moe/hf" --json
  check "as JSON" [ "$(json_get 'sorted(v["layers"][-1]["beside_bytes"]), v["layers"][0]["beside_bytes"], sum(v["layers"][-1]["beside_bytes"].values()) < v["layers"][-1]["other_bytes"]')" == "(['audio', 'code2wav', 'talker', 'vision'], {}, True)" ]
  status "its tensors" 0 inspect "$TESTDATA/whole/glm4v_moe/hf" --tensors vision
  check "its tensors: $OUT" [ "$(grep -c ' vision$' <<<"$OUT")" == "$(grep -c '^model.visual' <<<"$OUT")" ]
  status "of a trainer's" 0 convert "$TESTDATA/whole/glm4v_moe/hf" "$out" --to megatron --unknown keep -q
  status "of a trainer's" 0 inspect "$out" && check "of a trainer's: $OUT" has "$OUT" "beside      the language model: vision"
  status "without" 0 inspect "$TESTDATA/whole/qwen3_moe/hf" && check "without: $OUT" [ "${OUT/beside/}" == "$OUT" ]
  rm -rf "$out"
}

# Tensors that were changed on purpose, and messages that led elsewhere.
stranger_changes() {
  local hf=$TESTDATA/whole/qwen3_moe/hf one=$WORK/one two=$WORK/two line
  status "changed: written" 0 convert "$hf" "$one" --experts grouped -q
  python3 - "$one/model.safetensors" <<'PY'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
data[-1] ^= 1
open(sys.argv[1], "wb").write(data)
PY
  status "changed" 3 convert "$one" "$two" --to megatron
  check "changed: the way on: $ERR" has "$ERR" "If that was meant, --accept-changes takes it as it is; otherwise find an intact copy"
  status "changed: accepted" 0 convert "$one" "$two" --to megatron --accept-changes -q
  status "changed: its output is whole" 0 check "$two" --strict -q
  status "changed: the same model" 0 verify "$one" "$two" -q
  status "changed: stamp" 4 stamp "$one" --remove && check "changed: stamp: $ERR" has "$ERR" "\`convert --accept-changes\` takes them as they are"
  rm -r "$two"
  status "nothing to decode" 4 convert "$hf" "$two" --decode bf16 && check "nothing to decode: $ERR" has "$ERR" "No weight of it is quantized: --decode has none to decode"
  status "blocks that do not fit" 4 plan "$TESTDATA/whole/deepseek_v3/hf" "$two" --to megatron --glu interleaved:32
  check "blocks that do not fit: $ERR" has "$ERR" "; --pad-experts 32 makes the experts wider with zeros"
  status "a reason" 0 plan "$TESTDATA/whole/olmoe/hf" "$two" --to megatron
  check "a reason is given once: $ERR" [ "$(grep -c 'span all heads' <<<"$ERR")" == 1 ]
  status "a part" 0 convert "$TESTDATA/whole/kimi_k25/hf" "$two" --layers 0-1 -q
  status "a part, compared" 1 verify "$TESTDATA/whole/kimi_k25/hf" "$two" --drop vision
  check "a part, compared: the other is none: $ERR" [ "${ERR/hf: is a part/}" == "$ERR" ]
  rm -r "$two"
  for line in contiguous interleaved:2; do
    status "$line" 0 convert "$TESTDATA/megatron/homogeneous" "$WORK/$line" --format safetensors --from-glu contiguous --glu "$line" -q --force
  done
  status "one order is not known" 0 verify "$WORK/contiguous" "$WORK/interleaved:2"
  check "one order is not known: $ERR" has "$ERR" "in which order the two hold gate and up rows of the shared expert: these were compared as they are stored"
  rm -rf "$one" "$two" "$WORK/contiguous" "$WORK/interleaved:2"
}

# What of two checkpoints of one model keeps them from being compared, and other second tries.
stranger_pairs() {
  local hf=$TESTDATA/whole/qwen3_moe/hf one=$WORK/one two=$WORK/two run=$TESTDATA/megatron/homogeneous line
  cp -r "$hf" "$one" && chmod -R u+w "$one"
  sed -i 's/"qwen3_moe"/"foomoe"/; s/Qwen3MoeForCausalLM/FooMoeForCausalLM/' "$one/config.json"
  for line in "verify $hf $one" "verify $one $hf" "diff $hf $one"; do
    # shellcheck disable=SC2086
    status "an unknown model_type: ${line%% *}" 0 $line
    check "an unknown model_type: $ERR" has "$ERR" "$one: no map knows models of type 'foomoe', so its tensors are taken for what those of $hf are"
  done
  cp -r "$TESTDATA/whole/llama3/hf" "$two" && chmod -R u+w "$two"
  sed -i 's/"llama"/"foomoe"/; s/LlamaForCausalLM/FooMoeForCausalLM/' "$two/config.json"
  status "of another model" 1 verify "$hf" "$two" -q
  rm -r "$two"
  status "without its optimizer" 0 convert "$run" "$two" --from-shared-glu contiguous --from-glu contiguous --glu interleaved:2 --optimizer drop -q
  status "compared with the run" 1 verify "$run" "$two" --from-glu contiguous --from-shared-glu contiguous
  check "why: $ERR" has "$ERR" "$run has an optimizer's state, and $two none: --optimizer drop compares the weights alone"
  status "compared without it" 0 verify "$run" "$two" --from-glu contiguous --from-shared-glu contiguous --optimizer drop -q
  status "diff without it" 0 diff "$run" "$two" --from-glu contiguous --from-shared-glu contiguous --optimizer drop -q
  status "digest without it" 0 digest "$run" --from-glu contiguous --from-shared-glu contiguous --optimizer drop
  check "digest without it" [ "${OUT%% *}" == "$("$PROGRAM" digest "$two" | cut -d' ' -f1)" ]
  rm -r "$two"
  status "other shards" 0 convert "$hf" "$two" --max-shard-size 0.1MB -q
  check "other shards: several" [ "$(ls "$two"/*.safetensors | wc -l)" -gt 2 ]
  status "one file of several" 0 convert "$two" "$WORK/all.safetensors" -q
  status "one file of several: the same" 0 verify "$hf" "$WORK/all.safetensors" -q
  mkdir "$WORK/beside" && cp "$hf/config.json" "$WORK/beside"
  status "one file beside a config.json" 0 convert "$two" "$WORK/beside/pytorch_model.bin" && check "is loaded: $OUT" has "$OUT" "loads in    transformers"
  for line in 100kB 1.5GB 0.5MiB; do status "$line" 0 plan "$hf" "$WORK/none" --experts grouped --max-shard-size $line -q; done
  for line in 1.5 1.GBs 0.1234567890123GB; do status "$line" 2 plan "$hf" "$WORK/none" --experts grouped --max-shard-size $line -q; done
  rm -rf "$one" "$two" "$WORK/all.safetensors" "$WORK/beside"
}
