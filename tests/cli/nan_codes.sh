# Codes that stand for NaN: a conversion that decodes says how many there are, and where.

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
