# What the third round of strangers stumbled over, by the matter.

# `help WORD` knows every word that the program itself prints.
stranger_help() {
  local word text
  while read -r word; do
    status "help $word" 0 help "$word" && check "help $word: $OUT" has "$OUT" "$word, an option of "
    check "help $word: at most 80 columns" [ -z "$(awk 'length > 80' "$WORK/.out")" ]
  done < <(grep -oE '^\| `(-.*, )?--[a-z-]+' "$HERE/../../docs/cli.md" | grep -oE -- '--[a-z-]+' | grep -vxE -- '--(help|version|man|page|color)' | sort -u)
  # Each line: a word, and what is said of it.
  while IFS='|' read -r word text; do
    # shellcheck disable=SC2086
    status "help $word" 0 help $word && check "help $word: $OUT" has "$OUT" "$text"
  done <<'LINES'
pad-experts|      --pad-experts N      experts get zero rows and columns
-j|  -j, --jobs N             worker threads
convert --glu|--glu, an option of convert:
megatron|megatron, a value of --to:
interleaved|--glu, --shared-glu,
grouped|grouped, a value of --experts, --bias-experts:
mxfp4|mxfp4, a value of --encode:
qwen3_moe|`glu-ckpt layouts qwen3_moe` has its keys, its forms and what loads it.
attention/q|attention/q, a role:
experts/gate|experts/gate, a role:
megatron_args.txt|megatron_args.txt, a file:
glu_ckpt.json|glu_ckpt.json, a file:
HF_ENDPOINT|HF_TOKEN, HF_ENDPOINT, of the environment:
LINES
  prints "help journal" 0 "Nothing is called 'journal'; these speak of it:

DST.partial, a file:
  The output while it is written. A run that was stopped leaves it with its
  journal, and --resume goes on there; without that it may be deleted.

glu_ckpt.journal, a file:
  The journal of a conversion, in DST.partial: what is written already. No
  output has one when it is complete." help journal
  status "help record" 0 help record && check "help record: $OUT" has "$OUT" "glu_ckpt.json, a file:"
  status "help of an option that is mistyped" 2 help --pad-expert && check "it is suggested: $ERR" has "$ERR" "did you mean --pad-experts?"
  status "help of a value that is mistyped" 2 help megatorn && check "it is suggested: $ERR" has "$ERR" "did you mean megatron?"
}
