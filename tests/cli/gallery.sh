# The layout gallery: every command of the manifest must be refused with the status and slug it names, quickly, in
# little memory, leaving no output and an untouched source.

# Refusals of broken input that no byte of a file is to blame for, and why.
declare -A NO_BYTE=(
  [shard_missing_without_index]="a file that is not there: the name of the one that is says so"
  [rank_without_files]="files that are not there"
  [dcp_without_metadata]="a file that is not there"
  [pickle_bomb_of_objects.bin]="met in the objects made from the pickle, whose bytes are not the file's"
  [record_of_other_experts]="a record against all of the tensors"
  [record_plain_on_gated]="a record against all of the tensors"
  [record_of_unknown_naming]="a sound record with a value of its own"
  [record_of_garbage_glu]="a sound record with a value of its own"
  [record_of_garbage_layers]="a sound record with a value of its own"
  [record_of_wrong_digest]="a record against the bytes of all tensors"
  [sound]="paths that are not there"
)
declare -A NO_BYTE_SEEN=()

# has_place CASE JSON: the error names its file first, then a byte that the file has or ends at, but for the cases above.
has_place() {
  local file=${2##*\",\"file\":\"} bytes
  file=${file%%\"*}
  [[ $2 == *'","file":"'* && $2 == '{"error":"'*'","message":"'"$file: "* ]] || return 1
  if [[ ! $2 =~ bytes?\ [0-9] ]]; then
    NO_BYTE_SEEN[$1]=1
    [[ -n ${NO_BYTE[$1]:-} ]]
    return
  fi
  [[ $2 =~ '"message":"'[^\"]*': byte '([0-9]+)': ' ]] || return 0
  bytes=$(stat -Lc %s "$file") && ((BASH_REMATCH[1] <= bytes)) || return 1
  # What a pickle names it names with GLOBAL or STACK_GLOBAL, wherever in the file the pickle lies.
  [[ $2 != *": the pickle names "* ]] || [[ $(byte_at "$file" "${BASH_REMATCH[1]}") == @(63|93) ]] || return 1
  [[ ! $2 =~ ': byte '([0-9]+)': opcode 0x'([0-9a-f]+) || $(byte_at "$file" "${BASH_REMATCH[1]}") == "${BASH_REMATCH[2]}" ]]
}

# byte_at FILE POSITION: two hexadecimal digits.
byte_at() { od -An -tx1 -j "$2" -N 1 "$1" | tr -d ' '; }

# Whether all of the cases that have no byte were among the manifest's and need to be.
no_byte_list() {
  local case
  while IFS=$'\t' read -r case _; do
    [[ -n ${NO_BYTE[$case]:-} ]] && check "$case names a byte by now" [ -n "${NO_BYTE_SEEN[$case]:-}" ]
  done < <(cut -f1 "$1" | sort -u)
}

gallery() {
  local root=$GALLERIES/layout area=$WORK/gallery case command expected slug before got error
  local limit_ms=1000
  ((SANITIZED)) && limit_ms=20000
  mkdir -p "$area"
  while IFS=$'\t' read -r case command expected slug; do
    [[ $case == \#* || -z $case ]] && continue
    if [[ $case != "$previous" ]]; then
      rm -rf "$area/in"
      cp -r "$root/$case" "$area/in"
      before=$(tree_sum "$area/in")
      previous=$case
    fi
    command=${command//\{IN\}/$area/in}
    command=${command//\{OUT\}/$area/out}
    # shellcheck disable=SC2086 -- the manifest's arguments are separated by blanks
    measure "$PROGRAM" $command
    got=$?
    error=$(<"$WORK/.err")
    if [[ $got != "$expected" ]] || ! has "$error" "[$slug]"; then
      bad "gallery $case: exit $got, expected $expected [$slug]: $command :: ${error:0:400}"
    elif ((CPU_MS > limit_ms)); then
      bad "gallery $case: took $CPU_MS ms of processor time: $command"
    elif ((!SANITIZED && PEAK > 65536)); then
      bad "gallery $case: used $PEAK KiB: $command"
    else
      pass
    fi
    find "$area" -mindepth 1 -maxdepth 1 ! -name in -printf 'left behind: %f\n' -exec rm -rf {} + >"$WORK/.left"
    # shellcheck disable=SC2086
    env "$NO_LEAKS" "$PROGRAM" $command --json >"$WORK/.out" 2>"$WORK/.err" </dev/null
    got=$?
    last_line error "$WORK/.err"
    if [[ $got == "$expected" && $error == '{"error":"'"$slug"'","message":"'*'}' ]]; then
      pass
    else
      bad "gallery $case --json: exit $got, expected $expected and {\"error\":\"$slug\"}: $command :: ${error:0:400}"
    fi
    ((expected != 3)) || check "gallery $case: its file and byte: ${error:0:400}" has_place "$case" "$error"
    if [[ ! -s $WORK/.left && $(ls -A "$area") == in && $(tree_sum "$area/in") == "$before" ]]; then
      pass
    else
      bad "gallery $case: left something behind, or changed the source: $command"
      find "$area" -mindepth 1 -maxdepth 1 ! -name in -exec rm -rf {} +
      previous=
    fi
  done <"$root/manifest.tsv"
  no_byte_list "$root/manifest.tsv"
  rm -rf "$area"
}

# The format gallery: a broken file is refused from its headers alone, quickly and in little memory.
formats() {
  local root=$GALLERIES/format path slug expected got error limit_ms=1000
  ((SANITIZED)) && limit_ms=20000
  while IFS=$'\t' read -r path slug expected; do
    [[ $path == \#* || -z $path ]] && continue
    measure "$PROGRAM" inspect "$root/$path"
    got=$?
    error=$(<"$WORK/.err")
    if [[ $got != "$expected" ]] || ! has "$error" "[$slug]"; then
      bad "format $path: exit $got, expected $expected [$slug] :: ${error:0:400}"
    elif ((CPU_MS > limit_ms)); then
      bad "format $path: took $CPU_MS ms of processor time"
    elif ((!SANITIZED && PEAK > 65536)); then
      bad "format $path: used $PEAK KiB"
    else
      pass
    fi
  done <"$root/manifest.tsv"
}

# confined SECONDS KIB DIRECTORY COMMAND...: runs it there, for no longer, in no more address space (0: no limit).
confined() {
  measure bash -c 'cd "$3" || exit 125
    (($2 == 0)) || ulimit -v "$2"
    exec timeout "$1" "${@:4}"' _ "$@"
}

# The gallery of torch files: as above, and nothing of a hostile pickle may have run. Sound ones are read, and hold
# one model.
torch_files() {
  local root=$GALLERIES/torch area=$WORK/torch case command arguments expected slug got error sound=
  local address_kib=$((4 << 20))
  ((SANITIZED)) && address_kib=0
  mkdir -p "$area"
  while IFS=$'\t' read -r case command expected slug; do
    [[ $case == \#* || -z $case ]] && continue
    arguments=${command//\{IN\}/$root/$case}
    # shellcheck disable=SC2086 -- the manifest's arguments are separated by blanks
    confined 10 "$address_kib" "$area" "$PROGRAM" ${arguments//\{OUT\}/$area/out} --json
    got=$?
    last_line error "$WORK/.err"
    if [[ $got != "$expected" ]] || ((got)) && [[ $error != '{"error":"'"$slug"'","message":"'*'","file":"'[!\"]* ]]; then
      bad "torch $case: exit $got, expected $expected [$slug]: $command :: ${error:0:400}"
    elif ((!SANITIZED && PEAK > 65536)); then
      bad "torch $case: used $PEAK KiB: $command"
    else
      pass
    fi
    ((expected != 3)) || check "torch $case: its file and byte: ${error:0:400}" has_place "$case" "$error"
    if [[ -n $(ls -A "$area") ]]; then
      bad "torch $case: left something behind: $(ls -A "$area")"
      rm -rf "${area:?}"/*
    fi
    [[ $expected == 0 && $command == digest* ]] || continue
    sound=${sound:-$(digest "$root/$case")}
    check "torch $case: the one digest" [ "$sound" == "$(digest "$root/$case")" ]
  done <"$root/manifest.tsv"
  no_byte_list "$root/manifest.tsv"
  rm -rf "$area"
}

# There and back again: the digest stays, every tensor is what it was.
tiny() {
  local root=$GALLERIES/tiny case there back area=$WORK/tiny
  while IFS=$'\t' read -r case there back; do
    [[ $case == \#* || -z $case ]] && continue
    rm -rf "$area"
    mkdir -p "$area"
    # shellcheck disable=SC2086
    status "tiny $case there" 0 convert "$root/$case" "$area/there" $there -q || continue
    # shellcheck disable=SC2086
    status "tiny $case back" 0 convert "$area/there" "$area/back" $back -q || continue
    check "tiny $case: the same tensors" [ "$(tensors "$root/$case")" == "$(tensors "$area/back")" ]
    check "tiny $case: the same digest" [ "$(digest "$area/there")" == "$(digest "$area/back")" ]
    status_again "tiny $case: verify" 0 verify "$area/there" "$area/back"
    status_again "tiny $case: inspect" 0 inspect "$area/there"
  done <"$root/manifest.tsv"
  rm -rf "$area"
}
