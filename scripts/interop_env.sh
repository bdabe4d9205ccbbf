#!/usr/bin/env bash
# Makes the Python environment of tests/interop, or finds the one made before, and prints the path of its python.
# usage: scripts/interop_env.sh [DIR]
# The default DIR is a cache folder named after the requirements and the Python that it was made with, so that a second
# run takes seconds. Exits 77, with one line that says why, where the package index cannot be reached.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
requirements=$here/../tests/interop/requirements.txt
# An older Megatron-Core and compressed-tensors for what newer ones cannot run or read, in the folder of this name.
before=$here/../tests/interop/requirements-before.txt
before_folder=before

say() { echo "interop_env: $*" >&2; }
skip() { say "$*"; exit 77; }

# The wheels of Megatron-Core are for these two versions alone.
find_python() { "$here/find_python.sh" 12 || "$here/find_python.sh" 13; }

make_venv() {
  "$python" -m venv "$1" >&2 && return
  # Debian keeps ensurepip in a package of its own, python3-venv; pip may have brought virtualenv instead.
  rm -rf "$1"
  "$python" -m virtualenv "$1" >&2
}

index_answers() {
  local probe status=0
  probe=$(mktemp -d)
  timeout 60 "$1" -m pip download --quiet --no-deps --no-cache-dir --timeout 20 --retries 1 \
    --dest "$probe" "$(grep '^packaging==' "$requirements")" >&2 || status=1
  rm -rf "$probe"
  return $status
}

# The wheels are several GB: a second copy of them in pip's cache would serve nobody.
pip_install() { "$1" -m pip install --quiet --no-cache-dir --disable-pip-version-check "${@:2}" >&2; }

fill_venv() {
  local venv_python=$1
  pip_install "$venv_python" --no-deps -r <(grep -Ev '^(megatron-core|megatron-bridge|torchtitan|gptqmodel|nvidia-modelopt)==' "$requirements")
  # On another platform torch may open other libraries than those listed.
  "$venv_python" -c 'import torch' 2>/dev/null || pip_install "$venv_python" "$(grep '^torch==' "$requirements")"
  local judge
  for judge in megatron-core megatron-bridge torchtitan gptqmodel nvidia-modelopt; do
    # gptqmodel comes as source of Python alone: the setuptools that is here packs it.
    pip_install "$venv_python" --no-deps --no-build-isolation "$(grep "^$judge==" "$requirements")" ||
      say "$judge does not install here; its tests will be skipped"
  done
  pip_install "$venv_python" --no-deps --target "$dir/$before_folder" -r "$before"
}

[[ $# -le 1 ]] || { echo "usage: scripts/interop_env.sh [DIR]" >&2; exit 2; }
python=$(find_python) ||
  skip "no Python 3.12 or 3.13 here: install Debian 13's or Ubuntu 24.04's, or let pyenv or uv install one"
version=$("$python" -c 'import platform; print(platform.python_version())')
hash=$({ cat "$requirements" "$before"; echo "$version"; } | sha256sum | cut -c1-12)
dir=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/glu-ckpt/interop-$hash}

# Two test runs at once make one environment.
mkdir -p "$dir"
exec 9>"$dir.lock"
flock 9

complete=$dir/complete-$hash
if [[ ! -e $complete ]]; then
  [[ -z $(ls -A "$dir") || -e $dir/pyvenv.cfg ]] || { say "$dir is no virtual environment: left alone"; exit 1; }
  rm -rf "$dir"
  make_venv "$dir" || skip "no virtual environment can be made: install python3-venv"
  index_answers "$dir/bin/python" || { rm -rf "$dir"; skip "the package index cannot be reached"; }
  say "installing torch and others into $dir (several minutes, 4 GB)"
  fill_venv "$dir/bin/python" || { rm -rf "$dir"; say "the packages do not install"; exit 1; }
  touch "$complete"
fi
echo "$dir/bin/python"
