# docs/json.md names every field that commands print, and glu_ckpt.results types them.
json_fields() {
  local hf=$TESTDATA/whole/qwen3_moe/hf work=$WORK/fields name
  mkdir -p "$work"
  edited_model qwen3_moe "$work/b" "n = 'model.layers.1.mlp.experts.3.gate_proj.weight'; t[n][2] = b'\\x80\\x3f' + t[n][2][2:]"
  digest "$hf" >"$work/digest" && printf '%s  %s\n' "$(digest "$hf")" "$hf" >"$work/list"
  : >"$work/all"
  # printed COMMAND STATUS ARGUMENTS...: one object more of the section that is called so.
  printed() {
    local section=$1 expected=$2
    shift 2
    status "$section --json" "$expected" "$@" --json
    printf '%s\t%s\n' "$section" "$OUT" >>"$work/all"
  }
  printed inspect 0 inspect "$hf" --tensors
  printed inspect 0 inspect "$TESTDATA/megatron/homogeneous"
  printed plan 0 plan "$hf" "$work/out" --to megatron
  printed convert 0 convert "$hf" "$work/out" --to megatron --manifest sha256
  printed verify 1 verify "$hf" "$work/b"
  printed verify 0 verify "$hf" "$hf" --forward
  printed verify 1 verify "$hf" "$TESTDATA/hf/gpt_oss"
  check "verify: numbers of what is only in one, and of what is unlike" [ "$(json_get "v['differing'] + v['unlike'] + v['only_in_a'], \
    v['unlike'] + v['only_in_a'] == len(v['missing']), v['unlike'] + v['only_in_b'] == len(v['extra']), v['only_in_a'] > 0")" == \
    "(69, True, True, True)" ]
  printed diff 1 diff "$hf" "$TESTDATA/hf/gpt_oss"
  printed inspect 0 inspect "$TESTDATA/whole/llama3/hf"
  printed inspect 0 inspect "$TESTDATA/quantized/mxfp4_gpt_oss"
  printed diff 1 diff "$hf" "$work/b"
  edited_model qwen3_moe "$work/many" "for k in t:
    if 'experts' in k: t[k][2] = bytes([t[k][2][0] ^ 1]) + t[k][2][1:]
t['model.layers.1.mlp.experts.3.gate_proj.weight'][2] = b'\\x80\\x44' + t['model.layers.1.mlp.experts.3.gate_proj.weight'][2][2:]"
  printed diff 1 diff "$hf" "$work/many"
  printed digest 0 digest "$hf"
  printed digest 0 digest "$hf" "$work/b"
  printed digest 0 digest --check "$work/list"
  printed check 0 check "$work/out"
  printed stamp 0 stamp "$work/out" --glu contiguous --dry-run
  printed report 0 report "$hf" --html "$work/page.html"
  printed layouts 0 layouts qwen3_moe
  printed doctor 0 doctor "$work"
  check "docs/json.md names what is printed" python3 - "$work/all" "$HERE/../../docs/json.md" <<'PY'
import json, re, sys
page = open(sys.argv[2]).read()
common, *sections = re.split(r"^## ", page, flags=re.M)
documented = {}
for section in sections:
    title, text = section.split("\n", 1)
    for command in title.split(", "):
        documented[command] = set(re.findall(r"`(\w+)`", text))
documented["verify"] |= documented["diff"]  # its layers and tensors
shared = set(re.findall(r"`(\w+)`", common))
printed = {}

def names(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from names(inner)

for line in open(sys.argv[1]):
    command, text = line.split("\t", 1)
    printed.setdefault(command, set()).update(names(json.loads(text)))
fault = {command: sorted(found - documented[command] - shared) for command, found in printed.items()}
assert not any(fault.values()), f"not in the page: {fault}"
PY
  check "glu_ckpt.results types what is printed" python3 "$HERE/typed_results.py" "$HERE/../../python/glu_ckpt/results.py" "$work/all"
  rm -rf "$work"
}
