# convert --part I/N: processes that share one output by its staging directory alone.

part_kills() {
  mkdir -p "$WORK/part_kills"
  check "parts, killed ones too, give the bytes of one process" \
    python3 "$HERE/part_kills.py" "$PROGRAM" "$WORK/part_kills" "${RANK_KILLS:-$((SANITIZED ? 5 : 15))}" "${KILL_SEED:-20}"
}

# part_run STATUS TEXT OPTIONS...
part_run() {
  local status=$1 text=$2
  shift 2
  "$PROGRAM" convert "$@" >"$WORK/.out" 2>"$WORK/.err" </dev/null
  check "convert $*: exit $status" [ $? == "$status" ]
  ERR=$(cat "$WORK/.out" "$WORK/.err")
  says "convert $*" "$text"
}

part_refusals() {
  local src=$TESTDATA/hf/qwen3_moe dst=$WORK/parted
  part_run 0 "part 1/3 of $dst is done; 2 of 3 parts are not done yet (2, 3)" "$src" "$dst" --experts grouped --part 1/3
  check "no DST yet" absent "$dst"
  part_run 4 "was begun in 3 parts, and this run is one of 2 parts; the same command with --part I/3, for each I that is not done, goes on with it" "$src" "$dst" --experts grouped --part 2/2
  part_run 4 "had '--experts grouped', and this one has '--experts grouped --max-shard-size 100000'" "$src" "$dst" --experts grouped --max-shard-size 100KB --part 2/3
  part_run 4 "the run that did not finish had another source: " "$TESTDATA/hf/mixtral" "$dst" --experts grouped --part 2/3
  part_run 4 "was begun in 3 parts, and this run is one without --part" "$src" "$dst" --experts grouped --resume
  part_run 4 "runs of 3 parts did not finish it: the same command with --part I/3, for each I that is not done, goes on with it, or remove it" "$src" "$dst" --experts grouped
  part_run 2 "is no part" "$src" "$dst" --experts grouped --part 4/3
  part_run 2 "exclude" "$src" "$dst" --experts grouped --part 2/3 --overwrite
  part_run 2 "exclude" "$src" "$dst" --experts grouped --part 2/3 --consume-source
  status "plan of another number of parts" 4 plan "$src" "$dst" --experts grouped --part 2/2
  status "plan of a part that goes on" 0 plan "$src" "$dst" --experts grouped --part 2/3
  part_run 0 "1 of 3 parts is not done yet (3)" "$src" "$dst" --experts grouped --part 2/3
  part_run 0 "1 of 3 parts is not done yet (3), and the last one finishes it" "$src" "$dst" --experts grouped --part 1/3
  part_run 0 "" "$src" "$dst" --experts grouped --part 3/3
  check "DST is there" [ -f "$dst/glu_ckpt.json" ]
  check "no DST.partial" absent "$dst.partial"
  status "plan of a part that is done" 0 plan "$src" "$dst" --experts grouped --part 2/3
  part_run 0 "is complete" "$src" "$dst" --experts grouped --part 1/3
}

# Two runs of one part at once: the second is refused by its name, and the other part is not held up.
part_twice() {
  local dst=$WORK/parted_twice pid
  fault_source
  hold_anew
  "$HELD_PROGRAM" convert "$FAULT_SRC" "$dst" "${FAULT_TO[@]}" "${SLOWLY[@]}" --part 1/2 -q >/dev/null 2>&1 </dev/null &
  pid=$!
  if held 1 "$pid"; then
    part_run 4 "another run is writing part 1 of this output" "$FAULT_SRC" "$dst" "${FAULT_TO[@]}" --part 1/2
    part_run 0 "1 of 2 parts is not done yet" "$FAULT_SRC" "$dst" "${FAULT_TO[@]}" --part 2/2
  else
    bad "no part was seen in the middle"
  fi
  let_go
  wait "$pid"
  check "the bytes of one run" [ "$(tree_sum "$dst")" == "$FAULT_REF_SUM" ]
}

# What docs/clusters.md says to xargs, and to the pods of a job of Kubernetes.
part_examples() {
  local page=$HERE/../../docs/clusters.md at=$WORK/parts_of_a_page index command
  mkdir "$at"
  cp -rL "$TESTDATA/hf/qwen3_moe" "$at/SRC"
  ln -s "$(realpath "$PROGRAM")" "$at/glu-ckpt"
  "$PROGRAM" convert "$at/SRC" "$at/ALONE" --to megatron --reflink never -q 2>/dev/null || bad "one process"
  command=$(grep '^seq 8 | xargs' "$page")
  check "xargs: ends with 0" env PATH="$at:$PATH" bash -c "cd $at; set -o pipefail; $command" >/dev/null 2>&1
  check "xargs: the bytes of one process" [ "$(tree_sum "$at/DST")" == "$(tree_sum "$at/ALONE")" ]
  rm -rf "$at/DST"
  command=$(sed -n 's|^ *command: \[sh, -c, "\(.*\)"\]$|\1|p' "$page" | sed "s|/shared|$at|g")
  for index in 3 0 15 {1,2} {4..14}; do
    check "pod $index: ends with 0" env PATH="$at:$PATH" JOB_COMPLETION_INDEX="$index" sh -c "$command" >/dev/null 2>&1
  done
  check "pods: the bytes of one process" [ "$(tree_sum "$at/DST")" == "$(tree_sum "$at/ALONE")" ]
}
