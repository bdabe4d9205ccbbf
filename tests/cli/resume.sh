# What --resume takes, and what it does not: work in progress, complete outputs, other options, other runs. The sources and
# the helpers are those of faults.sh.

# leave_partial DST: work in progress, some of it done, of a run that was killed.
leave_partial() {
  local pid
  hold_anew
  "$HELD_PROGRAM" convert "$FAULT_SRC" "$1" "${FAULT_TO[@]}" -q "${SLOWLY[@]}" </dev/null &
  pid=$!
  held 1 $pid || { bad "no run was met at work"; return 1; }
  kill -KILL $pid
  wait $pid 2>/dev/null
  kept "a run that was left" "$1"
}

# refused NAME SLUG DST OPTIONS...: exit 4, and everything as it was.
refused() {
  local name=$1 slug=$2 out=$3 before
  shift 3
  before=$(tree_sum "$out.partial")
  run_fault "$out" --resume "$@"
  check "$name: exit 4, got $GOT: ${ERR:0:300}" [ "$GOT" == 4 ]
  check "$name: $slug: ${ERR:0:300}" has "$ERR" "[$slug]"
  check "$name: DST.partial is as it was" [ "$(tree_sum "$out.partial")" == "$before" ]
  check "$name: no DST" absent "$out"
}

# --resume where DST is there: complete, and what this run would write, or refused.
resume_complete() {
  fault_source
  local out=$WORK/finished to=("${FAULT_TO[@]}")
  status "complete: converted" 0 convert "$FAULT_SRC" "$out" "${to[@]}" -q
  status "complete: resumed" 0 convert "$FAULT_SRC" "$out" "${to[@]}" --resume --json
  check "complete: both sides were read" [ "$(json_get 'v["verified"], v["bytes_written"]')" == "('digest', 0)" ]
  status "complete: resumed, as text" 0 convert "$FAULT_SRC" "$out" "${to[@]}" --resume
  check "complete: up to date" has "$OUT" "up to date"
  status "complete: planned" 0 plan "$FAULT_SRC" "$out" "${to[@]}" --resume
  check "complete: plan says so: $ERR" has "$ERR" "$out is there already, with the layout and the files of this run"
  status "complete: planned, another order" 4 plan "$FAULT_SRC" "$out" "${to[@]/interleaved:32/contiguous}" --resume
  # Files that the run made beside the tensors.
  local trained=$WORK/trained whole=$TESTDATA/whole/qwen3_moe/hf file
  status "complete: of a trainer" 0 convert "$whole" "$trained" --to megatron -q
  for file in release/common.pt release/metadata.json megatron_args.txt hf/config.json; do
    mv "$trained/$file" "$WORK/aside"
    status "complete: without $file" 4 convert "$whole" "$trained" --to megatron --resume -q
    check "complete: without $file: $ERR" has "$ERR" "${file##*/}"
    status "complete: planned without $file" 4 plan "$whole" "$trained" --to megatron --resume -q
    (cat "$WORK/aside" && echo) >"$trained/$file"
    status "complete: with another $file" 4 convert "$whole" "$trained" --to megatron --resume -q
    mv "$WORK/aside" "$trained/$file"
  done
  status "complete: without the checksums that it asks for" 4 convert "$whole" "$trained" --to megatron --resume --manifest sha256 -q
  status "complete: all there" 0 convert "$whole" "$trained" --to megatron --resume -q
  rm -r "$trained"
  ln -s nowhere "$WORK/dangling"
  for file in plan convert; do status "complete: a link to nothing: $file" 4 $file "$FAULT_SRC" "$WORK/dangling" "${to[@]}" --resume -q; done
  rm "$WORK/dangling"
  cp "$out/config.json" "$WORK/config"
  : >"$out/config.json"
  status "complete: an emptied config.json" 4 convert "$FAULT_SRC" "$out" "${to[@]}" --resume -q
  cp "$WORK/config" "$out/config.json"
  rm -r "$out"
  echo '{"version": "1.0"}' >"$FAULT_SRC/tokenizer.json"
  status "complete: a tokenizer" 0 convert "$FAULT_SRC" "$out" "${to[@]}" -q
  status "complete: the same tokenizer" 0 convert "$FAULT_SRC" "$out" "${to[@]}" --resume -q
  echo '{"version": "2.0"}' >"$FAULT_SRC/tokenizer.json"
  status "complete: another tokenizer" 4 convert "$FAULT_SRC" "$out" "${to[@]}" --resume -q
  check "complete: another tokenizer: $ERR" has "$ERR" "its tokenizer.json is another one than the source's"
  : >"$FAULT_SRC/tokenizer.json"
  status "complete: a shorter tokenizer" 4 convert "$FAULT_SRC" "$out" "${to[@]}" --resume -q
  echo '{"version": "1.0"}' >"$FAULT_SRC/tokenizer.json"
  echo 'a line' >>"$FAULT_SRC/tokenizer.json"
  status "complete: a file that has grown" 0 convert "$FAULT_SRC" "$out" "${to[@]}" --resume
  check "complete: a file that has grown: $ERR" has "$ERR" "tokenizer.json has grown by 7 bytes since it was copied"
  rm "$FAULT_SRC/tokenizer.json"
  mv "$out/glu_ckpt.json" "$WORK/record"
  status "complete: no record" 4 convert "$FAULT_SRC" "$out" "${to[@]}" --resume -q
  mv "$WORK/record" "$out/glu_ckpt.json"
  status "complete: all as it was" 0 convert "$FAULT_SRC" "$out" "${to[@]}" --resume -q
  status "complete: another format" 4 convert "$FAULT_SRC" "$out" "${to[@]}" --format torch --resume -q
  status "complete: other shards" 4 convert "$FAULT_SRC" "$out" "${to[@]/6MB/600MB}" --resume -q
  status "complete: another order" 4 convert "$FAULT_SRC" "$out" "${to[@]/interleaved:32/contiguous}" --resume -q
  local shard
  shard=$(ls "$out"/*.safetensors | head -1)
  printf 'x' | dd of="$shard" bs=1 seek=500000 conv=notrunc status=none
  status "complete: damaged" 4 convert "$FAULT_SRC" "$out" "${to[@]}" --resume -q
  truncate -s 100 "$shard"
  status "complete: cut" 4 convert "$FAULT_SRC" "$out" "${to[@]}" --resume -q
  rm -r "$out"
  mkdir "$out"
  status "complete: an empty directory" 4 convert "$FAULT_SRC" "$out" "${to[@]}" --resume -q
  rmdir "$out"
}

# What is done stays when a resumed run cannot even begin.
resume_cannot_begin() {
  ((SANITIZED)) && { skip "too few open files: the sanitizers want some of their own"; return; }
  fault_source
  local out=$WORK/begin
  leave_partial "$out" || return
  OUT=$(ulimit -n 8 && "$PROGRAM" convert "$FAULT_SRC" "$out" "${FAULT_TO[@]}" --resume -q 2>&1)
  check "too few open files: status 5" [ $? == 5 ]
  check "too few open files: what is done is kept" [ -f "$out.partial/glu_ckpt.journal" ]
  resumes "after too few open files" "$out"
  rm -rf "$out"
}

# make_adapter DIR: of rank 1, for two matrices of fault_source.
make_adapter() {
  python3 - "$1" <<'PY'
import json, os, struct, sys
os.mkdir(sys.argv[1])
header, data = {}, b""
for module, rows, columns in (("0.gate_proj", 512, 384), ("7.down_proj", 384, 512)):
    for factor, shape in (("A", [1, columns]), ("B", [rows, 1])):
        values = struct.pack(f"<{shape[0] * shape[1]}f", *[0.5] * (shape[0] * shape[1]))
        name = f"base_model.model.model.layers.1.mlp.experts.{module}.lora_{factor}.weight"
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
text = json.dumps(header).encode()
with open(sys.argv[1] + "/adapter_model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + data)
with open(sys.argv[1] + "/adapter_config.json", "w") as file:
    json.dump({"peft_type": "LORA", "r": 1, "lora_alpha": 4, "target_modules": ["gate_proj", "down_proj"]}, file)
PY
}

resume_mismatch() {
  fault_source
  local out=$WORK/mismatch journal=$WORK/mismatch.partial/glu_ckpt.journal to=("${FAULT_TO[@]}")
  leave_partial "$out" || return
  FAULT_TO=("${to[@]/6MB/7MB}")
  refused "other shards" resume-mismatch "$out"
  FAULT_TO=("${to[@]/interleaved:32/contiguous}")
  refused "another glu" resume-mismatch "$out"
  FAULT_TO=("${to[@]}")
  refused "another format" resume-mismatch "$out" --format torch
  check "what the first had is said: $ERR" has "$ERR" "the run that did not finish had '"
  status "plan of another format" 4 plan "$FAULT_SRC" "$out" "${FAULT_TO[@]}" --resume --format torch
  check "plan refuses as convert does: $ERR" has "$ERR" "[resume-mismatch]"
  status "plan of the same" 0 plan "$FAULT_SRC" "$out" "${FAULT_TO[@]}" --resume
  check "plan says what is done: $ERR" has "$ERR" "note: --resume: an earlier run wrote "
  status "inspect of what is not there" 3 inspect "$out"
  check "inspect names what is: $ERR" has "$ERR" "does not exist yet: $out.partial is a conversion to it that was not finished"
  status "inspect of what is there" 3 inspect "$out.partial"
  check "inspect says with what: $ERR" has "$ERR" "the same \`glu-ckpt convert\` (its options were --"
  cp -a "$FAULT_SRC" "$WORK/kept_src"
  touch "$FAULT_SRC/model-00001-of-00002.safetensors"
  refused "a source written to since" resume-mismatch "$out"
  touch -r "$WORK/kept_src/model-00001-of-00002.safetensors" "$FAULT_SRC/model-00001-of-00002.safetensors"
  # Another model of the same sizes and dates.
  mv "$FAULT_SRC" "$WORK/first_src"
  cp -a "$WORK/first_src" "$FAULT_SRC"
  refused "other files of the same sizes and dates" resume-mismatch "$out"
  rm -r "$FAULT_SRC" "$WORK/kept_src"
  mv "$WORK/first_src" "$FAULT_SRC"
  # Jobs, memory and how it is shown decide nothing.
  resumes "other jobs" "$out" -j 3 --max-memory 8MiB --progress never
  rm -rf "$out"

  # What is said beside tensors decides about their bytes, too.
  make_adapter "$WORK/mismatch_adapter"
  cp "$FAULT_SRC/config.json" "$WORK/mismatch_config.json"
  FAULT_TO=(--experts grouped --max-shard-size 6MB --merge "$WORK/mismatch_adapter" --from-config "$WORK/mismatch_config.json")
  leave_partial "$out" || return
  sed -i 's/"lora_alpha": 4/"lora_alpha": 8/' "$WORK/mismatch_adapter/adapter_config.json"
  refused "an adapter with another alpha" resume-mismatch "$out"
  sed -i 's/"lora_alpha": 8/"lora_alpha": 4/' "$WORK/mismatch_adapter/adapter_config.json"
  echo >>"$WORK/mismatch_config.json"
  refused "another named config.json" resume-mismatch "$out"
  cp "$FAULT_SRC/config.json" "$WORK/mismatch_config.json"
  run_fault "$out" --resume
  check "the same adapter: exit $GOT: ${ERR:0:300}" [ "$GOT" == 0 ]
  run_fault "$WORK/mismatch_fresh"
  check "the same adapter: the bytes of a fresh run" [ "$(tree_sum "$out")" == "$(tree_sum "$WORK/mismatch_fresh")" ]
  rm -rf "$out" "$WORK/mismatch_fresh" "$WORK/mismatch_adapter"
  FAULT_TO=("${to[@]}")

  leave_partial "$out" || return
  cp "$journal" "$WORK/journal"
  printf 'dear diary, ' >"$journal"
  refused "a journal of somebody else's" output-exists "$out"
  cp "$WORK/journal" "$journal"
  printf 'torn tail' >>"$journal"
  resumes "a journal with a torn tail" "$out"
  rm -rf "$out"

  leave_partial "$out" || return
  truncate -s $(($(stat -c %s "$journal") - 5)) "$journal"
  resumes "a journal cut off" "$out"
  rm -rf "$out"

  leave_partial "$out" || return
  printf '\xff' | dd of="$journal" bs=1 seek=$(($(stat -c %s "$journal") - 9)) conv=notrunc status=none
  resumes "a journal with a wrong byte" "$out"
  rm -rf "$out"

  # Whose work it is nobody can say then.
  leave_partial "$out" || return
  cp "$journal" "$WORK/journal"
  printf '\xff' | dd of="$journal" bs=1 seek=60 conv=notrunc status=none
  refused "a journal with a wrong byte in its header" resume-mismatch "$out"
  truncate -s 40 "$journal"
  refused "a journal cut off in its header" resume-mismatch "$out"
  truncate -s 0 "$journal"
  refused "an empty journal beside files" resume-mismatch "$out"
  cp "$WORK/journal" "$journal"

  # Rewritten in place, with size and date kept: what was made of the older bytes does not count.
  local file=$FAULT_SRC/model-00001-of-00002.safetensors
  rm -rf "$out.partial"
  leave_partial "$out" || return
  cp -a "$file" "$WORK/older"
  python3 - "$file" <<'PY'
import sys
with open(sys.argv[1], "r+b") as file:
    size = file.seek(0, 2)
    for at in range(size // 8, size, 4096):
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
PY
  touch -r "$WORK/older" "$file"
  run_fault "$WORK/mismatch_fresh"
  check "the rewritten source converts" [ "$GOT" == 0 ]
  run_fault "$out" --resume
  check "a source rewritten with its date kept: exit $GOT" [ "$GOT" == 0 ]
  check "a source rewritten with its date kept: the bytes of a fresh run" \
    [ "$(tree_sum "$out")" == "$(tree_sum "$WORK/mismatch_fresh")" ]
  rm -rf "$out" "$WORK/mismatch_fresh"
  cat "$WORK/older" >"$file"
  touch -r "$WORK/older" "$file"
  leave_partial "$out" || return
  chmod o+w "$file"
  resumes "a source with other permissions" "$out"
  chmod --reference="$WORK/older" "$file"
  touch -r "$WORK/older" "$file"
  rm -rf "$out" "$WORK/older"
  leave_partial "$out" || return

  # What a link leads to is not ours to write to. A run that is refused this late has put its name in the killed one's
  # place, and taken it away.
  local shard
  rm "$out.partial/glu_ckpt.journal.owner"
  shard=$(ls "$out.partial"/*.safetensors.partial | head -1)
  mv "$shard" "$WORK/shard"
  ln -s "$FAULT_SRC/model-00001-of-00002.safetensors" "$shard"
  refused "a link in the place of a shard" output-exists "$out"
  rm "$shard"
  ln "$FAULT_SRC/model-00001-of-00002.safetensors" "$shard"
  refused "a source's file by another name in the place of a shard" output-exists "$out"
  rm "$shard"
  mkdir "$shard"
  refused "a directory in the place of a shard" output-exists "$out"
  rmdir "$shard"
  mv "$WORK/shard" "$shard"
  source_untouched "links in DST.partial"
  cp -p "$FAULT_SRC/config.json" "$WORK/config"
  echo '{"model_type": "qwen3_moe", "eos_token_id": 7}' >"$FAULT_SRC/config.json"
  refused "another config.json" resume-mismatch "$out"
  cp -p "$WORK/config" "$FAULT_SRC/config.json"
  touch "$FAULT_SRC/config.json"
  resumes "the same config.json at another time" "$out"
  rm -rf "$out" "$WORK/config"

  # Bytes that rot while nobody looks are not taken over.
  leave_partial "$out" || return
  local file
  for file in "$out".partial/*.safetensors*; do
    [[ -s $file ]] && printf '\xa5\x5a\xa5' | dd of="$file" bs=1 seek=100000 conv=notrunc status=none
  done
  resumes "work in progress with wrong bytes" "$out"
  rm -rf "$out"

  mkdir "$out.partial"
  echo mine >"$out.partial/notes.txt"
  refused "a DST.partial of somebody else's" output-exists "$out"
  rm -rf "$out.partial"
  mkdir "$out.partial"
  resumes "an empty DST.partial" "$out"
  rm -rf "$out" "$WORK/journal"
  source_untouched "resume mismatch"
}

two_at_once() {
  fault_source
  local out=$WORK/twice pid
  make_model "$WORK/fault_mid" 8 6 1024 512
  hold_anew
  "$HELD_PROGRAM" convert "$WORK/fault_mid" "$out" "${FAULT_TO[@]}" -q "${SLOWLY[@]}" >/dev/null 2>"$WORK/.first" \
    </dev/null &
  pid=$!
  check "a first run is at work" held 1 $pid
  status "another run of the same" 4 convert "$WORK/fault_mid" "$out" "${FAULT_TO[@]}" -q
  status "another run that resumes" 4 convert "$WORK/fault_mid" "$out" "${FAULT_TO[@]}" --resume -q
  check "another run that resumes: named" has "$ERR" "[output-busy]"
  run_fault "$out" --resume
  check "another run with another source: exit 4, got $GOT" [ "$GOT" == 4 ]
  check "another run with another source: named" has "$ERR" "[output-busy]"
  check "the first is still at work" [ -d "$out.partial" ]
  let_go
  wait $pid
  GOT=$?
  check "the first run ends well: $(head -c 300 "$WORK/.first")" [ "$GOT" == 0 ]
  "$PROGRAM" convert "$WORK/fault_mid" "$out.ref" "${FAULT_TO[@]}" -q
  check "the first run's bytes" [ "$(tree_sum "$out")" == "$(tree_sum "$out.ref")" ]
  check "no DST.partial" absent "$out.partial"
  rm -rf "$out"* "$WORK/fault_mid" "$WORK/.first"
}
