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
  check "README.md has at most 200 lines" [ "$(wc -l <"$HERE/../../README.md")" -le 200 ]
}

# The workflow of docs/ci.md runs what stands below it.
ci_workflow() {
  local line
  while IFS= read -r line; do
    check "docs/ci.md runs: $line" grep -qxF "\$ $line" "$HERE/../../docs/ci.md"
  done < <(sed -n '/^```yaml$/,/^```$/p' "$HERE/../../docs/ci.md" | sed -n 's/^ *\(run: \)\{0,1\}\(glu-ckpt .*\)$/\2/p')
}
