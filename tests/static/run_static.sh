#!/usr/bin/env bash
# The program without shared libraries, in a root directory that holds nothing but itself and a checkpoint, on a kernel
# as old as Linux 4.18. As root, or where users may make namespaces.
# usage: run_static.sh PROGRAM [EMULATOR]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
testdata=${GLU_CKPT_TESTDATA:-$here/../../testdata}
program=$(realpath "${1:?usage: run_static.sh PROGRAM [EMULATOR]}")
emulator=${2:-}
root=$(mktemp -d)
trap 'rm -rf "$root" "$root.log"' EXIT

passed=0
failed=0
check() {
  local name=$1
  shift
  if "$@" >"$root.log" 2>&1; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    printf 'FAIL %s\n' "$name"
    cat "$root.log"
  fi
}

cp "$program" "$root/glu-ckpt"
cp -r "$testdata/hf/qwen3_moe" "$root/hf"
inside=(/glu-ckpt)
if [[ -n $emulator ]]; then
  cp "$(command -v "$emulator")" "$root/emulator"
  inside=(/emulator /glu-ckpt)
fi
as_root=()
if [[ $(id -u) != 0 ]]; then
  as_root=(unshare -r)
  "${as_root[@]}" true || { echo "neither root nor user namespaces here"; exit 77; }
fi
# An emulator makes calls of its own.
kernel=(python3 "$here/old_kernel.py")
[[ -z $emulator ]] || kernel=()
run() { "${as_root[@]}" "${kernel[@]}" chroot "$root" "${inside[@]}" "$@"; }

no_interpreter() { ! LC_ALL=C readelf -ldW "$program" | grep -E 'INTERP|NEEDED'; }
check "it needs no shared library" no_interpreter
# In the C library these load shared libraries behind a program's back. Symbols are gone from what is released.
no_lookups() { ! LC_ALL=C nm "$program" 2>/dev/null | grep -E ' [TW] (getpw|getgrnam|getgrgid)'; }
check "it asks no service for names of users" no_lookups
# getaddrinfo() would, too, for hosts; with what is in the program alone it finds one whatever nsswitch.conf names.
mkdir "$root/etc"
echo 'hosts: nosuchservice [UNAVAIL=return] files' >"$root/etc/nsswitch.conf"
echo '127.0.0.1 somewhere' >"$root/etc/hosts"
finds_hosts() { { run inspect http://somewhere:9/model || true; } 2>&1 | grep 'somewhere:9.*refused'; }
export GLU_CKPT_RETRIES=0
check "it finds hosts by itself" finds_hosts
check "--version" grep -Eq '^glu-ckpt [0-9.]+$' <(run --version)
check "inspect" grep -q 'hf:qwen3_moe' <(run inspect /hf)
check "convert" run convert /hf /megatron --to megatron --glu interleaved:32 -q
check "convert, readback" run convert /hf /copy --force --verify readback --reflink never -q
check "convert back" run convert /megatron /back --to hf -q
check "verify" run verify /hf /megatron
check "verify, the experts run" run verify /hf /megatron --forward
check "verify back" grep -q 'byte-identical' <(run verify /hf /back)
same_digest() {
  local digest
  digest=$(run digest /hf | cut -d" " -f1)
  [[ $digest == gck2:* && $digest == "$(run digest /megatron | cut -d" " -f1)" ]]
}
check "digest" same_digest
check "check" run check /megatron
check "doctor" run doctor /
check "help" grep -q 'glu-ckpt convert' <(run help)
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
