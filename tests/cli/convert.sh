# What convert makes of its options: forms of output, sharding, determinism, stamping, replacing.

convert_forms() {
  local family hf out=$WORK/forms there back reference
  there=(--naming megatron --experts grouped --glu interleaved:2)
  for family in mixtral qwen3_moe qwen2_moe deepseek_v3; do
    hf=$TESTDATA/hf/$family
    reference=$(digest "$hf")
    status "$family to megatron" 0 convert "$hf" "$out.a" "${there[@]}" -q
    status "$family back" 0 convert "$out.a" "$out.b" --naming "hf:$family" --experts indexed --glu split -q
    check "$family: the same tensors after the round" [ "$(tensors "$hf")" == "$(tensors "$out.b")" ]
    check "$family: one digest in all layouts" [ "$reference $reference" == "$(digest "$out.a") $(digest "$out.b")" ]
    status "$family: verify across layouts" 0 verify "$hf" "$out.a"
    check "$family: files beside the tensors" cmp -s "$hf/generation_config.json" "$out.a/generation_config.json"
    rm -rf "$out"*
  done
  hf=$TESTDATA/hf/gpt_oss
  status "gpt_oss to megatron" 0 convert "$hf" "$out.a" --naming megatron --experts indexed --glu contiguous -q
  status "gpt_oss back" 0 convert "$out.a" "$out.b" --naming hf:gpt_oss --experts grouped --glu interleaved:1 -q
  check "gpt_oss: the same tensors after the round" [ "$(tensors "$hf")" == "$(tensors "$out.b")" ]
  hf=$TESTDATA/hf/mixtral
  status "to one file" 0 convert "$hf" "$out.safetensors" "${there[@]}" -q
  check "to one file: a file, nothing else" [ -f "$out.safetensors" -a ! -e "$out.safetensors.partial" ]
  back=(--naming hf:mixtral --experts indexed --glu split)
  status "from one file" 0 convert "$out.safetensors" "$out.c" "${back[@]}" -q
  check "from one file: the same tensors" [ "$(tensors "$hf")" == "$(tensors "$out.c")" ]
  status "--force" 0 convert "$hf" "$out.f" --force -q
  check "--force: the same tensors" [ "$(tensors "$hf")" == "$(tensors "$out.f")" ]
  status "--verify readback" 0 convert "$hf" "$out.r" "${there[@]}" --verify readback --json
  check "--verify readback: said so" [ "$(json_get 'v["verified"]')" == readback ]
  status "--verify none" 0 convert "$hf" "$out.n" "${there[@]}" --verify none --json
  check "--verify none: said so" [ "$(json_get 'v["verified"]')" == None ]
  status "a name with blanks and a trailing slash" 0 convert "$hf" "$out a b/" "${there[@]}" -q
  check "a name with blanks: there" [ -d "$out a b" ]
  (cd "$WORK" && "$PROGRAM" convert "$hf" relative "${there[@]}" -q)
  check "a relative name" [ -d "$WORK/relative" ]
  (cd "$WORK" && "$PROGRAM" convert "$hf" -q "${there[@]}" -- -dash)
  check "a name that starts with a dash" [ -d "$WORK/-dash" ]
  rm -rf "$out"* "$WORK/relative" "$WORK/-dash"
}

sharding() {
  local hf=$TESTDATA/hf/deepseek_v3 out=$WORK/shards
  status "--max-shard-size" 0 convert "$hf" "$out" --naming megatron --glu contiguous --max-shard-size 8KiB -q
  check "several shards" [ "$(ls "$out"/model-*-of-*.safetensors | wc -l)" -gt 2 ]
  check "the index lists every tensor, its shard and the total" python3 - "$out" <<'PY'
import glob, json, os, struct, sys
index = json.load(open(os.path.join(sys.argv[1], "model.safetensors.index.json")))
seen, total = {}, 0
for path in glob.glob(os.path.join(sys.argv[1], "*.safetensors")):
    raw = open(path, "rb").read()
    size = struct.unpack("<Q", raw[:8])[0]
    assert (8 + size) % 8 == 0, "unaligned data"
    for name, t in json.loads(raw[8:8 + size]).items():
        if name != "__metadata__":
            assert name not in seen
            seen[name] = os.path.basename(path)
            total += t["data_offsets"][1] - t["data_offsets"][0]
sys.exit(not (index["weight_map"] == seen and index["metadata"]["total_size"] == total))
PY
  check "the same digest" [ "$(digest "$hf")" == "$(digest "$out")" ]
  status "back into one" 0 convert "$out" "$out.one" --glu split -q
  check "one shard, no index" [ -f "$out.one/model.safetensors" -a ! -e "$out.one/model.safetensors.index.json" ]
  status "a tensor per shard" 0 convert "$hf" "$out.each" --force --max-shard-size 1 -q
  check "a tensor per shard: the same tensors" [ "$(tensors "$hf")" == "$(tensors "$out.each")" ]
  rm -rf "$out"*
}

determinism() {
  local hf=$TESTDATA/hf/deepseek_v3 out=$WORK/same first jobs
  local to=(--naming megatron --experts grouped --glu interleaved:2 --max-shard-size 16KiB -q)
  status "-j 1" 0 convert "$hf" "$out.1" "${to[@]}" -j 1
  first=$(tree_sum "$out.1")
  for jobs in 2 4; do
    status "-j $jobs" 0 convert "$hf" "$out.$jobs" "${to[@]}" -j "$jobs"
    check "-j $jobs: the same bytes" [ "$first" == "$(tree_sum "$out.$jobs")" ]
  done
  status "--max-memory 1MiB" 0 convert "$hf" "$out.m" "${to[@]}" --max-memory 1MiB
  check "--max-memory 1MiB: the same bytes" [ "$first" == "$(tree_sum "$out.m")" ]
  cp -r "$hf" "$out.source"
  chmod -R a-w "$out.source"
  status "another path of the source, read-only" 0 convert "$out.source" "$out.p" "${to[@]}"
  check "another path: the same bytes" [ "$first" == "$(tree_sum "$out.p")" ]
  chmod -R u+w "$out.source"
  rm -rf "$out"*
}

# An optimizer's states: left out, told apart, recorded.
optimizer() {
  local full=$GALLERIES/tiny/megatron_dist_optimizer work=$WORK/optimizer said
  said=(--from-glu contiguous --from-shared-glu contiguous)
  mkdir -p "$work"
  status "inspect sees the optimizer" 0 inspect "$full" --json
  check "it says so" [ "$(json_get 'v["optimizer"], v["layout"]["optimizer_glu"]')" == "(True, 'unknown')" ]
  status "--optimizer drop" 0 convert "$full" "$work/dropped" "${said[@]}" --optimizer drop --json
  check "drop was verified" [ "$(json_get 'v["verified"]')" == digest ]
  check "drop leaves the rest as it is" [ "$(tensors "$full" | grep -v ^optimizer)" == "$(tensors "$work/dropped")" ]
  status "drop it again" 4 convert "$work/dropped" "$work/again" --optimizer drop
  check "there is nothing left to drop" has "$ERR" already-in-layout
  status "inspect sees none" 0 inspect "$work/dropped" --json
  check "no optimizer" [ "$(json_get 'v["optimizer"], v["layout"].get("optimizer_glu")')" == "(False, None)" ]
  status "what is assumed is said" 0 convert "$full" "$work/a" "${said[@]}" --glu interleaved:2
  check "assumed: said so" has "$ERR" --from-optimizer-glu
  status "another order" 0 convert "$full" "$work/b" "${said[@]}" --from-optimizer-glu interleaved:2 --glu contiguous
  check "told: nothing assumed" [ "$(grep -c from-optimizer-glu <<<"$ERR")" == 0 ]
  status "drop from a recorded one" 0 convert "$work/a" "$work/c" --optimizer drop --glu contiguous -q
  check "dropped early or late" [ "$(tensors "$work/c")" == "$(tensors "$work/dropped")" ]
  status "told otherwise is another model" 1 verify "$work/b" "$full" --to-glu contiguous --to-shared-glu contiguous
  check "the state is named" has "$OUT" "exp_avg of layer 0"
  status "told alike is the same" 0 verify "$work/b" "$full" --to-glu contiguous --to-shared-glu contiguous \
    --to-optimizer-glu interleaved:2
  cp -r "$full" "$work/stamped"
  status "stamp --optimizer-glu" 0 stamp "$work/stamped" --glu contiguous --shared-glu contiguous \
    --optimizer-glu interleaved:2 -q
  status "verify what is stamped" 0 verify "$work/stamped" "$work/b"
  status "--optimizer sometimes" 2 convert "$full" "$work/d" --optimizer sometimes
  rm -rf "$work"
}

# mixed_model DIR GATE_ROWS [stale]: FC1s in contiguous order, beside states in blocks of so many gate rows; the master
# weights round to the weights, unless they are stale. F = 8.
mixed_model() {
  mkdir -p "$1"
  python3 - "$@" <<'PY'
import json, struct, sys
path, block, stale = sys.argv[1], int(sys.argv[2]), len(sys.argv) > 3
F, H, EXPERTS = 8, 5, 3
tensors = {}

def codes(layer, expert, rows, cols, part):
    return [[0x3000 + ((layer * EXPERTS + expert) * 2 + part) * 256 + r * cols + c for c in range(cols)]
            for r in range(rows)]

def states_order(rows):
    return [rows[p // block % 2 * F + p // (2 * block) * block + p % block] for p in range(2 * F)]

def put(name, dtype, rows):
    data = b"".join(struct.pack("<%d%s" % (len(r), "H" if dtype == "BF16" else "I"), *r) for r in rows)
    tensors[name] = dtype, [len(rows), len(rows[0])], data

for layer in range(2):
    for expert in range(EXPERTS):
        for part, (name, rows, cols) in enumerate([("linear_fc1", 2 * F, H), ("linear_fc2", H, F)]):
            key = f"decoder.layers.{layer}.mlp.experts.{name}.weight{expert}"
            weight = codes(layer, expert, rows, cols, part)
            state = weight if part else states_order(weight)
            put(key, "BF16", weight)
            wide = [[(code << 16) + (0x9000 if stale else (code * 77) % 0x8000) for code in row] for row in state]
            put("optimizer.state.param." + key, "F32", wide)
            put("optimizer.state.exp_avg." + key, "F32", [[code * 3 for code in row] for row in state])
header, end = {}, 0
for name, (dtype, shape, data) in tensors.items():
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
    end += len(data)
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(path + "/model.safetensors", "wb") as out:
    out.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))
PY
}

# An optimizer's state in another order than its weights: the master weights give it away.
optimizer_orders() {
  local work=$WORK/states told from=--from-optimizer-glu
  mixed_model "$work/alike" 8
  mixed_model "$work/mixed" 4
  mixed_model "$work/stale" 4 stale
  status "alike" 0 convert "$work/alike" "$work/alike2" --from-glu contiguous --glu interleaved:2 -v
  check "alike: what was looked at" has "$ERR" "sampled rows of the master weights of 2 FC1s round to the weights"
  for told in "" "$from contiguous" "$from interleaved:2" "--verify none"; do
    # shellcheck disable=SC2086
    status "mixed, $told" 4 convert "$work/mixed" "$work/no" --from-glu contiguous --glu interleaved:2 $told
    check "mixed: refused for what it is" has "$ERR" "[glu-conflict]"
    check "mixed: the file" has "$ERR" "$work/mixed/model.safetensors"
    check "mixed: the layer" has "$ERR" "layer 0, routed experts"
    check "mixed: what to say" has "$ERR" "$from interleaved:4"
    check "mixed: nothing was written" absent "$work/no"
    check "mixed: nothing is left over" absent "$work/no.partial"
  done
  status "mixed: digest" 4 digest "$work/mixed" --from-glu contiguous
  status "mixed: verify, as A" 4 verify "$work/mixed" "$work/alike" --from-glu contiguous --to-glu contiguous
  status "mixed: verify, as B" 4 verify "$work/alike" "$work/mixed" --from-glu contiguous --to-glu contiguous
  check "mixed: B's option" has "$ERR" "--to-optimizer-glu interleaved:4"
  status "mixed: the weights told wrongly" 4 digest "$work/mixed" --from-glu interleaved:2 "$from" interleaved:4
  check "mixed: the weights' order" has "$ERR" "--from-glu contiguous --from-optimizer-glu interleaved:4"
  status "mixed: headers do not show it" 0 plan "$work/mixed" "$work/no" --from-glu contiguous --glu interleaved:2 -q
  status "mixed: inspect" 0 inspect "$work/mixed" --from-glu contiguous -q
  status "mixed: without the states" 0 convert "$work/mixed" "$work/dropped" --from-glu contiguous --glu interleaved:2 \
    --optimizer drop -q
  status "mixed: told rightly" 0 convert "$work/mixed" "$work/mixed2" --from-glu contiguous "$from" interleaved:4 \
    --glu interleaved:2
  check "mixed: nothing was assumed of the order" [ "$(grep -c -e "$from" <<<"$ERR")" == 0 ]
  check "mixed and alike become one" [ "$(tensors "$work/mixed2")" == "$(tensors "$work/alike2")" ]
  check "digests agree" [ "$(digest "$work/mixed" --from-glu contiguous "$from" interleaved:4)" == \
    "$(digest "$work/alike" --from-glu contiguous)" ]
  status "mixed: a record that is wrong" 0 stamp "$work/mixed" --glu contiguous --optimizer-glu interleaved:2 -q
  status "a record is a claim" 4 digest "$work/mixed"
  check "a record: way out" has "$ERR" "remove it"
  status "stale masters prove nothing" 0 convert "$work/stale" "$work/stale2" --from-glu contiguous \
    --glu interleaved:2 -v
  check "stale: looked at all the same" has "$ERR" "2 FC1s say nothing about their order"
  # Megatron's own, one step after its start.
  status "Megatron's masters" 0 digest "$TESTDATA/megatron/homogeneous" --from-glu contiguous \
    --from-shared-glu contiguous -v
  check "Megatron's masters round to the weights" has "$ERR" "of 4 FC1s round to the weights"
  status "Megatron's, told otherwise" 4 digest "$TESTDATA/megatron/homogeneous" --from-glu contiguous \
    --from-shared-glu contiguous "$from" interleaved:32
  rm -rf "$work"
}

stamping() {
  local bare=$GALLERIES/layout/glu_unknown work=$WORK/stamp before
  cp -r "$bare" "$work"
  before=$(sha256sum <"$work/model.safetensors")
  status "stamp a directory" 0 stamp "$work" --glu contiguous
  check "its shards stay" [ "$before" == "$(sha256sum <"$work/model.safetensors")" ]
  status "convert without --from-glu" 0 convert "$work" "$work.to" --glu interleaved:2 -q
  status "the same answer" 0 convert "$bare" "$work.ref" --from-glu contiguous --glu interleaved:2 -q
  check "stamped and told are the same" [ "$(tensors "$work.to")" == "$(tensors "$work.ref")" ]
  status "stamp it otherwise" 4 stamp "$work" --glu interleaved:2
  status "stamp it again" 0 stamp "$work" --glu contiguous -q && check "stamp -q is silent" [ -z "$OUT$ERR" ]
  cp "$bare/model.safetensors" "$work.safetensors"
  chmod 640 "$work.safetensors"
  before=$(tensors "$work.safetensors")
  status "stamp a file" 0 stamp "$work.safetensors" --glu interleaved:2
  check "a file keeps its tensors" [ "$before" == "$(tensors "$work.safetensors")" ]
  check "a file keeps its mode" [ "$(stat -c %a "$work.safetensors")" == 640 ]
  check "nothing beside it" absent "$work.safetensors.partial"
  status "read what was stamped" 0 inspect "$work.safetensors" --json
  check "it says so" [ "$(json_get 'v["layout"]["glu"], v["layout"]["glu_source"]')" == \
    "('interleaved:2', 'record')" ]
  # What is stamped must be what a reader takes it for, also where only some layers are fused.
  cp -r "$GALLERIES/layout/glu_of_one_layer_for_all" "$work.mixed"
  if status "stamp a mixed checkpoint" 0 stamp "$work.mixed" --glu interleaved:2; then
    check "stamped and told are the same, mixed" [ "$(digest "$work.mixed")" == \
      "$(digest "$GALLERIES/layout/glu_of_one_layer_for_all" --from-glu interleaved:2)" ]
  fi
  status "convert a mixed checkpoint" 0 convert "$GALLERIES/layout/glu_of_one_layer_for_all" "$work.m" \
    --from-glu interleaved:2 --experts grouped -q
  rm -rf "$work"*
}

differing() {
  local hf=$TESTDATA/hf/mixtral other=$WORK/other
  cp -r "$hf" "$other"
  python3 - "$other" <<'PY'
import glob, json, os, struct, sys
for path in sorted(glob.glob(os.path.join(sys.argv[1], "*.safetensors"))):
    raw = bytearray(open(path, "rb").read())
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(bytes(raw[8:8 + size]))
    for name, t in header.items():
        if name.endswith("layers.1.block_sparse_moe.experts.2.w3.weight"):
            cols = t["shape"][1]
            raw[8 + size + t["data_offsets"][0] + (3 * cols + 5) * (2 if "16" in t["dtype"] else 4)] ^= 1
            open(path, "wb").write(raw)
PY
  status "verify of two models" 1 verify "$hf" "$other" --json
  check "the first difference" [ "$(json_get \
    '[v["first_difference"][k] for k in ("layer", "expert", "role", "row", "column")]')" == "[1, 2, 'up', 3, 5]" ]
  check "not equal" [ "$(json_get 'v["equal"]')" == False ]
  status "verify of two models as text" 1 verify "$hf" "$other"
  check "digests differ" [ "$(digest "$hf")" != "$(digest "$other")" ]
  # No byte of an expert may be left out of the digest.
  local lame=$GALLERIES/layout/gate_on_one_expert_only
  cp -r "$lame" "$other.lame"
  printf '\377' | dd of="$other.lame/model.safetensors" bs=1 conv=notrunc status=none \
    seek=$(($(stat -c %s "$lame/model.safetensors") - 66))
  check "the byte differs" [ "$(cmp -s "$lame/model.safetensors" "$other.lame/model.safetensors"; echo $?)" == 1 ]
  "$PROGRAM" verify "$lame" "$other.lame" >/dev/null 2>&1
  check "files that differ in an expert are never equal" [ $? != 0 ]
  status "verify against another family" 1 verify "$hf" "$TESTDATA/hf/qwen3_moe" -q
  # A checkpoint whose record is wrong about the order is another model.
  status "interleaved" 0 convert "$hf" "$other.i" --naming megatron --glu interleaved:2 -q
  status "contiguous" 0 convert "$hf" "$other.c" --naming megatron --glu contiguous -q
  status "verify of equal ones" 0 verify "$other.i" "$other.c"
  python3 - "$other.i" <<'PY'
import json, struct, sys
path = sys.argv[1] + "/model.safetensors"
raw = open(path, "rb").read()
size = struct.unpack("<Q", raw[:8])[0]
header = json.loads(raw[8:8 + size])
header["__metadata__"]["glu_ckpt.glu"] = "contiguous"
text = json.dumps(header, separators=(",", ":")).encode()
text += b" " * (-len(text) % 8)
open(path, "wb").write(struct.pack("<Q", len(text)) + text + raw[8 + size:])
side = sys.argv[1] + "/glu_ckpt.json"
record = json.load(open(side))
record["glu"] = "contiguous"
del record["record_xxh3_128"]
json.dump(record, open(side, "w"))
PY
  status "a record that lies is found by digest" 3 digest "$other.i" -q
  status "a record that lies is found by convert" 3 convert "$other.i" "$other.l" --glu interleaved:4 -q
  status "a record that lies is found by verify" 1 verify "$other.c" "$other.i"
  check "and what it is instead is named" has "$OUT" "interleaved:2, not as contiguous"
  rm -rf "$other"*
}

# refused_alike NAME STATUS SLUG ARGUMENTS...: plan and convert refuse with one status and one message.
refused_alike() {
  local name=$1 expected=$2 slug=$3 said
  shift 3
  status "plan: $name" "$expected" plan "$@" -q
  said=$(grep -m1 ' error: ' <<<"$ERR")
  check "plan: $name: $ERR" has "$said" "[$slug]"
  status_again "convert: $name" "$expected" convert "$@" -q
  check "$name: plan says '$said', convert $ERR" [ "$(grep -m1 ' error: ' <<<"$ERR")" == "$said" ]
}

# `plan` is `convert` without the writing, so it refuses the same, and leaves nothing.
plan_refuses() {
  local hf=$TESTDATA/hf out=$WORK/refused to=(--experts grouped --glu contiguous) command
  refused_alike "several shards in a torch file" 2 usage "$hf/qwen3_moe" "$out.pt" "${to[@]}" --max-shard-size 50KB
  refused_alike "several shards in a safetensors file" 2 usage "$hf/qwen3_moe" "$out.safetensors" "${to[@]}" \
    --max-shard-size 50KB
  refused_alike "running codes" 3 not-supported "$TESTDATA/quantized/fp8_channel" "$out" --experts grouped --verify forward
  mkdir "$out.bare"
  cp "$hf"/mixtral/model-* "$out.bare"
  refused_alike "an unknown activation" 4 unknown-activation "$out.bare" "$out" "${to[@]}" --verify forward
  refused_alike "an unknown order" 4 unknown-glu "$TESTDATA/megatron/homogeneous" "$out" --experts indexed --verify forward
  for command in plan convert; do
    status "$command: a directory that takes no files" 3 "$command" "$hf/qwen3_moe" /proc/refused "${to[@]}" -q
    check "$command: a directory that takes no files: $ERR" has "$ERR" "cannot be created"
  done
  status "plan of what works" 0 plan "$hf/qwen3_moe" "$out" "${to[@]}" -q
  rm -r "$out.bare"
  check "plan leaves nothing" [ -z "$(ls -d "$out"* 2>/dev/null)" ]
}
