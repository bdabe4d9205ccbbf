# Real checkpoints of every format through every format: interleaved there, contiguous back, equal to the truth.
# Sourced by run_cli.sh.

# same_tensors A B: two safetensors files hold the same names, dtypes, shapes and bytes; B may hold more.
same_tensors() {
  python3 - "$1" "$2" <<'PY'
import json, struct, sys
def load(path):
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header, data = json.loads(file.read(size)), file.read()
    header.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], data[slice(*v["data_offsets"])]) for k, v in header.items()}
truth, got = load(sys.argv[1]), load(sys.argv[2])
wrong = [name for name in truth if truth[name] != got.get(name)]
sys.exit(f"{len(wrong)} tensors differ, such as {wrong[:2]}" if wrong or not truth else 0)
PY
}

# through_formats SOURCE TRUTH OPTIONS...: OPTIONS say what the source's orders are; a shared expert's becomes 16.
through_formats() {
  local source=$1 truth=$2 name there back there_shared=()
  shift 2
  name=${source//\//_}
  [[ $* != *--from-shared-glu* ]] || there_shared=(--shared-glu interleaved:16)
  for there in safetensors torch torch-dist; do
    local middle=$WORK/$name-$there
    status "$source to $there" 0 convert "$TESTDATA/$source" "$middle" --format "$there" --glu interleaved:32 \
      "${there_shared[@]}" -q "$@" || continue
    status_again "verify $source, $there" 0 verify "$TESTDATA/$source" "$middle" -q "$@"
    for back in safetensors torch torch-dist; do
      local last=$middle-$back
      local shared=()
      [[ $* != *--from-shared-glu* ]] || shared=(--shared-glu contiguous)
      status "$source to $there to $back" 0 convert "$middle" "$last" --format "$back" --glu contiguous \
        "${shared[@]}" -q || continue
      status_again "digest $last" 0 digest "$last" -q
      local digest=${OUT%%  *}
      status_again "digest $middle" 0 digest "$middle" -q
      check "digests of $source in $there and $back" test "$digest" = "${OUT%%  *}"
      [[ $back != safetensors ]] || check "$source by $there is the truth" same_tensors "$TESTDATA/$truth" \
        "$last/model.safetensors"
    done
  done
}

every_format() {
  local source
  for source in torch/dcp1 torch/full.safetensors torch/pytorch_model.bin torch/model_optim_rng.pt; do
    through_formats "$source" torch/full.safetensors --from-glu contiguous
  done
  through_formats megatron/ep2 megatron/ep2/truth.safetensors --from-glu contiguous --from-shared-glu contiguous
  through_formats megatron/homogeneous megatron/homogeneous/truth.safetensors --from-glu contiguous \
    --from-shared-glu contiguous
  status "dcp2 becomes whole" 0 convert "$TESTDATA/torch/dcp2" "$WORK/dcp2.safetensors" -q
  status "dcp2 by expert" 0 convert "$TESTDATA/torch/dcp2" "$WORK/dcp2-indexed" --format safetensors --experts indexed -q
}

# The directory above the iterations in, the same out; one file per rank, each by itself.
legacy_ranks() {
  local source=$TESTDATA/megatron/legacy_tp2 out=$WORK/legacy
  cp -r "$source" "$WORK/stamped" && chmod -R u+w "$WORK/stamped"
  status "stamp" 0 stamp "$WORK/stamped" --glu contiguous -q
  status "what was stamped is read" 0 digest "$WORK/stamped" -q
  status "no stamp in a torch file" 3 stamp "$TESTDATA/torch/pytorch_model.bin" --glu contiguous -q
  status "buckets refuse" 4 convert "$source" "$out" --from-glu contiguous --glu interleaved:16 -q
  check "buckets are named" has "$ERR" "distrib_optim"
  check "buckets: ways out" has "$ERR" "--dist-ckpt-optim-fully-reshardable"
  status "a rank's share must be divisible" 4 convert "$source" "$out" --from-glu contiguous --glu interleaved:64 \
    --optimizer drop -q
  status "ranks" 0 convert "$source" "$out" --from-glu contiguous --glu interleaved:16 --experts grouped --optimizer drop -q
  check "tracker" test "$(cat "$out/latest_checkpointed_iteration.txt")" = 10
  check "ranks keep their place" test -f "$out/iter_0000010/mp_rank_01_000/model_optim_rng.pt"
  check "buckets are gone" absent "$out/iter_0000010/mp_rank_01_000/distrib_optim.pt"
  status "formats keep buckets" 0 convert "$source" "$WORK/legacy-st" --format safetensors -q
  status "and give them back" 0 convert "$WORK/legacy-st" "$WORK/legacy-back" --format torch -q
  status "the same again" 0 verify "$source" "$WORK/legacy-back" --from-glu contiguous --to-glu contiguous -q
}

# Objects that are no tensors come back from a detour through another format.
objects_travel() {
  local format
  for format in safetensors torch-dist; do
    status "objects to $format" 0 convert "$TESTDATA/torch/model_optim_rng.pt" "$WORK/objects-$format" --format $format -q
    status "objects from $format" 0 convert "$WORK/objects-$format" "$WORK/objects-$format.pt" -q
    check "objects of $format" python3 - "$WORK/objects-$format.pt" <<'PY'
import pickletools, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as file:
    assert file.testzip() is None
    (pickle,) = [name for name in file.namelist() if name.endswith("/data.pkl")]
    values = [argument for _, argument, _ in pickletools.genops(file.read(pickle))]
for wanted in ("model", "iteration", "args", "num_experts", "rng"):
    assert wanted in values, wanted
PY
  done
  status "objects into one file" 0 convert "$TESTDATA/torch/dcp1" "$WORK/dcp1.safetensors" -q
  status "and out of it" 0 convert "$WORK/dcp1.safetensors" "$WORK/dcp1-back" --format torch-dist -q
  check "entries" grep -qa "args.num_experts" "$WORK/dcp1-back/.metadata"
}
