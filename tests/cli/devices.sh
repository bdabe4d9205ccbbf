# doctor, bench and --device: what they say with and without a GPU.

devices() {
  local hf=$TESTDATA/hf/mixtral out=$WORK/devices gpus
  status "doctor" 0 doctor && check "doctor: stderr is empty" [ -z "$ERR" ]
  check "doctor says what auto takes" has "$OUT" "single elements"
  status "doctor of a path to be" 0 doctor "$WORK/not/there/yet" && check "it is named" has "$OUT" "$WORK/not/there/yet"
  status "doctor --json" 0 doctor -j 3 --json
  check "doctor --json" json version cuda_built cpu gpus no_cuda auto filesystem io
  check "doctor --json: jobs" [ "$(json_get 'v["io"]["jobs"]')" == 3 ]
  check "doctor --json: the reason where there is no GPU" [ "$(json_get '(v["no_cuda"] == "") == (v["gpus"] != [])')" == True ]
  check "doctor --json: long runs go to the CPU" [ "$(json_get 'v["auto"]["long_runs"]["device"]')" == cpu ]
  gpus=$(json_get 'len(v["gpus"])')

  status "a GPU too many" 5 convert "$hf" "$out" --naming megatron --glu interleaved:2 --device "cuda:$gpus"
  check "a GPU too many: no-device" has "$ERR" "[no-device]"
  check "a GPU too many: nothing is left" absent "$out.partial"
  status "a device that is none" 2 convert "$hf" "$out" --naming megatron --glu interleaved:2 --device gpu
  status "--device auto" 0 convert "$hf" "$out" --naming megatron --glu interleaved:2 --device auto -v
  check "--device auto -v says why" has "$ERR" "device cpu: "
  status "bench without a word" 2 bench
  status "bench of a mistyped word" 2 bench kernls && check "it is suggested" has "$ERR" "did you mean kernels"
  status "bench with a mistyped option" 2 bench kernels --devic cuda && check "it is suggested" has "$ERR" "did you mean --device"
  status "bench kernels on the CPU" 2 bench kernels --device cpu
  [[ $gpus -gt 0 ]] || { status "bench kernels without a GPU" 5 bench kernels --json && check "no-device" has "$ERR" '"no-device"'; }
  rm -rf "$out"
}
