# The page that `report` writes: its structure, its figures, and names that try to be more than names. tests/browser looks
# at it in Chromium, as people did (docs/report-*.png).

# page NAME ARGUMENTS...: what check_page.py finds in $WORK/page.html.
page() {
  local name=$1 found
  shift
  found=$(python3 "$HERE/check_page.py" "$WORK/page.html" "$@" 2>&1)
  check "$name: $found" [ -z "$found" ]
}

# reported NAME STATUS ARGUMENTS...: runs report and checks the structure of its page.
reported() {
  local name=$1 expected=$2
  shift 2
  status "$name" "$expected" report "$@" --html "$WORK/page.html" --overwrite && page "$name"
}

report_figures() {
  local a=$TESTDATA/hf/qwen3_moe b=$WORK/changed twice=$WORK/twice checkpoint
  reported "report A" 0 "$a"
  page "report A: norms" --norms "$a"
  status "as Megatron's" 0 convert "$a" "$twice" --to megatron --glu interleaved:16 -q
  reported "report of another layout" 0 "$twice"
  page "report of another layout: the same norms" --norms "$a"
  reported "report A B, equal" 0 "$a" "$twice" --json
  check "report A B, equal" [ "$(json_get 'v["equal"], v["bytes"] > 5000, v["output"]')" == "(True, True, '$WORK/page.html')" ]
  # Rows that were interleaved twice, one expert of another value, one without its bias.
  rm "$twice/release/glu_ckpt.json" "$twice/megatron_args.txt"
  status "wrong rows" 0 convert "$twice" "$b" --from-glu contiguous --glu interleaved:16 -q
  reported "report A B" 1 "$a" "$b" --forward
  status "diff" 1 diff "$a" "$b" --json && cp "$WORK/.out" "$WORK/diff.json"
  status "verify" 1 verify "$a" "$b" --forward --json && cp "$WORK/.out" "$WORK/verify.json"
  page "report A B: figures" --diff "$WORK/diff.json" --verify "$WORK/verify.json" --norms "$a"
  status "diff --html" 1 diff "$a" "$b" --html "$WORK/page.html" --overwrite --json
  check "diff --html: JSON is diff's" cmp -s "$WORK/.out" "$WORK/diff.json"
  page "diff --html: figures" --diff "$WORK/diff.json"
  status "diff of some" 1 diff "$a" "$b" --tensors '*expert 3 *' --json && cp "$WORK/.out" "$WORK/diff.json"
  status "diff of some --html" 1 diff "$a" "$b" --tensors '*expert 3 *' --html "$WORK/page.html" --overwrite
  page "diff of some --html: figures" --diff "$WORK/diff.json" --some
  for checkpoint in "$TESTDATA"/{hf/gpt_oss,megatron/homogeneous,quantized/mxfp4_gpt_oss,torch/dcp2} \
    "$GALLERIES"/tiny/{megatron_ragged,megatron_not_gated,megatron_two_scopes,one_of_everything}; do
    reported "report of ${checkpoint##*/}" 0 "$checkpoint"
  done
  rm -rf "$b" "$twice" "$WORK/page.html"
}

# What a reader sees first: who made it of what, what stands out with a link to its row, and what is the same in both.
report_head() {
  local hf=$TESTDATA/whole/qwen3_moe/hf gate=model.layers.1.mlp.experts.3.gate_proj.weight
  edited_model qwen3_moe "$WORK/odd" "
for k in t:
    if 'experts' in k: t[k][2] = bytes([t[k][2][0] ^ 1]) + t[k][2][1:]
t['$gate'][2] = b'\\x80\\x44' + t['$gate'][2][2:]"
  reported "report of an odd expert" 1 "$hf" "$WORK/odd"
  check "the odd expert is linked" grep -q '<p>What stands out: <a href="#tensor0">layer 1 routed expert 3</a>, relative norm [0-9.]*, [0-9.e+]* times that of most.</p>' "$WORK/page.html"
  check "the words of a layout are explained" grep -q '<td>hf:qwen3_moe, indexed (a tensor for each expert), split (gate and up are two tensors); gate and up known from the naming<' "$WORK/page.html"
  check "its row is there" grep -q '<tr id="tensor0"><th scope="row"><code>layer 1 routed expert 3 gate weight</code>' "$WORK/page.html"
  check "the command and the date" grep -Eq "<p class=\"made\">glu-ckpt [0-9.]+, [0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2} UTC: glu-ckpt report $hf $WORK/odd " "$WORK/page.html"
  check "what is the same is there once" [ "$(grep -c '>parameters</th><td>143248, 81808 for each token</td></tr>' "$WORK/page.html")" == 1 ]
  check "a picture for each width" [ "$(grep -c '<svg class="broad"' "$WORK/page.html") $(grep -c '<svg class="slim"' "$WORK/page.html")" == "1 1" ]
  check "what is alike is drawn once" grep -q '<strong>A and B, routed experts</strong>: split: gate and up are two tensors of 32 rows. Each expert has a tensor of its own (indexed).' "$WORK/page.html"
  check "layers of one size are one row" grep -q '<th scope="row">0 to 1</th><td><span class="bar"[^>]*></span>130.38 kB (45.5%) each</td>' "$WORK/page.html"
  check "nothing waits to be laid out" [ "$(grep -c 'class="[a-z ]*late' "$WORK/page.html")" == 0 ]
  check "a cell knows its layer" grep -qF -- "--layer:'layer 1, '" "$WORK/page.html"
  reported "report of a dense model" 0 "$TESTDATA/whole/llama3/hf"
  check "a dense model has its sizes" grep -q '>layers</th><td>[0-9]*, none with experts</td>' "$WORK/page.html"
  check "a dense model is drawn" grep -q '<strong>the MLP of a dense model</strong>: split: gate and up are two tensors' "$WORK/page.html"
  check "a dense model has no empty rows" [ "$(grep -c '<td>none</td>' "$WORK/page.html")" == 0 ]
  status "without MTP" 0 convert "$TESTDATA/whole/deepseek_v3/hf" "$WORK/lacking" --drop mtp -q
  status "with another's" 0 convert "$WORK/lacking" "$WORK/filled" --fill-from "$TESTDATA/whole/deepseek_v3/hf" -q
  reported "report of a filled model" 0 "$WORK/filled"
  check "what was filled in is there" grep -q 'filled in: [0-9]* tensors: model.layers.3.eh_proj.weight ' "$WORK/page.html"
  rm -rf "$WORK"/{odd,page.html,lacking,filled}
}

report_hostile_names() {
  local dir="$WORK/<img src=x onerror=alert(1)>"
  mkdir "$dir"
  cp -r "$GALLERIES/tiny/unusual_names" "$dir/a"
  python3 - "$dir/a" "$dir/b" <<'PY'
import json, os, struct, sys
evil = ["</code></td></table><script>alert(1)</script>", "\"><svg onload=alert(2)>", "'};alert(3);//", "&lt;b&gt;",
        "</title><style>*{display:none}</style>", "\u202etxet\u2066", "a\x01b\nc", "<!--", "]]>"]
for path, value in zip(sys.argv[1:], (0, 1)):
    os.makedirs(path, exist_ok=True)
    for name in os.listdir(path):
        os.remove(os.path.join(path, name))
    header, data = {}, b""
    names = [f"model.layers.0.mlp.experts.{e}.{p}_proj.weight" for e in range(2) for p in ("gate", "up", "down")]
    for i, name in enumerate(names + evil):
        header[name] = {"dtype": "F32", "shape": [2, 2], "data_offsets": [len(data), len(data) + 16]}
        data += struct.pack("<4f", *(float(i + value) for _ in range(4)))
    text = json.dumps(header).encode()
    with open(os.path.join(path, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"model_type": "</td><script>alert(4)</script>"}, file)
PY
  reported "hostile names" 1 "$dir/a" "$dir/b" --from-naming hf:qwen3_moe --to-naming hf:qwen3_moe
  page "hostile names are text" --names '</code></td></table><script>alert(1)</script>' '"><svg onload=alert(2)>' \
    "'};alert(3);//" '&lt;b&gt;' '</title><style>*{display:none}</style>' 'a\x01b\x0ac' '<!--' "$dir/b"
  check "hostile names: no script" [ "$(grep -ci '<script\|<img\|<svg onload' "$WORK/page.html")" == 0 ]
  rm -rf "$dir" "$WORK/page.html"
}

report_options() {
  local a=$TESTDATA/hf/mixtral
  status "report without a file" 2 report "$a"
  status "report" 0 report "$a" --html "$WORK/page.html"
  check "report says where: $OUT" has "$OUT" "$WORK/page.html: "
  status "report again" 4 report "$a" --html "$WORK/page.html"
  check "report again: $ERR" has "$ERR" "page.html exists; choose another name, or --overwrite to replace it"
  status "report again, --overwrite" 0 report "$a" --html "$WORK/page.html" --overwrite -q
  check "report -q says nothing" [ -z "$OUT$ERR" ]
  status "report --forward without B" 2 report "$a" --html "$WORK/page.html" --forward
  status "report into nowhere" 3 report "$a" --html "$WORK/no/where/page.html"
  status "report of nothing" 3 report "$WORK/nothing" --html "$WORK/page2.html"
  check "report of nothing writes nothing" absent "$WORK/page2.html"
  rm -f "$WORK/page.html"
}
