#!/usr/bin/env bash
# Installs what is needed to build glu-ckpt; with the argument `tests`, also what is needed to test it, and with the
# argument `package`, what scripts/package.sh needs.
# When everything is there it changes nothing and needs no network.
set -euo pipefail

usage() {
  echo "usage: scripts/install_deps.sh [tests|package]" >&2
  exit 2
}
[[ $# -le 1 ]] || usage
[[ $# -eq 0 || $1 =~ ^(tests|package)$ ]] || usage

packages=(g++ meson ninja-build pkg-config libfmt-dev libcli11-dev libxxhash-dev zlib1g-dev libdeflate-dev libssl-dev)
tools=(g++ meson ninja pkg-config)
if [[ ${1:-} == tests ]]; then
  packages+=(libgtest-dev clang clang-format clang-tidy libopenmpi-dev openmpi-bin python3 python3-venv xfsprogs
    man-db zsh fish)
  tools+=(clang++ python3)
fi

if [[ ${1:-} == package ]]; then
  packages+=(git python3 python3-venv zstd dpkg-dev lintian g++-aarch64-linux-gnu qemu-user-static)
  tools+=(dpkg-shlibdeps aarch64-linux-gnu-g++ qemu-aarch64-static)
fi

# Without the Debian packages the tools may still be there, by other means: meson then looks for the libraries.
continue_with_tools() {
  local missing=() tool
  for tool in "${tools[@]}"; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  echo "install_deps: $1" >&2
  echo "install_deps: needed, by their Debian names: ${packages[*]}" >&2
  if [[ ${#missing[@]} -gt 0 ]]; then
    echo "install_deps: not found: ${missing[*]}" >&2
    exit 1
  fi
  exit 0
}

installed() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# The sanitizers' runtime is part of clang's own packages on some systems and a package of its own on others.
has_sanitizer_runtime() {
  local builtins
  builtins=$(clang++ --rtlib=compiler-rt -print-libgcc-file-name 2>/dev/null) || return 1
  [[ -e ${builtins/builtins/asan} ]]
}

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  continue_with_tools "no apt-get on this system"
fi

missing=()
for package in "${packages[@]}"; do
  installed "$package" || missing+=("$package")
done
need_runtime=no
if [[ ${1:-} == tests ]] && ! has_sanitizer_runtime; then
  need_runtime=yes
fi
if [[ ${#missing[@]} -eq 0 && $need_runtime == no ]]; then
  exit 0
fi

as_root=(env DEBIAN_FRONTEND=noninteractive)
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo >/dev/null || continue_with_tools "missing: ${missing[*]}; run as root, or install sudo"
  if [[ -t 0 ]]; then as_root=(sudo "${as_root[@]}"); else as_root=(sudo -n "${as_root[@]}"); fi
fi
install() { "${as_root[@]}" apt-get install -y --no-install-recommends "$@"; }

"${as_root[@]}" apt-get update
if [[ ${#missing[@]} -gt 0 ]]; then
  install "${missing[@]}"
fi
if [[ ${1:-} == tests ]] && ! has_sanitizer_runtime; then
  install libclang-rt-dev || install libclang-rt-14-dev
fi
if [[ ${1:-} == tests ]] && ! command -v ccache >/dev/null; then
  install ccache || echo "install_deps: no ccache; a second build will not be faster" >&2
fi
if [[ ${1:-} == tests ]] && ! command -v sshfs >/dev/null; then
  install openssh-server sshfs iproute2 || echo "install_deps: no sshfs; conversions on two hosts stay untested" >&2
fi
if [[ ${1:-} == tests ]] && ! command -v chromium >/dev/null; then
  install chromium || echo "install_deps: no Chromium; the pages of \`report\` stay unseen" >&2
fi
if [[ ${1:-} == tests ]] && ! command -v slurmctld >/dev/null; then
  install slurm-wlm || echo "install_deps: no Slurm; the batch script stays untested" >&2
fi
