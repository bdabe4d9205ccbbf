# --consume-source: what is removed and when, what is refused, and kills on the way.

# consumes NAME SOURCE: converts a copy of it; the status lands in $GOT, stderr in $ERR.
consume() {
  "$PROGRAM" convert "$1" "$2" --experts grouped --consume-source "${@:3}" -q >/dev/null 2>"$WORK/.err" </dev/null
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
  refuses_to_consume "--verify none" 2 "exclude one another" "$at/plain" --verify none
  refuses_to_consume "--verify forward" 2 "exclude one another" "$at/plain" --verify forward
  refuses_to_consume "--overwrite" 2 "exclude" "$at/plain" --overwrite
  refuses_to_consume "a part of the model" 4 "not shown as it is stored" "$at/plain" --layers 0-0
  consume "$at/plain" "$WORK/consumed"
  check "the sound neighbour: exit 0" [ "$GOT" == 0 ]
  check "the sound neighbour: no tensors are left" [ -z "$(find "$at/plain" -name '*.safetensors')" ]
  check "the sound neighbour: config.json stays" [ -f "$at/plain/config.json" ]
  "$PROGRAM" convert "$from" "$WORK/not_consumed" --experts grouped -q || bad "the reference"
  check "the same bytes as without" [ "$(tree_sum "$WORK/consumed")" == "$(tree_sum "$WORK/not_consumed")" ]
}

consume_kills() {
  mkdir -p "$WORK/consume_kills"
  check "kill -9 while the source is consumed" \
    python3 "$HERE/consume_kills.py" "$PROGRAM" "$WORK/consume_kills" "${KILLS:-$((SANITIZED ? 20 : 50))}" "${KILL_SEED:-20}"
}
