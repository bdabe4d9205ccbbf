#!/usr/bin/env bash
# Fuzzes the parsers: scripts/fuzz.sh [SECONDS] [TARGET...], by default 600 s each of header, index, config, quant, zip,
# pickle and dcp. Needs clang with libFuzzer. New inputs are kept under build-fuzz/; a finding stops the run and names
# its input.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:-600}
shift || true
targets=("$@")
[[ ${#targets[@]} -gt 0 ]] || targets=(header index config quant zip pickle dcp)

bash scripts/install_deps.sh tests
source scripts/compiler_cache.sh
[[ -f build-fuzz/build.ninja ]] ||
  CC="${launcher}clang" CXX="${launcher}clang++" meson setup build-fuzz --native-file scripts/without_nvcc.ini \
    -Doptimization=1 -Db_sanitize=address,undefined -Db_lundef=false \
    -Dcpp_args="-gline-tables-only -fsanitize=fuzzer-no-link -fno-sanitize-recover=undefined"
ninja -C build-fuzz libglu_ckpt.a tests/galleries.stamp
for target in "${targets[@]}"; do
  clang++ -std=c++20 -O1 -gline-tables-only -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
    -Iinclude -Isrc -Itests "tests/fuzz/fuzz_$target.cpp" build-fuzz/libglu_ckpt.a \
    -lfmt -lxxhash -lz -ldeflate -lcrypto -lpthread -o "build-fuzz/fuzz_$target"
  mkdir -p "build-fuzz/corpus_$target"
  "build-fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build-fuzz/$target-" "build-fuzz/corpus_$target" "build-fuzz/tests/galleries/corpus/$target"
done
