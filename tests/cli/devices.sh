# doctor, bench and --device: what they say with and without a GPU.

devices() {
  local hf=$TESTDATA/hf/mixtral out=$WORK/devices gpus
  status "doctor" 0 doctor && check "doctor: stderr is empty" [ -z "$ERR" ]
  check "doctor says what auto takes" has "$OUT" "single elements"
  status "doctor of a path to be" 0 doctor "$WORK/not/there/yet" && check "it is named" has "$OUT" "$WORK/not/there/yet"
  status "doctor --json" 0 doctor -j 3 --json
  check "doctor --json" json version cuda_built cpu gpus no_cuda auto filesystem io
  check "doctor --json: what the file system takes" \
    [ "$(json_get 'v["filesystem"]["writers"] == 0 or v["filesystem"]["one_file_bytes_per_second"] > 0 < v["filesystem"]["several_files_bytes_per_second"]')" == True ]
  check "doctor --json: jobs" [ "$(json_get 'v["io"]["jobs"]')" == 3 ]
  taskset -c "$(taskset -cp $$ | grep -o '[0-9]*$')" "$PROGRAM" doctor --json >"$WORK/.out" 2>"$WORK/.err" </dev/null
  check "one processor of several: one thread" [ "$(json_get '(v["io"]["jobs"], v["cpu"]["cores"])')" == "(1, 1)" ]
  status "doctor --json of all of them" 0 doctor --json
  check "as many threads as processors that it may run on" [ "$(json_get 'v["io"]["jobs"]')" == "$(nproc)" ]
  check "doctor --json: the reason where there is no GPU" [ "$(json_get '(v["no_cuda"] == "") == (v["gpus"] != [])')" == True ]
  check "doctor --json: long runs go to the CPU" [ "$(json_get 'v["auto"]["long_runs"]["device"]')" == cpu ]
  gpus=$(json_get 'len(v["gpus"])')

  status "a GPU too many" 5 convert "$hf" "$out" --naming megatron --glu interleaved:2 --device "cuda:$gpus"
  check "a GPU too many: no-device" has "$ERR" "[no-device]"
  check "a GPU too many: nothing is left" absent "$out.partial"
  status "diff on a GPU too many" 5 diff "$hf" "$hf" --device "cuda:$gpus" && check "no-device" has "$ERR" "[no-device]"
  status "a device that is none" 2 convert "$hf" "$out" --naming megatron --glu interleaved:2 --device gpu
  status "--device auto" 0 convert "$hf" "$out" --naming megatron --glu interleaved:2 --device auto -v
  check "--device auto -v says why" has "$ERR" "device cpu: "
  status "bench without a word" 2 bench
  status "bench of a mistyped word" 2 bench kernls && check "it is suggested" has "$ERR" "did you mean kernels"
  status "bench with a mistyped option" 2 bench kernels --devic cuda && check "it is suggested" has "$ERR" "did you mean --device"
  status "bench kernels on the CPU" 2 bench kernels --device cpu
  status "bench forward on the CPU" 0 bench forward --device cpu --tokens 1,3 --max-memory 20MiB -j 2 --rounds 2 --json
  check "bench forward --json" json device jobs dtype glu activation no_cublas figures
  check "bench forward --json: as many experts as fit" \
    [ "$(json_get '[(f["model"], f["num_experts"], f["tokens_per_expert"]) for f in v["figures"]]')" == "[('Qwen3-30B', 2, 1), ('Qwen3-30B', 2, 3)]" ]
  check "bench forward --json: figures agree with each other" [ "$(json_get 'all(abs(f["weight_gb_per_s"] * f["microseconds"] - f["weight_bytes"] / 1e3) < 1 and f["weight_bytes"] == 6 * f["num_experts"] * f["hidden_size"] * f["moe_intermediate_size"] and abs(f["tflops"] * f["microseconds"] * 1e6 - f["weight_bytes"] * f["tokens_per_expert"]) < 1e3 and abs(f["of_read"] * f["microseconds"] - f["read_microseconds"]) < 1e-3 for f in v["figures"])')" == True ]
  status "bench forward as text" 0 bench forward --device cpu --tokens 1 --max-memory 10MiB --rounds 1
  check "bench forward as text: one line" [ "$(grep -c '^Qwen3-30B' <<<"$OUT")" == 1 ]
  status "bench forward without room for an expert" 5 bench forward --device cpu --tokens 1 --max-memory 5MiB
  check "nothing is printed" [ -z "$OUT" ] && check "the bytes are named" has "$ERR" "take 9456640 bytes, 5242880 may be used"
  status "bench forward of a model that is not there" 2 bench forward --device cpu --model Qwen
  check "those that are there are named" has "$ERR" "Qwen3-30B"
  status "bench forward --backward on the CPU" 2 bench forward --device cpu --backward
  check "bench forward --backward on the CPU: says where" has "$ERR" "timed on a GPU"
  status "bench forward with no tokens" 2 bench forward --device cpu --tokens 0
  status "bench forward on a GPU too many" 5 bench forward --device "cuda:$gpus" && check "no-device" has "$ERR" "[no-device]"
  [[ $gpus -gt 0 ]] || { status "bench kernels without a GPU" 5 bench kernels --json && check "no-device" has "$ERR" '"no-device"'; }
  rm -rf "$out"
}

# ---- bench convert: figures that agree with each other, and nothing left behind, however it ends

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
