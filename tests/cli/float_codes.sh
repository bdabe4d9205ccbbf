# Codes of 8 bits. MXFP8: weights in fp8, and a byte for 32 of them. Codes that stand for NaN.

# write_mxfp8 DIR SCALES WORD: two layers of three experts, F = 64, H = 96; SCALES are rows, columns or padded, WORD is
# what they are called. Elements and scales say their place. FC2 has scales too.
write_mxfp8() {
  python3 - "$@" <<'PY'
import json, os, struct, sys
path, scales, word = sys.argv[1:]
E, F, H = 3, 64, 96

def up(n, m):
    return -(-n // m) * m

header, data = {"__metadata__": {"format": "pt"}}, b""

def put(name, dtype, shape, raw):
    global data
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
    data += raw

for layer in range(2):
    base = f"model.layers.{layer}.mlp."
    put(base + "gate.weight", "BF16", [E, H], struct.pack(f"<{E * H}H", *(0x3c00 + i % 255 for i in range(E * H))))
    for e in range(E):
        for p, part in enumerate(("gate_proj", "up_proj", "down_proj")):
            rows, cols = (H, F) if part == "down_proj" else (F, H)
            seed = ((layer * 131 + e) * 3 + p) * 67
            code = bytes((seed + r * 71 + c * 37) % 112 for r in range(rows) for c in range(cols))
            name = f"{base}experts.{e}.{part}."
            put(name + "weight", "F8_E4M3", [rows, cols], code)
            r, c = (rows // 32, cols) if scales == "columns" else (rows, cols // 32)
            stored = (up(r, 128), up(c, 4)) if scales == "padded" else (r, c)
            # About 2^-7. Padding is none of the values in use.
            raw = bytes(119 + (seed + i * 29 + j * 13) % 3 if i < r and j < c else 255
                        for i in range(stored[0]) for j in range(stored[1]))
            put(name + word, "U8", list(stored), raw)
os.makedirs(path, exist_ok=True)
text = json.dumps(header).encode()
open(os.path.join(path, "model.safetensors"), "wb").write(struct.pack("<Q", len(text)) + text + data)
json.dump({"model_type": "qwen3_moe", "num_experts": E, "num_hidden_layers": 2, "hidden_act": "silu"},
          open(os.path.join(path, "config.json"), "w"))
PY
}

# there_and_back NAME SRC OPTIONS...: another layout has the digest of the source, computes the same bits, and turned
# back it has the same tensors.
there_and_back() {
  local name=$1 src=$2 there=$WORK/mx_there back=$WORK/mx_back
  shift 2
  rm -rf "$there" "$back"
  status_again "$name: plan" 0 plan "$src" "$there" "$@" --allow-foreign-order || return
  status "$name: convert" 0 convert "$src" "$there" "$@" --allow-foreign-order -q || return
  check "$name: digest" [ "$(digest "$src")" == "$(digest "$there")" ]
  status "$name: verify" 0 verify "$src" "$there" --forward --json -q
  check "$name: zero bits" [ "$(json_get 'len(v["forward"]) == 2 and all(
    l["differing_bits"] == 0 and l["control_caught"] for l in v["forward"])')" == True ]
  status "$name: back" 0 convert "$there" "$back" --experts indexed --glu split -q
  check "$name: the same tensors" [ "$(tensors "$src")" == "$(tensors "$back")" ]
}

mxfp8_converts() {
  local scales word src=$WORK/mx
  for scales in rows columns; do
    for word in weight_scale weight_scale_inv; do
      rm -rf "$src"
      write_mxfp8 "$src" $scales $word
      there_and_back "mxfp8 $scales $word grouped" "$src" --experts grouped
      there_and_back "mxfp8 $scales $word interleaved" "$src" --experts grouped --glu interleaved:32
      there_and_back "mxfp8 $scales $word contiguous" "$src" --glu contiguous
    done
  done
  rm -rf "$src"
  write_mxfp8 "$src" rows weight_scale
  there_and_back "mxfp8 rows of 8" "$src" --experts grouped --glu interleaved:8
  status "mxfp8 is recognized" 0 inspect "$src" --json
  check "mxfp8: no problems" [ "$(json_get 'v["problems"] == [] and "U8" in v["dtypes"] and "F8_E4M3" in v["dtypes"]')" == True ]
}

mxfp8_refusals() {
  local src=$WORK/mx out=$WORK/mx_out k
  rm -rf "$src" "$out"
  write_mxfp8 "$src" columns weight_scale
  for k in 1 8 16; do
    status "mxfp8 columns cut by $k" 4 convert "$src" "$out" --glu interleaved:$k
    check "mxfp8 columns cut by $k: says so" has "$ERR" "32 x 1"
  done
  rm -rf "$src"
  write_mxfp8 "$src" padded weight_scale
  status "mxfp8 padded rows in other numbers" 4 convert "$src" "$out" --glu contiguous
  check "mxfp8 padded: says so" has "$ERR" "padded"
  there_and_back "mxfp8 padded, regrouped" "$src" --experts grouped
  rm -rf "$src"
  write_mxfp8 "$src" rows weight_scale
  status "mxfp8 transposed" 4 convert "$src" "$out" --naming hf:gpt_oss --experts grouped --glu interleaved:1
  status "mxfp8 for megatron" 4 convert "$src" "$out" --naming megatron --glu interleaved:32
  check "mxfp8: nothing was written" absent "$out"
}

# One scale byte is another model.
mxfp8_differs() {
  local src=$WORK/mx other=$WORK/mx_other
  rm -rf "$src" "$other"
  write_mxfp8 "$src" rows weight_scale
  cp -r "$src" "$other"
  python3 - "$other/model.safetensors" <<'PY'
import json, struct, sys
raw = bytearray(open(sys.argv[1], "rb").read())
size = struct.unpack("<Q", raw[:8])[0]
begin = 8 + size + json.loads(raw[8:8 + size])["model.layers.1.mlp.experts.2.up_proj.weight_scale"]["data_offsets"][0]
raw[begin:begin + 6] = raw[begin + 3:begin + 6] + raw[begin:begin + 3]
open(sys.argv[1], "wb").write(raw)
PY
  status "mxfp8 with two scale rows exchanged" 1 verify "$src" "$other" --forward --json -q
  check "mxfp8: where they differ" [ "$(json_get 'v["first_difference"]["layer"], v["first_difference"]["expert"], v["first_difference"]["role"], v["first_difference"]["row"]')" == "(1, 2, 'up', 0)" ]
  check "mxfp8: seen by running it" [ "$(json_get '[l["layer"] for l in v["forward"] if l["differing_bits"] > 0]')" == "[1]" ]
}

# Scales that bf16 cannot follow, of all weights: the same one is named every time, and the file that holds it.
mxfp8_beyond_bf16() {
  local src=$WORK/mx_beyond out=$WORK/mx_out i
  rm -rf "$src" "$out"
  write_mxfp8 "$src" rows weight_scale
  python3 - "$src/model.safetensors" <<'PY'
import json, struct, sys
raw = bytearray(open(sys.argv[1], "rb").read())
size = struct.unpack("<Q", raw[:8])[0]
for name, tensor in json.loads(raw[8:8 + size]).items():
    if name.endswith("weight_scale"):
        begin, end = (8 + size + offset for offset in tensor["data_offsets"])
        raw[begin:end] = b"\xfe" * (end - begin)
open(sys.argv[1], "wb").write(raw)
PY
  for i in 1 2 3; do
    status "mxfp8 beyond bf16: verify --forward" 4 verify "$src" "$src" --forward -q -j 8
    check "mxfp8 beyond bf16: where, not $ERR" has "$ERR" "$src/model.safetensors: 'model.layers.0.mlp.experts.0.gate_proj.weight'"
  done
  status "mxfp8 beyond bf16: convert --verify forward" 4 convert "$src" "$out" --experts grouped --verify forward -q
  check "mxfp8 beyond bf16: where, not $ERR" has "$ERR" "$src/model.safetensors: 'model.layers.0.mlp.experts.0.gate_proj.weight'"
  check "mxfp8 beyond bf16: nothing is left" absent "$out"
}

# ---- NaN: a conversion that decodes says how many such codes there are, and where

# nan_codes_planted: three in two weights of FP8, of both signs, beside the greatest number.
nan_codes_planted() {
  edited_checkpoint "$TESTDATA/quantized/fp8_block128" "$1" '
for name, codes in (("model.layers.0.mlp.experts.0.up_proj", {3: 0x7f, 36863: 0xff, 4: 0x7e}),
                    ("model.layers.1.mlp.experts.0.down_proj", {200: 0xff})):
  bytes_of = bytearray(t[name + ".weight"][2])
  for at, code in codes.items(): bytes_of[at] = code
  t[name + ".weight"][2] = bytes(bytes_of)'
}

nan_codes() {
  local in=$WORK/nan_codes out=$WORK/nan_out said="3 decoded weights are NaN or infinite, as the source's codes and scales have them: in 2 tensors of the output, first in" pid jobs to
  nan_codes_planted "$in"
  status "no NaN" 0 convert "$TESTDATA/quantized/fp8_block128" "$out" --decode bf16 --json
  check "no NaN: no warning" [ "$(json_get 'v["warnings"]')" == "[]" ]
  rm -rf "$out"
  for jobs in 1 3; do
    for to in bf16 f32; do
      status "NaN, $to, -j $jobs" 0 convert "$in" "$out" --decode $to --json -j $jobs --max-memory 1MiB
      check "NaN, $to, -j $jobs: warned of on stderr" \
        [ "$(grep -cF "warning: $said 'model.layers.0.mlp.experts.0.up_proj.weight'" "$WORK/.err")" == 1 ]
      check "NaN, $to, -j $jobs: in the report" \
        [ "$(json_get 'v["warnings"]')" == "[\"$said 'model.layers.0.mlp.experts.0.up_proj.weight'\"]" ]
      status "NaN, $to: it is what the source decodes to" 0 verify "$in" "$out" --decode $to -q
      rm -rf "$out"
    done
  done
  status "NaN in Megatron's layout" 0 convert "$in" "$out" --decode bf16 --to megatron -q
  says "the output's tensors are counted" "$said 'decoder.layers.0.mlp.experts.experts.linear_fc1.weight'"
  rm -rf "$out"
  status "NaN as it is" 0 convert "$in" "$out" --experts grouped --format torch --json
  check "codes that only move are not counted" [ "$(json_get '[w for w in v["warnings"] if not w.startswith("nothing loads the output")]')" == "[]" ]
  rm -rf "$out"

  # Killed once some weights are written, whichever they are, and resumed.
  edited_checkpoint "$TESTDATA/quantized/fp8_block128" "$in" '
for tensor in t.values():
  if tensor[0] == "F8_E4M3": tensor[2] = b"\x7f" + tensor[2][1:]'
  said="20 decoded weights are NaN or infinite, as the source's codes and scales have them: in 20 tensors of the output, first in"
  hold_anew
  "$HELD_PROGRAM" convert "$in" "$out" --decode f32 -q -j 1 --max-memory 1MiB </dev/null 2>/dev/null &
  pid=$!
  check "met at work" held 1 $pid
  kill -KILL $pid
  wait $pid 2>/dev/null
  check "NaN was written by then" grep -aqP '\x00\x00\xc0\x7f' -r "$out.partial"
  status "resumed" 0 convert "$in" "$out" --decode f32 --resume --max-memory 1MiB
  says "something was done" "resumed: "
  says "what the killed run met is counted, too" "$said"
  rm -rf "$in" "$out"

  edited_checkpoint "$TESTDATA/quantized/fp8_block128" "$in" '
t["model.layers.1.self_attn.q_proj.weight"][2] = b"\x7f" + t["model.layers.1.self_attn.q_proj.weight"][2][1:]'
  status "one NaN" 0 convert "$in" "$out" --decode bf16 -q
  says "one NaN" "1 decoded weight is NaN or infinite, as the source's code and scale have it: in 'model.layers.1.self_attn.q_proj.weight' of the output"
  rm -rf "$in" "$out"
}
