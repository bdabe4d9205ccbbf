#!/usr/bin/env bash
# Opens pages that `glu-ckpt report` writes in Chromium: look_at_pages.py says what has to be true there. Exits 77, saying
# why, without Chromium or where the package index cannot be reached at the first run.
# usage: run_browser.sh PROGRAM TESTDATA
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tools=(playwright==1.65.2 axe-core-python==0.1.0)

skip() { echo "browser: not run: $*"; exit 77; }
chromium=$(command -v chromium || command -v google-chrome || command -v google-chrome-stable) || skip "no Chromium here"
hash=$(python3 -c 'import sys; print(sys.version, *sys.argv[1:])' "${tools[@]}" | sha256sum | cut -c1-12)
env=${XDG_CACHE_HOME:-$HOME/.cache}/glu-ckpt/browser-$hash
mkdir -p "$(dirname "$env")"
exec 9>"$env.lock"
flock 9
if [[ ! -e $env/complete ]]; then
  rm -rf "$env"
  python3 -m venv "$env" >/dev/null || skip "no virtual environment can be made: install python3-venv"
  "$env/bin/python" -m pip install --quiet --disable-pip-version-check --timeout 20 "${tools[@]}" >/dev/null 2>&1 ||
    { rm -rf "$env"; skip "the package index cannot be reached"; }
  touch "$env/complete"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
hf=$2/whole/qwen3_moe/hf
# Rows that were interleaved twice, so that there is something of each kind on the page.
"$1" convert "$hf" "$work/once" --to megatron --glu interleaved:8 -q
rm "$work/once/release/glu_ckpt.json" "$work/once/megatron_args.txt"
"$1" convert "$work/once" "$work/twice" --from-glu contiguous --glu interleaved:8 -q
"$1" report "$hf" "$work/twice" --forward --html "$work/two.html" >/dev/null || [[ $? == 1 ]]
"$1" report "$2/whole/llama3/hf" --html "$work/dense.html" >/dev/null
"$1" report "$2/quantized/mxfp4_gpt_oss" --html "$work/quantized.html" >/dev/null
"$env/bin/python" "$here/look_at_pages.py" "$chromium" "$work"/{two,dense,quantized}.html
