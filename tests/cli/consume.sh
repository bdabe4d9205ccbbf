# --consume-source: what is removed and when, what is refused, and kills on the way.

# consumes NAME SOURCE: converts a copy of it; the status lands in $GOT, stderr in $ERR.
consume() {
  local layout=(--experts grouped)
  [[ " ${*:3} " != *" --experts "* ]] || layout=()
  "$PROGRAM" convert "$1" "$2" "${layout[@]}" --consume-source "${@:3}" -q >/dev/null 2>"$WORK/.err" </dev/null
  GOT=$?
  ERR=$(cat "$WORK/.err")
}

# refused NAME SLUG-STATUS TEXT SOURCE [OPTIONS]: nothing is written, and nothing removed.
refuses_to_consume() {
  local name=$1 status=$2 text=$3 source=$4 before
  before=$(tree_sum "$source/")
  consume "$source" "$WORK/consumed" "${@:5}"
  check "$name: exit $status" [ "$GOT" == "$status" ]
  says "$name" "$text"
  check "$name: the source is untouched" [ "$(tree_sum "$source/")" == "$before" ]
  nothing_left "$name" "$WORK/consumed"
}

consume_refusals() {
  local from=$TESTDATA/hf/qwen3_moe at=$WORK/consume
  mkdir -p "$at"
  cp -rL "$from" "$at/linked"
  for file in "$at"/linked/*.safetensors; do ln "$file" "$file.other"; done
  refuses_to_consume "hard links" 4 "names (hard links)" "$at/linked"
  cp -rL "$from" "$at/locked" && chmod a-w "$at"/locked/*.safetensors
  refuses_to_consume "read-only files" 4 "the file is read-only" "$at/locked"
  mkdir "$at/symlinks"
  cp -rL "$from" "$at/plain"
  for file in "$at"/plain/*; do ln -s "$file" "$at/symlinks/"; done
  refuses_to_consume "symlinks" 4 "it is a link" "$at/symlinks"
  mkdir -p "$at/models--org--name/snapshots"
  cp -rL "$from" "$at/models--org--name/snapshots/0123"
  refuses_to_consume "a cache of the hub" 4 "in a cache of the hub" "$at/models--org--name/snapshots/0123"
  # Content by the note's name that no run wrote is somebody's; what a power cut leaves of a note is taken over.
  echo "my own words" >"$at/plain/glu_ckpt.journal.owner"
  refuses_to_consume "another file by the note's name" 4 "glu_ckpt.journal.owner: --consume-source does not remove it: by its name" "$at/plain"
  check "it stays" [ "$(cat "$at/plain/glu_ckpt.journal.owner")" == "my own words" ]
  printf 'host h\nboot 1\nspa\0\0\0' >"$at/plain/glu_ckpt.journal.owner"
  refuses_to_consume "--verify none" 2 "exclude one another" "$at/plain" --verify none
  refuses_to_consume "--verify forward" 2 "exclude one another" "$at/plain" --verify forward
  refuses_to_consume "--overwrite" 2 "exclude" "$at/plain" --overwrite
  refuses_to_consume "a part of the model" 4 "would be lost with its files" "$at/plain" --layers 0-0
  refuses_to_consume "--encode" 4 "those before rounding would be lost" "$at/plain" --encode fp8:128x128
  refuses_to_consume "--allow-narrowing" 4 "those before rounding would be lost" "$at/plain" --dtype '*=bf16' --allow-narrowing
  refuses_to_consume "--fill-from" 4 "tensors of files that are not SRC's" "$at/plain" --fill-from "$TESTDATA/whole/qwen3_moe/hf"
  refuses_to_consume "--drop" 4 "would be lost with its files" "$at/plain" --drop mtp
  refuses_to_consume "--optimizer drop" 4 "would be lost with its files" "$at/plain" --optimizer drop
  consume "$at/plain" "$WORK/consumed"
  check "the sound neighbour: exit 0" [ "$GOT" == 0 ]
  check "the sound neighbour: no tensors are left" [ -z "$(find "$at/plain" -name '*.safetensors')" ]
  check "the sound neighbour: config.json stays" [ -f "$at/plain/config.json" ]
  "$PROGRAM" convert "$from" "$WORK/not_consumed" --experts grouped -q || bad "the reference"
  check "the same bytes as without" [ "$(tree_sum "$WORK/consumed")" == "$(tree_sum "$WORK/not_consumed")" ]
  # The finished run once more; and sources that are none: a mount point without its disk, a wrong name, another model.
  local again=(--experts grouped --consume-source --resume) command
  mkdir "$at/empty"
  cp -rL "$TESTDATA/hf/mixtral" "$at/another" && rm "$at"/another/*.safetensors
  for command in plan convert; do
    status "$command of the finished run" 0 $command "$at/plain" "$WORK/consumed" "${again[@]}"
    check "$command of the finished run: $OUT" has "$OUT" "to          hf:qwen3_moe, grouped"
    check "$command of the finished run: $ERR" has "$ERR" "$WORK/consumed is complete, and $at/plain has no files of tensors any more"
    for source in empty nowhere another; do
      status "$command: $source" 3 $command "$at/$source" "$WORK/consumed" "${again[@]}"
    done
  done
  # One directory in two spellings.
  cp -rL "$from" "$at/spelled" && chmod -R u+w "$at/spelled"
  sed -i 's#"model-00001-of#"./model-00001-of#' "$at/spelled/model.safetensors.index.json"
  rm -r "$WORK/consumed"
  consume "$at/spelled" "$WORK/consumed"
  check "a directory in two spellings: exit 0, got $GOT: $ERR" [ "$GOT" == 0 ]
  check "a directory in two spellings: the same bytes" [ "$(tree_sum "$WORK/consumed")" == "$(tree_sum "$WORK/not_consumed")" ]
}

# consumes_as_well MODEL OPTIONS: the output has the bytes of a conversion that keeps its source, of which no tensors are left.
consumes_as_well() {
  local name=$1 source=$WORK/consume/$1 status
  rm -rf "$WORK/consumed" "$WORK/not_consumed"
  "$PROGRAM" convert "$source" "$WORK/not_consumed" "${@:2}" -q >/dev/null 2>"$WORK/.err" || bad "$name: the reference"
  "$PROGRAM" convert "$source" "$WORK/consumed" "${@:2}" --consume-source -q >/dev/null 2>"$WORK/.err"
  status=$?
  check "$name consumed: exit 0, got $status: $(cat "$WORK/.err")" [ "$status" == 0 ]
  check "$name consumed: the same bytes as without" [ "$(tree_sum "$WORK/consumed")" == "$(tree_sum "$WORK/not_consumed")" ]
  check "$name consumed: no tensors are left" [ -z "$(find "$source" -name '*.safetensors')" ]
  rm -rf "$WORK/consumed" "$WORK/not_consumed"
}

# Sources that are not shown as they are stored.
consume_turned() {
  local at=$WORK/consume model
  mkdir -p "$at"
  for model in "$TESTDATA"/quantized/*/; do
    model=$(basename "$model")
    cp -rL "$TESTDATA/quantized/$model" "$at/$model"
    rm -f "$at/$model/decoded.safetensors"
    consumes_as_well "$model" --decode bf16
  done
  cp -rL "$TESTDATA/hf/qwen3_moe" "$at/widened"
  consumes_as_well widened --dtype '*=f32'
  cp -rL "$TESTDATA/hf/qwen3_moe" "$at/padded"
  consumes_as_well padded --pad-experts 128
}

# What would stop the output at its end stops it before a file goes.
consume_rehearsal() {
  local at=$WORK/consume
  mkdir -p "$at"
  "$PROGRAM" convert "$TESTDATA/hf/qwen3_moe" "$at/recorded" --experts grouped --max-shard-size 100KB -q 2>/dev/null ||
    bad "the source with a record"
  check "the source with a record: several files" [ "$(find "$at/recorded" -name '*.safetensors' | wc -l)" -gt 2 ]
  cp -r "$at/recorded" "$at/contradicted"
  python3 - "$at/contradicted" <<'PYTHON'
import pathlib, sys
last = sorted(pathlib.Path(sys.argv[1]).glob("*.safetensors"))[-1]
data = bytearray(last.read_bytes())
data[-2] ^= 1
last.write_bytes(data)
PYTHON
  refuses_to_consume "a record of another digest" 3 "its record says" "$at/contradicted" --experts indexed
  consumes_as_well recorded --experts indexed
  cp -rL "$TESTDATA/quantized/fp8_block128" "$at/no_number"
  rm "$at/no_number/decoded.safetensors"
  python3 - "$at/no_number" <<'PYTHON'
import json, pathlib, struct, sys
last = sorted(pathlib.Path(sys.argv[1]).glob("*.safetensors"))[-1]
data = bytearray(last.read_bytes())
size = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + size])
name = max((n for n in header if n.endswith("scale_inv")), key=lambda n: header[n]["data_offsets"][0])
at = 8 + size + header[name]["data_offsets"][0]
data[at:at + 4] = struct.pack("<f", float("nan"))
last.write_bytes(data)
PYTHON
  refuses_to_consume "a scale that is NaN" 4 "NaN" "$at/no_number" --experts keep --decode bf16
}

consume_kills() {
  mkdir -p "$WORK/consume_kills"
  check "kill -9 while the source is consumed" \
    python3 "$HERE/consume_kills.py" "$PROGRAM" "$WORK/consume_kills" "${KILLS:-$((SANITIZED ? 20 : 50))}" "${KILL_SEED:-20}"
}

# Two runs to two outputs: one has the source, the other removes nothing of it.
consume_twice() {
  local work=(--decode f32 --experts keep) at=$WORK/consume_twice source=$WORK/consume_twice/source note=glu_ckpt.journal.owner before pid first second round works=0
  mkdir -p "$at"
  cp -rL "$TESTDATA/quantized/fp8_block128" "$at/whole" && rm "$at/whole/decoded.safetensors"
  "$PROGRAM" convert "$at/whole" "$at/model" --experts keep --max-shard-size 600KB -q --force 2>/dev/null ||
    bad "the source of two runs"
  "$PROGRAM" convert "$at/model" "$at/reference" "${work[@]}" -q 2>/dev/null || bad "the reference of two runs"
  cp -r "$at/model" "$source"
  hold_anew
  "$HELD_PROGRAM" convert "$source" "$at/one" "${work[@]}" --consume-source -q -j 1 --max-memory 1MiB </dev/null 2>/dev/null &
  pid=$!
  check "a run that consumes stands still" held 1 $pid
  check "its note is in the source" [ -f "$source/$note" ]
  before=$(tree_sum "$source")
  consume "$source" "$at/two" "${work[@]}"
  check "another output: exit 4, got $GOT" [ "$GOT" == 4 ]
  says "another output" "another run is converting this source and removing its files (process "
  nothing_left "another output" "$at/two"
  "$PROGRAM" plan "$source" "$at/two" "${work[@]}" --consume-source -q >/dev/null 2>"$WORK/.err"
  check "plan says so, too" [ $? == 4 ]
  check "nothing of the source went" [ "$(tree_sum "$source")" == "$before" ]
  kill -KILL $pid
  wait $pid 2>/dev/null
  check "its note is there after a kill" [ -f "$source/$note" ]
  "$PROGRAM" convert "$source" "$at/one" "${work[@]}" --consume-source --resume -q 2>"$WORK/.err"
  check "the killed run goes on" [ $? == 0 ]
  check "the same bytes" [ "$(tree_sum "$at/one")" == "$(tree_sum "$at/reference")" ]
  check "no tensors, and no note" [ -z "$(find "$source" -name '*.safetensors' -o -name "$note")" ]
  # A note that was taken away: somebody declared the run dead, and another one may have begun.
  rm -rf "$source" "$at/one" && cp -r "$at/model" "$source"
  hold_anew
  "$HELD_PROGRAM" convert "$source" "$at/one" "${work[@]}" --consume-source -q -j 1 --max-memory 1MiB </dev/null 2>"$WORK/.err" &
  pid=$!
  check "a run without its note stands still" held 1 $pid
  rm "$source/$note"
  before=$(tree_sum "$source")
  let_go
  wait $pid
  check "a run without its note: exit 4" [ $? == 4 ]
  ERR=$(cat "$WORK/.err")
  says "a run without its note" "somebody removed the note"
  check "a run without its note removes nothing" [ "$(tree_sum "$source")" == "$before" ]
  # Both at once, whoever is first.
  for ((round = 0; round < (SANITIZED ? 3 : 12); ++round)); do
    rm -rf "$source" "$at/one" "$at/two" "$at"/*.partial && cp -r "$at/model" "$source"
    "$PROGRAM" convert "$source" "$at/one" "${work[@]}" --consume-source -q </dev/null 2>/dev/null &
    pid=$!
    "$PROGRAM" convert "$source" "$at/two" "${work[@]}" --consume-source -q </dev/null 2>/dev/null
    second=$?
    wait $pid
    first=$?
    check "round $round: one of the two ends with 0, got $first and $second" [ $(((first == 0) + (second == 0))) == 1 ]
    [ $first == 0 ] && works=one || works=two
    check "round $round: the same bytes" [ "$(tree_sum "$at/$works")" == "$(tree_sum "$at/reference")" ]
  done
}

# A source of which some is gone says where that is, while the run works and after it has stopped.
consume_half() {
  local work=(--decode f32 --experts keep) at=$WORK/consume_half source=$WORK/consume_half/source
  local note=glu_ckpt.journal.owner pid command files before
  mkdir -p "$at"
  cp -rL "$TESTDATA/quantized/fp8_block128" "$at/whole" && rm "$at/whole/decoded.safetensors"
  "$PROGRAM" convert "$at/whole" "$source" --experts keep --max-shard-size 60KB -q --force 2>/dev/null ||
    bad "a source of small files"
  "$PROGRAM" convert "$source" "$at/reference" "${work[@]}" -q 2>/dev/null || bad "the reference"
  files=$(find "$source" -name '*.safetensors' | wc -l)
  hold_anew
  "$HELD_PROGRAM" convert "$source" "$at/one" "${work[@]}" --consume-source -q -j 1 --max-memory 1MiB </dev/null 2>/dev/null &
  pid=$!
  check "a run stands still in the middle of its source" held 1 $pid
  check "some of the source is gone" [ "$(find "$source" -name '*.safetensors' | wc -l)" -lt "$files" ]
  status "half of a source" 3 inspect "$source"
  says "half of a source" "(process $pid on host" "wrote their tensors to $at/one.partial. If it works no more, the same"
  kill -TERM $pid
  let_go
  wait $pid
  check "it is stopped: exit 6" [ $? == 6 ]
  check "its note stays" [ -f "$source/$note" ]
  for command in "inspect $source" "convert $source $at/two ${work[*]}" "plan $source $at/two ${work[*]} --consume-source"; do
    # shellcheck disable=SC2086
    status "$command" 3 $command
    says "$command" "[index-missing-shard]" "It stopped at 2" "the same command with --resume goes on: $source to $at/one"
    check "$command: no word of a download" [ "${ERR/hf download/}" == "$ERR" ]
  done
  mv "$source/model.safetensors.index.json" "$at/index.json"
  status "without the index" 3 inspect "$source"
  says "without the index" "It stopped at 2"
  mv "$at/index.json" "$source/model.safetensors.index.json"
  status "plan of the run that goes on" 0 plan "$source" "$at/one" "${work[@]}" --consume-source --resume
  check "plan says what is done: $ERR" has "$ERR" "note: --resume: an earlier run wrote "
  before=$(tree_sum "$at")
  for command in plan convert; do
    status "$command without --consume-source" 4 $command "$source" "$at/one" "${work[@]}" --resume
    says "$command without --consume-source" "was begun with --consume-source" "[resume-mismatch]" "  glu-ckpt $command $source $at/one ${work[*]} --resume --consume-source"
  done
  check "nothing changes without --consume-source" [ "$(tree_sum "$at")" == "$before" ]
  "$PROGRAM" convert "$source" "$at/one" "${work[@]}" --consume-source --resume -q 2>"$WORK/.err"
  check "the stopped run goes on: $(cat "$WORK/.err")" [ $? == 0 ]
  check "the same bytes" [ "$(tree_sum "$at/one")" == "$(tree_sum "$at/reference")" ]
  check "no tensors, and no note" [ -z "$(find "$source" -name '*.safetensors' -o -name "$note")" ]
}

# Half of a source and half of an output are moved to another disk, the only copy of both, and the run goes on there.
consume_moved() {
  local work=(--decode f32 --experts keep) at=$WORK/consume_moved there=$WORK/consume_moved_there pid file
  mkdir -p "$at"
  cp -rL "$TESTDATA/quantized/fp8_block128" "$at/whole" && rm "$at/whole/decoded.safetensors"
  "$PROGRAM" convert "$at/whole" "$at/source" --experts keep --max-shard-size 60KB -q --force 2>/dev/null ||
    bad "a source of small files"
  "$PROGRAM" convert "$at/source" "$at/reference" "${work[@]}" -q 2>/dev/null || bad "the reference"
  hold_anew
  "$HELD_PROGRAM" convert "$at/source" "$at/one" "${work[@]}" --consume-source -q -j 1 --max-memory 1MiB </dev/null 2>/dev/null &
  pid=$!
  check "a run stands still in the middle of its source" held 1 $pid
  kill -KILL $pid
  wait $pid 2>/dev/null
  # A copy that lost its dates may be of another model, and so may one with another header.
  cp -r "$at" "$there"
  for file in plan convert; do
    status "$file: copies without their dates" 4 $file "$there/source" "$there/one" "${work[@]}" --consume-source --resume
    says "$file: copies without their dates" "another source: " " is another file than then"
  done
  rm -rf "$there" && cp -a "$at" "$there"
  file=$(ls "$there"/source/*.safetensors | tail -n 1)
  python3 - "$file" <<'PY'
import os, sys
path = sys.argv[1]
date = os.stat(path).st_mtime_ns
data = bytearray(open(path, "rb").read())
at = data.index(b'"F')
data[at + 1:at + 2] = b"G"
open(path, "wb").write(data)
os.utime(path, ns=(date, date))
PY
  "$PROGRAM" convert "$there/source" "$there/one" "${work[@]}" --consume-source --resume -q 2>/dev/null
  check "another header with the same date is refused" [ $? != 0 ]
  check "and nothing more of the source goes" [ "$(find "$there/source" -name '*.safetensors' | wc -l)" == "$(find "$at/source" -name '*.safetensors' | wc -l)" ]
  rm -rf "$there" && cp -a "$at" "$there" && rm -rf "$at/source" "$at"/one*
  status "plan at the other place" 0 plan "$there/source" "$there/one" "${work[@]}" --consume-source --resume
  check "plan says what is done: $ERR" has "$ERR" "note: --resume: an earlier run wrote "
  hold_anew
  "$HELD_PROGRAM" convert "$there/source" "$there/one" "${work[@]}" --consume-source --resume -q -j 1 --max-memory 1MiB </dev/null 2>/dev/null &
  pid=$!
  check "it stands still at the other place" held 1 $pid
  kill -KILL $pid
  wait $pid 2>/dev/null
  status "the run goes on at the other place" 0 convert "$there/source" "$there/one" "${work[@]}" --consume-source --resume -q
  check "at the other place: the same bytes" [ "$(tree_sum "$there/one")" == "$(tree_sum "$at/reference")" ]
  check "at the other place: no tensors, and no note" [ -z "$(find "$there/source" -name '*.safetensors' -o -name "glu_ckpt.journal.owner")" ]
  rm -rf "$at" "$there"
}
