# What may befall a run: kills, signals, full disks, sources that change. Whatever it is, DST is absent or
# whole, or DST.partial resumes to the bytes of a run that nothing disturbed; and the source is as it was.

# The conversion of all groups here, of the source $FAULT_SRC.
FAULT_TO=(--naming megatron --experts grouped --glu interleaved:32 --max-shard-size 6MB --manifest sha256)

# make_model DIR EXPERTS LAYERS F H [sparse]: experts of BF16 in two shards, and a config.json. With sparse the shard,
# then one alone, holds zeros that take no disk.
make_model() {
  python3 - "$@" <<'PY'
import json, os, random, struct, sys
path, experts, layers, f, h = sys.argv[1], *map(int, sys.argv[2:6])
sparse = len(sys.argv) > 6
os.mkdir(path)
names = [(f"model.layers.{l}.mlp.experts.{e}.{part}_proj.weight", [h, f] if part == "down" else [f, h])
         for l in range(layers) for e in range(experts) for part in ("gate", "up", "down")]
count = 1 if sparse else 2
weight_map = {}
for shard in range(count):
    header, at = {}, 0
    file = f"model-0000{shard + 1}-of-0000{count}.safetensors"
    for name, shape in names[shard::count]:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * f * h]}
        weight_map[name] = file
        at += 2 * f * h
    text = json.dumps(header).encode()
    with open(os.path.join(path, file), "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        if sparse:
            out.truncate(8 + len(text) + at)
        else:
            out.write(random.Random(shard).randbytes(at))
json.dump({"metadata": {}, "weight_map": weight_map}, open(os.path.join(path, "model.safetensors.index.json"), "w"))
json.dump({"model_type": "qwen3_moe", "num_experts": experts}, open(os.path.join(path, "config.json"), "w"))
PY
}

# A source of some 20 MB, what comes of it, and the source's own checksums.
fault_source() {
  FAULT_SRC=$WORK/fault_src FAULT_REF=$WORK/fault_ref
  [[ -d $FAULT_REF ]] && return
  make_model "$FAULT_SRC" 8 2 512 384
  "$PROGRAM" convert "$FAULT_SRC" "$FAULT_REF" "${FAULT_TO[@]}" -q || bad "the reference conversion"
  FAULT_REF_SUM=$(tree_sum "$FAULT_REF")
  FAULT_SRC_SUM=$(tree_sum "$FAULT_SRC")
}

# run_fault DST OPTIONS...: converts; the status lands in $GOT, stderr in $ERR.
GOT=
run_fault() {
  local out=$1
  shift
  "$PROGRAM" convert "$FAULT_SRC" "$out" "${FAULT_TO[@]}" -q "$@" >/dev/null 2>"$WORK/.err" </dev/null
  GOT=$?
  ERR=$(cat "$WORK/.err")
}

# resumes NAME DST: --resume ends well, with the bytes of the reference and with nothing beside it.
resumes() {
  local name=$1 out=$2
  shift 2
  run_fault "$out" --resume "$@"
  [[ $GOT == 0 ]] || { bad "$name: --resume: exit $GOT: ${ERR:0:400}"; return 1; }
  [[ $(tree_sum "$out") == "$FAULT_REF_SUM" ]] || { bad "$name: resumed to other bytes"; return 1; }
  absent "$out.partial" || { bad "$name: DST.partial is left"; return 1; }
  pass
}

# kept NAME DST: no DST, but work in progress with a journal.
kept() {
  check "$1: no DST" absent "$2"
  check "$1: a journal" [ -f "$2.partial/glu_ckpt.journal" ]
}

# nothing_left NAME DST
nothing_left() {
  check "$1: no DST" absent "$2"
  check "$1: no DST.partial" absent "$2.partial"
}

source_untouched() { check "$1: the source is untouched" [ "$(tree_sum "$FAULT_SRC")" == "$FAULT_SRC_SUM" ]; }

# ---- kills

kills() {
  fault_source
  local count=${KILLS:-$((SANITIZED ? 40 : 200))} seed=${KILL_SEED:-20}
  # In Python: delays below a millisecond, and no shell to start in between.
  python3 - "$PROGRAM" "$FAULT_SRC" "$WORK/killed" "$FAULT_REF" "$count" "$seed" "${FAULT_TO[@]}" <<'PY'
import filecmp, os, random, shutil, signal, subprocess, sys, time
program, source, out, reference, count, seed, *to = sys.argv[1:]
partial = out + ".partial"
command = [program, "convert", source, out, *to, "-q"]

def files(root):
    return {os.path.relpath(os.path.join(at, name), root): os.path.join(at, name)
            for at, _, names in os.walk(root) for name in names}

def differs(root, stray=()):
    mine = {name: path for name, path in files(root).items() if name not in stray}
    want = files(reference)
    if mine.keys() != want.keys():
        return f"has {sorted(mine)}, expected {sorted(want)}"
    return next((name for name in want if not filecmp.cmp(mine[name], want[name], shallow=False)), None)

def clear():
    for path in (out, partial):
        shutil.rmtree(path, ignore_errors=True)

took = []
for _ in range(3):
    clear()
    start = time.monotonic()
    subprocess.run(command, check=True)
    took.append(time.monotonic() - start)
rng = random.Random(int(seed))
seen = {"nothing": 0, "partial": 0, "whole": 0}
bad = []
for number in range(int(count)):
    clear()
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(rng.uniform(0, 1.1 * sorted(took)[1]))
    run.send_signal(signal.SIGKILL)
    run.wait()
    kills = rng.choice([0, 0, 0, 1])
    while True:
        what = "whole" if os.path.lexists(out) else "partial" if os.path.lexists(partial) else "nothing"
        seen[what] += 1
        # A directory that has just been made may still be empty.
        if what == "partial" and os.listdir(partial) and "glu_ckpt.journal" not in os.listdir(partial):
            bad.append(f"kill {number}: DST.partial without a journal: {os.listdir(partial)}")
        if what == "whole" and (why := differs(out, ["glu_ckpt.journal"])):
            bad.append(f"kill {number}: DST is not whole: {why}")
        if kills == 0:
            break
        kills -= 1
        run = subprocess.Popen([*command, "--resume"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0, sorted(took)[1]))
        run.send_signal(signal.SIGKILL)
        run.wait()
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True)
    if done.returncode != 0:
        bad.append(f"kill {number} ({what}): --resume: exit {done.returncode}: {done.stderr[:300]}")
    elif why := differs(out):
        bad.append(f"kill {number} ({what}): resumed to other bytes: {why}")
    elif os.path.lexists(partial):
        bad.append(f"kill {number} ({what}): DST.partial is left")
clear()
print(f"     kills: {count} with KILL_SEED={seed} at up to {1.1 * sorted(took)[1]:.2f} s: {seen}", file=sys.stderr)
for line in bad[:10]:
    print("FAIL", line)
if seen["partial"] < int(count) // 10:
    bad.append(f"too few kills met a run at work: {seen}")
    print("FAIL", bad[-1])
sys.exit(1 if bad else 0)
PY
  check "kill -9 at random moments" [ $? == 0 ]
  source_untouched kills
}

# One worker with small buffers, so that there is a middle to be held in.
readonly SLOWLY=(-j 1 --max-memory 1MiB)

# ---- signals

stopped_by() {
  local signal=$1 out=$WORK/stopped pid
  hold_anew
  # A background command of a script ignores SIGINT, and so does all that is started with nohup.
  env --default-signal=INT "$HELD_PROGRAM" convert "$WORK/fault_mid" "$out" "${FAULT_TO[@]}" -q "${SLOWLY[@]}" >/dev/null 2>"$WORK/.err" \
    </dev/null &
  pid=$!
  check "SIG$signal: met at work" held 1 $pid
  kill -s "$signal" $pid 2>/dev/null
  let_go
  wait $pid 2>/dev/null
  GOT=$?
  ERR=$(cat "$WORK/.err")
  check "SIG$signal: exit 6, got $GOT: ${ERR:0:300}" [ $GOT == 6 ]
  check "SIG$signal: named" has "$ERR" "[interrupted]"
  check "SIG$signal: says how to go on" has "$ERR" "stopped by SIG$signal. What is done"
  check "SIG$signal: prints the line" has "$ERR" "  glu-ckpt convert $WORK/fault_mid $out ${FAULT_TO[*]}"
  check "SIG$signal: with --resume" [ "$(tail -n 1 "$WORK/.err" | grep -o ' --resume$')" == " --resume" ]
  kept "SIG$signal" "$out"
}

signals() {
  local signal reference
  make_model "$WORK/fault_mid" 8 6 1024 512
  "$PROGRAM" convert "$WORK/fault_mid" "$WORK/mid_ref" "${FAULT_TO[@]}" -q
  reference=$(tree_sum "$WORK/mid_ref")
  for signal in TERM INT USR1; do
    stopped_by $signal
    status "SIG$signal: without --resume" 4 convert "$WORK/fault_mid" "$WORK/stopped" "${FAULT_TO[@]}" -q
    check "SIG$signal: says --resume" has "$ERR" "--resume"
    kept "SIG$signal, refused" "$WORK/stopped"
    status "SIG$signal: --resume" 0 convert "$WORK/fault_mid" "$WORK/stopped" "${FAULT_TO[@]}" --resume
    check "SIG$signal: the same bytes" [ "$(tree_sum "$WORK/stopped")" == "$reference" ]
    check "SIG$signal: no DST.partial" absent "$WORK/stopped.partial"
    status "SIG$signal: --resume once more" 0 convert "$WORK/fault_mid" "$WORK/stopped" "${FAULT_TO[@]}" --resume -q
    check "SIG$signal: still the same bytes" [ "$(tree_sum "$WORK/stopped")" == "$reference" ]
    rm -rf "$WORK/stopped"
  done
  rm -rf "$WORK/fault_mid" "$WORK/mid_ref"
}

# ---- no room

# full_disk NAME MOUNT: MOUNT holds less than the output. Room is what a file there gives back.
full_disk() {
  local name=$1 at=$2 out=$2/out free
  fault_source
  free=$(df -Pk "$at" | awk 'END { print $4 }')
  head -c $(((free - 8000) * 1024)) /dev/zero >"$at/filler"
  status "$name: plan" 5 plan "$FAULT_SRC" "$out" "${FAULT_TO[@]}" && check "$name: plan says what is missing" has "$ERR" "are missing"
  run_fault "$out"
  check "$name: exit 5, got $GOT: ${ERR:0:300}" [ "$GOT" == 5 ]
  check "$name: named" has "$ERR" "[no-space]"
  check "$name: what is missing: ${ERR:0:300}" has "$ERR" "are missing"
  check "$name: no DST" absent "$out"
  check "$name: nothing, or a journal" [ ! -e "$out.partial" -o -f "$out.partial/glu_ckpt.journal" ]
  run_fault "$out" --resume
  check "$name: resumed without room: exit 5, got $GOT: ${ERR:0:300}" [ "$GOT" == 5 ]
  check "$name: another disk's source would free nothing: $ERR" [ "${ERR/--consume-source/}" == "$ERR" ]
  rm "$at/filler"
  resumes "$name" "$out"
  status "$name: plan with room" 0 plan "$FAULT_SRC" "$out.other" "${FAULT_TO[@]}"
  # A source of several files on the same disk makes room, where nothing of it would be lost.
  "$PROGRAM" convert "$TESTDATA/hf/qwen3_moe" "$at/src" --experts keep --max-shard-size 60KB --force -q || bad "$name: small files"
  free=$(df -Pk "$at" | awk 'END { print $4 }')
  head -c $(((free - 400) * 1024)) /dev/zero >"$at/filler"
  status "$name: a source on the same disk" 5 plan "$at/src" "$at/no" --experts grouped
  check "$name: a source on the same disk: $ERR" has "$ERR" "or let --consume-source remove SRC's files while DST grows: it needs about "
  status "$name: without a proof" 5 plan "$at/src" "$at/no" --experts grouped --verify none
  check "$name: without a proof: $ERR" [ "${ERR/--consume-source/}" == "$ERR" ]
  rm -r "$at/filler" "$at/src"
  # Less and less room: it may give out at any step.
  rm -rf "$out"
  local room used
  used=$(du -sk "$FAULT_REF" | cut -f1)
  free=$(df -Pk "$at" | awk 'END { print $4 }')
  for room in 0 40 400 4000 $((used / 2)) $((used - 600)) $((used - 100)) $((used - 20)) $((used + 20)); do
    ((free > room)) || continue
    head -c $(((free - room) * 1024)) /dev/zero >"$at/filler" 2>/dev/null
    run_fault "$out"
    [[ $GOT == 0 ]] || check "$name: room for $room KiB: no-space, got $GOT: ${ERR:0:200}" has "$ERR" "[no-space]"
    rm "$at/filler"
    resumes "$name: room for $room KiB" "$out"
    rm -rf "$out" "$out.partial"
  done
}

no_room() {
  local at=$WORK/mount
  mkdir "$at"
  if ! mount -t tmpfs -o size=48m tmpfs "$at" 2>/dev/null; then
    skip "a full tmpfs: mounting is not permitted"
  else
    full_disk "a full tmpfs" "$at"
    umount "$at"
  fi
  truncate -s 64M "$WORK/disk.img"
  if ! mkfs.ext4 -qF -m 0 "$WORK/disk.img" 2>/dev/null || ! mount -o loop "$WORK/disk.img" "$at" 2>/dev/null; then
    skip "a full ext4: mounting is not permitted"
  else
    full_disk "a full ext4" "$at"
    umount "$at"
  fi
  rm -rf "$WORK/disk.img" "$at"
}

# The shell's own files are small.
file_size_limit() {
  fault_source
  local out=$WORK/limited blocks
  for blocks in 2 64 1024 4000; do # of 1024 bytes
    GOT=$(
      ulimit -f $blocks
      "$PROGRAM" convert "$FAULT_SRC" "$out" "${FAULT_TO[@]}" -q >/dev/null 2>"$WORK/.err" </dev/null
      echo $?
    )
    check "files of $blocks KiB at most: exit 5, got $GOT" [ "$GOT" == 5 ]
    check "files of $blocks KiB at most: no DST" absent "$out"
    resumes "files of $blocks KiB at most" "$out"
    rm -rf "$out"
  done
}

# ---- the source

# Holds the run while it writes, changes the source, and lets it go on.
# changed_under NAME SLUG COMMAND...: COMMAND gets the source's directory.
changed_under() {
  local name=$1 slugs=$2 src=$WORK/changing out=$WORK/changed pid
  shift 2
  rm -rf "$src"
  cp -r "$WORK/fault_mid" "$src"
  hold_anew
  "$HELD_PROGRAM" convert "$src" "$out" "${FAULT_TO[@]}" -q "${SLOWLY[@]}" >/dev/null 2>"$WORK/.err" </dev/null &
  pid=$!
  check "$name: met at work" held 1 $pid
  "$@" "$src"
  let_go
  wait $pid
  GOT=$?
  ERR=$(cat "$WORK/.err")
  check "$name: exit 3, got $GOT: ${ERR:0:300}" [ "$GOT" == 3 ]
  check "$name: one of $slugs: ${ERR:0:300}" grep -qE "\[($slugs)\]" "$WORK/.err"
  nothing_left "$name" "$out"
  rm -rf "$src" "$out"*
}

cut_off() { truncate -s 1000000 "$1/model-00002-of-00002.safetensors"; }
write_over() { printf 'x' | dd of="$1/model-00002-of-00002.safetensors" bs=1 seek=2000000 conv=notrunc status=none; }
replace() {
  cp "$1/model-00001-of-00002.safetensors" "$1/copy"
  mv "$1/copy" "$1/model-00001-of-00002.safetensors"
}
take_away() { rm "$1/model-00002-of-00002.safetensors"; }

change_config() { echo '{"model_type": "qwen3_moe", "num_experts": 8, "eos_token_id": 7}' >"$1/config.json"; }

# A log that somebody goes on writing is copied as it is then.
log_grows() {
  local src=$WORK/growing out=$WORK/grown pid
  cp -r "$WORK/fault_mid" "$src"
  echo first >"$src/train.log"
  hold_anew
  "$HELD_PROGRAM" convert "$src" "$out" "${FAULT_TO[@]}" -q "${SLOWLY[@]}" >/dev/null 2>"$WORK/.err" </dev/null &
  pid=$!
  check "a log that grows: met at work" held 1 $pid
  echo second >>"$src/train.log"
  let_go
  wait $pid
  GOT=$?
  check "a log that grows: exit 0, got $GOT: $(head -c 300 "$WORK/.err")" [ $GOT == 0 ]
  check "a log that grows: copied" cmp -s "$src/train.log" "$out/train.log"
  echo third >>"$src/train.log"
  status "a log that has grown since" 0 convert "$src" "$out" "${FAULT_TO[@]}" --resume -q
  rm -rf "$src" "$out"
}

source_changes() {
  make_model "$WORK/fault_mid" 8 6 1024 512
  log_grows
  changed_under "a config.json written to under the run" "source-changed" change_config
  changed_under "a source cut off under the run" "source-changed|file-truncated" cut_off
  changed_under "a source written to under the run" "source-changed" write_over
  changed_under "a source replaced under the run" "source-changed" replace
  changed_under "a source taken away under the run" "source-changed|not-found" take_away
  rm -rf "$WORK/fault_mid"
}

unreadable_source() {
  local src=$WORK/unreadable out=$WORK/readable/out run=(bash -c '"$@"' run)
  fault_source
  cp -r "$FAULT_SRC" "$src"
  mkdir -m 777 "$WORK/readable"
  chmod 755 "$WORK"
  chmod 000 "$src/model-00002-of-00002.safetensors"
  if [[ $(id -u) == 0 ]]; then
    run=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    if ! "${run[@]}" test -x "$PROGRAM" 2>/dev/null; then
      skip "an unreadable shard: nobody cannot run $PROGRAM"
      rm -rf "$src" "$WORK/readable"
      return
    fi
  fi
  "${run[@]}" "$PROGRAM" convert "$src" "$out" "${FAULT_TO[@]}" -q >/dev/null 2>"$WORK/.err"
  GOT=$?
  check "an unreadable shard: exit 5, got $GOT: $(head -c 300 "$WORK/.err")" [ $GOT == 5 ]
  check "an unreadable shard: named" grep -q model-00002-of-00002 "$WORK/.err"
  nothing_left "an unreadable shard" "$out"
  chmod -R u+rwX "$src"
  rm -rf "$src" "$WORK/readable"
}
