# Signals and limits: whatever stops a run, neither DST nor DST.partial stays, and the status says why.

# A sound checkpoint of $2 GB that takes no disk: E experts of one layer, all zeros.
make_sparse() {
  python3 - "$1" "$2" <<'PY'
import json, os, struct, sys
experts, f, h = 8, 4096, 4096
layers = max(1, int(float(sys.argv[2]) * 1e9) // (experts * f * h * 6))
header, at = {}, 0
for layer in range(layers):
    for e in range(experts):
        for part, shape in (("gate", [f, h]), ("up", [f, h]), ("down", [h, f])):
            header[f"model.layers.{layer}.mlp.experts.{e}.{part}_proj.weight"] = {
                "dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * f * h]}
            at += 2 * f * h
text = json.dumps(header).encode()
os.mkdir(sys.argv[1])
with open(sys.argv[1] + "/model.safetensors", "wb") as out:
    out.write(struct.pack("<Q", len(text)) + text)
    out.truncate(8 + len(text) + at)
PY
}

# interrupted NAME SIGNAL WAIT_FOR OPTIONS...: sends SIGNAL once WAIT_FOR exists (or, if empty, soon).
interrupted() {
  local name=$1 signal=$2 wait_for=$3 out=$WORK/stopped pid got tries=0
  shift 3
  # A background command of a script ignores SIGINT unless job control is on.
  set -m
  "$PROGRAM" convert "$WORK/sparse" "$out" --naming megatron --experts grouped --glu interleaved:32 "$@" \
    >/dev/null 2>"$WORK/.err" </dev/null &
  pid=$!
  set +m
  if [[ -n $wait_for ]]; then
    while [[ ! -e $wait_for ]] && ((tries++ < 600)) && kill -0 $pid 2>/dev/null; do sleep 0.05; done
    sleep 0.1
  else
    sleep 0.4
  fi
  kill -s "$signal" $pid 2>/dev/null
  wait $pid 2>/dev/null
  got=$?
  if [[ $got == 6 ]] && has "$(cat "$WORK/.err")" "[interrupted]"; then
    pass
  else
    bad "$name: exit $got: $(head -c 300 "$WORK/.err")"
  fi
  check "$name: no DST" absent "$out"
  check "$name: no DST.partial" absent "$out.partial"
  rm -rf "$out" "$out.partial"
}

signals() {
  local gigabytes=2.5
  ((SANITIZED)) && gigabytes=1
  make_sparse "$WORK/sparse" "$gigabytes"
  local free_kib
  free_kib=$(df -Pk "$WORK" | awk 'END { print $4 }')
  interrupted "SIGTERM while the source is read" TERM ""
  interrupted "SIGINT while the source is read" INT ""
  if ((free_kib > 4000000)); then
    interrupted "SIGTERM while writing" TERM "$WORK/stopped.partial" --verify none
    interrupted "SIGINT while writing" INT "$WORK/stopped.partial" --verify none -j 1 --max-memory 1MiB
    interrupted "SIGUSR1 while writing" USR1 "$WORK/stopped.partial" --verify none
  else
    skip "signals while writing: $free_kib KiB free"
  fi
  rm -rf "$WORK/sparse"
}

file_size_limit() {
  local hf=$TESTDATA/hf/deepseek_v3 out=$WORK/limited
  (
    ulimit -f 8 # blocks of 1024 bytes
    "$PROGRAM" convert "$hf" "$out" --naming megatron --glu contiguous >/dev/null 2>"$WORK/.limited"
    echo $? >"$WORK/.status"
  ) 2>/dev/null
  check "a file size limit: exit 5, got $(cat "$WORK/.status")" [ "$(cat "$WORK/.status")" == 5 ]
  check "a file size limit: no DST" absent "$out"
  check "a file size limit: no DST.partial" absent "$out.partial"
  rm -rf "$out"*
}

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
  measure_kib "$PROGRAM" inspect "$WORK/many" --from-glu contiguous
  check "200000 experts: inspected" [ $? == 0 ]
  check "200000 experts in 1.2 MB: $PEAK KiB to inspect" [ "$PEAK" -lt 262144 ]
  rm -rf "$WORK/many"
}
