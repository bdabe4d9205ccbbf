#!/usr/bin/env bash
# Builds glu-ckpt and converts a small checkpoint there and back, checking each step.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/install_deps.sh
[[ -f build/build.ninja ]] || meson setup build
ninja -C build glu-ckpt

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
original=$PWD/testdata/hf/qwen3_moe
program=$PWD/build/glu-ckpt
cp -r "$original" "$scratch/original"
cd "$scratch"

run() {
  printf '\n$ glu-ckpt %s\n' "$*"
  "$program" "$@"
}
fail() {
  echo "quickstart: $*" >&2
  exit 1
}

# Hugging Face -> Megatron-Core's torch_dist, one tensor for all experts of a layer, 32 gate rows, 32 up rows and so on.
run convert original converted --to megatron --glu interleaved:32
run inspect converted
run verify original converted

# And back. The copy says what it is, so nothing about the source has to be given.
run convert converted back --to hf
run verify original back
verdict=$("$program" verify original back --json)
[[ $verdict =~ \"same_layout\":\ ?true ]] ||
  fail "the way back did not give the names, dtypes, shapes and bytes of the original: $verdict"

# One fingerprint for the model, whatever the layout.
run digest original
run digest converted
run digest back
fingerprint() { "$program" digest "$1" | grep -Eo 'gck2:[0-9a-f]{32}:[0-9]+:[0-9]+'; }
want=$(fingerprint original)
for copy in converted back; do
  [[ $(fingerprint "$copy") == "$want" ]] || fail "the digest of $copy is not the original's"
done

printf '\nDone: %s is ready.\n' "build/glu-ckpt"
