# What stands on a terminal, and what goes to a log.

# in_terminal COLUMNS ARGUMENTS...: runs the program that stands still in a terminal; $SHOWN is what that got.
SHOWN=
in_terminal() {
  local columns=$1
  shift
  hold_anew
  rm -rf "$WORK/shown"
  TERM=${KIND:-xterm} python3 "$HERE/terminal.py" "$columns" "$GLU_CKPT_TEST_HOLD" "$HELD_PROGRAM" "$@" >"$WORK/.shown"
  local got=$?
  SHOWN=$(cat "$WORK/.shown")
  check "in a terminal: $* ends with $got: $SHOWN" [ "$got" == 0 ]
}

# The bar's longest line without colours; what is between two returns of the carriage is one.
bar_lines() { tr '\r' '\n' <"$WORK/.shown" | sed 's/\x1b\[[0-9;]*[mK]//g' | grep "^converting"; }

terminal() {
  local a=$WORK/terminal escape=$'\x1b' convert columns line
  make_model "$a" 4 4 128 512
  convert=(convert "$a" "$WORK/shown" --naming megatron --experts grouped --glu interleaved:32 -j 1 --max-memory 1MiB)
  in_terminal 100 "${convert[@]}"
  line=$(bar_lines | tail -1)
  check "the bar is written anew: $line" has "$SHOWN" $'\r'"$escape[32mconverting"
  check "the bar ends full: $line" grep -Eq '^converting  \[=+\] 100%  6\.29 MB of 6\.29 MB  [0-9.]+ [kMG]?B/s  [0-9]+ s' <<<"$line"
  check "the bar names what it waits for" grep -q "  mostly " <(bar_lines)
  check "notes are painted" has "$SHOWN" "glu-ckpt: $escape[36mnote:$escape[0m "
  check "a warning or note does not stand behind the bar" [ -z "$(tr '\r' '\n' <"$WORK/.shown" | grep '^.*%.*glu-ckpt:')" ]
  for columns in 60 40 20 12 5; do
    in_terminal "$columns" "${convert[@]}"
    check "$columns columns: it has a bar or a line" [ -n "$(bar_lines 2>/dev/null || tr '\r' '\n' <"$WORK/.shown" | grep '%')" ]
    check "$columns columns: no line is longer" [ -z "$(tr '\r' '\n' <"$WORK/.shown" | sed 's/\x1b\[[0-9;]*[mK]//g' |
      grep '%' | awk -v most="$columns" 'length >= most')" ]
  done
  NO_COLOR=1 in_terminal 100 "${convert[@]}"
  check "NO_COLOR: no colour" [ -z "$(grep -o "$escape\[[0-9;]*m" "$WORK/.shown")" ]
  check "NO_COLOR: there is a bar" has "$SHOWN" $'\rconverting  ['
  KIND=dumb in_terminal 100 "${convert[@]}"
  check "a dumb terminal: nothing but text" [ -z "$(grep "$escape" "$WORK/.shown")" ]
  in_terminal 100 "${convert[@]}" -q
  check "-q: nothing" [ -z "$SHOWN" ]
  rm -rf "$WORK/shown"
  # Errors and warnings.
  hold_anew
  check "an error is painted" grep -q "glu-ckpt: $escape\[1;31merror:$escape\[0m $WORK/none" \
    <(TERM=xterm python3 "$HERE/terminal.py" 80 "$GLU_CKPT_TEST_HOLD" "$PROGRAM" inspect "$WORK/none")
  check "a warning is painted" grep -q "glu-ckpt: $escape\[1;33mwarning:$escape\[0m" \
    <(TERM=xterm python3 "$HERE/terminal.py" 80 "$GLU_CKPT_TEST_HOLD" "$PROGRAM" plan "$TESTDATA/hf/qwen3_moe/model-00001-of-00002.safetensors" \
      "$WORK/shown" --experts grouped --glu contiguous)
  # A log.
  status "a log" 0 "${convert[@]}" --progress always
  check "a log has a line a stage: $ERR" grep -Eq '^converting  100%  6\.29 MB of 6\.29 MB  [0-9.]+ [kMG]?B/s  [0-9]+ s$' <<<"$ERR"
  check "a log has no escapes" [ -z "$(grep "[$escape]" <<<"$ERR")" ]
  rm -rf "$WORK/shown"
  status "a log of what is short" 0 "${convert[@]}"
  check "a log of what is short has notes alone" [ -z "$(grep -v note: <<<"$ERR")" ]
  rm -rf "$WORK/shown" "$a"
}
