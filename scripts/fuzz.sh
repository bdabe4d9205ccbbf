#!/usr/bin/env bash
# Fuzzes the parsers: scripts/fuzz.sh [SECONDS] [TARGET...], by default 600 s each of header, index, config, zip,
# pickle and dcp. Needs clang with libFuzzer. New inputs are kept under build-fuzz/; a finding stops the run and names
# its input.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:-600}
shift || true
targets=("$@")
[[ ${#targets[@]} -gt 0 ]] || targets=(header index config zip pickle dcp)

bash scripts/install_deps.sh tests
mkdir -p build-fuzz
for target in "${targets[@]}"; do
  clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -Iinclude -Isrc -Itests \
    "tests/fuzz/fuzz_$target.cpp" src/core/*.cpp src/io/*.cpp src/format/*.cpp -lfmt -lsimdjson -lxxhash -lz -lcrypto -lpthread \
    -o "build-fuzz/fuzz_$target"
  mkdir -p "build-fuzz/corpus_$target"
  "build-fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build-fuzz/$target-" "build-fuzz/corpus_$target" "testdata/corpus/$target"
done
