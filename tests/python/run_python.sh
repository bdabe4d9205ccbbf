#!/usr/bin/env bash
# Builds the wheel and tests it: in a fresh virtual environment for each Python of 3.12 and later that is found, and for
# one of 3.10 and 3.11, without torch; and, built for it, beside the interop suite's torch. Exits 77, saying why, where
# packages cannot be had.
# usage: run_python.sh [PYTEST-ARGUMENT...]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(realpath "$here/../..")
export GLU_CKPT_TESTDATA=${GLU_CKPT_TESTDATA:-$root/testdata}
# Sanitizers and options of the build that runs this are not the wheel's.
unset ASAN_OPTIONS UBSAN_OPTIONS CXXFLAGS LDFLAGS

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
skip() { echo "python: not run: $(tail -n 1 "$work/why")"; exit 77; }

# package DIST ARGUMENT...
package() {
  local status=0
  "$root/scripts/package_wheel.sh" "$@" --cpu >/dev/null 2>"$work/why" || status=$?
  ((status != 77)) || skip
  ((status == 0)) || { cat "$work/why" >&2; exit 1; }
}

failed=0 passed=0
# run_tests PYTHON WHAT PYTEST-ARGUMENT...
run_tests() {
  local python=$1 what=$2
  shift 2
  # 3.10 has no -P.
  local safe_path=()
  "$python" -P -c "" 2>/dev/null && safe_path=(-P)
  echo "python: $("$python" -c 'import platform; print(platform.python_version())') $what"
  # Started in the background, pytest would ignore the Ctrl-C that two tests send.
  if (cd "$here" && PYTHONDONTWRITEBYTECODE=1 env --default-signal=INT "$python" "${safe_path[@]}" -m pytest -q --tb=short --disable-warnings \
    -p no:cacheprovider --basetemp="$work/pytest" "$@") >"$work/log" 2>&1; then
    tail -n 1 "$work/log"
  else
    cat "$work/log"
    failed=$((failed + 1))
  fi
  passed=$((passed + $(grep -oP '\d+(?= passed)' "$work/log" | tail -n 1 || echo 0)))
}

# fresh_venv FOLDER PYTHON WHEEL
fresh_venv() {
  "$2" -m venv "$1"
  "$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-index "$3"
}

mapfile -t found < <("$root/scripts/find_python.sh" 12 13 14)
if ((${#found[@]} > 0)); then
  package "$work/abi3" --python "${found[0]}"
  wheel=$(ls "$work"/abi3/*-cp312-abi3-manylinux*.whl)
  for python in "${found[@]}"; do
    venv=$work/venv-$(basename "$(dirname "$(dirname "$python")")")-$RANDOM
    fresh_venv "$venv" "$python" "$wheel"
    # The wheel came without an index; what tests it does not.
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --timeout 20 pytest numpy mypy 2>"$work/why" || skip
    run_tests "$venv/bin/python" "without torch" "$@"
  done
fi

# One of those that have no stable ABI.
oldest=$("$root/scripts/find_python.sh" 10 11 | sed -n 1p || true)
if [[ -n $oldest ]]; then
  package "$work/oldest" --python "$oldest"
  fresh_venv "$work/venv-oldest" "$oldest" "$(ls "$work"/oldest/*.whl)"
  "$work/venv-oldest/bin/python" -m pip install --quiet --disable-pip-version-check --timeout 20 pytest numpy mypy \
    2>"$work/why" || skip
  run_tests "$work/venv-oldest/bin/python" "without torch" "$@"
fi

status=0
torch_python=$("$root/scripts/interop_env.sh" 2>"$work/why") || status=$?
((status == 0)) || skip
package "$work/torch" --python "$torch_python"
fresh_venv "$work/venv-torch" "$torch_python" "$(ls "$work"/torch/*.whl)"
"$torch_python" -c 'import site; print(site.getsitepackages()[0])' \
  >"$("$work/venv-torch/bin/python" -c 'import site; print(site.getsitepackages()[0])')/torch.pth"
run_tests "$work/venv-torch/bin/python" "with torch" "$@"

echo "$passed passed, $failed failed"
((failed == 0))
