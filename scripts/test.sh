#!/usr/bin/env bash
# Tests a change. The last line is `N passed, M failed`, summed over all builds.
# usage: scripts/test.sh [--quick|--thorough]
#   --quick     after a change of one file: one g++ build without CUDA, the include rules, and the tests of the suite
#               `quick` (unit, property, golden, malformed and the program's commands)
#   (nothing)   before a change goes in: the include rules, the layout of the code, every public header by itself,
#               clang-tidy over the files that the change touches, and all tests in two builds: g++, with CUDA where there
#               is nvcc, and clang++ with the address and undefined-behaviour sanitizers
#   --thorough  before a release: all of that, ThreadSanitizer over everything that has threads, each fuzz target for a
#               minute, 1,000 kills of a conversion, 100 of one by several ranks, and the batch script under Slurm
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=${1:---default}
[[ $# -le 1 && $mode =~ ^--(quick|default|thorough)$ ]] || { echo "usage: scripts/test.sh [--quick|--thorough]" >&2; exit 2; }
bash scripts/install_deps.sh tests

# Halts on the first finding, so that a test cannot pass over one. Who allocated what is told by two calls: to keep more
# of them takes time with every allocation, and with fewer no leak is found, for the sanitizer takes what has no caller
# for the dynamic linker's. To learn more of a finding, run the test by hand without this.
export ASAN_OPTIONS=detect_leaks=1:malloc_context_size=2
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1
source scripts/compiler_cache.sh

# Things that failed outside the test programs; each counts as one failure.
failed_checks=()
# The builds whose logs are counted.
builds=()
headline() { printf '\n== %s\n' "$*"; }

headline "includes"
python3 scripts/check_includes.py || failed_checks+=("check_includes.py")

# Other versions of clang-format lay the same code out in other ways.
headline "clang-format"
if clang-format --version 2>/dev/null | grep -qF "version 14."; then
  find include src kernels python tests -regex '.*\.\(cpp\|hpp\|cu\|cuh\)' -print0 | xargs -0 clang-format --dry-run -Werror ||
    failed_checks+=("clang-format")
else
  echo "clang-format 14 is not here; the layout of the code is not checked"
fi

check_headers() {
  headline "public headers by themselves"
  local compiler include='printf "#include \"%s\"\n" "${1#include/}" |
    "$0" -std=c++20 -fsyntax-only -Wall -Wextra -Werror -Iinclude -x c++ - || { echo "$1 alone with $0 fails"; exit 1; }'
  for compiler in g++ clang++; do
    find include -name '*.hpp' -print0 | sort -z | xargs -0 -n 1 -P "$(nproc)" bash -c "$include" "$compiler" ||
      failed_checks+=("a public header alone with $compiler")
  done
}

# build DIR C++-COMPILER C-COMPILER MESON-OPTION... [-- TARGET...]
build() {
  local dir=$1 cxx=$2 cc=$3 options=()
  shift 3
  while (($#)) && [[ $1 != -- ]]; do
    options+=("$1")
    shift
  done
  headline "$dir ($cxx)"
  builds+=("$dir")
  rm -f "$dir"/meson-logs/*log.json
  if [[ ! -f $dir/build.ninja ]]; then
    CC="$launcher$cc" CXX="$launcher$cxx" meson setup "$dir" "${options[@]}" || { failed_checks+=("meson setup $dir"); return 1; }
  fi
  ninja -C "$dir" "${@:2}" || { renew_header "$dir" && ninja -C "$dir" "${@:2}"; } ||
    { failed_checks+=("build of $dir"); return 1; }
}

# renew_header DIR: compiles the tests' precompiled header again, if it is clang's and the compiler's cache had it from a
# clone that is gone: clang looks for the header by that clone's path.
renew_header() {
  local target=tests/libtests.a.p/tests.hpp.pch source
  source=$(grep -aoE -m1 '/[[:print:]]*/pch/tests\.hpp' "$1/$target" 2>/dev/null) || return 1
  source=${source%%$'\n'*}
  [[ ! -e $source ]] || return 1
  echo "the precompiled header is that of a clone which is gone ($source): it is compiled again, and the build goes on"
  rm "$1/$target"
  CCACHE_RECACHE=1 ninja -C "$1" "$target"
}

# run_tests DIR MESON-TEST-OPTION...: one test more at a time than there are cores, for some wait for disks and for other
# programs. A failed test shows in the log that is counted below; a failure without one is caught there too.
run_tests() {
  env --default-signal=INT CASES_EVERY="${cases_every[$1]:-1}" meson test -C "$1" --no-rebuild --print-errorlogs \
    --num-processes "$(($(nproc) + 1))" --timeout-multiplier "$timeouts" "${@:2}" || true
}

# run_together DIR...: the tests of several builds at the same time, so that no core rests while the last ones of a build
# end. Where one is in the background, its tests get SIGINT all the same: some send it.
run_together() {
  local dir logs
  logs=$(mktemp -d)
  for dir in "${@:2}"; do
    # shellcheck disable=SC2086
    run_tests "$dir" ${left_out[$dir]} >"$logs/$dir" 2>&1 &
  done
  # shellcheck disable=SC2086
  run_tests "$1" ${left_out[$1]}
  wait
  for dir in "${@:2}"; do
    headline "tests of $dir"
    cat "$logs/$dir"
  done
  rm -r "$logs"
}

without_nvcc=(--native-file scripts/without_nvcc.ini)
timeouts=4

quick() {
  build build-quick g++ gcc "${without_nvcc[@]}" -- glu-ckpt \
    tests/{unit,property,golden,malformed}_tests tests/glu-ckpt-held tests/galleries.stamp || return 0
  run_tests build-quick --suite quick
}

# The suites that a build leaves out. Slurm's daemons, and several hosts in namespaces, want a machine to themselves: only
# before a release, or by hand. The interop suite judges files, and those are the same from both builds; the wheel is a
# build of its own.
alone="--no-suite slurm --no-suite hosts"
# Of the cases, each a process or more, every third under sanitizers: the other build runs them all.
declare -A cases_every=([build-asan]=3)
declare -A left_out=([build-gcc]=$alone [build-asan]="$alone --no-suite interop --no-suite python --no-suite browser")

default() {
  local built=()
  check_headers
  headline "clang-tidy"
  bash scripts/tidy.sh || failed_checks+=("tidy.sh")
  build build-gcc g++ gcc -Dwgmma_check=true && built+=(build-gcc)
  # Of the same objects, where the compiler's cache still has them.
  build build-static g++ gcc --native-file scripts/static.ini -- glu-ckpt && run_tests build-static --suite static
  # One build has the kernels where nvcc is installed, the other never: both must work. At -O1 it would be compiled no
  # faster, and its tests would take up to twice as long. At a fixed address the 170,000 pointers to descriptions of
  # checks need no relocation at every start.
  build build-asan clang++ clang "${without_nvcc[@]}" -Dcpp_args=-gline-tables-only -Dcpp_link_args=-no-pie \
    -Db_sanitize=address,undefined -Db_lundef=false && built+=(build-asan)
  [[ ${#built[@]} -eq 0 ]] || run_together "${built[@]}"
}

thorough() {
  timeouts=20
  cases_every=()
  export KILLS=1000 RANK_KILLS=100 HOST_ROUNDS=20 TIDY_MAX_FILES=1000
  default
  run_tests build-gcc --suite slurm --logbase slurmlog
  run_tests build-gcc --suite hosts --logbase hostslog
  build build-tsan clang++ clang "${without_nvcc[@]}" -Dcpp_args=-gline-tables-only \
    -Db_sanitize=thread -Db_lundef=false -- tests/{unit,property,faults,convert_ranks,fake_cuda}_tests &&
    run_tests build-tsan --suite unit --suite property --suite faults --suite convert_ranks --suite fake-cuda
  headline "mutations"
  GLU_CKPT_TESTDATA=$PWD/testdata GLU_CKPT_GALLERIES=$PWD/build-gcc/tests/galleries \
    python3 tests/mutation/run_mutations.py build-static/glu-ckpt --thorough || failed_checks+=("run_mutations.py --thorough")
  headline "fuzz targets"
  bash scripts/fuzz.sh 60 || failed_checks+=("fuzz.sh")
}

"${mode#--}"

headline "result"
[[ ${#failed_checks[@]} -eq 0 ]] || printf 'failed: %s\n' "${failed_checks[@]}"
python3 - "${#failed_checks[@]}" "${builds[@]}" <<'PYTHON'
"""Counts single tests in meson's logs: what GoogleTest and the shell tests say of themselves, else the test as one."""
import json
import pathlib
import re
import sys

passed, failed, skipped = 0, int(sys.argv[1]), 0
checks_failed = failed
for build in sys.argv[2:]:
    logs = sorted(pathlib.Path(build, "meson-logs").glob("*log.json"))
    runs = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    if not runs:
        print(f"failed: no tests ran in {build}")
        failed += checks_failed == 0
    for run in runs:
        out = run.get("stdout") or ""
        good = run["result"] in ("OK", "EXPECTEDFAIL")

        def total(pattern):
            return sum(int(n) for n in re.findall(pattern, out, re.MULTILINE))

        p = total(r"^\[  PASSED  \] (\d+) tests?\.") + total(r"^(\d+) passed, \d+ failed$")
        f = total(r"^\[  FAILED  \] (\d+) tests?, listed below") + total(r"^\d+ passed, (\d+) failed$")
        s = total(r"^\[  SKIPPED \] (\d+) tests?, listed below") + total(r"^(\d+) skipped$")
        if run["result"] == "SKIP":
            s = max(s, 1)
        elif p + f + s == 0:
            p = int(good)
        # A crash, a timeout or a sanitizer's finding: the program failed, whatever it had counted.
        if run["result"] != "SKIP" and not good and f == 0:
            f = 1
        # Which software judged, and what could not be asked.
        print(*re.findall(r"^interop: .*\n", out, re.MULTILINE), sep="", end="")
        if f:
            print(f"failed: {run['name']} in {build}")
        passed, failed, skipped = passed + p, failed + f, skipped + s
if skipped:
    print(f"{skipped} skipped")
print(f"{passed} passed, {failed} failed")
sys.exit(failed != 0)
PYTHON
