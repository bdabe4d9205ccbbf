# The command forward: what it takes, refuses and writes.

# tokens FILE [KEY=VALUE...]: x, index and weights for H = 64 and 8 experts, with one thing changed.
tokens() {
  python3 - "$@" <<'PY'
import json, struct, sys

path, changes = sys.argv[1], dict(item.split("=", 1) for item in sys.argv[2:])
hidden, top_k, count = int(changes.get("hidden", 64)), 2, int(changes.get("tokens", 5))
bf16 = [0x3F80 + (7 * i) % 50 for i in range(count * hidden)]  # near 1
if "nan" in changes:
    bf16[int(changes["nan"])] = 0x7FC0
index = [(3 * i) % int(changes.get("experts", 4)) for i in range(count * top_k)]
if "index" in changes:
    index[3] = int(changes["index"])
weights = [0.25 * (1 + i % 3) for i in range(count * top_k)]
x_dtype = changes.get("x", "BF16")
x = struct.pack(f"<{len(bf16)}H", *bf16)
if x_dtype == "F32":
    x = b"".join(struct.pack("<I", bits << 16) for bits in bf16)
tensors = {
    "x": (x_dtype, [count, hidden], x),
    "index": (changes.get("index_dtype", "I64"), [count, top_k], struct.pack(f"<{len(index)}q", *index)),
    "weights": ("F32", [count, top_k], struct.pack(f"<{len(weights)}f", *weights)),
}
if "shape" in changes:
    tensors["weights"] = ("F32", [top_k, count], tensors["weights"][2])
tensors.pop(changes.get("without", ""), None)
header, data = {}, b""
for name, (dtype, shape, content) in tensors.items():
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
    data += content
text = json.dumps(header).encode()
open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)
PY
}

forward() {
  local hf=$TESTDATA/hf/qwen3_moe dir=$WORK/forward in y
  mkdir -p "$dir"
  in=$dir/in.safetensors y=$dir/y.safetensors
  tokens "$in"
  local -a run=(forward "$hf" --layer 1 --input "$in" --output "$y")
  status "forward" 0 "${run[@]}" && check "forward says what it wrote" has "$OUT" "swiglu: y BF16 [5, 64]"
  status "forward: y is a safetensors file" 0 inspect "$y" && check "of one tensor" has "$OUT" "1, BF16"
  status "forward does not overwrite" 4 "${run[@]}" && check "it says how" has "$ERR" "--overwrite"
  status "forward --overwrite --json" 0 "${run[@]}" --overwrite --json
  check "forward --json" json output layer num_experts tokens activation dtype
  status "forward -q" 0 "${run[@]}" --overwrite -q && check "forward -q is silent" [ -z "$OUT$ERR" ]

  local glu answer
  answer=$(sha256sum <"$y")
  for glu in contiguous interleaved:8 interleaved:32; do
    status "convert to $glu" 0 convert "$hf" "$dir/$glu" --naming megatron --experts grouped --glu "$glu" -q
    status "forward on $glu" 0 forward "$dir/$glu" --layer 1 --input "$in" --output "$dir/o.safetensors" -q --overwrite
    check "forward on $glu: the same file" [ "$(sha256sum <"$dir/o.safetensors")" == "$answer" ]
    status "forward one thread, little memory" 0 forward "$dir/$glu" --layer 1 --input "$in" --overwrite \
      --output "$dir/o.safetensors" -q -j 1 --max-memory 1MiB
    check "forward one thread: the same file" [ "$(sha256sum <"$dir/o.safetensors")" == "$answer" ]
  done
  status "forward of the other layer" 0 forward "$hf" --layer 0 --input "$in" --output "$dir/o.safetensors" -q --overwrite
  check "the other layer: another answer" [ "$(sha256sum <"$dir/o.safetensors")" != "$answer" ]
  status "forward --activation" 0 "${run[@]}" --overwrite -q --activation reglu
  check "another activation: another answer" [ "$(sha256sum <"$y")" != "$answer" ]
  status "forward --compute fp32" 0 "${run[@]}" --overwrite --compute fp32 && check "fp32: y is F32" has "$OUT" "F32 [5, 64]"
  tokens "$dir/none.safetensors" tokens=0
  status "no tokens" 0 forward "$hf" --layer 1 --input "$dir/none.safetensors" --output "$dir/o.safetensors" --overwrite
  check "no tokens: no answers" has "$OUT" "BF16 [0, 64]"
  tokens "$dir/f32.safetensors" x=F32
  cp "$y" "$dir/fp32"
  status "fp32 takes x in F32" 0 forward "$hf" --layer 1 --input "$dir/f32.safetensors" --output "$y" --overwrite --compute fp32
  check "the same values: the same answer" cmp -s "$y" "$dir/fp32"
  rm -rf "$dir"
}

# refuses NAME STATUS WORDS ARGUMENTS...: forward must fail so, and write nothing.
refuses() {
  local name=$1 expected=$2 words=$3
  shift 3
  status "$name" "$expected" forward "$@" --output "$WORK/refused.safetensors"
  check "$name: says '$words', not: $ERR" has "$ERR" "$words"
  check "$name: nothing is left" absent "$WORK/refused.safetensors"
  check "$name: no staging directory is left" absent "$WORK/refused.safetensors.partial"
}

forward_refusals() {
  local hf=$TESTDATA/hf/qwen3_moe dir=$WORK/refusals in
  mkdir -p "$dir"
  in=$dir/in.safetensors
  tokens "$in"
  refuses "a layer that is not there" 3 "layers with experts: 0, 1" "$hf" --layer 9 --input "$in"
  refuses "a layer without experts" 3 "layers with experts: 1, 2" "$TESTDATA/hf/deepseek_v3" --layer 0 --input "$in"
  local change words
  while IFS='|' read -r change words; do
    # shellcheck disable=SC2086
    tokens "$dir/bad.safetensors" $change
    refuses "tokens with $change" 3 "$words" "$hf" --layer 0 --input "$dir/bad.safetensors"
  done <<'EOF'
without=x|no tensor 'x'
without=index|no tensor 'index'
without=weights|no tensor 'weights'
nan=67|x[1, 3] is NaN
index=8|index[1, 1] is 8; the layer has 8 experts
index=-1|index[1, 1] is -1
hidden=48|'x' is [5, 48], expected [tokens, 64]
shape=swapped|'weights' is [2, 5], expected [5, 2]
index_dtype=F64|'index' is F64, expected I64
x=F32|x is F32; the weights are BF16
EOF
  tokens "$dir/nan.safetensors" nan=67
  touch "$dir/there.safetensors"
  status "an output that is there is refused before anything is computed" 4 forward "$hf" --layer 0 \
    --input "$dir/nan.safetensors" --output "$dir/there.safetensors"
  check "it is as it was" [ ! -s "$dir/there.safetensors" ]
  refuses "an input that is not there" 3 "nowhere" "$hf" --layer 0 --input "$dir/nowhere.safetensors"
  refuses "an unknown activation" 2 "is not one of swiglu" "$hf" --layer 0 --input "$in" --activation swigloo
  refuses "a clamp without a limit" 4 "say --limit" "$hf" --layer 0 --input "$in" --activation clamped_swiglu
  refuses "a limit that clamps nothing" 2 "swiglu has no --limit" "$hf" --layer 0 --input "$in" --limit 7
  refuses "llama4 with weights" 4 "before the experts" "$TESTDATA/hf/llama4_text" --layer 0 --input "$in"
  check "copy" cp -r "$hf" "$dir/no_config"
  chmod -R u+w "$dir/no_config"
  rm "$dir/no_config/config.json"
  refuses "no config.json" 4 "say --activation" "$dir/no_config" --from-naming hf:qwen3_moe --layer 0 --input "$in"
  status "contiguous" 0 convert "$hf" "$dir/unknown.safetensors" --naming megatron --glu contiguous -q
  python3 - "$dir/unknown.safetensors" "$dir/bare.safetensors" <<'PY'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
size = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + size])
del header["__metadata__"]
text = json.dumps(header).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + data[8 + size:])
PY
  refuses "an unknown order of gate and up" 4 "--from-glu" "$dir/bare.safetensors" --layer 0 --input "$in" --activation swiglu
  status "the order from the user" 0 forward "$dir/bare.safetensors" --from-glu contiguous --layer 0 --input "$in" \
    --activation swiglu --output "$dir/y.safetensors"
  rm -rf "$dir"
}
