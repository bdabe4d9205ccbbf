# shellcheck shell=bash
# One conversion by several ranks, as a user runs it: its bytes, and what is left where a rank or mpirun is stopped or
# killed. Sourced by run_mpi.sh.

readonly LAYOUT=(--scope experts --naming megatron --experts grouped --glu interleaved:32 --max-shard-size 8MB)
# Small buffers, so that there are many pieces to be in the middle of.
readonly WORKERS=(--jobs 1 --max-memory 2MiB)

# A checkpoint of 32 MB in four files, all of whose bytes differ.
make_model() {
  python3 - "$1" <<'PY'
import json, os, struct, sys
layers, experts, f, h = 4, 16, 128, 640
os.mkdir(sys.argv[1])
index = {}
for layer in range(layers):
    header, at = {}, 0
    for e in range(experts):
        for part, shape in (("gate", [f, h]), ("up", [f, h]), ("down", [h, f])):
            name = f"model.layers.{layer}.mlp.experts.{e}.{part}_proj.weight"
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * f * h]}
            at += 2 * f * h
    file = f"model-{layer + 1:05}-of-{layers:05}.safetensors"
    index.update(dict.fromkeys(header, file))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(sys.argv[1], file), "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + os.urandom(at))
json.dump({"metadata": {}, "weight_map": index}, open(sys.argv[1] + "/model.safetensors.index.json", "w"))
json.dump({"model_type": "qwen3_moe"}, open(sys.argv[1] + "/config.json", "w"))
PY
}

# start_in_the_middle N: N ranks convert into $OUTPUT, and each stands still with something in its hands until let_go.
# Their processes are $RANKS, by rank; mpirun's is $MPIRUN.
start_in_the_middle() {
  local pid
  rm -rf "$OUTPUT" "$OUTPUT.partial"
  hold_anew
  mpirun -n "$1" "$HELD_PROGRAM" convert "$WORK/model" "$OUTPUT" "${LAYOUT[@]}" "${WORKERS[@]}" --json \
    >"$WORK/.out" 2>"$WORK/.err" </dev/null &
  MPIRUN=$!
  if ! held "$1" "$MPIRUN"; then
    bad "no run of $1 ranks was seen in the middle: $(find "$GLU_CKPT_TEST_HOLD" -type f | wc -l) ranks were; $(tail -n 3 "$WORK/.err")"
    let_go
    wait "$MPIRUN"
    return 1
  fi
  RANKS=()
  for pid in $(pgrep -P "$MPIRUN"); do
    RANKS[$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p')]=$pid
  done
}

# Sets GOT to mpirun's status. A rank that mpirun has killed may outlive it for a moment, and with it its lock.
finish_run() {
  local pid tries
  wait "$MPIRUN"
  GOT=$?
  for pid in "${RANKS[@]}"; do
    for ((tries = 0; tries < 500; ++tries)); do
      [[ -e /proc/$pid/exe ]] || break
      sleep 0.02
    done
  done
}

is_kept() { [[ -d $OUTPUT.partial && ! -e $OUTPUT ]]; }

# resume_by N: with N ranks, or for 0 with glu-ckpt itself.
resume_by() {
  local command=("$PROGRAM")
  (($1 > 0)) && command=(timeout 120 mpirun -n "$1" "$MPI_PROGRAM")
  "${command[@]}" convert "$WORK/model" "$OUTPUT" "${LAYOUT[@]}" "${WORKERS[@]}" --resume >"$WORK/.out" 2>"$WORK/.err" \
    </dev/null
  local got=$?
  check "resumed by $1: exit $got: $(tail -n 5 "$WORK/.err")" test $got == 0
  check "resumed by $1: goes on rather than begins" has "$(<"$WORK/.err")" "resumed: "
  check "resumed by $1: the bytes of one process" test "$(tree_sum "$OUTPUT")" == "$WHOLE"
  check "resumed by $1: nothing else is left" absent "$OUTPUT.partial"
}

# Whoever is killed, the others end, and what was done is kept.
survives_kills() {
  local again kill count=${RANK_KILLS:-5} ranks_after=(1 2 3 0 4)
  RANDOM=${KILL_SEED:-20}
  printf '     kills of ranks: %d with KILL_SEED=%d\n' "$count" "${KILL_SEED:-20}"
  for ((kill = 0; kill < count; ++kill)); do
    again=${ranks_after[kill % 5]}
    start_in_the_middle 4 || return
    local victim=$((RANDOM % 4)) centiseconds=$((RANDOM % 4))
    let_go
    sleep "0.0$centiseconds"
    if ! kill -KILL "${RANKS[victim]}" 2>/dev/null; then
      finish_run
      skip "rank $victim had finished"
      continue
    fi
    finish_run
    if [[ -e $OUTPUT ]]; then
      skip "rank $victim had committed"
      continue
    fi
    check "rank $victim killed: exit $GOT" test "$GOT" == 137
    check "rank $victim killed: DST.partial is kept" is_kept
    resume_by "$again"
  done
  # Certainly in the middle: it never goes on.
  start_in_the_middle 3 || return
  kill -KILL "${RANKS[0]}"
  let_go
  finish_run
  check "rank 0 killed in the middle: exit $GOT" test "$GOT" == 137
  check "rank 0 killed in the middle: DST.partial is kept" is_kept
  resume_by 2
}

# A signal to any rank stops all of them, in order.
stops_by_a_rank() {
  local number=$1 rank=$2
  start_in_the_middle 3 || return
  kill -s "$number" "${RANKS[rank]}"
  let_go
  finish_run
  check "$number to rank $rank: exit $GOT: $(tail -n 5 "$WORK/.err")" test "$GOT" == 6
  check "$number to rank $rank: told once" once "$(<"$WORK/.err")" '{"error":"interrupted"'
  check "$number to rank $rank: how to go on" has "$(<"$WORK/.err")" "--resume"
  check "$number to rank $rank: no report" test ! -s "$WORK/.out"
  check "$number to rank $rank: DST.partial is kept" is_kept
  resume_by "$3"
}

# mpirun hands SIGUSR1 on; on SIGTERM it ends the ranks itself.
stops_by_mpirun() {
  start_in_the_middle 3 || return
  kill -USR1 "$MPIRUN"
  sleep 0.2
  let_go
  finish_run
  check "USR1 to mpirun: exit $GOT" test "$GOT" == 6
  check "USR1 to mpirun: told once" once "$(<"$WORK/.err")" '{"error":"interrupted"'
  check "USR1 to mpirun: DST.partial is kept" is_kept
  resume_by 0
  start_in_the_middle 3 || return
  # They are not let go: mpirun kills them in the end.
  kill -TERM "$MPIRUN"
  finish_run
  check "TERM to mpirun: fails, exit $GOT" test "$GOT" != 0
  check "TERM to mpirun: DST.partial is kept" is_kept
  resume_by 1
}

whole_conversions() {
  OUTPUT=$WORK/whole
  make_model "$WORK/model"
  "$PROGRAM" convert "$WORK/model" "$OUTPUT" "${LAYOUT[@]}" -q 2>"$WORK/.err" || bad "convert: $(cat "$WORK/.err")"
  check "several files" test "$(find "$OUTPUT" -name '*.safetensors' | wc -l)" -gt 3
  WHOLE=$(tree_sum "$OUTPUT")
  OUTPUT=$WORK/by_ranks
  ranks "convert by 4" 0 4 "$MPI_PROGRAM" convert "$WORK/model" "$OUTPUT" "${LAYOUT[@]}" "${WORKERS[@]}" --json
  check "one report" json output digest verified
  check "all bytes are counted" test "$(json_get 'v["bytes_written"] > 31e6')" == True
  check "the bytes of one process" test "$(tree_sum "$OUTPUT")" == "$WHOLE"
  survives_kills
  stops_by_a_rank TERM 0 2
  stops_by_a_rank INT 2 0
  stops_by_a_rank USR1 1 3
  stops_by_mpirun
}
