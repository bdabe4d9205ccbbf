#!/usr/bin/env bash
# Runs clang-tidy over the .cpp files that a change touches: those that differ from where this branch left origin/main,
# or, on origin/main itself, from the commit before. usage: scripts/tidy.sh [FILE...]
# A file takes about ten seconds: a change of more than TIDY_MAX_FILES (24) is left to scripts/test.sh --thorough.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v clang-tidy >/dev/null; then
  echo "tidy: no clang-tidy here; nothing is checked"
  exit 0
fi
files=("$@")
if [[ ${#files[@]} -eq 0 ]]; then
  base=$(git merge-base HEAD origin/main 2>/dev/null || true)
  if [[ -z $base || $base == $(git rev-parse HEAD 2>/dev/null) ]]; then
    base=$(git rev-parse -q --verify HEAD~1 || true)
  fi
  if [[ -z $base ]]; then
    echo "tidy: no earlier commit to compare with; nothing is checked"
    exit 0
  fi
  mapfile -t files < <(git diff --name-only --diff-filter=d "$base" -- 'src/*.cpp' 'kernels/*.cpp' 'tests/*.cpp')
fi
if [[ ${#files[@]} -eq 0 ]]; then
  echo "tidy: no .cpp file is touched"
  exit 0
fi
if ((${#files[@]} > ${TIDY_MAX_FILES:-24})); then
  echo "tidy: ${#files[@]} files are touched; give TIDY_MAX_FILES=${#files[@]} to check them all"
  exit 0
fi

# In the usual build files are compiled ten at a time, and not by their names.
[[ -f build-tidy/build.ninja ]] ||
  CC=clang CXX=clang++ meson setup build-tidy --native-file scripts/without_nvcc.ini -Dunity=off -Db_pch=false >build-tidy.log ||
  { cat build-tidy.log; exit 1; }
rm -f build-tidy.log
ninja -C build-tidy build.ninja >/dev/null

# Files that are compiled only beside nvcc are not in the list of commands.
known=()
for file in "${files[@]}"; do
  if grep -q "\"file\": \"../$file\"" build-tidy/compile_commands.json; then known+=("$file"); fi
done
echo "tidy: ${#known[@]} files"
[[ ${#known[@]} -eq 0 ]] ||
  printf '%s\0' "${known[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy -p build-tidy --quiet --warnings-as-errors='*'
