#!/usr/bin/env bash
# nvcc_checked.sh COMMAND...: runs nvcc, and fails where its assembler reports that products on tensor cores wait for
# one another (advisories C7510, C7511 and C7514). Such a kernel computes the same in up to twice the time, which no
# test sees, and a change anywhere in it can bring that about. `-Dwgmma_check=true` compiles the kernels by this.
set -uo pipefail
[[ $# -gt 0 ]] || { echo "usage: scripts/nvcc_checked.sh COMMAND..." >&2; exit 2; }
said=$("$@" 2>&1)
status=$?
[[ -z $said ]] || printf '%s\n' "$said" >&2
[[ $status -eq 0 ]] || exit "$status"
if grep -qE '\(C75(10|11|14)\)' <<<"$said"; then
  echo "error: nvcc makes products on tensor cores wait for one another, see above; CONTRIBUTING.md, \"The build\"" >&2
  exit 1
fi
