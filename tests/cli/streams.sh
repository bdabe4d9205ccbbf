# Who prints what where: data to stdout, everything else to stderr; --json, -q, --help, --version, suggestions.

streams() {
  local hf=$TESTDATA/hf/mixtral out=$WORK/streams
  status "inspect" 0 inspect "$hf" && check "inspect: stderr is empty" [ -z "$ERR" ]
  check "inspect names the layout" has "$OUT" "hf:mixtral"
  status "convert" 0 convert "$hf" "$out" --naming megatron --glu interleaved:2 --experts grouped
  check "convert: no error text" [ -z "$(grep -i error <<<"$ERR")" ]
  status "convert -q" 0 convert "$hf" "$out.q" --naming megatron --glu interleaved:2 --experts grouped -q
  check "convert -q of what nothing loads warns alone: $ERR" [ "$OUT$ERR" == "glu-ckpt: warning: nothing loads the output as it is: Megatron-Core loads torch_dist checkpoints; --to megatron makes one" ]
  status "convert -q of what programs load" 0 convert "$TESTDATA/hf/qwen3_moe" "$out.loads" --experts grouped --glu contiguous -q
  check "convert -q is silent" [ -z "$OUT$ERR" ]
  status "digest" 0 digest "$hf" && check "digest: one line on stdout" [ "$(wc -l <"$WORK/.out")" == 1 ]
  check "digest: its form" grep -Eqx "gck2:[0-9a-f]{32}:[0-9]+:[0-9]+  $hf" "$WORK/.out"
  status "layouts" 0 layouts && check "layouts lists megatron" has "$OUT" megatron
  status "an error" 4 convert "$hf" "$out.e"
  check "an error: nothing on stdout" [ -z "$OUT" ]
  check "an error: one line" [ "$(wc -l <"$WORK/.err")" == 1 ]
  status "an error --json" 4 convert "$hf" "$out.e" --json
  check "an error --json: nothing on stdout" [ -z "$OUT" ]
  status "--progress always off a terminal" 0 convert "$hf" "$out.p" --naming megatron --glu contiguous --progress always
  check "no carriage returns or escapes off a terminal" [ -z "$(grep -a $'[\r\e]' "$WORK/.err")" ]
  "$PROGRAM" inspect "$hf" >/dev/full 2>"$WORK/.err"
  check "a full stdout is noticed" [ $? == 5 ]
  rm -rf "$out"*
}

help_and_usage() {
  status "--help" 0 --help && check "--help opens with examples" has "$(head -n 8 "$WORK/.out")" "glu-ckpt convert"
  local command
  for command in inspect convert plan verify digest stamp forward; do
    status "$command --help" 0 "$command" --help
    check "$command --help shows its options" has "$OUT" "--json"
  done
  status "--version" 0 --version && check "--version" grep -Eq '[0-9]+\.[0-9]+\.[0-9]+' "$WORK/.out"
  status "no command" 2 && check "no command: on stderr" has "$ERR" "[usage]"
  status "a mistyped option" 2 convert a b --gluu split && check "it is suggested" has "$ERR" "did you mean --glu"
  status "a mistyped command" 2 convrt a b && check "it is suggested" has "$ERR" "did you mean convert"
  status "a mistyped naming" 2 convert a b --naming megatrn && check "it is suggested" has "$ERR" "did you mean megatron"
  status "usage as JSON" 2 convert --json && check "usage as JSON" has "$ERR" '{"error":"usage"'
}

json_output() {
  local hf=$TESTDATA/hf/qwen2_moe out=$WORK/json
  status "inspect --json" 0 inspect "$hf" --json
  check "inspect --json" json format layout moe_layers num_experts hidden_size moe_intermediate_size dtypes tensors \
    files bytes optimizer problems
  check "inspect --json: layout" [ "$(json_get 'sorted(v["layout"])')" == \
    "['experts', 'glu', 'glu_source', 'naming', 'shared_glu']" ]
  local fields=(output from to tensors_written bytes_written bytes_cloned seconds bytes_per_second peak_memory device
    digest verified refusals)
  status "plan --json" 0 plan "$hf" "$out" --naming megatron --glu interleaved:2 --shared-glu contiguous --json
  check "plan --json" json "${fields[@]}"
  check "plan --json: unverified" [ "$(json_get 'v["verified"]')" == None ]
  check "plan writes nothing" [ -z "$(ls -d "$out"* 2>/dev/null)" ]
  status "plan --json of a refusal" 4 plan "$hf" "$out" --json
  check "plan --json of a refusal" json "${fields[@]}"
  check "plan --json tells the refusal" [ "$(json_get 'len(v["refusals"])')" == 1 ]
  status "convert --dry-run" 0 convert "$hf" "$out" --naming megatron --glu interleaved:2 --dry-run --json
  check "convert --dry-run writes nothing" absent "$out"
  status "convert --json" 0 convert "$hf" "$out" --naming megatron --glu interleaved:2 --shared-glu contiguous --json
  check "convert --json" json "${fields[@]}"
  check "convert --json: verified" [ "$(json_get 'v["verified"]')" == digest ]
  check "convert --json: to" [ "$(json_get 'v["to"]["naming"], v["to"]["glu"], v["to"]["shared_glu"]')" == \
    "('megatron', 'interleaved:2', 'contiguous')" ]
  check "convert --json: the digest" [ "$(json_get 'v["digest"]')" == "$(digest "$out")" ]
  local odd=$out$'\xff'
  status "a name that is no UTF-8" 0 convert "$hf" "$odd" --naming megatron --glu interleaved:2 --shared-glu contiguous \
    --json
  check "a name that is no UTF-8: the report is JSON" [ "$(json_get 'v["output"][-1] == chr(0xfffd)')" == True ]
  status "a name that is no UTF-8: its record is JSON" 0 inspect "$odd"
  status "verify --json" 0 verify "$hf" "$out" --json
  check "verify --json" json equal digest_a digest_b missing extra first_difference forward
  check "verify --json: equal" [ "$(json_get 'v["equal"], v["first_difference"]')" == "(True, None)" ]
  status "digest --json" 0 digest "$hf" --json && check "digest --json" json digest
  status "layouts --json" 0 layouts --json && check "layouts --json" json layouts
  status "an error --json" 3 verify "$hf" "$WORK/none" --json
  check "an error says what of" [ "$(python3 -c 'import json, sys; v = json.load(sys.stdin); print(v["command"], v["source"], v["destination"])' \
    <"$WORK/.err")" == "verify $hf $WORK/none" ]
  status "a command without a second path" 0 digest "$hf" --json
  check "it has none" [ "$(json_get 'v["command"], v["source"], v["destination"]')" == "('digest', '$hf', None)" ]
  status "several checkpoints" 3 inspect "$hf" "$WORK/none" "$out" --json
  check "an object for each" [ "$(python3 -c 'import json, sys; print([json.loads(line)["source"] for line in sys.stdin])' \
    <"$WORK/.out")" == "['$hf', '$out']" ]
  check "an error for the one that is none" has "$ERR" '"source":"'"$WORK/none"'"'
  status "check of several" 0 check "$out" "$hf" && check "each by its name" has "$OUT" "$out:"
  status "several problems -q" 3 inspect "$GALLERIES/layout/glu_unknown" --strict -q
  check "-q leaves the reason of the status" has "$ERR" "say --from-glu"
  local whole=$TESTDATA/whole/qwen3_moe/hf
  status "plan --to megatron" 0 plan "$whole" "$out.m" --to megatron && check "it has the arguments" has "$OUT" "--num-experts 8"
  status "plan --to megatron --json" 0 plan "$whole" "$out.m" --to megatron --json
  cp "$WORK/.out" "$WORK/.planned"
  status "convert --to megatron" 0 convert "$whole" "$out.m" --to megatron -q
  check "they are those of the file" cmp -s <(python3 -c 'import json, sys; print("\n".join(json.load(sys.stdin)["megatron_args"]))' \
    <"$WORK/.planned") "$out.m/megatron_args.txt"
  for target in hf transformers vllm sglang; do
    status "--to $target" 0 convert "$out.m" "$out.$target" --to $target -q
    check "--to $target is --to hf" [ "$(tree_sum "$out.$target")" == "$(tree_sum "$out.hf")" ]
  done
  status "unknown glu --json" 0 inspect "$GALLERIES/layout/glu_unknown" --json
  check "an unknown glu is \"unknown\"" [ "$(json_get 'v["layout"]["glu"]')" == unknown ]
  rm -rf "$out"*
}

# However short a stage is, a program that reads the lines sees it begin and end.
progress_json() {
  local hf=$TESTDATA/hf/qwen2_moe command
  for command in "verify $hf $hf" "diff $hf $hf" "digest $hf" "convert $hf $WORK/progress --naming megatron --glu interleaved:2"; do
    # shellcheck disable=SC2086
    status "--progress json: $command" 0 $command --progress json --json
    check "--progress json: $command: $ERR" python3 - "$WORK/.err" <<'PY'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1]) if line.startswith("{")]
assert lines and all(set(line) == {"phase", "bytes", "total", "seconds", "bottleneck"} for line in lines), lines
for phase in {line["phase"] for line in lines}:
    ours = [line for line in lines if line["phase"] == phase]
    assert ours[0]["bytes"] == 0 and ours[-1]["bytes"] == ours[-1]["total"] > 0, ours
PY
  done
  status "--progress json -q" 0 digest "$hf" --progress json -q
  check "-q leaves the objects alone" [ -n "$ERR" ] && check "nothing else" [ -z "$(grep -v '^{' "$WORK/.err")" ]
  rm -rf "$WORK/progress"
}

# No file takes the number of a stream that is closed, and a log that is full hides nothing.
closed_streams() {
  local hf=$TESTDATA/hf/qwen2_moe out=$WORK/closed to=(--naming megatron --glu interleaved:2 --shared-glu contiguous -q)
  "$PROGRAM" convert "$hf" "$out" "${to[@]}"
  local want got
  want=$(tree_sum "$out")
  rm -r "$out"
  for streams in '>&-' '2>&-' '<&-' '<&- >&- 2>&-' '2>/dev/full'; do
    eval '"$PROGRAM" convert "$hf" "$out" "${to[@]}" --progress json' "$streams"
    check "convert $streams: exit $?" [ $? == 0 ]
    check "convert $streams: the bytes" [ "$(tree_sum "$out")" == "$want" ]
    rm -rf "$out"
    eval '"$PROGRAM" convert "$WORK/none" "$out" "${to[@]}"' "$streams" 2>/dev/null
    got=$?
    check "convert of nothing $streams: exit $got" [ $got == 3 ]
  done
}
