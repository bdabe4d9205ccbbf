#!/usr/bin/env bash
# Ranks and the program for many ranks under mpirun, on this machine.
# usage: run_mpi.sh PROGRAM MPI_PROGRAM RANKS_TEST
# Beside the last lies the second one again, made to stand still in the middle of a conversion.
set -u
export LC_ALL=C
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PROGRAM=$(realpath "${1:?usage: run_mpi.sh PROGRAM MPI_PROGRAM RANKS_TEST}") || exit 2
MPI_PROGRAM=$(realpath "${2:?no glu-ckpt-mpi}") || exit 2
RANKS_TEST=$(realpath "${3:?no ranks test}") || exit 2
HELD_PROGRAM=$(dirname "$RANKS_TEST")/glu-ckpt-mpi-held
if ! command -v mpirun >/dev/null; then
  echo "no mpirun"
  exit 77
fi
TESTDATA=${GLU_CKPT_TESTDATA:-$(realpath "$HERE/../../testdata")}
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
# Open MPI's own: more ranks than cores, and as root, as containers are.
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# mpirun gives its ranks a terminal.
export GTEST_COLOR=no
# MPI itself keeps memory to the end.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0

# shellcheck source=/dev/null
source "$HERE/../cli/lib.sh"
# shellcheck source=/dev/null
source "$HERE/kills.sh"

# ranks NAME EXPECTED N COMMAND...: mpirun's status; stdout and stderr land in $OUT and $ERR.
ranks() {
  local name=$1 expected=$2 count=$3 got
  shift 3
  timeout 120 mpirun -n "$count" "$@" >"$WORK/.out" 2>"$WORK/.err" </dev/null
  got=$?
  OUT=$(cat "$WORK/.out")
  ERR=$(cat "$WORK/.err")
  if [[ $got == "$expected" ]]; then
    pass
  else
    bad "$name: exit $got, expected $expected: $* :: $(tail -n 40 "$WORK/.out" "$WORK/.err")"
    return 1
  fi
}

count_of() { grep -cF -- "$2" <<<"$1" || true; }
once() { [[ $(count_of "$1" "$2") == 1 ]]; }

ranks_agree() {
  ranks "ranks" 0 4 "$RANKS_TEST"
  check "all ran" has "$OUT" "[  PASSED  ] 5 tests."
  # As between machines with no better network.
  ranks "ranks over TCP" 0 4 --mca pml ob1 --mca btl tcp,self "$RANKS_TEST"
}

# What is killed takes the others along, soon, and the whole has failed.
rank_is_lost() {
  local got
  timeout 60 mpirun -n 4 "$RANKS_TEST" lose >"$WORK/.out" 2>"$WORK/.err" </dev/null
  got=$?
  check "a lost rank fails the job, status $got" test $got -ne 0 -a $got -ne 124
  check "nobody goes on without it" test ! -s "$WORK/.out"
}

one_voice() {
  ranks "help" 0 3 "$MPI_PROGRAM" --help
  check "help is printed once" once "$OUT" "Usage: glu-ckpt-mpi"
  check "help is about this program" test "$(count_of "$OUT" "  glu-ckpt ")" == 0
  ranks "version" 0 3 "$MPI_PROGRAM" --version
  check "the version is printed once" test "$OUT" == "$("$PROGRAM" --version | sed 's/^glu-ckpt/glu-ckpt-mpi/')"
  ranks "usage" 2 3 "$MPI_PROGRAM" convert --glue
  check "a wrong option is told once" once "$ERR" "[usage]"
  ranks "not found" 3 3 "$MPI_PROGRAM" inspect "$WORK/none"
  check "a failure is told once, by its rank" once "$ERR" "glu-ckpt-mpi: rank 0: error: "
  ranks "not found, as JSON" 3 3 "$MPI_PROGRAM" inspect "$WORK/none" --json
  check "one object" once "$ERR" '{"error":"not-found"'
  ranks "layouts" 0 3 "$MPI_PROGRAM" layouts
  check "a command of rank 0 runs once" test "$OUT" == "$("$PROGRAM" layouts)"
}

same_bytes() {
  local source=$TESTDATA/hf/qwen3_moe count
  "$PROGRAM" convert "$source" "$WORK/one" --scope experts --naming megatron --experts grouped --glu interleaved:8 -q 2>"$WORK/.err" ||
    bad "convert: $(cat "$WORK/.err")"
  for count in 1 2 4; do
    ranks "convert by $count" 0 "$count" "$MPI_PROGRAM" convert "$source" "$WORK/by$count" --scope experts --naming megatron \
      --experts grouped --glu interleaved:8 --json
    check "one report by $count" json output digest verified
    check "the bytes of one process by $count" test "$(tree_sum "$WORK/one")" == "$(tree_sum "$WORK/by$count")"
    check "nothing else is left by $count" absent "$WORK/by$count.partial"
    ranks "DST is there by $count" 4 "$count" "$MPI_PROGRAM" convert "$source" "$WORK/by$count" --glu contiguous
  done
}

ranks_agree
rank_is_lost
one_voice
same_bytes
whole_conversions
printf '%d passed, %d failed\n' "$PASSED" "$FAILED"
((FAILED == 0))
