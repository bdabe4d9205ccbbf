# Help, the manual page, and the completions of three shells, each judged by the program that reads it.

commands_of() { printf '%s\n' inspect convert plan verify diff report digest check stamp forward "bench kernels" "bench forward" \
  "bench convert" bench layouts doctor help completion; }

help_texts() {
  local command words
  while read -r command; do
    read -ra words <<<"$command"
    status "help $command" 0 help "${words[@]}"
    cp "$WORK/.out" "$WORK/.help"
    check "help $command: at most 80 columns" [ -z "$(awk 'length > 80' "$WORK/.help")" ]
    check "help $command has examples" grep -qx "Examples:" "$WORK/.help"
    status "$command --help" 0 "${words[@]}" --help
    check "$command --help is help $command" cmp -s "$WORK/.out" "$WORK/.help"
  done < <(commands_of)
  status "help" 0 help
  cp "$WORK/.out" "$WORK/.help"
  status "--help" 0 --help && check "--help is help" cmp -s "$WORK/.out" "$WORK/.help"
  # What this test walks is what there is.
  for command in $(sed -n '/^Look:/,/^Options:/s/^  \([a-z][a-z]*\)\( .*\|$\)/\1/p' "$WORK/.help"); do
    check "$command is tested" grep -qx "$command" <(commands_of)
  done
  check "at most 80 columns" [ -z "$(awk 'length > 80' "$WORK/.help")" ]
  status "-V" 0 -V && cp "$WORK/.out" "$WORK/.help"
  status "--version" 0 --version && check "-V is --version" cmp -s "$WORK/.out" "$WORK/.help"
  local short
  for command in "" convert inspect verify diff digest report check forward; do
    # shellcheck disable=SC2086
    status "$command --help" 0 $command --help && cp "$WORK/.out" "$WORK/.help"
    # shellcheck disable=SC2086
    status "$command -h" 0 $command -h
    check "$command -h is shorter than --help" [ "$(wc -l <"$WORK/.out")" -lt "$(wc -l <"$WORK/.help")" ]
    # Those that convert explains, too, are named in one sentence.
    check "$command -h names the same options" [ "$({ grep -Eo -- '^  (-.|  ).? --[a-z-]+' "$WORK/.out"
      sed -n '/^As .*convert/,/^$/p' "$WORK/.out"; } | grep -oE -- '--[a-z-]+' | sort -u)" == \
      "$(grep -Eo -- '^  (-.|  ).? --[a-z-]+' "$WORK/.help" | grep -oE -- '--[a-z-]+' | sort -u)" ]
    check "$command -h: at most 80 columns" [ -z "$(awk 'length > 80' "$WORK/.out")" ]
  done
  for short in cli errors; do
    status "help --page $short" 0 help --page "$short"
    check "docs/$short.md is what help --page $short prints" cmp "$WORK/.out" "$HERE/../../docs/$short.md"
  done
  for short in $(sed -n 's/^### //p' "$HERE/../../docs/errors.md"); do
    status "help $short" 0 help "$short" && check "help $short: ways out" has "$OUT" "Ways out:"
    check "help $short: at most 80 columns" [ -z "$(awk 'length > 80' "$WORK/.out")" ]
  done
  status "help of an error as it is printed" 0 help '[unknown-glu]'
  check "help of an error: $OUT" [ "$OUT" == "unknown-glu: the run ends with status 4.

Cause:
  FC1 holds rows of gate and of up, and no file says in which order. A wrong
  guess gives a model that loads and computes something else.

Ways out:
  Say the order with --from-glu, or record it once with \`stamp\`. Whoever trained
  the model knows it: Megatron's argument moe_mlp_glu_interleave_size, or none
  for contiguous. If you have the model that training began from, \`verify START
  RUN --to-glu contiguous\` names the order in which the two are equal; after
  much training, \`diff START RUN --to-glu ORDER\` shows small differences for the
  right order alone.

Example:
  glu-ckpt convert RUN OUT --to hf --from-glu contiguous" ]
  status "help of an error, misspelt" 2 help unknow-glu && check "it is suggested" has "$ERR" "did you mean unknown-glu?"
  status "help of nothing" 2 help convrt && check "it is suggested" has "$ERR" "did you mean convert"
  status "a mistyped format" 2 convert a b --format safetensor
  check "it is suggested" has "$ERR" "did you mean safetensors"
  status "a mistyped order" 2 convert a b --glu contigous && check "it is suggested" has "$ERR" "did you mean contiguous"
  status "a mistyped target" 2 convert a b --to megatorn && check "it is suggested" has "$ERR" "did you mean megatron"
  "$PROGRAM" help >/dev/full 2>"$WORK/.err"
  check "help: a full stdout is noticed" [ $? == 5 ]
}

manual_page() {
  status "help --man" 0 help --man && cp "$WORK/.out" "$WORK/glu-ckpt.1"
  # man says what it cannot read, and ends well all the same.
  LC_ALL=C.UTF-8 MANWIDTH=80 man --warnings -l "$WORK/glu-ckpt.1" >"$WORK/.page" 2>"$WORK/.err"
  check "man -l" [ $? == 0 ]
  check "man has nothing to complain about" [ ! -s "$WORK/.err" ]
  local word
  for word in NAME SYNOPSIS COMMANDS ENVIRONMENT "EXIT STATUS" --max-shard-size GLU_CKPT_CUBLAS; do
    check "the manual has $word" grep -qF -- "$word" "$WORK/.page"
  done
}

# bash_offers LINE: what bash completes at the end of the line, one a line.
bash_offers() {
  bash --norc -c '
    source "$1"
    compopt() { printf "%s\n" "${*: -1}"; }
    COMP_LINE=$2 COMP_POINT=${#2} COMPREPLY=()
    _glu_ckpt
    ((${#COMPREPLY[@]} == 0)) || printf "%s\n" "${COMPREPLY[@]}"' bash "$WORK/complete.bash" "$1"
}

# zsh_offers LINE: presses Tab in a terminal of its own.
zsh_offers() {
  cat >"$WORK/complete.zsh.test" <<'ZSH'
zmodload zsh/zpty
zpty tester zsh -f -i
# Prints the words between marks instead of the prompt's own listing.
zpty -w tester "PS1= PS2= RPS1=; unsetopt zle_bracketed_paste; autoload -Uz compinit; compinit -u -D; source $1"
zpty -w tester 'compadd() { if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)* ]]; then builtin compadd "$@"; return; fi
  local -a found; builtin compadd -A found "$@"; local f; for f in $found; do print -r -- "<$f>"; done; builtin compadd "$@"; }'
zpty -w tester 'answer() { zle list-choices; print -r -- ANSWE""RED }; zle -N answer; bindkey "^I" answer; print -r -- REA""DY'
local out
zpty -r tester out '*READY*'
zpty -n -w tester "$2"$'\t'
zpty -r tester out '*ANSWERED*'
zpty -d tester
print -r -- $out | grep -o '<[^<>]*>' | tr -d '<>'
ZSH
  timeout 60 zsh -f "$WORK/complete.zsh.test" "$WORK/complete.zsh" "$1"
}

fish_offers() { HOME=$WORK XDG_CONFIG_HOME=$WORK fish --no-config -c 'source $argv[1]; complete -C $argv[2]' "$WORK/complete.fish" "$1" | cut -f1; }

completions() {
  local shell line
  for shell in bash zsh fish; do
    status "completion $shell" 0 completion "$shell" && cp "$WORK/.out" "$WORK/complete.$shell"
    check "$shell -n" "$shell" -n "$WORK/complete.$shell"
  done
  status "completion of no shell" 2 completion && status "completion of another" 2 completion tcsh
  mkdir -p "$WORK/here/somewhere"
  : >"$WORK/here/model.safetensors"
  for shell in bash zsh fish; do
    offers() { (cd "$WORK/here" && "${shell}_offers" "glu-ckpt $1"); }
    check "$shell: commands" grep -qx convert <(offers "")
    check "$shell: commands by their beginning" [ "$(offers conv)" == convert ]
    check "$shell: commands of bench" grep -qx kernels <(offers "bench ")
    check "$shell: options" grep -qx -- --from-glu <(offers "convert --from")
    check "$shell: options of another command" [ -z "$(offers "layouts --from")" ]
    check "$shell: namings" grep -qx megatron-dist <(offers "convert --naming mega")
    check "$shell: targets" [ "$(offers "convert --to torch")" == torchtitan ]
    check "$shell: formats" grep -qx torch-dist <(offers "plan --format ")
    check "$shell: a value behind =" [ "$(offers "convert --format=safe" | sed 's/^--format=//')" == safetensors ]
    check "$shell: orders" grep -qx contiguous <(offers "stamp --glu ")
    check "$shell: shells" grep -qx fish <(offers "completion ")
  done
  # Readline takes what stands behind the last colon for the word.
  check "bash: a colon" [ "$(bash_offers "glu-ckpt convert --glu interleaved:")" == 32 ]
  check "bash: a naming with a colon" [ "$(bash_offers "glu-ckpt verify --to-naming hf:qwen3_mo")" == qwen3_moe ]
  check "bash: files" [ "$(bash_offers "glu-ckpt convert ")" == default ]
  check "bash: a file" [ "$(bash_offers "glu-ckpt convert --from-config ")" == default ]
  check "bash: directories" [ "$(bash_offers "glu-ckpt bench convert --dir ")" == dirnames ]
  check "bash: no files for a number" [ -z "$(bash_offers "glu-ckpt convert -j ")" ]
  for shell in zsh fish; do
    check "$shell: a colon" [ "$("${shell}_offers" "glu-ckpt convert --glu inter")" == interleaved:32 ]
    check "$shell: files" grep -qx model.safetensors <(offers "inspect ")
  done
}

# Colours: --color wins, then NO_COLOR, then FORCE_COLOR and CLICOLOR_FORCE; a file has none by itself.
colours() {
  local red=$'\e[1;31merror:' bold=$'\e[1mUsage:'
  status "no colour in a file" 3 inspect "$WORK/none" && check "no colour in a file" [ "$ERR" == "${ERR/$'\e'/}" ]
  FORCE_COLOR=1 status "FORCE_COLOR" 3 inspect "$WORK/none" && check "FORCE_COLOR: $ERR" has "$ERR" "$red"
  CLICOLOR_FORCE=1 status "CLICOLOR_FORCE" 3 inspect "$WORK/none" && check "CLICOLOR_FORCE: $ERR" has "$ERR" "$red"
  NO_COLOR=1 FORCE_COLOR=1 status "NO_COLOR" 3 inspect "$WORK/none" && check "NO_COLOR" [ "$ERR" == "${ERR/$'\e'/}" ]
  NO_COLOR=1 status "--color always" 3 inspect "$WORK/none" --color always && check "--color always: $ERR" has "$ERR" "$red"
  FORCE_COLOR=1 status "--color never" 3 inspect "$WORK/none" --color never && check "--color never" [ "$ERR" == "${ERR/$'\e'/}" ]
  FORCE_COLOR=1 status "colour in help" 0 convert -h && check "colour in help" has "$OUT" "$bold"
  status "--color always in help" 0 convert -h --color always && check "--color always in help" has "$OUT" "$bold"
  FORCE_COLOR=1 status "--color never in help" 0 convert -h --color never
  check "--color never in help" [ "$OUT" == "${OUT/$'\e'/}" ]
}
