# bench convert: figures that agree with each other, and nothing left behind, however it ends.

bench_convert() {
  local dir=$WORK/bench pid got
  mkdir "$dir"
  status "bench convert --json" 0 bench convert --dir "$dir" --size 10MiB -j 2 --json
  check "bench convert --json: fields" json dir bytes jobs rounds figures copy write
  check "bench convert --json: about the size asked for" [ "$(json_get '10.3e6 < v["bytes"] < 10.6e6')" == True ]
  check "bench convert --json: two conversions" [ "$(json_get '(len(v["figures"]), v["rounds"], v["jobs"])')" == "(2, 3, 2)" ]
  check "bench convert --json: figures agree" [ "$(json_get 'all(abs(f["gb_per_s"] * f["seconds"] * 1e9 - v["bytes"]) < 1 for f in v["figures"] + [v["copy"], v["write"]]) and all(abs(f["of_copy"] * f["seconds"] - v["copy"]["seconds"]) < 1e-6 and abs(f["of_write"] * f["seconds"] - v["write"]["seconds"]) < 1e-6 for f in v["figures"])')" == True ]
  check "bench convert: nothing on stderr" [ -z "$ERR" ]
  check "bench convert: nothing is left" [ -z "$(ls -A "$dir")" ]
  status "bench convert as text" 0 bench convert --dir "$dir" --size 1 -j 1
  check "bench convert as text: four lines" [ "$(grep -cE '^(hf:|cp|sequential)' <<<"$OUT")" == 4 ]
  check "bench convert as text: nothing is left" [ -z "$(ls -A "$dir")" ]
  (cd "$dir" && "$PROGRAM" bench convert --size 1KiB >/dev/null 2>&1)
  check "bench convert here" [ $? == 0 ]
  check "bench convert here: nothing is left" [ -z "$(ls -A "$dir")" ]
  status "bench convert of nothing" 2 bench convert --dir "$dir" --size 0
  status "bench convert of a size that is none" 2 bench convert --dir "$dir" --size many
  status "bench convert in no directory" 3 bench convert --dir "$dir/none" --size 1MiB
  check "bench convert in no directory: it is named" has "$ERR" "$dir/none"
  hold_anew
  set -m
  "$HELD_PROGRAM" bench convert --dir "$dir" --size 10MiB >/dev/null 2>"$WORK/.err" </dev/null &
  pid=$!
  set +m
  check "bench convert stands still" held 1 $pid
  kill -s INT $pid 2>/dev/null
  let_go
  wait $pid 2>/dev/null
  got=$?
  check "bench convert interrupted: exit $got" [ $got == 6 ]
  check "bench convert interrupted: nothing is left" [ -z "$(ls -A "$dir")" ]
  rm -rf "$dir"
}
