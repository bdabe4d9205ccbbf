# Files beside the tensors: where they go when a checkpoint changes its form, and that they come back.

# files_of DIRECTORY: the names of its files, on one line.
files_of() { (cd "$1" && find . -type f | LC_ALL=C sort | xargs); }

# same_hub_files NAME DIRECTORY: it has the files of testdata/hf/qwen3_moe that are no tensors, and none in hf/.
same_hub_files() {
  local file
  for file in config.json generation_config.json; do
    check "$1: $file" cmp -s "$TESTDATA/hf/qwen3_moe/$file" "$2/$file"
  done
  check "$1: no hf/" absent "$2/hf"
}

# A copy of a checkpoint for Megatron in a format without a directory of tensors: hf/ is below it, so that no loader
# takes it for a Hugging Face model, and the record names files as they lie.
flat_copies() {
  local out=$WORK/flat hf=$TESTDATA/hf/qwen3_moe
  status "for Megatron" 0 convert "$hf" "$out.m" --to megatron -q
  status "a flat copy" 0 convert "$out.m" "$out.s" --format safetensors -q
  status "a flat copy passes its own check" 0 check "$out.s"
  check "a flat copy: $OUT" has "$OUT" "hf/config.json: ok"
  check "a flat copy: files" [ "$(files_of "$out.s")" == "./common.pt ./glu_ckpt.extras ./glu_ckpt.json \
./hf/config.json ./hf/generation_config.json ./megatron_args.txt ./model.safetensors" ]
  status "back from a flat copy" 0 convert "$out.s" "$out.back" --to hf -q
  same_hub_files "back from a flat copy" "$out.back"
  check "back from a flat copy: args" absent "$out.back/megatron_args.txt"
  status "to Megatron from a flat copy" 0 convert "$out.s" "$out.m2" --to megatron -q
  check "to Megatron from a flat copy: files" [ "$(files_of "$out.m")" == "$(files_of "$out.m2")" ]
  check "to Megatron from a flat copy: tracker" [ "$(<"$out.m2/latest_checkpointed_iteration.txt")" == release ]
  check "to Megatron from a flat copy: args" cmp -s "$out.m/megatron_args.txt" "$out.m2/megatron_args.txt"
  status "experts renamed alone" 0 convert "$out.m" "$out.e" --to hf --scope experts --glu interleaved:32 -q
  status "experts renamed alone: its own check" 0 check "$out.e" -q
  # The rest of the model has Megatron's names, so that a config.json beside it would mislead.
  check "experts renamed alone: no config.json" absent "$out.e/config.json"
  rm -rf "$out".*
}

# One directory of a run, given by itself, has the files beside it.
directory_of_a_run() {
  local out=$WORK/iteration hf=$TESTDATA/hf/qwen3_moe
  status "for Megatron" 0 convert "$hf" "$out.m" --to megatron -q
  status "release/ passes its own check" 0 check "$out.m/release" -q
  status "back from release/" 0 convert "$out.m/release" "$out.back" --to hf -q
  same_hub_files "back from release/" "$out.back"
  mkdir "$out.run"
  cp -r "$out.m/hf" "$out.run"
  cp -r "$out.m/release" "$out.run/iter_0000100"
  echo 100 >"$out.run/latest_checkpointed_iteration.txt"
  status "back from an iteration" 0 convert "$out.run/iter_0000100/" "$out.back2" --to hf -q
  same_hub_files "back from an iteration" "$out.back2"
  status "release/ in another order" 0 convert "$out.m/release" "$out.g" --glu interleaved:32 -q
  status "release/ in another order: its own check" 0 check "$out.g" -q
  rm -rf "$out".*
}

# --to hf writes a config.json wherever the source says what model it is.
config_files() {
  local out=$WORK/config hf=$TESTDATA/hf/qwen3_moe
  mkdir "$out.in"
  status "a single file" 0 convert "$hf" "$out.in/x.safetensors" --experts grouped --glu contiguous
  check "a single file: nothing loads it" has "$OUT" "nothing as it is: no config.json lies beside the tensors"
  status "--to hf of a single file" 0 convert "$out.in/x.safetensors" "$out.hf" --to hf
  check "--to hf of a single file: loads in" has "$OUT" "loads in    transformers"
  check "--to hf of a single file: config.json" cmp -s "$hf/config.json" "$out.hf/config.json"
  status "--to megatron of a single file" 0 convert "$out.in/x.safetensors" "$out.m" --to megatron -q \
    --from-config "$hf/config.json"
  check "--to megatron of a single file: config.json" cmp -s "$hf/config.json" "$out.m/hf/config.json"
  status "--to hf of that" 0 convert "$out.m" "$out.back" --to hf -q
  check "--to hf of that: config.json" cmp -s "$hf/config.json" "$out.back/config.json"
  # A named configuration says more than one that lies there.
  sed 's/"transformers_version"/"other_version"/' "$hf/config.json" >"$out.json"
  status "a named config.json" 0 convert "$hf" "$out.m2" --to megatron --from-config "$out.json" -q
  check "a named config.json: it is written" cmp -s "$out.json" "$out.m2/hf/config.json"
  status "--to hf into a single file" 0 convert "$out.m" "$out.one.safetensors" --to hf -q
  check "--to hf into a single file: warned of" has "$ERR" \
    "warning: nothing loads the output as it is: no config.json lies beside the tensors"
  status "--to hf of one shard" 0 convert "$hf/model-00001-of-00002.safetensors" "$out.lone" --to hf --experts grouped \
    --glu contiguous -q
  check "--to hf of one shard: it is no model" absent "$out.lone/config.json"
  cp -r "$hf" "$out.bare"
  rm "$out.bare/config.json"
  status "a directory that lost it" 0 inspect "$out.bare" --from-config "$hf/config.json"
  check "a directory that lost it: nothing loads it: $OUT" has "$OUT" "nothing as it is: no config.json"
  # hf/ of a directory that was not made here may be another model's.
  mkdir "$out.bare/hf"
  echo '{' >"$out.bare/hf/config.json"
  status "a foreign hf/" 0 convert "$out.bare" "$out.grouped" --experts grouped --glu contiguous -q
  cp "$hf/config.json" "$out.bare/hf"
  status "a foreign hf/: no model" 4 convert "$out.bare" "$out.m3" --to megatron -q
  cp "$hf/config.json" "$out.bare"
  ln -sf nowhere "$out.bare/hf/config.json"
  status "a foreign hf/, config.json not there" 0 convert "$out.bare" "$out.g2" --experts grouped --glu contiguous -q
  rm -rf "$out".*
}

# What an interrupted download leaves in a snapshot: symlinks whose files are not there.
dangling_links() {
  local in=$WORK/dangling out=$WORK/dangling.out hf=$TESTDATA/hf/qwen3_moe to=(--experts grouped --glu contiguous) text
  mkdir -p "$in/tokenizer"
  cp "$hf"/model-* "$hf"/*.json "$in"
  ln -s ../blobs/gone "$in/vocab.txt"
  ln -s ../../blobs/gone "$in/tokenizer/merges.txt"
  text="is a symlink to a file that is not there; is the download complete?"
  status "a tokenizer that is not there" 0 convert "$in" "$out" "${to[@]}" -q
  for name in vocab.txt tokenizer/merges.txt; do
    check "$name that is not there survives -q: $ERR" has "$ERR" "warning: $in/$name $text It is not copied"
  done
  status "a tokenizer that is not there: inspect" 0 inspect "$in"
  check "a tokenizer that is not there: a problem" has "$OUT" "problem     $in/vocab.txt $text"
  rm -r "$out" "$in/config.json"
  ln -s ../blobs/gone "$in/config.json"
  status "a config.json that is not there" 3 convert "$in" "$out" "${to[@]}" -q
  check "a config.json that is not there: $ERR" has "$ERR" "$in/config.json $text [not-found]"
  check "a config.json that is not there: nothing is written" absent "$out"
  status "a config.json that is not there: digest" 3 digest "$in" -q
  status "a config.json that is not there beside a file" 3 convert "$in/model-00001-of-00002.safetensors" "$out" "${to[@]}"
  check "a config.json that is not there beside a file: $ERR" has "$ERR" "$in/config.json $text"
  status "a config.json that is not there: inspect" 0 inspect "$in"
  check "a config.json that is not there: a problem" has "$OUT" "problem     $in/config.json $text"
  status "a config.json that is named instead" 0 convert "$in" "$out" "${to[@]}" --from-config "$hf/config.json" -q
  check "a config.json that is named instead: it is written" cmp -s "$hf/config.json" "$out/config.json"
  rm -r "$out"
  for name in model-00001-of-00002.safetensors model.safetensors.index.json; do
    rm "$in/$name"
    ln -s ../blobs/gone "$in/$name"
    status "$name that is not there" 3 convert "$in" "$out" "${to[@]}" --from-config "$hf/config.json" -q
    check "$name that is not there: $ERR" has "$ERR" "$name"
  done
  rm -r "$in"
}

# Hidden files pass through like others; hidden directories belong to tools, and are left behind with a note.
hidden_files() {
  local in=$WORK/hidden out=$WORK/hidden.out hf=$TESTDATA/hf/qwen3_moe name
  mkdir -p "$in/.cache/huggingface" "$in/.git" "$in/tokenizer"
  cp "$hf"/model-* "$hf"/*.json "$in"
  echo '*.safetensors filter=lfs' >"$in/.gitattributes"
  echo deep >"$in/tokenizer/.hidden"
  echo ref >"$in/.git/HEAD"
  echo tag >"$in/.cache/huggingface/CACHEDIR.TAG"
  cp "$hf/model-00001-of-00002.safetensors" "$in/.model.safetensors"
  # Of a copy by rsync that is under way, of NFS, of an editor.
  echo part | tee "$in/.model-00001-of-00002.safetensors.Ab12Cd" "$in/.nfs000012" "$in/.config.json.swp" >/dev/null
  status "hidden files" 0 convert "$in" "$out" --experts grouped --glu contiguous
  for name in .cache .git .model.safetensors .model-00001-of-00002.safetensors.Ab12Cd .nfs000012 .config.json.swp; do
    check "hidden files: $name: $ERR" has "$ERR" "note: $name is not part of the checkpoint and is left behind"
    check "hidden files: no $name" absent "$out/$name"
  done
  for name in .gitattributes tokenizer/.hidden; do
    check "hidden files: $name" cmp -s "$in/$name" "$out/$name"
  done
  rm -r "$out"
  status "hidden files for Megatron" 0 convert "$in" "$out" --to megatron -q
  check "hidden files for Megatron: in hf/" cmp -s "$in/.gitattributes" "$out/hf/.gitattributes"
  echo more >"$out/release/.more"
  status "hidden files back" 0 convert "$out" "$out.back" --to hf -q
  check "hidden files back: .gitattributes" cmp -s "$in/.gitattributes" "$out.back/.gitattributes"
  check "hidden files back: .more" [ "$(cat "$out.back/.more")" == more ]
  rm -rf "$in" "$out" "$out.back"
}

# Entries of `__metadata__` come back from formats that have no place for them.
metadata_entries() {
  local in=$WORK/noted out=$WORK/noted.out way
  mkdir "$in"
  python3 - "$GALLERIES/tiny/megatron_bias/model.safetensors" "$in/model.safetensors" <<'PY'
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
size = struct.unpack("<Q", raw[:8])[0]
header = json.loads(raw[8:8 + size])
header["__metadata__"] = {"format": "pt", "note": "two\nlines", "quote": "\"é\""}
text = json.dumps(header).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + raw[8 + size:])
PY
  for way in "--format torch-dist" "--format torch" single; do
    if [[ $way == single ]]; then
      status "metadata into a torch file" 0 convert "$in" "$out.pt" -q
      mv "$out.pt" "$out"
      mkdir "$out.d" && mv "$out" "$out.d/x.pt" && mv "$out.d" "$out"
    else
      # shellcheck disable=SC2086
      status "metadata: $way" 0 convert "$in" "$out" $way -q
    fi
    status "metadata: $way: stamped" 0 stamp "$out" --glu contiguous -q
    status "metadata: $way: back" 0 convert "$out" "$out.back.safetensors" -q
    check "metadata: $way: the same entries" python3 - "$out.back.safetensors" <<'PY'
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
found = json.loads(raw[8:8 + struct.unpack("<Q", raw[:8])[0]])["__metadata__"]
found = {k: v for k, v in found.items() if not k.startswith("glu_ckpt.")}
sys.exit(found != {"format": "pt", "note": "two\nlines", "quote": "\"é\""})
PY
    rm -rf "$out" "$out".*
  done
  rm -r "$in"
}
