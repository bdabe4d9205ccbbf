#!/usr/bin/env bash
# docs/glu-ckpt.sbatch under a real Slurm on this machine: with a stand-in for the program that is stopped once, and
# with the program itself. Exits 77 without Debian's slurm-wlm, or where not run by root.
# usage: slurm_requeue.sh [PROGRAM MPI_PROGRAM]
set -u
export LC_ALL=C
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PROGRAM=${1:+$(realpath "$1")}
MPI_PROGRAM=${2:+$(realpath "$2")}
SCRIPT=$(realpath "$HERE/../../docs/glu-ckpt.sbatch")
for command in slurmctld slurmd sbatch srun; do
  if [[ $(id -u) != 0 ]] || ! command -v $command >/dev/null; then
    echo "needs root and slurm-wlm"
    exit 77
  fi
done
WORK=$(mktemp -d)
trap 'stop_slurm; rm -rf "$WORK"' EXIT
# shellcheck source=/dev/null
source "$HERE/../cli/lib.sh"
# shellcheck source=/dev/null
source "$HERE/kills.sh"
# shellcheck source=/dev/null
source "$HERE/slurm_cluster.sh"

# The journals of a run that is under way; one for each rank.
journals() { find "$OUTPUT.partial" -maxdepth 1 -name '*journal*' 2>/dev/null; }

# Each rank notes its arguments, then works until it is stopped; after a requeue it finds the job done. It fails
# when told to.
export GLU_CKPT_MPI=$WORK/stand_in GLU_CKPT_LAUNCHER="srun --kill-on-bad-exit=1" STAND_IN=$WORK/ranks
cat >"$GLU_CKPT_MPI" <<'STAND_IN'
#!/usr/bin/env bash
trap 'exit 6' USR1
log=$STAND_IN/$SLURM_JOB_ID.$SLURM_PROCID
printf '[%s]' "$@" >>"$log"
echo >>"$log"
[[ $2 == broken ]] && exit 3
(($(wc -l <"$log") > 1)) && exit 0
while :; do sleep 0.1; done
STAND_IN
chmod +x "$GLU_CKPT_MPI"

# field JOB NAME: of what Slurm says about the job.
field() { scontrol show job "$1" | grep -oP "(^|\s)$2=\K\S+"; }

# until_true SECONDS COMMAND...
until_true() {
  local left=$(($1 * 10))
  shift
  until "$@"; do
    ((left-- > 0)) || return 1
    sleep 0.1
  done
}
is() { [[ $(field "$1" "$2") == "$3" ]]; }
lines_are() { [[ -e $1 && $(wc -l <"$1") == "$2" ]]; }
submit() {
  sbatch --parsable --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --output="$WORK/out.%j" "$SCRIPT" "$@"
}

requeues_itself() {
  local job
  job=$(submit "a source" dst --glu interleaved:32)
  check "both ranks run" until_true 20 lines_are "$STAND_IN/$job.0" 1
  check "both ranks run" until_true 20 lines_are "$STAND_IN/$job.1" 1
  # What --signal=B:USR1@120 does when the time is nearly up.
  scancel --batch --signal=USR1 "$job"
  check "is queued again" until_true 20 is "$job" Restarts 1
  check "ends well the second time" until_true 60 is "$job" JobState COMPLETED
  check "by itself" is "$job" Restarts 1
  check "is told what it was told, its cores, and to resume" test "$(<"$STAND_IN/$job.1")" == \
    "$(printf '[convert][a source][dst][--glu][interleaved:32][--jobs][1][--resume]\n%.0s' 1 2)"
  check "says so in one log" test "$(grep -c "queued again" "$WORK/out.$job")" == 1
}

fails_for_good() {
  local job
  job=$(submit broken dst)
  check "fails" until_true 20 is "$job" JobState FAILED
  check "with the program's status" is "$job" ExitCode 3:0
  check "and is not queued again" is "$job" Restarts 0
}

# Two ranks of the program, stopped in the middle; the second run completes what the first began.
converts_for_real() {
  local job pids=() tries=0
  make_model "$WORK/model"
  "$PROGRAM" convert "$WORK/model" "$WORK/whole" "${LAYOUT[@]}" -q || bad "convert without Slurm"
  mkdir "$WORK/pids"
  export PIDS=$WORK/pids MPI_PROGRAM OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  cat >"$GLU_CKPT_MPI" <<'RANK'
#!/usr/bin/env bash
echo $$ >"$PIDS/${SLURM_RESTART_COUNT:-0}.$SLURM_PROCID"
exec "$MPI_PROGRAM" "$@"
RANK
  # The script's own way of starting ranks.
  unset GLU_CKPT_LAUNCHER
  OUTPUT=$WORK/converted
  job=$(submit "$WORK/model" "$OUTPUT" "${LAYOUT[@]}" --max-memory 2MiB)
  until (($(journals | wc -l) == 2)) || ((++tries > 6000)); do sleep 0.005; done
  mapfile -t pids < <(cat "$PIDS"/0.*)
  kill -STOP "${pids[@]}"
  check "both ranks are seen in the middle" is_kept
  scancel --batch --signal=USR1 "$job"
  sleep 1
  kill -CONT "${pids[@]}"
  check "the program is queued again" until_true 30 is "$job" Restarts 1
  check "and completes: $(tail -n 3 "$WORK/out.$job")" until_true 60 is "$job" JobState COMPLETED
  check "what was done is kept" grep -q "resumed: " "$WORK/out.$job"
  check "the signal is told once" test "$(grep -c "\[interrupted\]" "$WORK/out.$job")" == 1
  check "the bytes of one process" test "$(tree_sum "$OUTPUT")" == "$(tree_sum "$WORK/whole")"
  check "nothing else is left" absent "$OUTPUT.partial"
}

# The array of docs/clusters.md, for a cluster of four CPUs.
array_of_parts() {
  local source job
  source=$(realpath "$HERE/../../testdata/hf/qwen3_moe")
  sed -n '/^#SBATCH --array/,/^```$/p' "$HERE/../../docs/clusters.md" | sed '/^```$/d; 1i #!/bin/bash' |
    sed "s|glu-ckpt|$PROGRAM|; s|/shared/SRC|$source|; s|/shared/DST|$WORK/parted|" >"$WORK/array.sbatch"
  check "the page has a script" test "$(grep -c -e --part "$WORK/array.sbatch")" == 1
  job=$(sbatch --parsable --array=1-4 --cpus-per-task=1 --output="$WORK/out.%A_%a" "$WORK/array.sbatch")
  check "the parts' tasks end well" until_true 60 array_is_done "$job"
  "$PROGRAM" convert "$source" "$WORK/alone" --to megatron --reflink never -q || bad "convert without Slurm"
  check "the bytes of one process" test "$(tree_sum "$WORK/parted")" == "$(tree_sum "$WORK/alone")"
  check "nothing else is left" absent "$WORK/parted.partial"
}
array_is_done() { [[ $(scontrol show job "$1" | grep -c 'JobState=COMPLETED') == 4 ]]; }

mkdir "$STAND_IN"
if ! start_slurm "$WORK/slurm"; then
  echo "Slurm does not start"
  exit 1
fi
requeues_itself
fails_for_good
[[ -n $PROGRAM ]] && array_of_parts
[[ -n $MPI_PROGRAM ]] && converts_for_real
((FAILED == 0)) || tail -n 20 "$WORK"/out.* "$WORK"/slurm/*.log
printf '%d passed, %d failed\n' "$PASSED" "$FAILED"
((FAILED == 0))
