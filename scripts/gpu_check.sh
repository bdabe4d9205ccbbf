#!/usr/bin/env bash
# What CI cannot run: the GPU tests alone and under compute-sanitizer, then the kernels' speeds.
#   scripts/gpu_check.sh [BUILD-FOLDER]
# On a machine with a GPU, in a build with nvcc. Status 77 where there is no GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build}
tests=$build/tests/gpu_tests
[[ -x $tests ]] || tests=$build/gpu_tests
export GLU_CKPT_TESTDATA=$PWD/testdata

headline() { printf '\n== %s\n' "$*"; }

headline "GPU tests"
timeout 300 "$tests" --gtest_brief=1

headline "every layout of every checkpoint in testdata computes the same"
GLU_CKPT_TEST_DEVICE=cuda timeout 300 tests/cli/run_cli.sh "$build/glu-ckpt" forward_families forward_tiny

headline "differences are as the CPU finds them"
GLU_CKPT_TEST_DEVICE=cuda timeout 300 tests/cli/run_cli.sh "$build/glu-ckpt" diff_planted

# Hundreds of random conversions and gigabytes add time to a sanitizer and no new code paths.
# Failed calls are not reported: a test asks for more memory than there is, and CUDA_CHECK sees every call.
few='-RandomPlan*:*MoreWordsThanThirtyTwoBits*:*IndicesAre64Bits*:*OnMillions*:*AFailureNamesTheShape*'
# racecheck slows large blocks down by thousands, and breaks down where hundreds of launches are queued.
slow=':*FollowOneAnother*:*PartBetween*:*Every16BitValue*:*Halves*:*BenchForward*:*Graph*:*EveryLayout*:*SizesAndStarts*:*ForwardGolden*:VerifyForward*'
for tool in memcheck racecheck; do
  headline "compute-sanitizer $tool"
  quiet=(--report-api-errors no) filter=$few
  [[ $tool == memcheck ]] || { quiet=() filter=$few$slow; }
  timeout -k 5 900 compute-sanitizer --tool "$tool" "${quiet[@]}" --error-exitcode 9 "$tests" --gtest_brief=1 --gtest_filter="$filter"
done

headline "speeds"
"$build/glu-ckpt" bench kernels
"$build/glu-ckpt" bench forward
