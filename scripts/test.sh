#!/usr/bin/env bash
# Everything that is checked before a change goes in: the include rules, every public header by itself, and all tests
# in two builds: g++ release, and clang++ with the address and undefined-behaviour sanitizers. The last line is
# `N passed, M failed`, summed over both builds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/install_deps.sh tests

# Halts on the first finding, so that a test cannot pass over one.
export ASAN_OPTIONS=detect_leaks=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

launcher=""
if command -v ccache >/dev/null; then launcher="ccache "; fi

# Things that failed outside the test programs; each counts as one failure.
failed_checks=()
headline() { printf '\n== %s\n' "$*"; }

headline "includes"
python3 scripts/check_includes.py || failed_checks+=("check_includes.py")

headline "public headers by themselves"
for header in include/glu_ckpt/*.hpp; do
  name=${header#include/}
  for compiler in g++ clang++; do
    printf '#include "%s"\n' "$name" |
      "$compiler" -std=c++20 -fsyntax-only -Wall -Wextra -Werror -Iinclude -x c++ - ||
      failed_checks+=("$name alone with $compiler")
  done
done

# build_and_test DIR C++-COMPILER C-COMPILER MESON-OPTION...
build_and_test() {
  local dir=$1 cxx=$2 cc=$3
  shift 3
  headline "$dir ($cxx)"
  rm -f "$dir/meson-logs/testlog.json"
  if [[ ! -f $dir/build.ninja ]]; then
    CC="$launcher$cc" CXX="$launcher$cxx" meson setup "$dir" "$@" || { failed_checks+=("meson setup $dir"); return; }
  fi
  ninja -C "$dir" || { failed_checks+=("build of $dir"); return; }
  # A failed test shows in the log that is counted below; a failure without one is caught there too.
  meson test -C "$dir" "${left_out[@]}" --no-rebuild --print-errorlogs --timeout-multiplier 4 || true
}
# Slurm's daemons want a machine to themselves: meson test --suite slurm, by hand.
left_out=(--no-suite slurm)
build_and_test build-gcc g++ gcc
# The interop suite judges files, and those are the same from both builds.
left_out+=(--no-suite interop)
# One build has the kernels where nvcc is installed, the other never: both must work.
build_and_test build-asan clang++ clang --native-file scripts/without_nvcc.ini -Doptimization=1 \
  -Dcpp_args=-gline-tables-only -Db_sanitize=address,undefined -Db_lundef=false

headline "result"
[[ ${#failed_checks[@]} -eq 0 ]] || printf 'failed: %s\n' "${failed_checks[@]}"
python3 - "${#failed_checks[@]}" build-gcc build-asan <<'PYTHON'
"""Counts single tests in meson's logs: what GoogleTest and the shell tests say of themselves, else the test as one."""
import json
import pathlib
import re
import sys

passed, failed, skipped = 0, int(sys.argv[1]), 0
checks_failed = failed
for build in sys.argv[2:]:
    log = pathlib.Path(build, "meson-logs", "testlog.json")
    runs = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
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
