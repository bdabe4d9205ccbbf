# What stopped people in the program's first hours: each line is a command and what it says now. Not here are lines 1 and
# 9 (whole models in their native form: whole_models.sh), 2 (tests/package, tests/static), 4 (diff.sh), 8 (docs/guide.md
# says what is not noticed), 10 and 11 (help.sh), 19 (terminal.sh), 20 (report.sh, tests/python, help.sh).

# prints NAME STATUS TEXT ARGUMENTS...: the program's stdout and stderr are exactly TEXT, in which {} stands for $WORK.
prints() {
  local name=$1 expected=$2 text=${3//'{}'/$WORK} found
  shift 3
  status "$name" "$expected" "$@"
  found=$OUT${OUT:+${ERR:+$'\n'}}$ERR
  check "$name: $(diff <(printf '%s\n' "$text") <(printf '%s\n' "$found"))" [ "$text" == "$found" ]
}

# Line 3: tensors can be looked at.
first_hours_tensors() {
  local hf=$TESTDATA/whole/qwen3_moe/hf
  prints "inspect --tensors" 0 \
    "NAME                                           DTYPE  SHAPE     BYTES  FILE               MATRIX
model.layers.0.mlp.experts.3.down_proj.weight  BF16   [64, 32]  4096   model.safetensors  layer 0 routed expert 3 down weight
model.layers.0.mlp.experts.3.gate_proj.weight  BF16   [32, 64]  4096   model.safetensors  layer 0 routed expert 3 gate weight
model.layers.0.mlp.experts.3.up_proj.weight    BF16   [32, 64]  4096   model.safetensors  layer 0 routed expert 3 up weight" \
    inspect "$hf" --tensors '*.layers.0.*.experts.3.*'
  prints "inspect --tensors of nothing" 2 \
    "glu-ckpt: error: $hf: --tensors: none of its $(tensors "$hf" | wc -l) tensors fits 'nothing*' [usage]" \
    inspect "$hf" --tensors 'nothing*'
  status "inspect --tensors --json" 0 inspect "$TESTDATA/megatron/homogeneous" --tensors '*shared_experts*' --json
  check "tensor_list: each has the contract's fields" [ "$(json_get 'set(map(tuple, v["tensor_list"]))')" == \
    "{('name', 'dtype', 'shape', 'bytes', 'file', 'matrix')}" ]
  check "tensor_list: the matrices of one with all layers" [ "$(json_get '[t["matrix"] for t in v["tensor_list"]][0]')" == \
    "layers 0-1 shared expert gate and up weight" ]
  status "inspect --tensors: all of them" 0 inspect "$hf" --tensors --json
  check "tensor_list: as many as there are" [ "$(json_get 'len(v["tensor_list"]) == v["tensors"]')" == True ]
  status "inspect: layers" 0 inspect "$TESTDATA/whole/deepseek_v3/hf"
  check "inspect: a line for each kind of layer: $OUT" has "$OUT" \
    "layers      layer 0: rest 44.23 kB
            layers 1 to 2: 6 experts 40.32 kB, shared expert 13.44 kB, rest 24.77 kB in each
            layer mtp.0: 6 experts 40.32 kB, shared expert 13.44 kB, rest 54.67 kB
            no layer: rest"
  check "inspect: multi-token prediction is counted apart: $OUT" has "$OUT" \
    "moe layers  2, and 1 of multi-token prediction: 6 experts, hidden size 56, intermediate size 20"
  status "inspect --json: multi-token prediction" 0 inspect "$TESTDATA/whole/deepseek_v3/hf" --json
  check "inspect --json: multi-token prediction: $OUT" [ "$(json_get 'v["moe_layers"], v["mtp_moe_layers"], v["num_experts"]')" == "(2, 1, 6)" ]
  status "inspect: what is quantized" 0 inspect "$TESTDATA/quantized/ct_int4_g32"
  check "inspect: what is quantized: $OUT" has "$OUT" "quantized   INT4 in groups of 32: routed experts; --decode bf16"
  status "diff: scales of attention" 1 diff "$TESTDATA/quantized/fp8_block128" "$TESTDATA/quantized/fp8_channel" --json
  check "diff: scales of attention are in their layer" [ "$(json_get '[t["layer"] for t in v["tensors"] if "self_attn" in t["name"] and t["layer"] is None]')" == "[]" ]
}

# Line 5: what would load and be wrong is refused, and a warning where it is written all the same.
first_hours_foreign_order() {
  local family to text out=$WORK/foreign
  local -A ways=(
    [qwen3_moe]="--experts grouped --glu interleaved:32" [gpt_oss]="--glu contiguous" [granitemoe]="--glu interleaved:4")
  local -A expects=([qwen3_moe]=contiguous [gpt_oss]=interleaved:1 [granitemoe]=contiguous)
  for family in "${!ways[@]}"; do
    read -ra to <<<"${ways[$family]}"
    text="software that reads hf:$family expects ${expects[$family]} under these names and cannot see the difference"
    status "$family in a foreign order" 4 convert "$TESTDATA/hf/$family" "$out" "${to[@]}" -q
    check "$family: says why: $ERR" has "$ERR" "$text; --glu ${expects[$family]} writes what it expects; --allow-foreign-order"
    check "$family: nothing is written" absent "$out"
    status "$family: plan refuses it" 4 plan "$TESTDATA/hf/$family" "$out" "${to[@]}" -q
    status "$family in a foreign order, allowed" 0 convert "$TESTDATA/hf/$family" "$out" "${to[@]}" \
      --allow-foreign-order --json -q
    check "$family: the warning survives -q: $ERR" has "$ERR" \
      "glu-ckpt: warning: the output may load and compute something else."
    check "$family: the warning is in JSON" [ "$(json_get "any('$text' in w for w in v['warnings'])")" == True ]
    check "$family: the record says so" grep -q "\"foreign_order\": \".*expects ${expects[$family]}" "$out/glu_ckpt.json"
    status "$family: inspect" 0 inspect "$out" --json -q
    check "$family: inspect warns of it" [ "$(json_get "any('$text' in w for w in v['warnings'])")" == True ]
    check "$family: nothing loads it" [ "$(json_get 'v["loads_in"]')" == "[]" ]
    status "$family: still the same model" 0 verify "$TESTDATA/hf/$family" "$out" -q
    rm -rf "$out"
  done
  status "the expected order" 0 convert "$TESTDATA/hf/qwen3_moe" "$out" --experts grouped --glu contiguous -q
  check "the expected order: no warning" [ -z "$ERR" ]
  rm -rf "$out"
}

# Line 6: all answers that are missing are asked for at once, with the line to paste.
first_hours_missing_answers() {
  local out=$WORK/missing a=$GALLERIES/tiny/megatron_dist_optimizer
  prints "convert asks once" 4 \
    "glu-ckpt: error: $a: names and shapes do not tell in which order FC1 holds gate and up. If you know it, say --from-glu ORDER --from-shared-glu ORDER, where an ORDER is contiguous or interleaved:K; or record it once with \`glu-ckpt stamp\`, which writes it into the checkpoint [unknown-glu]
  glu-ckpt convert $a '$out b' --glu interleaved:2 --shared-glu interleaved:2 --from-glu ORDER --from-shared-glu ORDER" \
    convert "$a" "$out b" --glu interleaved:2 --shared-glu interleaved:2
  status "other tensors of the same rows" 0 convert "$a" "$out" --experts indexed --format safetensors -q
  status "verify asks for both sides at once" 4 verify "$a" "$out"
  check "verify: the line to paste: $ERR" has "$ERR" \
    "  glu-ckpt verify $a $out --from-glu ORDER --from-shared-glu ORDER --to-glu ORDER --to-shared-glu ORDER"
  local trained=$TESTDATA/megatron/homogeneous
  prints "what no file says of a trained model, and what hf has no place for" 4 \
    "glu-ckpt: error: $trained: --to hf: there is no config.json that says what model this is, and the arguments that the trainer saved have no num_attention_heads, without which they describe no model; --from-config FILE names a config.json that says it, and needs --from-shared-glu and --optimizer beside it [no-map]
  glu-ckpt convert $trained $out.hf --to hf --from-config FILE --from-shared-glu ORDER --optimizer drop" \
    convert "$trained" "$out.hf" --to hf
  # The same tensors are the same model in whatever order; where FC1 alone differs, it may be the same in two orders.
  status "verify of a reformatted copy" 0 convert "$a" "$out.pt" -q
  status "verify of a reformatted copy" 0 verify "$a" "$out.pt"
  check "verify of a reformatted copy: $OUT" has "$OUT" "every tensor is byte-identical"
  check "verify of a reformatted copy: $ERR" has "$ERR" "nothing says in which order the two hold gate and up rows"
  status "verify --forward of it" 4 verify "$a" "$out.pt" --forward
  python3 - "$a"/model.safetensors "$out.i.safetensors" <<'PY'
import json, struct, sys
raw = bytearray(open(sys.argv[1], "rb").read())
size = struct.unpack("<Q", raw[:8])[0]
header = json.loads(raw[8:8 + size])
fc1 = next(v for k, v in header.items() if k.endswith("mlp.experts.experts.linear_fc1.weight") and "optimizer" not in k)
begin, end = (8 + size + o for o in fc1["data_offsets"])
row = 2 * fc1["shape"][-1]
raw[begin:begin + 2 * row] = raw[begin + row:begin + 2 * row] + raw[begin:begin + row]
open(sys.argv[2], "wb").write(raw)
PY
  status "verify of another order of rows" 4 verify "$a" "$out.i.safetensors"
  cp "$a"/*.safetensors "$out.b"
  printf x | dd of="$out.b" bs=1 seek="$(($(stat -c %s "$out.b") - 1))" conv=notrunc status=none
  status "verify of another model" 1 verify "$a" "$out.b"
  rm -rf "$out" "$out".*
  status "the line as it is, with its placeholders" 2 convert "$a" "$out" --glu split --from-glu ORDER
  status "with --json" 4 digest "$a" --json
  check "with --json: the options: $ERR" has "$ERR" '"missing_options":["--from-glu","--from-shared-glu"]'
  status "what --from-glu covers" 0 convert "$a" "$out" --glu interleaved:2 --from-glu contiguous \
    --from-shared-glu contiguous
  check "what --from-glu covers: $ERR" has "$ERR" "note: --from-glu contiguous is taken for the routed experts of"
  check "what --from-glu covers: states: $ERR" has "$ERR" ", and for their optimizer's states; the shared expert is contiguous"
  rm -rf "$out"
}

# Line 7: stamp says what it writes, and takes it out again.
first_hours_stamp() {
  local dir=$WORK/stamped before
  cp -r "$GALLERIES/tiny/megatron_bias" "$dir"
  before=$(tree_sum "$dir")
  status "stamp --dry-run" 0 stamp "$dir" --glu contiguous --shared-glu contiguous --dry-run
  check "stamp --dry-run: $OUT" has "$OUT" "$dir/glu_ckpt.json: would record "
  check "stamp --dry-run writes nothing" [ "$before" == "$(tree_sum "$dir")" ]
  status "stamp" 0 stamp "$dir" --glu contiguous --shared-glu contiguous
  check "stamp names the file and the way back: $OUT" has "$OUT" "$dir/glu_ckpt.json: recorded "
  check "stamp names the way back: $OUT" has "$OUT" "\`glu-ckpt stamp $dir --remove\` takes it out"
  status "stamp --remove --dry-run" 0 stamp "$dir" --remove --dry-run
  check "stamp --remove --dry-run leaves it" [ -e "$dir/glu_ckpt.json" ]
  prints "stamp --remove" 0 "{}/stamped/glu_ckpt.json: took the layout out" stamp "$dir" --remove
  check "stamp --remove: as it was" [ "$before" == "$(tree_sum "$dir")" ]
  prints "stamp --remove again" 0 "{}/stamped: has no recorded layout" stamp "$dir" --remove
  prints "stamp without an answer" 2 \
    "glu-ckpt: error: stamp needs at least one of --glu, --shared-glu and --optimizer-glu [usage]" stamp "$dir"
  status "stamp --remove of a conversion's record" 0 convert "$TESTDATA/hf/mixtral" "$dir.out" --experts grouped -q
  status "stamp --remove of a conversion's record" 4 stamp "$dir.out" --remove
  rm -rf "$dir"*
}

# Lines 12 and 18: paths that are none.
first_hours_paths() {
  local hf=$TESTDATA/hf/qwen3_moe out=$WORK/paths cache=$WORK/hub
  prints "ftp" 2 \
    "glu-ckpt: error: ftp://host/model: is no address that is read: hf://, s3://, https:// and http:// are [usage]" \
    inspect ftp://host/model
  prints "a hub's name alone" 2 \
    "glu-ckpt: error: hf://org: is no whole address; say hf://ORG/NAME, hf://ORG/NAME@REVISION, s3://BUCKET/PREFIX or https://HOST/DIR/ [usage]" \
    inspect hf://org
  prints "to s3" 2 \
    "glu-ckpt: error: s3://bucket/model: remote paths are not written; write to a directory here and upload that [usage]" \
    convert "$hf" s3://bucket/model --experts grouped -q
  HF_HUB_CACHE=$cache status "a repository that is not here" 3 inspect Qwen/Qwen3-30B-A3B
  check "a repository that is not here: $ERR" has "$ERR" "hf://Qwen/Qwen3-30B-A3B is read from the hub itself"
  mkdir -p "$cache/models--Qwen--Qwen3-30B-A3B/"{refs,snapshots}
  printf abc123 >"$cache/models--Qwen--Qwen3-30B-A3B/refs/main"
  cp -r "$hf" "$cache/models--Qwen--Qwen3-30B-A3B/snapshots/abc123"
  HF_HUB_CACHE=$cache status "a repository in the cache" 0 inspect Qwen/Qwen3-30B-A3B
  check "a repository in the cache: $OUT" has "$OUT" "path        $cache/models--Qwen--Qwen3-30B-A3B/snapshots/abc123"
  status "its directory" 0 inspect "$cache/models--Qwen--Qwen3-30B-A3B"
  rm "$cache/models--Qwen--Qwen3-30B-A3B/refs/main"
  status "its directory, without a reference" 3 inspect "$cache/models--Qwen--Qwen3-30B-A3B"
  check "its directory: $ERR" has "$ERR" "is a repository of the Hugging Face cache; give one of the directories in"
  prints "from -" 2 \
    "glu-ckpt: error: '-': a checkpoint is not read from standard input; name a file or directory [usage]" inspect -
  status "to -" 2 convert "$hf" - --experts grouped -q
  status "to e1.gguf" 2 convert "$hf" "$out.gguf" --experts grouped --glu contiguous -q
  check "to e1.gguf: $ERR" has "$ERR" ".gguf files are not written; a name that ends in .safetensors, .pt, .pth or .bin"
  check "to e1.gguf: nothing is written" absent "$out.gguf"
  : >"$WORK/e.gguf"
  prints "from e.gguf" 3 \
    "glu-ckpt: error: {}/e.gguf: is a GGUF file (llama.cpp), which is not read; take the model in safetensors from where it was made [not-supported]" \
    inspect "$WORK/e.gguf"
  printf 'no tensors are in here\n' >"$WORK/README.md"
  prints "README.md" 3 \
    "glu-ckpt: error: {}/README.md: byte 0: this is no safetensors file: it is text, such as a server's message in place of a file; look into it, and download the file again [header-too-large]" \
    inspect "$WORK/README.md"
  status "one shard of two" 0 convert "$hf/model-00001-of-00002.safetensors" "$out" --experts grouped --glu contiguous -q
  check "one shard of two is warned of: $ERR" has "$ERR" \
    "glu-ckpt: warning: $hf/model-00001-of-00002.safetensors: is one of 2 shards by its name, and holds a part of a model; give the directory"
  status "into /proc" 3 convert "$hf" /proc/x --experts grouped --glu contiguous -q
  check "into /proc: $ERR" has "$ERR" "/proc/x.partial: cannot be created: its directory is not there, or takes no new files"
  rm -rf "$out" "$cache" "$WORK/README.md" "$WORK/e.gguf"
}

# Line 13: a table that fits, filtered.
first_hours_layouts() {
  status "layouts" 0 layouts
  check "layouts: at most 80 columns" [ "$(wc -L <"$WORK/.out")" -le 80 ]
  prints "layouts WORD" 0 "hf:gpt_oss
  loads in  transformers, vLLM, SGLang that know the family (convert --to hf)
  native    grouped interleaved:1
  axes      [in, out]
  keys      model.layers.{L}.mlp.experts.gate_up_proj

Listed is the native form: what the program's own software stores. Every naming
can be written with indexed or grouped experts and any order of gate and up." layouts gpt_oss
  status "layouts of a model type" 0 layouts olmoe
  check "layouts of a model type: $OUT" has "$OUT" hf:qwen3_moe
  status "layouts of a program" 0 layouts Megatron-Core
  check "layouts of a program: $OUT" has "$OUT" megatron-dist
  status "layouts as people write it" 0 layouts GPT-OSS
  check "layouts as people write it: $OUT" has "$OUT" hf:gpt_oss
  status "layouts of nothing" 2 layouts zebra
  "$PROGRAM" doctor no/where >/dev/null 2>"$WORK/.err"
  check "doctor does not look for a place in the hub's cache" [ "$(grep -c Hugging "$WORK/.err")" == 0 ]
  status "a beginning of a naming" 2 plan "$TESTDATA/hf/mixtral" "$WORK/no" --naming hf:qwen3
  check "a beginning of a naming: $ERR" has "$ERR" "'hf:qwen3' is not a naming; did you mean hf:qwen3_moe?"
  status "an option that is none" 2 inspect --list
  check "an option that is none: no far-fetched guess: $ERR" [ "$ERR" == "${ERR/did you mean/}" ]
}

# Line 14: digests as sha256sum has them.
first_hours_digest() {
  local a=$TESTDATA/hf/qwen3_moe b=$TESTDATA/hf/mixtral list=$WORK/digests
  status "digest a b" 0 digest "$a" "$b"
  check "digest a b: a line each" [ "$OUT" == "$(digest "$a")  $a
$(digest "$b")  $b" ]
  status "digest a: the path, too" 0 digest "$a"
  check "digest a: the path, too: $OUT" [ "$OUT" == "$(digest "$a")  $a" ]
  printf '%s\n' "$OUT" >"$list"
  prints "digest --check of one" 0 "$a: ok" digest --check "$list"
  prints "digest of what is not there, and of others" 3 "$(digest "$a")  $a
$(digest "$b")  $b
glu-ckpt: error: $WORK/none: does not exist [not-found]" digest "$a" "$WORK/none" "$b"
  status "digest a b" 0 digest "$a" "$b"
  printf '%s\n' "$OUT" >"$list"
  prints "digest --check" 0 "$a: ok
$b: ok" digest --check "$list"
  sed -i "s#  $b#  $a#" "$list"
  prints "digest --check: one is another" 1 "$a: ok
$a: differs" digest --check "$list"
  printf '%s  /nowhere\n' "$(digest "$a")" >>"$list"
  prints "digest --check -q: one is another, one is not there" 3 "$a: differs
/nowhere: not read (/nowhere: does not exist)" digest --check "$list" -q
  status "digest --check: one is not there" 3 digest --check "$list" --json
  check "digest --check --json" [ "$(json_get '[c["state"] for c in v["checked"]], v["ok"]')" == \
    "(['ok', 'differs', 'not read'], False)" ]
  printf 'no digest\n' >"$list"
  status "digest --check of another file" 2 digest --check "$list"
  status "digest of nothing" 2 digest
  prints "digest PATH --check LIST" 2 \
    "glu-ckpt: error: --check takes the paths from the lines of $list: \`glu-ckpt digest --check $list\` without $a; \`glu-ckpt verify $a gck2:...\` compares one path with one digest [usage]" \
    digest "$a" --check "$list"
  # A path with a newline, as sha256sum writes it.
  local odd=$WORK/$'odd\n\\name'
  cp -r "$a" "$odd"
  status "digest of a path with a newline" 0 digest "$odd" "$b"
  check "digest of a path with a newline: $OUT" [ "$OUT" == "\\$(digest "$a")  $WORK/odd\\n\\\\name
$(digest "$b")  $b" ]
  printf '%s\n' "$OUT" >"$list"
  status "digest --check of a path with a newline" 0 digest --check "$list" --json
  check "digest --check of a path with a newline: its path" [ "$(json_get 'v["checked"][0]["path"].endswith("odd\n\\name")')" == True ]
  printf '\\%s  a\\x\n' "$(digest "$a")" >"$list"
  status "digest --check of another escape" 2 digest --check "$list"
  rm -r "$odd"
  status "verify A gck2:..." 0 verify "$a" "$(digest "$a")"
  status "verify A gck2:... of another" 1 verify "$a" "$(digest "$b")" --json
  check "verify A gck2:...: both digests" [ "$(json_get 'v["digest_a"], v["digest_b"], v["equal"]')" == \
    "('$(digest "$a")', '$(digest "$b")', False)" ]
  status "verify A gck1:..." 2 verify "$a" gck1:0123
  status "verify A gck2:... --sample" 2 verify "$a" "$(digest "$a")" --sample 5%
  rm -f "$list"
}

# Lines 15 to 17, and smaller ones.
first_hours_rules() {
  local hf=$TESTDATA/hf/qwen3_moe unknown=$TESTDATA/megatron/homogeneous command
  for command in "inspect $hf" "verify $hf $hf" "diff $hf $hf" "check $hf" "plan $hf $WORK/no --experts grouped --glu contiguous"; do
    # shellcheck disable=SC2086
    status "$command -q" 0 $command -q
    check "$command -q says nothing: $OUT$ERR" [ -z "$OUT$ERR" ]
  done
  status "digest -q" 0 digest "$hf" -q
  check "digest -q: data stays" has "$OUT" gck2:
  prints "--sample 0.1" 2 "glu-ckpt: error: --sample: '0.1' may mean 0.1% or 10%; say which, with the % [usage]" \
    verify "$hf" "$hf" --sample 0.1
  status "--sample 0.1%" 0 verify "$hf" "$hf" --sample 0.1%
  status "--sample 5" 0 verify "$hf" "$hf" --sample 5
  status "inspect of an unknown order" 0 inspect "$unknown" --json
  check "an unknown order is a problem" [ "$(json_get 'len(v["problems"])')" == 1 ]
  check "an unknown order names the option" has "$OUT" "the order of gate and up in the shared expert's FC1 is unknown: say --from-shared-glu"
  status "inspect --strict" 3 inspect "$unknown" --strict
  status "inspect --strict of a known one" 0 inspect "$hf" --strict
  status "no command" 2 && check "it is told how" has "$ERR" "Usage: glu-ckpt [OPTIONS] COMMAND"
  check "it is an error" has "$ERR" "error: no command was given [usage]"
  status "no arguments" 2 convert
  check "it is told both" has "$ERR" "error: SRC and DST are missing: glu-ckpt convert [OPTIONS] SRC DST [usage]"
  status "another program's option" 2 convert a b --output c
  check "it is told the way" has "$ERR" "--output is no option of glu-ckpt convert; DST is the second argument"
  status "an option before the command" 2 --json inspect a && check "it is told where" has "$ERR" "glu-ckpt inspect --json a"
  status "-v alone" 2 -v && check "it is told both: $ERR" has "$ERR" "-V prints the version, and -v belongs after a command"
  status "--to nemo" 2 convert "$hf" "$WORK/no" --to nemo && check "it is told: $ERR" has "$ERR" "did you mean megatron?"
  status "--to llama.cpp" 2 convert "$hf" "$WORK/no" --to llama.cpp && check "it is told: $ERR" has "$ERR" "did you mean hf?"
  status "version" 0 version && check "it is --version" has "$OUT" "glu-ckpt 0"
  status "verify of another model" 1 verify "$hf" "$TESTDATA/whole/qwen3_moe/hf"
  check "what is in no layer: $OUT" has "$OUT" "first difference: norm/final weight, row 0, column 0: "
  status "--to ''" 2 convert "$hf" "$WORK/no" --to ''
  status "another family's experts" 0 plan "$TESTDATA/whole/qwen3_moe/hf" "$WORK/no" --naming hf:mixtral --scope experts
  check "another family's experts: why nothing loads it: $ERR" has "$ERR" \
    "no program loads the result: the experts are named as in hf:mixtral, the rest as in a model of type 'qwen3_moe'"
  status "what nothing loads" 0 plan "$hf" "$WORK/no" --experts grouped --glu split -q
  check "what nothing loads is a warning: $ERR" has "$ERR" "warning: nothing loads the output as it is: models of type 'qwen3_moe' do not store experts grouped, split"
  status "no spelling" 4 convert "$TESTDATA/hf/deepseek_v3" "$WORK/no" --naming hf:qwen3_moe --scope experts -q
  check "no spelling: the way out: $ERR" has "$ERR" "its models have none. Choose a naming that has them (\`glu-ckpt layouts\`)"
}

# The first hours of version 16e38f9, by its numbers. Held elsewhere: 4 (faults.sh), 5 (report.sh), 7
# (tests/cases/cases_files.py, and here), 8 (first_hours_missing_answers), 9 (streams.sh), 10 and 15 (pages.sh and streams.sh),
# 11 (tests/python, tests/package/run_program_wheel.sh), 12 to 14 (first_hours_rules), 16 (what_is_it.sh), 22
# (terminal.sh). Its page R1 to R18: tests/browser and report.sh; P1 to P9 of Python: tests/python/test_commands.py
# (P5: test_messages_speak_python), test_tensors.py and test_types.py. Its ten sentences: pages.sh.
first_hours_third() {
  local hf=$TESTDATA/whole/qwen3_moe/hf out=$WORK/third name
  local gate=model.layers.1.mlp.experts.3.gate_proj.weight
  # 1: `podman load` makes localhost/glu-ckpt:VERSION of it.
  mkdir -p "$out"
  check "1: an image is made" env SOURCE_DATE_EPOCH=0 python3 "$HERE/../../scripts/oci_image.py" "$out/a.tar" amd64 1.2.3 "$PROGRAM"
  check "1: it has a name" [ "$(tar -xOf "$out/a.tar" index.json | python3 -c \
    'import json, sys; print(json.load(sys.stdin)["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"])')" == "glu-ckpt:1.2.3" ]
  prints "2: a dense model" 0 "path        $TESTDATA/whole/llama3/hf
format      safetensors, 1 file, 108.93 kB (108928 bytes) with headers
tensors     30, BF16
layout      hf:llama, a dense model, split (gate and up are two tensors)
parameters  52.94K (52944)
model       3 layers, vocabulary 86, context 131072
attention   grouped-query: 6 heads, 2 of keys and values
layers      layers 0 to 2: rest 29.76 kB in each
            no layer: rest 16.61 kB
loads in    transformers, versions that have 'llama' (tried with 5.24.0)
            vLLM, versions that have 'llama' (not tried)
            SGLang, versions that have 'llama' (not tried)" inspect "$TESTDATA/whole/llama3/hf"
  prints "3: --strict -q says why" 3 "glu-ckpt: error: $TESTDATA/megatron/homogeneous: the order of gate and up in the shared expert's FC1 is unknown: say --from-shared-glu contiguous|interleaved:K, or record it with \`glu-ckpt stamp\`, which writes it into the checkpoint" \
    inspect "$TESTDATA/megatron/homogeneous" --strict -q
  status "6: a naming that nothing loads" 0 plan "$hf" "$out/no" --naming megatron -q
  check "6: a warning, and the target: $ERR" [ "$ERR" == "glu-ckpt: warning: nothing loads the output as it is: Megatron-Core loads torch_dist checkpoints; --to megatron makes one" ]
  printf x >"$out/model.nemo"
  prints "7: a NeMo archive" 3 "glu-ckpt: error: {}/third/model.nemo: is a NeMo archive (a tar file), which is not read; unpack it with \`tar xf\`, and give the directory of its weights that has a .metadata [not-supported]" \
    inspect "$out/model.nemo"
  # 12: as much as there is, and the reason where there is none.
  status "12: a dtype" 0 plan "$hf" "$out/no" --dtype fp32
  status "12: layers" 0 plan "$hf" "$out/no" --layers 0-0 --to megatron
  for name in megatron-bridge nemo megatron-core; do
    status "14: --to $name" 2 plan "$hf" "$out/no" --to "$name" && check "14: $name: $ERR" has "$ERR" "did you mean megatron?"
  done
  status "15: plan prints Megatron's arguments" 0 plan "$hf" "$out/no" --to megatron
  check "15: each in a line: $OUT" has "$OUT" "arguments   --bf16
            --num-layers 2
            --hidden-size 64"
  edited_model qwen3_moe "$out/b" "n = '$gate'; t[n][2] = b'\\x80\\x3f' + t[n][2][2:]"
  prints "17: diff names the expert" 1 "different: 1 of 69 matrices and tensors differ, 0 only in A, 0 only in B
LAYER       DIFFER          ELEMENTS              MAX ABS   RMS       RELATIVE  COSINE
1           1 of 33         1 (0.00153%)          1.15      0.00451   0.331     0.947985

layer 1 routed expert 3 gate weight: 1 of 2048 elements differ, max abs 1.15137, rms 0.0254419, relative norm 0.331251, cosine 0.947985; first in row 0, column 0: -0.15136719 (0xbe1b) in A, 1 (0x3f80) in B
1 other layer is equal" diff "$hf" "$out/b"
  status "17: diff -v" 1 diff "$hf" "$out/b" -v && check "17: diff -v tells of no device: $ERR" [ -z "$ERR" ]
  status "18: inspect of several" 0 inspect "$hf" "$out/b" && check "18: each has its path" [ "$(grep -c '^path ' <<<"$OUT")" == 2 ]
  status "18: check of several" 0 check "$hf" "$out/b"
  status "18: digest goes on after one that is broken" 3 digest "$out/nothing" "$hf"
  check "18: the other's digest" has "$OUT" "$hf"
  cp -r "$TESTDATA/hf/qwen3_moe" "$out/shards" && rm "$out/shards"/*-00001-of-* "$out/shards"/*-00002-of-*
  status "19: shards that are missing" 3 inspect "$out/shards"
  check "19: all at once, and the way on: $ERR" has "$ERR" "lists 2 shards, of which 2 are not there: model-00001-of-00002.safetensors, model-00002-of-00002.safetensors. \`hf download\` of the same repository goes on with a download that stopped"
  status "20: a repository" 3 inspect nobody/nothing
  check "20: the way: $ERR" has "$ERR" "hf://nobody/nothing is read from the hub itself"
  status "21: --progress json -q" 0 convert "$hf" "$out/quiet" --to megatron --progress json -q
  check "21: lines of JSON alone: $ERR" [ "$(grep -vc '^{"phase":' <<<"$ERR") $(grep -c '^{"phase":' <<<"$ERR")" != "0 0" -a "$(grep -vc '^{"phase":' <<<"$ERR")" == 0 ]
  status "23: convert" 0 convert "$hf" "$out/notes" --to megatron
  check "23: what loads it is said when it is there: $ERR" [ "${ERR/loads in/}" == "$ERR" ]
  check "23: $OUT" has "$OUT" "loads in    Megatron-Core"
  rm -rf "$out"
}

# Wrong turns of ten first tasks: each word of another program gets the way here.
first_hours_wrong_turns() {
  local hf=$TESTDATA/whole/qwen3_moe/hf no=$WORK/no line
  # Each line: arguments, and the end of what is said.
  while IFS='|' read -r line text; do
    # shellcheck disable=SC2086
    status "$line" 2 $line && check "$line: $ERR" has "$ERR" "$text"
  done <<LINES
compare a b|'compare' is not a command; \`glu-ckpt verify\` says whether two are one model, \`glu-ckpt diff\` where they differ [usage]
info a|\`glu-ckpt inspect\` says what a checkpoint is
quantize a b|\`glu-ckpt convert SRC DST --encode FORMAT\` quantizes
merge a b|\`glu-ckpt convert SRC DST --merge ADAPTER\` merges an adapter
resume a|the same \`glu-ckpt convert\` with --resume goes on
frobnicate a|'frobnicate' is not a command; \`glu-ckpt --help\` lists them [usage]
convert a b --tp 8|Megatron-Core and torchtitan cut the model for their ranks when they load it, so DST has none
convert a b --tensor-model-parallel-size 8|Megatron-Core and torchtitan cut the model
convert a b --from hf|SRC says what it is; where it does not, --from-naming and --from-glu do
convert a b --quantize fp8|--encode FORMAT quantizes
verify a b --atol 1e-3|bits decide whether two are equal; \`glu-ckpt diff\` says by how much they differ
inspect a --threads 3|--threads is no option of glu-ckpt inspect; -j says how many
convert a b --num-layers 4|--layers 0-3 writes a model of the first four
convert a b --num-experts 8|--keep-experts 0-31 writes a model of the first 32 of each layer
convert a --outpt b|--outpt is no option of glu-ckpt convert; DST is the second argument
convert a b -x|-x is no option of glu-ckpt convert; \`glu-ckpt convert --help\` lists its options
quantise a|'quantise' is not a command; \`glu-ckpt convert SRC DST --encode FORMAT\` quantizes
convert --model a --output b|--model is no option of glu-ckpt convert; SRC is the first argument
convert a b --bf16|dtypes stay as they are; --dtype changes them
convert a b --make-vocab-size-divisible-by 128|Megatron pads it when it loads, with a larger --padded-vocab-size
convert a b --no-verify|--verify none writes without a proof
convert a b --trust-remote-code|no code of a checkpoint is ever run
convert a b --tp-size 8|Megatron-Core and torchtitan cut the model
convert $hf $no --to gguf|did you mean hf?
report a -o b|--html FILE names the page
upload a|\`hf download\` and \`hf upload\` do that; a path may be hf://ORG/NAME
convert $hf $no --encode fp8|did you mean fp8:128x128?
convert $hf $no --encode int4|did you mean int4:g32?
hepl|'hepl' is not a command; did you mean help? [usage]
bench frob|'frob' is not a command of glu-ckpt bench; \`glu-ckpt bench --help\` lists them [usage]
help frobnicate|'frobnicate' is no command, option, value, role, file or error; \`glu-ckpt --help\` lists the commands, \`glu-ckpt help convert\` the most options, \`glu-ckpt layouts\` the namings, and a message ends with its error in brackets [usage]
help convert extra|'extra' is no option of glu-ckpt convert, and no value of one; \`glu-ckpt convert --help\` lists them [usage]
--to megatron convert a b|--to belongs after the command: glu-ckpt convert --to megatron a b [usage]
forward|CKPT, --layer, --input and --output are missing: glu-ckpt forward [OPTIONS] --layer N --input FILE --output FILE CKPT [usage]
report|A and --html are missing: glu-ckpt report [OPTIONS] --html FILE A [B] [usage]
inspect a --layers 3|--layers is no option of glu-ckpt inspect; --tensors '*.layers.3.*' lists what is in a layer [usage]
convert a b --frob|--frob is no option of glu-ckpt convert; \`glu-ckpt convert --help\` lists its options [usage]
convert $hf $no --decode fp16|'fp16' is not one of bf16, f32 [usage]
convert $hf $no --decode fp32|did you mean f32?
LINES
  status "capitals of a program" 0 plan "$hf" "$no" --to Megatron -q
  status "of another" 4 plan "$hf" "$no" --to vLLM
  status "a model type that is mistyped" 4 convert "$hf" "$no" --to hf:qwen3moe
  check "the way: $ERR" has "$ERR" "the source's model is of type 'qwen3_moe'; --to hf writes that type"
  : >"$WORK/empty"
  cp "$WORK/empty" "$WORK/empty.safetensors"
  ERR=$(cd "$WORK" && "$PROGRAM" inspect empty.safetensors 2>&1)
  check "a file of this directory is named as it was typed: $ERR" [ "${ERR#glu-ckpt: error: empty.safetensors: byte 0: }" != "$ERR" ]
  rm "$WORK/empty.safetensors"
  prints "quantized weights into a trainer: the way is said once" 4 "glu-ckpt: error: $TESTDATA/quantized/mxfp4_gpt_oss/model-00001-of-00002.safetensors: layer 0 routed experts: naming megatron-dist has no place for codes and scales; --decode bf16 writes the weights as bf16 [no-spelling]
  glu-ckpt convert $TESTDATA/quantized/mxfp4_gpt_oss $no --to megatron -q --decode bf16" \
    convert "$TESTDATA/quantized/mxfp4_gpt_oss" "$no" --to megatron -q
  status "namings" 0 layouts
  check "the first row says where to go: $OUT" [ "$(tr -s ' \n' ' ' <<<"$OUT" | grep -o '^megatron loads in .* native ' | sed 's/ native .*//')" == \
    "megatron loads in nothing: keys within one process; Megatron-Core loads megatron-dist" ]
  status "a list of digests that is empty" 2 digest --check "$WORK/empty"
  check "no success: $ERR" has "$ERR" "/empty: has no line; \`glu-ckpt digest PATH... >"
  status "an empty file" 3 inspect "$WORK/empty"
  check "it is called so: $ERR" has "$ERR" "it is empty, and one has at least 8 bytes; download or save it again"
  status "over a file of another kind" 4 convert "$hf" "$WORK/empty" --to megatron
  check "no word of --overwrite that would not work: $ERR" has "$ERR" "is no file of tensors, so --overwrite does not replace it"
  mkdir "$WORK/others" && : >"$WORK/others/notes.txt"
  status "into a directory of other things" 4 convert "$hf" "$WORK/others" --to megatron
  check "no word of --overwrite that would not work: $ERR" has "$ERR" "is no checkpoint, so --overwrite does not remove it"
  rm -r "$WORK/empty" "$WORK/others"
  status "plan" 0 plan "$hf" "$no" --to megatron
  check "from and to are explained: $OUT" has "$OUT" \
    "to          megatron-dist, grouped (one tensor for all experts), contiguous (all gate rows, then all up rows)"
  status "inspect --tensors" 0 inspect "$hf" --tensors
  check "no blanks at the ends of lines" [ "$(grep -c ' $' <<<"$OUT")" == 0 ]
  status "convert to nothing" 4 convert "$hf" "$no"
  check "convert to nothing: $ERR" has "$ERR" "the source is hf:qwen3_moe indexed split already; --to says which program is to load the output, --force copies it all the same"
  status "one layer" 0 plan "$hf" "$no" --layers 1
  check "one layer is no number of layers: $ERR" has "$ERR" "the output is a part of the model: layer 1 alone, of 2"
}

# Twenty conversions of a list, one of them done already and one broken: the line of the guide.
first_hours_batch() {
  local dir=$WORK/batch i failed=0
  mkdir -p "$dir"
  for i in {01..20}; do
    cp -r "$TESTDATA/hf/mixtral" "$dir/in$i"
    printf '%s\t%s\n' "$dir/in$i" "$dir/out$i" >>"$dir/list"
  done
  truncate -s -100 "$dir/in07/"model-00001-of-*.safetensors
  status "batch: one is done" 0 convert "$dir/in03" "$dir/out03" --experts grouped -q
  while IFS=$'\t' read -r src dst; do
    "$PROGRAM" convert "$src" "$dst" --experts grouped --resume --json -q || { failed=$((failed + 1)) && echo "$src" >>"$dir/failed"; }
  done <"$dir/list" >"$dir/log" 2>"$dir/errors"
  check "batch: one failed" [ "$failed $(cat "$dir/failed")" == "1 $dir/in07" ]
  check "batch: it is named" grep -q "$dir/in07/model-00001-of-" "$dir/errors"
  check "batch: one was up to date" [ "$(grep -c '"up_to_date":true' "$dir/log") $(wc -l <"$dir/log")" == "1 19" ]
  check "batch: the other outputs are there" [ "$(ls -d "$dir"/out* | wc -l)" == 19 ]
  rm -rf "$dir"
}
