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
  local kind file name ended
  for kind in json pickle zip dcp; do
    python3 "$HERE/hostile_files.py" "$WORK/small" "$kind"
    for file in "$WORK/small"/*_*; do
      name=${file##*/}
      measure "$PROGRAM" inspect "$file"
      ended=$?
      check "20 MB, $name: read or refused ($ended)" [ "$ended" == 0 -o "$ended" == 3 ]
      check "20 MB, $name: $PEAK KiB to inspect" [ "$PEAK" -lt 262144 ]
      case "$name" in
        *_zeros | *_lists | *_ints | *_entries)
          [[ "$name" == metadata_entries || "$kind" == dcp ]] && continue
          check "20 MB, $name: refused" [ "$ended" == 3 ]
          check "20 MB, $name: the way on" grep -q 'bytes of memory, and .* --max-memory' "$WORK/.err"
          ;;
      esac
    done
    if [ "$kind" == json ]; then
      measure "$PROGRAM" inspect "$WORK/small/sound"
      check "100000 tensors with names of models are no matter" [ $? == 0 ]
      measure "$PROGRAM" inspect "$WORK/small/short"
      check "360000 tensors with names of a few digits: refused" [ $? == 3 ]
      measure "$PROGRAM" inspect "$WORK/small/short" --max-memory 8GiB
      check "360000 tensors with names of a few digits: more memory lets them in" [ $? == 0 ]
      measure "$PROGRAM" inspect "$WORK/small/sound" --max-memory 4MiB
      check "100000 tensors in 4 MiB: refused" [ $? == 3 ]
    fi
    if [ "$kind" == dcp ]; then
      measure "$PROGRAM" inspect "$WORK/small/sound"
      check "100000 tensors with long paths of a planner are no matter" [ $? == 0 ]
      check "100000 tensors with long paths of a planner: $PEAK KiB to inspect" [ "$PEAK" -lt 262144 ]
    fi
    rm -rf "$WORK/small"
  done
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

# A conversion's memory is bounded whatever the checkpoint's size.
peak_memory() {
  ((SANITIZED)) && { skip "peak memory: a sanitizer's own memory is in the way"; return; }
  local megabytes jobs src=$WORK/sparse out=$WORK/dense layers
  for megabytes in 200 1000; do
    if (($(df -Pk "$WORK" | awk 'END { print $4 }') < 1200 * megabytes)); then
      skip "peak memory of $megabytes MB: no room"
      continue
    fi
    layers=$((megabytes / 100))
    make_model "$src" 4 "$layers" 4096 1024 sparse
    for jobs in 1 4; do
      measure "$PROGRAM" convert "$src" "$out" "${FAULT_TO[@]}" -q -j $jobs --max-memory 64MiB
      GOT=$?
      check "$megabytes MB with -j $jobs: $(head -c 200 "$WORK/.err" 2>/dev/null)" [ "$GOT" == 0 ]
      check "$megabytes MB with -j $jobs: $PEAK KiB" [ "$PEAK" -lt 131072 ]
      rm -rf "$out" "$out.partial"
    done
    rm -rf "$src"
  done
  # As many tensors as DeepSeek-V3 has: what is kept of each counts, too.
  python3 "$HERE/../../scripts/make_sparse_checkpoint.py" "$src" --tensors 69888 --rows 64 --bytes 580000000
  measure "$PROGRAM" convert "$src" "$out" "${FAULT_TO[@]}" -q -j 2 --max-memory 64MiB
  GOT=$?
  check "69888 tensors: $(head -c 200 "$WORK/.err" 2>/dev/null)" [ "$GOT" == 0 ]
  check "69888 tensors: $PEAK KiB" [ "$PEAK" -lt 131072 ]
  rm -rf "$src" "$out"*
}
