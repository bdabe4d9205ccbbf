# Limits of memory.

memory_limit() {
  ((SANITIZED)) && { skip "memory limit: a sanitizer's own memory is in the way"; return; }
  # Many small experts in one tensor: what is kept per expert must not outgrow the checkpoint by much.
  python3 - "$WORK/many" <<'PY'
import json, os, struct, sys
e = 200000
base = "decoder.layers.0.mlp.experts."
header = {base + "linear_fc1.weight": {"dtype": "BF16", "shape": [e, 2, 1], "data_offsets": [0, 4 * e]},
          base + "linear_fc2.weight": {"dtype": "BF16", "shape": [e, 1, 1], "data_offsets": [4 * e, 6 * e]}}
text = json.dumps(header).encode()
os.mkdir(sys.argv[1])
open(sys.argv[1] + "/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + bytes(6 * e))
PY
  measure "$PROGRAM" inspect "$WORK/many" --from-glu contiguous
  check "200000 experts: inspected" [ $? == 0 ]
  check "200000 experts in 1.2 MB: $PEAK KiB to inspect" [ "$PEAK" -lt 262144 ]
  rm -rf "$WORK/many"
}

# Small values take many times the bytes that spell them: a file of nothing else is refused before it takes the memory.
small_values() {
  ((SANITIZED)) && { skip "small values: a sanitizer's own memory is in the way"; return; }
  local name file
  python3 - "$WORK/small" <<'PY'
import os, pathlib, sys, zipfile
root = pathlib.Path(sys.argv[1])
root.mkdir()
for name, value, count in [("lists", b"]", 20_000_000), ("dicts", b"}", 20_000_000), ("ints", b"K\1", 10_000_000),
                           ("strings", b"\x8c\0", 10_000_000), ("few", b"]", 100_000)]:
    pickled = b"\x80\x04](" + value * count + b"e."
    with zipfile.ZipFile(root / (name + ".pt"), "w") as archive:
        archive.writestr("a/data.pkl", pickled)
        archive.writestr("a/version", b"3\n")
    (root / name).mkdir()
    (root / name / ".metadata").write_bytes(pickled)
PY
  for name in lists dicts ints strings; do
    for file in "$WORK/small/$name.pt" "$WORK/small/$name"; do
      measure "$PROGRAM" inspect "$file"
      check "20 MB of $name: refused" [ $? == 3 ]
      check "20 MB of $name: named" grep -q 'pickle-limit' "$WORK/.err"
      check "20 MB of $name: $PEAK KiB to inspect" [ "$PEAK" -lt 262144 ]
    done
  done
  measure "$PROGRAM" inspect "$WORK/small/few.pt"
  check "few small values are no matter" [ $? == 0 ]
  rm -rf "$WORK/small"
}

# The memory of the process that started this one is not its own, though the kernel counts it in ru_maxrss.
peak_memory_alone() {
  ((SANITIZED)) && { skip "peak memory alone: a sanitizer's own memory is in the way"; return; }
  local command
  for command in plan convert; do
    python3 - "$PROGRAM" "$command" "$TESTDATA/hf/mixtral" "$WORK/alone" >"$WORK/.out" <<'PY'
import subprocess, sys
held = b"x" * (300 << 20)
sys.exit(subprocess.run([*sys.argv[1:], "--experts", "grouped", "--json", "-q"]).returncode)
PY
    check "$command: peak memory of its own: $(json_get 'v["peak_memory"]')" \
      [ "$(json_get '0 < v["peak_memory"] < 200 << 20')" == True ]
  done
  rm -rf "$WORK/alone"
}
