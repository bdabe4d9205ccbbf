#!/usr/bin/env bash
# What CI cannot run: the GPU tests alone and under compute-sanitizer, then the kernels' speeds.
#   [GLU_CKPT_GPU_SHARDS=6] scripts/gpu_check.sh [BUILD-FOLDER]
# On a machine with a GPU, in a build with nvcc. Status 77 where there is no GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build}
tests=$build/tests/gpu_tests
[[ -x $tests ]] || tests=$build/gpu_tests
export GLU_CKPT_TESTDATA=$PWD/testdata
shards=${GLU_CKPT_GPU_SHARDS:-6}

fail() { echo "gpu_check: $*" >&2; exit 2; }
[[ -x $tests ]] || fail "$build/tests/gpu_tests: does not exist; 'ninja -C $build' makes it where there is nvcc"
[[ $shards =~ ^[1-9][0-9]*$ ]] || fail "GLU_CKPT_GPU_SHARDS is '$shards', expected a number from 1 on"
# Without a GPU the tests say so in one line, with status 77, whatever they are asked.
list=$("$tests" --gtest_list_tests) || { status=$?; echo "$list"; exit "$status"; }

headline() { printf '\n== %s\n' "$*"; }

# Most of a test is its reference on the CPU, so several processes at once take a part of the tests each. With twice as
# many sanitizers at once none came to an end. A GPU of little memory needs fewer.
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# usage: in_shards SECONDS COMMAND...
in_shards() {
  local seconds=$1 i status worst=0 pids=()
  shift
  for ((i = 0; i < shards; ++i)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i timeout -k 5 "$seconds" "$@" >"$logs/$i" 2>&1 &
    pids+=($!)
  done
  for ((i = 0; i < shards; ++i)); do
    status=0
    wait "${pids[i]}" || status=$?
    if ((status == 0)); then
      grep -E "PASSED|SUMMARY" "$logs/$i" || tail -n 1 "$logs/$i"
    else
      cat "$logs/$i"
      echo "part $i of $shards: status $status"
      worst=$status
    fi
  done
  return "$worst"
}

headline "GPU tests"
in_shards 300 "$tests" --gtest_brief=1

headline "every layout of every checkpoint in testdata computes the same"
GLU_CKPT_TEST_DEVICE=cuda timeout 300 tests/cli/run_cli.sh "$build/glu-ckpt" forward_families forward_tiny

headline "differences are as the CPU finds them"
GLU_CKPT_TEST_DEVICE=cuda timeout 300 tests/cli/run_cli.sh "$build/glu-ckpt" diff_planted

# Hundreds of random conversions and gigabytes add time to a sanitizer and no new code paths.
# Failed calls are not reported: a test asks for more memory than there is, and CUDA_CHECK sees every call.
few='-RandomPlan*:*MoreWordsThanThirtyTwoBits*:*IndicesAre64Bits*:*OnMillions*:*AFailureNamesTheShape*'
# racecheck slows large blocks down by thousands, and breaks down where hundreds of launches are queued.
slow=':*FollowOneAnother*:*ManyExperts*:*PartBetween*:*Every16BitValue*:*Halves*:*BenchForward*:*Graph*:*EveryLayout*:*SizesAndStarts*:*ForwardGolden*:VerifyForward*'
for tool in memcheck racecheck; do
  headline "compute-sanitizer $tool"
  quiet=(--report-api-errors no) filter=$few
  [[ $tool == memcheck ]] || { quiet=() filter=$few$slow; }
  in_shards 900 compute-sanitizer --tool "$tool" "${quiet[@]}" --error-exitcode 9 "$tests" --gtest_brief=1 --gtest_filter="$filter"
done

headline "speeds"
"$build/glu-ckpt" bench kernels
"$build/glu-ckpt" bench forward
