#!/usr/bin/env bash
# Installs a build into a folder of its own, and builds and runs README's example there, with pkg-config alone.
# usage: run_install.sh BUILD PREFIX COMPILER...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$(realpath "${1:?usage: run_install.sh BUILD PREFIX COMPILER...}")
prefix=${2:?no prefix}
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

meson install -C "$build" --no-rebuild --destdir "$work/root" >"$work/log" || { cat "$work/log"; exit 1; }
installed=$work/root$prefix
pc=$(find "$installed" -name glu-ckpt.pc)
export PKG_CONFIG_PATH=${pc%/*}
read -ra flags < <(pkg-config --define-variable=prefix="$installed" --cflags --libs --static glu-ckpt)

cd "$work"
sed -n '/^```cpp$/,/^```$/p' "$here/../../README.md" | grep -v '^```' >example.hpp
# The unit tests hold the same code to more.
sed -n '/^\/\/ \[example\]$/,/^\/\/ \[example\]$/p' "$here/../unit/library_test.cpp" | grep -v '^// \[example\]$' |
  diff - example.hpp
"$@" -std=c++20 -I. "$here/consumer.cpp" -o consumer "${flags[@]}"
source=$here/../../testdata/hf/qwen3_moe
digest=$(./consumer "$source" converted)
[[ $digest == "$("$installed/bin/glu-ckpt" digest converted -q | cut -d" " -f1)" ]]
"$installed/bin/glu-ckpt" verify "$source" converted
# What the program prints about itself is where man and the shells look for it.
"$installed/bin/glu-ckpt" help --man | cmp - "$installed/share/man/man1/glu-ckpt.1"
for page in bash:bash-completion/completions/glu-ckpt.bash zsh:zsh/site-functions/_glu-ckpt \
  fish:fish/vendor_completions.d/glu-ckpt.fish; do
  "$installed/bin/glu-ckpt" completion "${page%%:*}" | cmp - "$installed/share/${page#*:}"
done
# The library brings its headers, and no internal ones.
[[ ! -e $installed/include/core && -e $installed/include/glu_ckpt/checkpoint.hpp ]]
