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
  rm -rf "$out".*
}
