# check PATH: every file beside its line in glu_ckpt.json, and the tensors beside the recorded digest.

# flip_byte FILE OFFSET: inverts one byte.
flip_byte() {
  python3 - "$1" "$2" <<'PY'
import sys
with open(sys.argv[1], "r+b") as file:
    file.seek(int(sys.argv[2]))
    byte = file.read(1)[0]
    file.seek(int(sys.argv[2]))
    file.write(bytes([byte ^ 1]))
PY
}

# file_state NAME: the state that the JSON on stdout gives it.
file_state() { json_get "next(f['state'] for f in v['files'] if f['name'] == '$1')"; }

check_record() {
  local dir=$WORK/check format
  fresh() { rm -rf "$dir/out" && cp -r "$dir/whole" "$dir/out"; }
  # Edits the record with sed, as somebody who means it: without its checksum.
  edit_record() { sed -i -e '/"record_xxh3_128"/d' -e "$1" "$dir/out/glu_ckpt.json"; }
  mkdir -p "$dir"
  cp -r "$TESTDATA/hf/mixtral" "$dir/source"
  status "check: convert" 0 convert "$dir/source" "$dir/whole" --naming megatron --experts grouped --glu interleaved:32 -q

  fresh
  status "check: whole" 0 check "$dir/out"
  check "check: whole: each file" has "$OUT" "model.safetensors: ok (header and data)"
  check "check: whole: config" has "$OUT" "config.json: ok (all bytes)"
  check "check: whole: digest" has "$OUT" "digest: ok"
  status "check: whole, json" 0 check "$dir/out" --json -q
  check "check: json fields" json ok has_checksums sound files recorded_digest digest
  check "check: json ok" [ "$(json_get "v['ok'] and v['sound'] and v['digest'] == v['recorded_digest']")" == True ]

  flip_byte "$dir/out/model.safetensors" "$(($(stat -c %s "$dir/out/model.safetensors") - 1))"
  status "check: a byte of the data" 1 check "$dir/out"
  check "check: a byte of the data: which" has "$OUT" "model.safetensors: differs (its data differ)"
  status "check -q: a byte of the data" 1 check "$dir/out" -q
  check "check -q says why, and nothing of sound files" eval 'has "$OUT" "model.safetensors: differs (its data differ)" && ! has "$OUT" "config.json: ok"'
  fresh
  status "check -q: all is well" 0 check "$dir/out" -q && check "check -q is silent then" [ -z "$OUT$ERR" ]
  flip_byte "$dir/out/model.safetensors" 20
  status "check: a byte of the header" 1 check "$dir/out" --json -q
  check "check: a byte of the header: which" [ "$(file_state model.safetensors)" == differs ]
  check "check: a byte of the header: what" has "$OUT" "its header differs\""
  fresh
  flip_byte "$dir/out/config.json" 3
  status "check: config.json" 1 check "$dir/out"
  check "check: config.json: which" has "$OUT" "config.json: differs (its data differ)"
  fresh
  truncate -s -1 "$dir/out/model.safetensors"
  status "check: truncated" 1 check "$dir/out"
  check "check: truncated: sizes" has "$OUT" "model.safetensors: differs (has "
  fresh
  rm "$dir/out/config.json"
  status "check: a file is gone" 1 check "$dir/out"
  check "check: a file is gone: which" has "$OUT" "config.json: missing (is not there)"
  fresh
  edit_record 's/"files": \[/"files": [\n    {"name": "other.json", "bytes": 1, "header_bytes": 0},/'
  status "check: the record lists a file that is not there" 1 check "$dir/out"
  check "check: the record lists it: which" has "$OUT" "other.json: missing"
  fresh
  edit_record 's/"files": \[/"files": [\n    {"name": "..\/out\/config.json", "bytes": 1, "header_bytes": 0},/'
  status "check: the record names a file elsewhere" 3 check "$dir/out"
  fresh
  edit_record 's/"digest": "gck2:./"digest": "gck2:g/'
  status "check: records that contradict each other" 3 check "$dir/out"
  fresh
  sed -i 's/"glu"/"glt"/' "$dir/out/glu_ckpt.json"
  for command in check inspect "digest -q" "stamp --glu contiguous"; do
    # shellcheck disable=SC2086
    status "a bit of the record: $command" 3 $command "$dir/out"
    check "a bit of the record: $command: $ERR" has "$ERR" "glu_ckpt.json: byte 4: was changed since it was written"
  done
  fresh
  edit_record ''
  status "check: a record of an earlier version" 0 check "$dir/out"
  fresh
  echo x >"$dir/out/notes.txt"
  status "check: a file that the record does not list" 0 check "$dir/out"
  check "check: a file that is not listed: which" has "$OUT" "notes.txt: no checksum recorded"
  status "check --strict: a file that the record does not list" 1 check "$dir/out" --strict
  check "check --strict: not all is compared: $OUT" has "$(tail -n 1 <<<"$OUT")" "$dir/out: not all compared: "

  status "check: no record" 0 check "$dir/source"
  check "check: no record: the last line says what was checked" has "$(tail -n 1 <<<"$OUT")" \
    "$dir/source: no checksums are recorded, so only sizes and headers were checked, and no data; --strict makes that status 1"
  check "check: no record: how to compare: $OUT" has "$OUT" "\`glu-ckpt verify hf://ORG/NAME $dir/source\`"
  status "check --json: no record" 0 check "$dir/source" --json
  check "check --json: nothing was compared: $OUT" [ "$(json_get "v['ok'], v['compared_data']")" == "(True, False)" ]
  cp -r "$TESTDATA/megatron/homogeneous" "$dir/stamped"
  status "check: stamp" 0 stamp "$dir/stamped" --shared-glu contiguous
  check "check: stamp: all orders: $OUT" has "$OUT" "recorded megatron-dist, grouped, contiguous, shared expert contiguous, optimizer contiguous; "
  status "check: after stamp" 0 check "$dir/stamped"
  check "check: after stamp: $OUT" [ "$(tail -n 1 <<<"$OUT")" == \
    "$dir/stamped: no checksums of its files are recorded; its data were compared with the checksums that its format has" ]
  status "check --strict: no record" 1 check "$dir/source" --strict
  status "check --strict --json: no record" 1 check "$dir/source" --strict --json
  check "check --strict --json: says so" has "$OUT" '"ok":false'
  fresh
  status "check --strict: a record" 0 check "$dir/out" --strict -q
  status "check --strict: a Megatron directory" 0 convert "$TESTDATA/whole/qwen3_moe/hf" "$dir/run" --to megatron -q
  status "check --strict: it is whole" 0 check "$dir/run" --strict
  mkdir "$dir/run/.git"
  echo x >"$dir/run/.git/config"
  status "check --strict: a hidden file" 0 check "$dir/run" --strict
  for added in run/notes.txt run/hf/modeling.py run/release/more.pt; do
    echo x >"$dir/$added"
    status "check --strict: $added" 1 check "$dir/run" --strict
    check "check --strict: $added is named: $OUT" has "$OUT" "${added##*/}: no checksum recorded (glu_ckpt.json does not list it)"
    rm "$dir/$added"
  done
  cp -r "$dir/out" "$dir/unrecorded"
  rm "$dir/unrecorded/glu_ckpt.json"
  sed -i 's/"rms_norm_eps": [^,]*/"rms_norm_eps": 0.5/' "$dir/unrecorded/config.json"
  status "check: the record was removed" 0 check "$dir/unrecorded"
  status "check --strict: the record was removed" 1 check "$dir/unrecorded" --strict
  status "check: broken, no record" 3 check "$GALLERIES/format/no_such_file"
  status "check: one file" 0 convert "$dir/source" "$dir/one.safetensors" --naming megatron --experts grouped --glu interleaved:32 -q
  status "check: one file" 0 check "$dir/one.safetensors"
  check "check: one file: its digest" has "$OUT" "digest: ok"
  flip_byte "$dir/one.safetensors" "$(($(stat -c %s "$dir/one.safetensors") - 1))"
  status "check: one file, a byte of the data" 1 check "$dir/one.safetensors"
  check "check: one file, a byte of the data: digest" has "$OUT" "digest: differs"

  for format in torch torch-dist; do
    status "check $format" 0 convert "$dir/source" "$dir/$format" --format "$format" --naming megatron --experts grouped \
      --glu interleaved:32 -q
    status "check $format: whole" 0 check "$dir/$format"
    check "check $format: all files" has "$OUT" " 0 differ, 0 missing, 0 without a checksum"
  done
}

# glu_ckpt.sha256: written by convert, read by sha256sum and by check.
check_manifest() {
  local dir=$WORK/manifest out=$WORK/manifest/out to
  mkdir -p "$dir"
  cp -r "$TESTDATA/hf/qwen3_moe" "$dir/source"
  # A download with its sums, and no record: each file is counted once.
  cp -rL "$dir/source" "$dir/loaded" && chmod -R u+w "$dir/loaded"
  (cd "$dir/loaded" && sha256sum -- * >../sums && mv ../sums glu_ckpt.sha256)
  status "manifest: of a download" 0 check "$dir/loaded"
  check "manifest: of a download: $OUT" has "$OUT" "ok: 5 files ok, 0 differ, 0 missing, 0 without a checksum"
  printf x >>"$dir/loaded/config.json"
  status "manifest: of a damaged download" 1 check "$dir/loaded"
  check "manifest: of a damaged download: $OUT" has "$OUT" "damaged: 4 files ok, 1 differ, 0 missing, 0 without a checksum"
  check "manifest: of a damaged download: one line: $OUT" [ "$(grep -c '^config.json' <<<"$OUT")" == 1 ]
  rm -r "$dir/loaded"
  mkdir "$dir/source/tokenizer"
  echo x >"$dir/source/tokenizer/"$'with\nnew line \\ and more'
  for to in megatron torchtitan "hf --experts grouped --glu contiguous"; do
    # shellcheck disable=SC2086
    status "manifest: --to $to" 0 convert "$dir/source" "$out" --to $to --manifest sha256 -q
    check "manifest: --to $to: sha256sum reads it" eval '(cd "$out" && sha256sum --strict --quiet -c glu_ckpt.sha256)'
    check "manifest: --to $to: each file is in it" [ "$(find "$out" -type f -printf 1 | wc -c)" == \
      "$(($(wc -l <"$out/glu_ckpt.sha256") + 1))" ]
    status "manifest: check --to $to" 0 check "$out" --manifest sha256 --json
    check "manifest: check --to $to: all ok" [ "$(json_get "{f['state'] for f in v['manifest']}, v['has_manifest']")" == \
      "({'ok'}, True)" ]
    # shellcheck disable=SC2086
    status "manifest: --to $to: up to date" 0 convert "$dir/source" "$out" --to $to --manifest sha256 --resume --json -q
    check "manifest: --to $to: up to date" [ "$(json_get "v['up_to_date']")" == True ]
    [[ $to == hf* ]] || rm -rf "$out"
  done
  # No sum of the record speaks of the record itself.
  printf ' ' >>"$out/glu_ckpt.json"
  status "manifest: a forged record" 1 check "$out"
  check "manifest: a forged record: which: $OUT" has "$OUT" "glu_ckpt.json: differs (its SHA-256 is another one)"
  truncate -s -1 "$out/glu_ckpt.json"
  status "manifest: as it was" 0 check "$out"
  check "manifest: as it was: $OUT" grep -Eq '^glu_ckpt.sha256: ([0-9]+) of \1 files ok$' <<<"$OUT"
  echo x >"$out/added"
  status "manifest: a file that it does not list" 0 check "$out"
  check "manifest: a file that it does not list: $OUT" has "$OUT" "added: no checksum recorded (is not in glu_ckpt.sha256)"
  status "manifest: --manifest: a file more" 1 check "$out" --manifest sha256
  check "manifest: --manifest: a file more: $OUT" has "$OUT" "added: not listed (is not in glu_ckpt.sha256)"
  rm "$out/added"
  # What others hide in it, and the journal of a run that was killed when its output was in its place.
  mkdir -p "$out/.cache/huggingface"
  touch "$out/.DS_Store" "$out/.cache/huggingface/x" "$out/glu_ckpt.journal"
  status "manifest: --manifest: hidden files, a journal" 0 check "$out" --manifest sha256
  check "manifest: no word of the journal: $OUT" [ "$OUT" == "${OUT/journal/}" ]
  rm "$out/config.json"
  status "manifest: a file is gone" 1 check "$out"
  echo 'no line of a manifest' >>"$out/glu_ckpt.sha256"
  status "manifest: damaged" 3 check "$out"
  printf '%064d  ../source/config.json\n' 0 >"$out/glu_ckpt.sha256"
  status "manifest: a file elsewhere" 3 check "$out"
  check "manifest: a file elsewhere: $ERR" has "$ERR" "names '../source/config.json', which is no path below the directory"
  rm -rf "$out"
  status "manifest: of what has none" 1 check "$dir/source" --manifest sha256
  check "manifest: of what has none: $OUT" has "$OUT" "glu_ckpt.sha256: missing (is not there)"
  check "manifest: of what has none is counted: $OUT" has "$OUT" ", 1 missing"
  # It is of that output alone, so it does not travel.
  status "manifest: convert" 0 convert "$dir/source" "$out" --to megatron --manifest sha256 -q
  status "manifest: and back" 0 convert "$out" "$dir/back" --to hf
  check "manifest: does not travel" absent "$dir/back/glu_ckpt.sha256"
  check "manifest: is not spoken of: $ERR" [ "$ERR" == "${ERR/sha256/}" ]
  status "manifest: of one file" 2 convert "$dir/source" "$dir/one.safetensors" --experts grouped --manifest sha256
  check "manifest: of one file: $ERR" has "$ERR" "\`sha256sum $dir/one.safetensors\` does it for that"
  status "manifest: of another kind" 2 convert "$dir/source" "$dir/x" --experts grouped --manifest md5
  rm -rf "$dir"
}
