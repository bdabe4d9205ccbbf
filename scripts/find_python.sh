#!/usr/bin/env bash
# Prints the path of a Python of each version that is named and found, one a line: on the PATH (Debian's package, a
# container's own), else among those that pyenv or uv have installed. Ends with 1 where none is found.
# usage: scripts/find_python.sh MINOR...     for example 12 13, for Python 3.12 and 3.13
set -euo pipefail

found=1
for minor in "$@"; do
  # Of several of pyenv's or uv's, the first: they differ in their patch level. A shim of pyenv may stand for no Python.
  for python in "python3.$minor" python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3."$minor".*/bin/python3 \
    "$HOME"/.local/share/uv/python/cpython-3."$minor".*/bin/python3; do
    if "$python" -c "import sys; sys.exit(sys.version_info[:2] != (3, $minor))" 2>/dev/null; then
      "$python" -c 'import sys; print(sys.executable)'
      found=0
      break
    fi
  done
done
exit $found
