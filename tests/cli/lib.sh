# What the scripts of this directory share. Sourced by run_cli.sh, which sets PROGRAM, TESTDATA and WORK.

PASSED=0
FAILED=0

pass() { PASSED=$((PASSED + 1)); }
bad() {
  FAILED=$((FAILED + 1))
  printf 'FAIL %s\n' "$*"
}
skip() { printf 'skip %s\n' "$*"; }

# check NAME COMMAND...: the command must succeed.
check() {
  local name=$1
  shift
  if "$@"; then pass; else bad "$name"; fi
}

# last_line VARIABLE FILE: into the variable; empty for an empty file.
last_line() {
  local lines=()
  mapfile -t lines <"$2"
  ((${#lines[@]} > 0)) || lines=("")
  printf -v "$1" %s "${lines[-1]}"
}

# The interpreter itself, without what is installed for it: pyenv's python3 starts a dozen processes in front of it, and
# the scripts here need the standard library alone. A start takes 20 ms of processor time so, and 130 the other way.
PYTHON=$(command python3 -c 'import sys; print(sys.executable)')
python3() { "$PYTHON" -S "$@"; }

# status NAME EXPECTED ARGUMENTS...: runs the program; stdout and stderr land in $OUT and $ERR.
OUT= ERR=
status() {
  local name=$1 expected=$2 got
  shift 2
  "$PROGRAM" "$@" >"$WORK/.out" 2>"$WORK/.err" </dev/null
  got=$?
  OUT=$(<"$WORK/.out")
  ERR=$(<"$WORK/.err")
  if [[ $got == "$expected" ]]; then
    pass
  else
    bad "$name: exit $got, expected $expected: glu-ckpt $* :: $(head -c 400 "$WORK/.err")"
    return 1
  fi
}

# measure COMMAND...: the command's status. PEAK is its resident memory at most, in KiB, and CPU_MS its processor time,
# which a busy machine does not change; its stdout is dropped and its stderr kept.
measure() {
  local got user system figures
  if [[ -x /usr/bin/time ]]; then
    /usr/bin/time -q -f '%M %U %S' -o "$WORK/.figures" "$@" >/dev/null 2>"$WORK/.err" </dev/null
  else
    python3 -c 'import resource, subprocess, sys
status = subprocess.run(sys.argv[2:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_maxrss, f"{used.ru_utime:.2f} {used.ru_stime:.2f}", file=open(sys.argv[1], "w"))
sys.exit(status)' "$WORK/.figures" "$@" 2>"$WORK/.err"
  fi
  got=$?
  last_line figures "$WORK/.figures"
  read -r PEAK user system <<<"$figures"
  CPU_MS=$((10 * (10#${user/./} + 10#${system/./})))
  return $got
}

# Runs of a program linked with tests/support/hold_writes.cpp, which stand still in the middle until they are let go.
export GLU_CKPT_TEST_HOLD=$WORK/hold
hold_anew() {
  rm -rf "$GLU_CKPT_TEST_HOLD"
  mkdir "$GLU_CKPT_TEST_HOLD"
}
# held COUNT PID: waits until that many processes stand still; fails where PID ends before. No more than a minute.
held() {
  local tries=0
  until [[ $(find "$GLU_CKPT_TEST_HOLD" -type f | wc -l) == "$1" ]]; do
    ((++tries < 6000)) && kill -0 "$2" 2>/dev/null || return 1
    sleep 0.01
  done
}
let_go() { touch "$GLU_CKPT_TEST_HOLD/go"; }

has() { [[ $1 == *"$2"* ]]; }
absent() { [[ ! -e $1 && ! -L $1 ]]; }

# One line per file below a directory: name and checksum. Equal texts mean equal trees.
tree_sum() { (cd "$1" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 -r sha256sum); }

# json FIELD...: stdout was exactly one JSON object with these fields.
json() {
  python3 - "$WORK/.out" "$@" <<'PY'
import json, sys
value = json.loads(open(sys.argv[1], encoding="utf-8").read())
missing = [name for name in sys.argv[2:] if name not in value]
sys.exit(f"not an object with {missing}" if missing or not isinstance(value, dict) else 0)
PY
}

# json_get EXPRESSION: evaluates it on the object `v` that stdout was.
json_get() {
  python3 -c 'import json, sys
v = json.load(open(sys.argv[1], encoding="utf-8"))
print(eval(sys.argv[2]))' "$WORK/.out" "$1"
}

# For runs of what other runs have looked through for leaks already: to look for them, and to keep who allocated what
# for that, takes a third of the processor time of a short run under AddressSanitizer. Everything else is checked.
NO_LEAKS=ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0:malloc_context_size=0

# digest PATH OPTIONS...: the fingerprint alone. Leaks of this command are looked for in the set `commands`.
digest() {
  local text
  text=$(env "$NO_LEAKS" "$PROGRAM" digest "$@" -q 2>&1) || { printf '%s\n' "$text" && return 1; }
  printf '%s\n' "${text%%  *}"
}

# status_again ...: as status, of what other runs have looked through for leaks.
status_again() {
  local -x "$NO_LEAKS"
  status "$@"
}

# tensors PATH: name, dtype, shape and bytes of every tensor, whatever the file and the order.
tensors() {
  python3 - "$1" <<'PY'
import glob, hashlib, json, os, struct, sys
path = sys.argv[1]
files = sorted(glob.glob(os.path.join(path, "*.safetensors"))) if os.path.isdir(path) else [path]
lines = []
for name in files:
    raw = open(name, "rb").read()
    size = struct.unpack("<Q", raw[:8])[0]
    for key, t in json.loads(raw[8:8 + size]).items():
        if key == "__metadata__":
            continue
        begin, end = (8 + size + o for o in t["data_offsets"])
        lines.append(f"{key} {t['dtype']} {t['shape']} {hashlib.sha256(raw[begin:end]).hexdigest()}")
print("\n".join(sorted(lines)))
PY
}
