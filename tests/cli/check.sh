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
  fresh
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
  sed -i 's/"files": \[/"files": [\n    {"name": "other.json", "bytes": 1, "header_bytes": 0},/' "$dir/out/glu_ckpt.json"
  status "check: the record lists a file that is not there" 1 check "$dir/out"
  check "check: the record lists it: which" has "$OUT" "other.json: missing"
  fresh
  sed -i 's/"files": \[/"files": [\n    {"name": "..\/out\/config.json", "bytes": 1, "header_bytes": 0},/' "$dir/out/glu_ckpt.json"
  status "check: the record names a file elsewhere" 3 check "$dir/out"
  fresh
  sed -i 's/"digest": "gck2:./"digest": "gck2:g/' "$dir/out/glu_ckpt.json"
  status "check: records that contradict each other" 3 check "$dir/out"
  fresh
  echo x >"$dir/out/notes.txt"
  status "check: a file that the record does not list" 0 check "$dir/out"
  check "check: a file that is not listed: which" has "$OUT" "notes.txt: no checksum recorded"

  status "check: no record" 0 check "$dir/source"
  check "check: no record: says so" has "$OUT" "has no record of its files (glu_ckpt.json)"
  status "check: broken, no record" 3 check "$TESTDATA/malformed/format/no_such_file"
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
