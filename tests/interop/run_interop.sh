#!/usr/bin/env bash
# Lets PyTorch, safetensors, transformers, Megatron and torchtitan judge the program: what they write it reads, what it
# writes they load. Exits 77, saying why, where their packages cannot be had.
# usage: run_interop.sh PROGRAM [PYTEST-ARGUMENT...]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
GLU_CKPT=$(realpath "${1:?usage: run_interop.sh PROGRAM [PYTEST-ARGUMENT...]}")
export GLU_CKPT
shift

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
python=$("$here/../../scripts/interop_env.sh" 2>"$work/why") || status=$?
if ((status != 0)); then
  echo "interop: not run: $(tail -n 1 "$work/why")"
  exit "$status"
fi

# Nothing may be fetched: models and their configurations are made here.
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
cd "$here"
"$python" -m pytest -q --tb=short --show-capture=no --disable-warnings \
  -p no:cacheprovider --basetemp="$work/pytest" "$@"
