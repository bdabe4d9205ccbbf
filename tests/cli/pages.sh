# The commands of the pages, as they stand there, print what the pages say.

pages() {
  local page
  for page in README.md docs/guide.md; do
    mkdir "$WORK/page"
    if python3 "$HERE/run_page.py" "$HERE/../../$page" "$PROGRAM" "$TESTDATA" "$WORK/page" >"$WORK/.out" 2>&1; then
      pass
    else
      bad "$(cat "$WORK/.out")"
    fi
    rm -rf "$WORK/page"
  done
  check "README.md has at most 200 lines" [ "$(wc -l <"$HERE/../../README.md")" -le 200 ]
}
