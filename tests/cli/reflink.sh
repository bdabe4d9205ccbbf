# Outputs that share blocks with their source, on an XFS of their own.

# Two shards of 4 experts, 3 matrices of 1 MiB each, random bytes.
make_shared() {
  python3 - "$1" <<'PY'
import json, os, struct, sys
out, f, h, index = sys.argv[1], 256, 2048, {}
os.mkdir(out)
for layer in range(2):
    name, header, at = f"model-{layer + 1:05d}-of-00002.safetensors", {}, 0
    for e in range(4):
        for part, shape in (("gate", [f, h]), ("up", [f, h]), ("down", [h, f])):
            key = f"model.layers.{layer}.mlp.experts.{e}.{part}_proj.weight"
            header[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * f * h]}
            index[key], at = name, at + 2 * f * h
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(f"{out}/{name}", "wb") as shard:
        shard.write(struct.pack("<Q", len(text)) + text + os.urandom(at))
with open(f"{out}/model.safetensors.index.json", "w") as listing:
    json.dump({"metadata": {}, "weight_map": index}, listing)
with open(f"{out}/config.json", "w") as config:
    json.dump({"model_type": "qwen3_moe", "num_hidden_layers": 2, "num_experts": 4, "hidden_act": "silu"}, config)
PY
}

mount_xfs() {
  local image=$WORK/xfs.img
  if ! command -v mkfs.xfs >/dev/null; then
    skip "reflink: there is no mkfs.xfs"
    return 1
  fi
  mkdir "$WORK/xfs"
  truncate -s 400M "$image"
  if ! mkfs.xfs -q -m reflink=1 "$image" 2>/dev/null || ! mount -o loop "$image" "$WORK/xfs" 2>/dev/null; then
    skip "reflink: no file system can be mounted here"
    return 1
  fi
}

used_kib() { sync -f "$1" && df -Pk "$1" | awk 'END { print $3 }'; }

reflink() {
  local dir=$WORK/xfs there=(--naming megatron --experts grouped --glu contiguous)
  local turned=(--naming megatron --experts grouped --glu interleaved:32) before reference
  status "--reflink takes three words" 2 convert a b --reflink sometimes
  status "--reflink always for a zip" 2 convert "$TESTDATA/hf/mixtral" "$WORK/zip" "${there[@]}" --format torch --reflink always
  check "--reflink always for a zip: $ERR" has "$ERR" "only safetensors shares blocks with its source, and the output is torch"
  status "--reflink always where there are no clones" 5 convert "$TESTDATA/hf/mixtral" /dev/shm/glu_ckpt.$$ "${there[@]}" \
    --reflink always -q
  check "--reflink always where there are no clones: $ERR" has "$ERR" "its file system (tmpfs) does not share blocks with"
  check "--reflink always where there are no clones: nothing is written" absent /dev/shm/glu_ckpt.$$.partial
  status "plan --reflink always where there are no clones" 5 plan "$TESTDATA/hf/mixtral" /dev/shm/glu_ckpt.$$ "${there[@]}" \
    --reflink always -q
  mount_xfs || return 0
  make_shared "$dir/src"
  before=$(tree_sum "$dir/src")
  reference=$(digest "$dir/src")

  status "--reflink never" 0 convert "$dir/src" "$dir/never" "${there[@]}" --reflink never --json
  check "--reflink never: all is written" [ "$(json_get 'v["bytes_cloned"], v["verified"], v["digest"]')" == \
    "(0, 'digest', '$reference')" ]
  local used
  used=$(used_kib "$dir")
  status "plan with clones" 0 plan "$dir/src" "$dir/auto" "${there[@]}" --json
  local planned
  planned=$(json_get 'v["bytes_cloned"], v["disk_needed"] < 4 << 20')
  status "--reflink auto" 0 convert "$dir/src" "$dir/auto" "${there[@]}" --json
  check "plan with clones: as many" [ "$planned" == "$(json_get 'v["bytes_cloned"], True')" ]
  check "--reflink auto: most is cloned" [ "$(json_get 'v["bytes_cloned"] > 20 * v["bytes_written"]')" == True ]
  check "--reflink auto: a sample" [ "$(json_get 'v["verified"], v["digest"]')" == "('sample', None)" ]
  check "--reflink auto: takes little space" [ $(($(used_kib "$dir") - used)) -lt 4096 ]
  check "--reflink auto: the same tensors" [ "$(tensors "$dir/auto")" == "$(tensors "$dir/never")" ]
  check "--reflink auto: no digest" absent_in "$dir/auto/glu_ckpt.json" '"digest"'
  check "--reflink auto: no checksum of what was not read" absent_in "$dir/auto/glu_ckpt.json" '"model.*data_xxh3'
  status "--reflink auto: verify" 0 verify "$dir/src" "$dir/auto"
  status "--reflink auto, as text" 0 convert "$dir/src" "$dir/text" "${there[@]}"
  check "--reflink auto, as text: how much" has "$OUT" "cloned  "
  check "--reflink auto, as text: what was proved" has "$OUT" "the plan is proved"

  status "--reflink auto of short runs" 0 convert "$dir/src" "$dir/turned" "${turned[@]}" --json
  check "--reflink auto of short runs: a digest is worth more" [ "$(json_get 'v["bytes_cloned"], v["verified"]')" == "(0, 'digest')" ]
  status "--reflink always of short runs" 0 convert "$dir/src" "$dir/always" "${turned[@]}" --reflink always --json
  check "--reflink always clones them" [ "$(json_get 'v["bytes_cloned"] > v["bytes_written"]')" == True ]
  check "--reflink always: the same tensors" [ "$(tensors "$dir/always")" == "$(tensors "$dir/turned")" ]
  status "--reflink always: one thread" 0 convert "$dir/src" "$dir/one" "${turned[@]}" --reflink always -j 1 -q
  check "--reflink always: the same bytes from one thread" cmp -s "$dir/always/model.safetensors" \
    "$dir/one/model.safetensors"

  for mode in readback forward; do
    status "--verify $mode with clones" 0 convert "$dir/src" "$dir/$mode" "${there[@]}" --verify $mode --json
    check "--verify $mode with clones: all was read" [ "$(json_get 'v["verified"], v["digest"]')" == \
      "('$mode', '$reference')" ]
    check "--verify $mode with clones: cloned" [ "$(json_get 'v["bytes_cloned"] > 0')" == True ]
    check "--verify $mode with clones: recorded" grep -q "\"digest\": \"$reference\"" "$dir/$mode/glu_ckpt.json"
  done
  status "--verify none with clones" 0 convert "$dir/src" "$dir/none" "${there[@]}" --verify none --json
  check "--verify none with clones: said so" [ "$(json_get 'v["verified"], v["bytes_cloned"] > 0')" == "(None, True)" ]

  local back=(--naming hf:qwen3_moe --experts indexed --glu split)
  status "clones of an output" 0 convert "$dir/never" "$dir/back" "${back[@]}" --json
  check "clones of an output: its digest" [ "$(json_get 'v["verified"], v["digest"]')" == "('sample', '$reference')" ]
  check "clones of an output: recorded" grep -q "\"source_digest\": \"$reference\"" "$dir/back/glu_ckpt.json"
  check "clones of an output: the first tensors" [ "$(tensors "$dir/back")" == "$(tensors "$dir/src")" ]
  status "clones of clones" 0 convert "$dir/auto" "$dir/again" "${back[@]}" --json
  check "clones of clones: the first tensors" [ "$(tensors "$dir/again")" == "$(tensors "$dir/src")" ]

  status "to a zip" 0 convert "$dir/src" "$dir/torch" "${there[@]}" --format torch --json
  check "to a zip: nothing is cloned" [ "$(json_get 'v["bytes_cloned"], v["verified"]')" == "(0, 'digest')" ]
  status "clones of a zip" 0 convert "$dir/torch" "$dir/unzipped" "${back[@]}" --format safetensors --reflink always --json
  check "clones of a zip: cloned" [ "$(json_get 'v["bytes_cloned"] > 0')" == True ]
  check "clones of a zip: the first tensors" [ "$(tensors "$dir/unzipped")" == "$(tensors "$dir/src")" ]

  status "to another file system" 0 convert "$dir/src" "$WORK/elsewhere" "${there[@]}" --json
  check "to another file system: all is written" [ "$(json_get 'v["bytes_cloned"], v["verified"]')" == "(0, 'digest')" ]
  status "always, to another file system" 5 convert "$dir/src" "$WORK/always" "${there[@]}" --reflink always -q
  check "always, to another file system: says why: $ERR" has "$ERR" "does not share blocks with $dir/src/model-0000"
  check "always, to another file system: nothing is written" absent "$WORK/always.partial"

  reflink_of_a_changing_source
  reflink_on_a_full_disk
  check "the source is as it was" [ "$(tree_sum "$dir/src")" == "$before" ]
  umount "$dir"
}

absent_in() { ! grep -q "$2" "$1"; }

# A source that is written to at any moment, also when rows of it are compared with their clones: then it has changed,
# which is no fault of this machine's.
reflink_of_a_changing_source() {
  local dir=$WORK/xfs
  cp -r --reflink=never "$dir/src" "$dir/changing"
  OUT=$(python3 - "$PROGRAM" "$dir" "${turned[@]}" <<'PY'
import collections, os, shutil, subprocess, sys, time
program, folder, layout = sys.argv[1], sys.argv[2], sys.argv[3:]
path, out = folder + "/changing/model-00001-of-00002.safetensors", folder + "/of_changing"
command = [program, "convert", folder + "/changing", out, *layout, "--reflink", "always", "-q"]
file, seen, rounds = os.open(path, os.O_RDWR), collections.Counter(), 40
data = 8 + int.from_bytes(os.pread(file, 8, 0), "little")
begin = time.time()
subprocess.run(command, check=True)
seconds = time.time() - begin
for i in range(rounds):
    shutil.rmtree(out)
    # A time of its own, so that a write shows whatever the file system's clock ticks in.
    os.utime(file, ns=(0, i))
    run = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    time.sleep(1.5 * seconds * i / rounds)
    os.pwrite(file, os.urandom(1 << 20), data)
    seen[run.wait()] += 1
    os.makedirs(out, exist_ok=True)
print(dict(sorted(seen.items())))
PY
)
  check "a source that changes: whole, or status 3: $OUT" python3 -c "assert set($OUT) <= {0, 3} and $OUT"
  rm -r "$dir/changing" "$dir/of_changing"
}

# Clones fit where a copy does not; what has to be written waits for space, and goes on.
reflink_on_a_full_disk() {
  local dir=$WORK/xfs fill=$WORK/xfs/fill/most kib
  rm -rf "$dir"/{auto,text,one,readback,forward,none,back,again,torch,unzipped}
  sync -f "$dir"
  # An allocation that fails makes XFS give back the blocks of removed files, which it else does when it finds the time.
  mkdir "$dir/fill"
  touch "$fill"
  for kib in 16384 1024 64; do
    while fallocate -o "$(stat -c %s "$fill")" -l ${kib}K "$fill" 2>/dev/null; do :; done
  done
  truncate -s -9000K "$fill"
  sync -f "$dir"
  status "a full disk: clones" 0 convert "$dir/src" "$dir/full" "${there[@]}" --json
  check "a full disk: cloned" [ "$(json_get 'v["bytes_cloned"] > 20e6')" == True ]
  check "a full disk: the same tensors" [ "$(tensors "$dir/full")" == "$(tensors "$dir/never")" ]
  status "a full disk: no space to write" 5 convert "$dir/src" "$dir/rest" "${turned[@]}" -q
  check "a full disk: says so" has "$ERR" "free some space"
  check "a full disk: no DST" absent "$dir/rest"
  # Not a byte: whether blocks can be shared cannot even be tried, which is no other answer than before.
  dd if=/dev/zero of="$dir/fill/rest" bs=4k 2>/dev/null
  sync -f "$dir"
  status "a full disk: resumed without space" 5 convert "$dir/src" "$dir/rest" "${turned[@]}" --resume -q
  rm -r "$dir/fill"
  sync -f "$dir"
  status "a full disk: resumed" 0 convert "$dir/src" "$dir/rest" "${turned[@]}" --resume --json
  check "a full disk: resumed: the same bytes" cmp -s "$dir/rest/model.safetensors" "$dir/turned/model.safetensors"
  check "a full disk: resumed: nothing beside it" absent "$dir/rest.partial"
}
