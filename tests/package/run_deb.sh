#!/usr/bin/env bash
# Installs the Debian package into a fresh root of Debian 12, runs it there, and removes it again. By root, with network.
# usage: run_deb.sh PACKAGE.deb [ROOT]   ROOT: a folder that debootstrap has filled; without one it is made
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
package=$(realpath "${1:?usage: run_deb.sh PACKAGE.deb [ROOT]}")
work=$(mktemp -d)
root=$work/root
trap 'rm -rf "$work"' EXIT
if [[ $# -gt 1 ]]; then
  cp -a "$2" "$root"
else
  debootstrap --variant=minbase bookworm "$root" >"$work/log" || { cat "$work/log"; exit 1; }
fi
cp "$package" "$root/glu-ckpt.deb"
cp -r "$here/../../testdata/hf/qwen3_moe" "$root/hf"

passed=0
failed=0
check() {
  local name=$1
  shift
  if "$@" >"$work/log" 2>&1; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    printf 'FAIL %s\n' "$name"
    cat "$work/log"
  fi
}
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@"; }
# All but what the package manager keeps for itself.
files() { (cd "$root" && find . -xdev \( -path ./var -o -path ./hf \) -prune -o -print | sort); }

inside apt-get -q update >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
files >"$work/before"
check "it installs" inside apt-get -q install -y --no-install-recommends /glu-ckpt.deb
check "its files are those it came with" inside dpkg -V glu-ckpt
check "its libraries are there" bash -c '! chroot "$1" ldd /usr/bin/glu-ckpt | grep "not found"' bash "$root"
check "--version" inside glu-ckpt --version
check "inspect" inside glu-ckpt inspect /hf
check "convert" inside glu-ckpt convert /hf /tmp/out --to megatron --glu interleaved:32
check "verify" inside glu-ckpt verify /hf /tmp/out --forward
check "check" inside glu-ckpt check /tmp/out
for file in man/man1/glu-ckpt.1.gz bash-completion/completions/glu-ckpt zsh/vendor-completions/_glu-ckpt \
  fish/vendor_completions.d/glu-ckpt.fish doc/glu-ckpt/copyright; do
  # The root of a container may leave manuals and other pages out.
  check "$file" bash -c 'dpkg-deb -c "$1" | grep -q "$2"' bash "$package" "/usr/share/$file"
done
rm -rf "$root/tmp/out"
check "it goes away" inside apt-get -q purge -y --autoremove glu-ckpt
files >"$work/after"
check "it and its libraries leave nothing" diff "$work/before" "$work/after"
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
