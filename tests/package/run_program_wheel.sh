#!/usr/bin/env bash
# Makes the wheel of the program alone and installs it, without an index, for the oldest and the newest Python found.
# Exits 77 where none can make a virtual environment.
# usage: run_program_wheel.sh PROGRAM
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "program wheel: $*" >&2; exit 1; }

version=$("$1" --version | awk '{print $NF}')
make_wheel() { SOURCE_DATE_EPOCH=1700000000 python3 "$root/scripts/program_wheel.py" "$2" "$version" x86_64 "$1" "$root/LICENSE"; }
mkdir "$work/one" "$work/two"
make_wheel "$1" "$work/one"
make_wheel "$1" "$work/two"
diff -r "$work/one" "$work/two" || fail "two builds differ"
wheel=$(ls "$work"/one/glu_ckpt-"$version"-py3-none-manylinux_*.whl)

tried=0
mapfile -t found < <("$root/scripts/find_python.sh" 7 8 9 10 11 12 13 14 || true)
for python in "${found[0]:-}" "${found[-1]:-}"; do
  [[ -n $python ]] && "$python" -m venv "$work/venv$tried" >/dev/null 2>&1 || continue
  venv=$work/venv$tried
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-index "$wheel"
  [[ $("$venv/bin/glu-ckpt" --version) == "$("$1" --version)" ]] || fail "$python: another program was installed"
  cmp "$venv/bin/glu-ckpt" "$1" || fail "$python: the program was changed"
  "$venv/bin/python" -m pip show --files glu-ckpt 2>/dev/null | grep -q 'licenses/LICENSE' || fail "$python: no license"
  "$venv/bin/python" -m pip uninstall --quiet --yes glu-ckpt
  [[ ! -e $venv/bin/glu-ckpt ]] || fail "$python: the program stays"
  tried=$((tried + 1))
done
((tried > 0)) || { echo "program wheel: not run: no Python makes virtual environments"; exit 77; }
echo "program wheel: installed for $tried Pythons"
