# Where checkpoints come from and go to: caches of symlinks, special files, extra files, what is in the way.

# Lays files out as the Hugging Face cache does; prints the snapshot.
make_snapshot() {
  local from=$1 cache=$2 file
  mkdir -p "$cache/blobs" "$cache/snapshots/abc"
  for file in "$from"/*; do
    local blob
    blob=$(sha256sum <"$file" | cut -c1-40)
    cp "$file" "$cache/blobs/$blob"
    ln -s "../../blobs/$blob" "$cache/snapshots/abc/$(basename "$file")"
  done
}

checkpoint_forms() {
  local hf=$TESTDATA/hf/mixtral work=$WORK/cache reference before
  local to=(--naming megatron --experts grouped --glu interleaved:2 -q)
  reference=$(digest "$hf")
  make_snapshot "$hf" "$work"
  before=$(tree_sum "$work")
  status "a snapshot of symlinks" 0 convert "$work/snapshots/abc" "$work.out" "${to[@]}"
  check "a snapshot: the same model" [ "$reference" == "$(digest "$work.out")" ]
  check "a snapshot: extra files are files" [ -f "$work.out/config.json" -a ! -L "$work.out/config.json" ]
  check "a snapshot: extra files verbatim" cmp -s "$hf/config.json" "$work.out/config.json"
  check "a snapshot is unchanged" [ "$before" == "$(tree_sum "$work")" ]
  status "the place of the blobs is part of the source" 4 convert "$work/snapshots/abc" "$work/blobs" "${to[@]}" --overwrite
  check "the blobs are unchanged" [ "$before" == "$(tree_sum "$work")" ]
  cp -r "$hf" "$work.plain"
  rm "$work.plain/model.safetensors.index.json"
  status "a directory without index" 0 convert "$work.plain" "$work.out2" "${to[@]}"
  check "without index: the same model" [ "$reference" == "$(digest "$work.out2")" ]
  rm "$work.plain/model-00002-of-00002.safetensors"
  status "a directory without index, a shard missing" 3 convert "$work.plain" "$work.out3" "${to[@]}"
  check "nothing of it" absent "$work.out3"
  # Shards say in their names how many there are: what an interrupted download left is no checkpoint.
  mkdir "$work.cut"
  cp "$GALLERIES/tiny/megatron_bias/model.safetensors" "$work.cut/model-00001-of-00002.safetensors"
  status "a directory without index, a shard missing by its name" 3 convert "$work.cut" "$work.out6" \
    --from-glu contiguous --glu interleaved:2
  check "nothing of it" absent "$work.out6"
  # The source is what the symlinks point to.
  mkdir "$work.links" "$work.data"
  "$PROGRAM" convert "$hf" "$work.data/all.safetensors" --force -q
  cp "$work.data/all.safetensors" "$work.data.copy"
  ln -s "$work.data/all.safetensors" "$work.links/model.safetensors"
  cp "$hf/config.json" "$work.links"
  status "--overwrite of what a symlink of the source points to" 4 convert "$work.links" "$work.data/all.safetensors" \
    "${to[@]}" --overwrite
  check "it is unchanged" cmp -s "$work.data/all.safetensors" "$work.data.copy"
  cp -r "$hf" "$work.extra"
  mkdir -p "$work.extra/tokenizer/deep"
  printf '\0\377 bytes' >"$work.extra/tokenizer/deep/vocab.bin2"
  printf 'x' >"$work.extra/README with blanks.md"
  : >"$work.extra/empty.txt"
  chmod 755 "$work.extra/empty.txt"
  status "extra files" 0 convert "$work.extra" "$work.out4" "${to[@]}"
  local name
  for name in tokenizer/deep/vocab.bin2 "README with blanks.md" empty.txt config.json; do
    check "extra file $name" cmp -s "$work.extra/$name" "$work.out4/$name"
  done
  # A file stored in any order of its tensors is the same model.
  python3 - "$hf" "$work.shuffled" <<'PY'
import glob, json, os, random, shutil, struct, sys
random.seed(1)
os.mkdir(sys.argv[2])
shutil.copy(sys.argv[1] + "/config.json", sys.argv[2])
tensors = []
for path in sorted(glob.glob(sys.argv[1] + "/*.safetensors")):
    raw = open(path, "rb").read()
    size = struct.unpack("<Q", raw[:8])[0]
    for name, t in json.loads(raw[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + o for o in t["data_offsets"])
            tensors.append((name, t["dtype"], t["shape"], raw[begin:end]))
for number in range(3):
    mine = tensors[number::3]
    random.shuffle(mine)
    header, data = {}, b""
    for name, dtype, shape, bytes_ in mine:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(bytes_)]}
        data += bytes_
    text = json.dumps({k: header[k] for k in sorted(header, key=lambda _: random.random())}).encode()
    with open(f"{sys.argv[2]}/part{number}.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + data)
PY
  status "tensors in any order" 0 convert "$work.shuffled" "$work.out5" "${to[@]}"
  check "tensors in any order: the same model" [ "$reference" == "$(digest "$work.out5")" ]
  check "tensors in any order: the same tensors" [ "$(tensors "$work.out")" == "$(tensors "$work.out5")" ]
  rm -rf "$work"*
}

overwriting() {
  local hf=$TESTDATA/hf/mixtral out=$WORK/over before
  local to=(--naming megatron --experts grouped --glu interleaved:2 -q)
  mkdir "$out.mine"
  echo mine >"$out.mine/mine"
  status "--overwrite of what is no checkpoint" 4 convert "$hf" "$out.mine" "${to[@]}" --overwrite
  # A folder of models is no checkpoint, also when a stray shard lies in it.
  mkdir -p "$out.models/other"
  cp "$GALLERIES/tiny/megatron_bias/model.safetensors" "$out.models/stray.safetensors"
  cp "$GALLERIES/tiny/megatron_bias/model.safetensors" "$out.models/other/model.safetensors"
  cp "$GALLERIES/tiny/megatron_bias/model.safetensors" "$out.models/model.safetensors"
  status "--overwrite of a folder of models" 4 convert "$hf" "$out.models" "${to[@]}" --overwrite
  check "the models are there" [ -f "$out.models/other/model.safetensors" ]
  # Keys that several families spell alike: what nobody said is not recorded.
  mkdir "$out.alike"
  cp "$TESTDATA/hf/gpt_oss/model.safetensors" "$out.alike"
  status "stamp what several families spell alike" 0 stamp "$out.alike" --glu interleaved:1
  check "no family is recorded" [ "$(grep -c '"naming"' "$out.alike/glu_ckpt.json")" == 0 ]
  status "it can be read" 0 convert "$out.alike" "$out.alike.out" --glu contiguous -q
  # Its digest would be another one, for without a config.json nobody knows what the other tensors are.
  status "and is the same model" 0 verify "$out.alike.out" "$TESTDATA/hf/gpt_oss" -q
  rm -r "$out.models" "$out.alike" "$out.alike.out"
  check "what is no checkpoint stays" [ "$(cat "$out.mine/mine")" == mine ]
  rm -r "$out.mine"
  cp -r "$TESTDATA/hf/qwen3_moe" "$out"
  echo old >"$out/old"
  status "DST is there" 4 convert "$hf" "$out" "${to[@]}" && check "DST is there: said so" has "$ERR" "[output-exists]"
  check "DST is there: untouched" [ "$(cat "$out/old")" == old ]
  status "--overwrite of a refused conversion" 4 convert "$hf" "$out" --overwrite -q
  check "the old one is still there" [ "$(cat "$out/old")" == old ]
  # Nobody's file goes in silence: it is named, and stays.
  mkdir -p "$out/.git" "$out/sub"
  echo mine >"$out/sub/notes.txt"
  status "--overwrite of a checkpoint with other files" 4 convert "$hf" "$out" "${to[@]}" --overwrite
  check "--overwrite of a checkpoint with other files: named" has "$ERR" ".git/, old, sub/"
  check "--overwrite of a checkpoint with other files: they stay" [ -d "$out/.git" -a -f "$out/sub/notes.txt" -a -f "$out/old" ]
  status "plan --overwrite of a checkpoint with other files" 4 plan "$hf" "$out" "${to[@]}" --overwrite
  rm -r "$out/.git" "$out/sub" "$out/old"
  status "--overwrite" 0 convert "$hf" "$out" "${to[@]}" --overwrite
  check "the old one is gone, the new one complete" [ ! -e "$out/old" -a -f "$out/model.safetensors" ]
  check "nothing else is left" [ "$(ls -d "$out"*)" == "$out" ]
  overwriting_megatron
  cp "$GALLERIES/layout/sound/model.safetensors" "$out.safetensors"
  status "a file is there" 4 convert "$hf" "$out.safetensors" "${to[@]}"
  status "--overwrite of a file" 0 convert "$hf" "$out.safetensors" "${to[@]}" --overwrite
  check "the file is replaced" [ "$(digest "$out.safetensors")" == "$(digest "$hf")" ]
  ln -s nowhere "$out.link"
  status "a dangling symlink is in the way" 4 convert "$hf" "$out.link" "${to[@]}"
  mkdir "$out.new.partial"
  echo mine >"$out.new.partial/mine"
  status "DST.partial is there" 4 convert "$hf" "$out.new" "${to[@]}"
  check "DST.partial is untouched" [ "$(cat "$out.new.partial/mine")" == mine ]
  check "DST.partial: no DST" absent "$out.new"
  # The last moment at which the old one can be lost is a failing verification or a full disk: a limit on file
  # sizes stands for both.
  before=$(tree_sum "$out")
  (ulimit -f 1; "$PROGRAM" convert "$hf" "$out" --naming megatron --glu contiguous --overwrite -q >/dev/null 2>&1) 2>/dev/null
  check "a failed --overwrite keeps the old one" [ "$before" == "$(tree_sum "$out")" ]
  rm -rf "$out"*
}

# The files of the Hugging Face directory lie in a directory beside the iteration, and are replaced with it.
overwriting_megatron() {
  local hf=$TESTDATA/hf/qwen3_moe out=$WORK/over.megatron before
  status "for Megatron" 0 convert "$hf" "$out" --to megatron -q
  before=$(tree_sum "$out")
  status "--overwrite of an output for Megatron" 0 convert "$hf" "$out" --to megatron --overwrite -q
  check "--overwrite of an output for Megatron: the new one alone" [ "$before" == "$(tree_sum "$out")" ]
  mkdir "$out/iter_0000100"
  status "--overwrite of two iterations" 4 convert "$hf" "$out" --to megatron --overwrite -q
  rmdir "$out/iter_0000100"
  # What nobody recorded is somebody's own: in hf/, and where there is no checkpoint.
  echo mine >"$out/hf/notes"
  status "--overwrite where hf/ holds another file" 4 convert "$hf" "$out" --to megatron --overwrite -q
  check "--overwrite where hf/ holds another file: it is there" [ -f "$out/hf/notes" ]
  rm "$out/hf/notes"
  mkdir -p "$out.run/iter_0000100" "$out.run/hf"
  echo 100 >"$out.run/latest_checkpointed_iteration.txt"
  echo mine >"$out.run/iter_0000100/train.py"
  status "--overwrite of a run without a checkpoint" 4 convert "$hf" "$out.run" --to megatron --overwrite -q
  cp "$GALLERIES/tiny/megatron_bias/model.safetensors" "$out.run/iter_0000100"
  status "--overwrite of another program's run with hf/" 4 convert "$hf" "$out.run" --to megatron --overwrite -q
  check "--overwrite of another program's run: it is there" [ -f "$out.run/iter_0000100/train.py" ]
  cp "$GALLERIES/tiny/megatron_bias/model.safetensors" "$out/hf"
  status "--overwrite where hf/ holds a model" 4 convert "$hf" "$out" --to megatron --overwrite -q
  check "--overwrite where hf/ holds a model: it is there" [ -f "$out/hf/model.safetensors" ]
}

# What is at the place of an output, or of its .partial, and is not this program's own.
foreign_outputs() {
  local hf=$TESTDATA/hf/mixtral dir=$WORK/foreign name
  mkdir "$dir"
  cp -r "$GALLERIES/tiny/megatron_bias" "$dir/tiny"
  local -A commands=([page.html]="report $hf --overwrite --html" [diff.html]="diff $hf $hf --overwrite --html")
  for name in "${!commands[@]}"; do
    local words
    read -ra words <<<"${commands[$name]}"
    mkdir -p "$dir/$name.partial/x"
    status "$name: a foreign directory" 4 "${words[@]}" "$dir/$name"
    check "$name: a foreign directory stays" [ -d "$dir/$name.partial/x" ]
    rm -r "$dir/$name.partial"
    echo mine >"$dir/$name.partial"
    status "$name: a foreign file" 4 "${words[@]}" "$dir/$name"
    check "$name: a foreign file stays" [ "$(cat "$dir/$name.partial")" == mine ]
    rm "$dir/$name.partial"
    mkfifo "$dir/$name"
    status "$name: a FIFO" 4 "${words[@]}" "$dir/$name"
    check "$name: a FIFO stays" [ -p "$dir/$name" ]
    rm "$dir/$name"
    status "$name" 0 "${words[@]}" "$dir/$name"
    status "$name is replaced" 0 "${words[@]}" "$dir/$name"
  done
  mkdir -p "$dir/tiny/glu_ckpt.json.partial/x"
  status "stamp: a foreign directory" 4 stamp "$dir/tiny" --glu contiguous
  check "stamp: a foreign directory stays" [ -d "$dir/tiny/glu_ckpt.json.partial/x" ]
  rm -r "$dir/tiny/glu_ckpt.json.partial"
  status "stamp" 0 stamp "$dir/tiny" --glu contiguous
  mkfifo "$dir/out.safetensors"
  status "convert: a FIFO" 4 convert "$hf" "$dir/out.safetensors" --naming megatron --glu contiguous --overwrite
  status "plan: a FIFO" 4 plan "$hf" "$dir/out.safetensors" --naming megatron --glu contiguous --overwrite
  check "convert: a FIFO stays" [ -p "$dir/out.safetensors" ]
  rm -r "$dir"
}

special_sources() {
  local work=$WORK/special
  mkdir "$work"
  mkfifo "$work/fifo.safetensors"
  mkdir "$work/holds_fifo" "$work/empty" "$work/loop"
  mkfifo "$work/holds_fifo/model.safetensors"
  ln -s loop.safetensors "$work/loop.safetensors"
  python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' "$work/socket.safetensors"
  local source
  for source in "$work/fifo.safetensors" "$work/holds_fifo" "$work/socket.safetensors" /dev/null /dev/zero "$work/empty"; do
    "timeout" 5 "$PROGRAM" convert "$source" "$work/out" --glu contiguous >"$WORK/.out" 2>"$WORK/.err"
    check "source $source: refused, not waited for" [ $? == 3 ]
    check "source $source: no output" absent "$work/out"
  done
  "$PROGRAM" inspect "$work/loop.safetensors" >/dev/null 2>&1
  check "a symlink to itself" grep -qx '[35]' <<<$?
  status "nothing there" 3 inspect "$work/nothing" && check "nothing there: said so" has "$ERR" "[not-found]"
  status "an empty name" 2 inspect ""
  rm -rf "$work"
}

permissions() {
  if [[ $(id -u) == 0 ]]; then
    skip "unreadable shard, read-only destination: root may do everything"
    return
  fi
  local hf=$TESTDATA/hf/mixtral work=$WORK/perm
  cp -r "$hf" "$work"
  chmod 000 "$work/model-00002-of-00002.safetensors"
  status "an unreadable shard" 5 convert "$work" "$work.out" --naming megatron --glu contiguous
  check "an unreadable shard: named" has "$ERR" model-00002-of-00002
  mkdir "$work.ro"
  chmod 555 "$work.ro"
  status "a read-only destination" 5 convert "$hf" "$work.ro/out" --naming megatron --glu contiguous
  chmod -R u+w "$work" "$work.ro"
  rm -rf "$work"*
}

# A bind mount gives a directory a second path, which no name tells.
bind_mounts() {
  local work=$WORK/bind
  mkdir -p "$work/mount" "$work/other/mount"
  cp -r "$TESTDATA/hf/qwen3_moe" "$work/src"
  mkdir "$work/src/below"
  if ! unshare -rm mount --bind "$work/src" "$work/mount" 2>/dev/null; then
    skip "a bind mount of the source: it takes more rights than this user has"
    rm -rf "$work"
    return
  fi
  bound() { # DIRECTORY MOUNT ARGUMENT...
    unshare -rm bash -c 'mount --bind "$1" "$2" && exec "${@:3}"' - "$1" "$2" "$PROGRAM" "${@:3}" 2>&1
  }
  local before said dst
  before=$(tree_sum "$work/src")
  for dst in mount/out mount/below/out mount; do
    said=$(bound "$work/src" "$work/mount" convert "$work/src" "$work/$dst" --experts grouped --glu contiguous --overwrite)
    check "bind mount: DST $dst: $said" [ "$?:$(has "$said" "[output-inside-source]" && echo said)" == 4:said ]
  done
  check "bind mount: the source is as it was" [ "$before" == "$(tree_sum "$work/src")" ]
  said=$(bound "$work/other" "$work/mount" convert "$work/src" "$work/mount/out" --experts grouped --glu contiguous -q)
  check "bind mount of a directory apart: $said" [ $? == 0 ]
  check "bind mount of a directory apart: there" [ -e "$work/other/out/glu_ckpt.json" ]
  rm -rf "$work"
}

# What writes one file refuses one of a source, and one in a source's directory, as convert does.
files_in_sources() {
  local work=$WORK/own a=$WORK/own.a b=$WORK/own.b shard=model-00001-of-00002.safetensors before
  cp -r "$TESTDATA/hf/qwen3_moe" "$a"
  cp -r "$TESTDATA/hf/qwen3_moe" "$b"
  tokens "$work.in.safetensors"
  make_snapshot "$a" "$work.cache"
  before=$(tree_sum "$a" && tree_sum "$b" && tree_sum "$work.cache")
  refuses_source() {
    status "$1" 4 "${@:2}" --overwrite
    check "$1: $ERR" has "$ERR" "[output-inside-source]"
  }
  refuses_source "report over its own shard" report "$a" --html "$a/$shard"
  refuses_source "report over B's config.json" report "$a" "$b" --html "$b/config.json"
  refuses_source "report into its source" report "$a" --html "$a/page.html"
  refuses_source "report of a file over it" report "$a/$shard" --html "$a/$shard"
  refuses_source "report over a blob" report "$work.cache/snapshots/abc" \
    --html "$(realpath "$work.cache/snapshots/abc/$shard")"
  refuses_source "report over the index's blob" report "$work.cache/snapshots/abc" \
    --html "$(realpath "$work.cache/snapshots/abc/model.safetensors.index.json")"
  refuses_source "report of a file over its config.json" report "$a/$shard" --html "$a/config.json"
  refuses_source "diff over B's shard" diff "$a" "$b" --html "$b/$shard"
  refuses_source "forward over a shard" forward "$a" --layer 0 --input "$work.in.safetensors" --output "$a/$shard"
  refuses_source "forward into its source" forward "$a" --layer 0 --input "$work.in.safetensors" \
    --output "$a/y.safetensors"
  refuses_source "forward over its tokens" forward "$a" --layer 0 --input "$work.in.safetensors" \
    --output "$work.in.safetensors"
  # What fills, is merged or describes the source is read, too.
  refuses_source "convert over what fills" convert "$a" "$b" --fill-from "$b" --to megatron
  refuses_source "convert into what fills" convert "$a" "$b/OUT" --fill-from "$b" --to megatron
  refuses_source "report over what fills" report "$a" --fill-from "$b" --html "$b/$shard"
  refuses_source "report over a config.json that is named" report "$a" --from-config "$b/config.json" --html "$b/config.json"
  check "the sources are as they were" [ "$before" == "$(tree_sum "$a" && tree_sum "$b" && tree_sum "$work.cache")" ]
  status "report of a file beside it" 0 report "$a/$shard" --html "$a/page.html" -q
  rm -rf "$work" "$work".*
}
