# The commands of the pages, as they stand there, print what the pages say. Some are about a model that was trained.

pages() {
  local page
  for page in README.md docs/guide.md docs/ci.md; do
    mkdir "$WORK/page"
    python3 "$HERE/trained_model.py" "$TESTDATA" "$WORK/page"
    if python3 "$HERE/run_page.py" "$HERE/../../$page" "$PROGRAM" "$TESTDATA" "$WORK/page" >"$WORK/.out" 2>&1; then
      pass
    else
      bad "$(cat "$WORK/.out")"
    fi
    rm -rf "$WORK/page"
  done
  # The ten sentences that first hours asked to be written anew, as they were.
  check "sentences that needed two readings do not come back" [ -z "$(cd "$HERE/../.." && grep -rhoE \
    "and row that it was|one fingerprint of the model, the same|It is the one with CUDA|Two answers that disagree|shall go on with|If all are equally wrong|give a larger one behind|with what sees|that their naming turns|nobody is told 6" \
    README.md docs/*.md)" ]
  check "README.md has at most 200 lines" [ "$(wc -l <"$HERE/../../README.md")" -le 200 ]
}

# A value of megatron_args.txt may be a pattern to a shell, which a file's name fits.
argument_lines() {
  local dir=$WORK/arguments page line
  mkdir "$dir"
  status "arguments with brackets" 0 convert "$TESTDATA/whole/deepseek_v3/hf" "$dir/OUT" --to megatron -q
  cp -r "$dir/OUT" "$dir/START"
  : >"$dir/01+12"
  # shellcheck disable=SC2046
  check "arguments with brackets: a shell changes them" [ "$(cd "$dir" && printf '%s\n' $(cat OUT/megatron_args.txt) | grep -cxF 01+12)" == 1 ]
  for page in README.md docs/guide.md docs/targets.md; do
    line=$(grep -m1 '^mapfile' "$HERE/../../$page")
    # shellcheck disable=SC2154
    check "$page: its line gives them as they are: $line" [ "$(cd "$dir" && eval "$line" && printf '%s\n' "${args[@]}")" == \
      "$(tr -s '[:space:]' '\n' <"$dir/OUT/megatron_args.txt")" ]
  done
  rm -rf "$dir"
}

# The workflow of docs/ci.md runs what stands below it.
ci_workflow() {
  local line
  while IFS= read -r line; do
    check "docs/ci.md runs: $line" grep -qxF "\$ $line" "$HERE/../../docs/ci.md"
  done < <(sed -n '/^```yaml$/,/^```$/p' "$HERE/../../docs/ci.md" | sed -n 's/^ *\(run: \)\{0,1\}\(glu-ckpt .*\)$/\2/p')
}
