# diff: what was planted in a model is what is found, in another layout, naming and format, with the right numbers.

# planted_numbers A B: the tensors that diff --json found in $WORK/.out, against what Python computes from the two models
# as Hugging Face stores them, where each tensor is one matrix.
planted_numbers() {
  python3 - "$WORK/.out" "$1" "$2" <<'PY'
import json, math, os, struct, sys

def load(path):
    with open(os.path.join(path, "model.safetensors"), "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header, data = json.loads(file.read(size)), file.read()
    header.pop("__metadata__", None)
    return {name: (v["dtype"], v["shape"], data[slice(*v["data_offsets"])]) for name, v in header.items()}

def values(dtype, raw):
    if dtype == "F32":
        return struct.unpack(f"<{len(raw) // 4}f", raw)
    assert dtype == "BF16", dtype
    return [struct.unpack("<f", b"\0\0" + raw[i : i + 2])[0] for i in range(0, len(raw), 2)]

def measured(a, b):
    x, y = values(a[0], a[2]), values(b[0], b[2])
    size = 2 if a[0] == "BF16" else 4
    if a[0] == b[0]:
        bits = lambda t: [t[2][i : i + size] for i in range(0, len(t[2]), size)]
        differ = [i for i, (p, q) in enumerate(zip(bits(a), bits(b))) if p != q]
    else:
        differ = [i for i, (p, q) in enumerate(zip(x, y)) if p != q]
    gaps = [abs(p - q) for p, q in zip(x, y)]
    rel = [0.0 if g == 0 else math.inf if p == 0 else g / abs(p) for p, g in zip(x, gaps)]
    rms = math.sqrt(math.fsum(g * g for g in gaps) / len(gaps))
    norm = lambda v: math.sqrt(math.fsum(i * i for i in v))
    cosine = math.fsum(p * q for p, q in zip(x, y)) / (norm(x) * norm(y)) if norm(x) and norm(y) else None
    relative = norm(gaps) / norm(x) if norm(x) else 0 if not norm(gaps) else None
    return differ, max(gaps), max(rel), rms, x, y, relative, cosine

found = json.load(open(sys.argv[1]))
a, b = load(sys.argv[2]), load(sys.argv[3])
expected = {name for name in a if a[name] != b.get(name)}
named = {t["tensor_a"]: t for t in found["tensors"] if t["only_in"] != "b"}
assert set(named) == expected, (set(named) ^ expected)
assert found["equal"] == (not found["tensors"])
for name, t in named.items():
    if name not in b:
        assert (t["only_in"], t["dtype_b"], t["shape_b"], t["differing"]) == ("a", None, None, None), t
        continue
    assert t["only_in"] is None and (t["dtype_a"], t["dtype_b"]) == (a[name][0], b[name][0]), t
    if a[name][1] != b[name][1]:
        assert t["differing"] is None and t["max_abs"] is None, t
        continue
    differ, gap, rel, rms, x, y, relative, cosine = measured(a[name], b[name])
    assert (t["elements"], t["differing"]) == (len(x), len(differ)), t
    assert t["max_abs"] == gap and t["max_rel"] == (rel if rel < math.inf else None), (t, gap, rel)
    assert math.isclose(t["rms"], rms, rel_tol=1e-12, abs_tol=0), (t, rms)
    for found_value, value in ((t["relative_norm"], relative), (t["cosine"], cosine)):
        assert found_value == value or math.isclose(found_value, value, rel_tol=1e-12, abs_tol=1e-14), (t, relative, cosine)
    if differ:
        cols = a[name][1][-1]
        assert (t["first"]["row"], t["first"]["column"]) == (divmod(differ[0], cols) if len(a[name][1]) > 1
            else (0, differ[0])), t
        rows = sorted({i // cols for i in differ}) if len(a[name][1]) > 1 else [0]
        assert (t["differing_rows"], t["rows"]) == (len(rows), rows[:8]), (t, rows)
        as_float = lambda text: struct.unpack("<f", struct.pack("<f", float(text)))[0]
        assert as_float(t["first"]["number_a"]) == x[differ[0]], t
        assert as_float(t["first"]["number_b"]) == y[differ[0]], t
largest = [t["max_abs"] for t in found["tensors"] if t["max_abs"] is not None and t["dtype_a"] == t["dtype_b"]]
assert largest == sorted(largest, reverse=True), "not sorted"
assert sum(layer["differing"] for layer in found["layers"]) == len(found["tensors"])
PY
}

# Where elements are compared: as forward_device.
diff_device=(--device "${GLU_CKPT_TEST_DEVICE:-cpu}")

# diff_plants NAME FAMILY CODE COUNT [CONVERT OPTIONS...]: CODE makes B of the family's model, which is compared as it is
# and after a conversion.
diff_plants() {
  local name=$1 family=$2 code=$3 count=$4 hf=$TESTDATA/whole/$2/hf out=$WORK/diff
  shift 4
  edited_model "$family" "$out.b" "$code" || { bad "$name: no such edit" && return; }
  status "diff: $name" 1 diff "$hf" "$out.b" --json "${diff_device[@]}"
  check "diff: $name: $(json_get 'len(v["tensors"])') tensors" [ "$(json_get 'len(v["tensors"])')" == "$count" ]
  check "diff: $name: as Python computes it" planted_numbers "$hf" "$out.b"
  if (($#)); then
    status "diff: $name: convert" 0 convert "$out.b" "$out.c" "$@" -q
    status "diff: $name, converted" 1 diff "$hf" "$out.c" --json "${diff_device[@]}"
    check "diff: $name, converted: as Python computes it" planted_numbers "$hf" "$out.b"
    status "diff: $name: the converted one is as its source" 0 diff "$out.b" "$out.c"
  fi
  rm -rf "$out".*
}

diff_planted() {
  local gate="model.layers.1.mlp.experts.3.gate_proj.weight" to=(--to megatron --glu interleaved:8) code
  diff_plants "one element" qwen3_moe "n = '$gate'; t[n][2] = t[n][2][:400] + b'\\x80\\x42' + t[n][2][402:]" 1 "${to[@]}"
  diff_plants "one row" qwen3_moe "n = '$gate'; t[n][2] = t[n][2][:256] + b'\\x00\\x3f' * 64 + t[n][2][384:]" 1 \
    "${to[@]}"
  code="x = 'model.layers.0.mlp.experts.'; p = ['gate', 'up', 'down']
for q in p:
    m, n = x + f'1.{q}_proj.weight', x + f'6.{q}_proj.weight'
    t[m][2], t[n][2] = t[n][2], t[m][2]"
  diff_plants "two experts exchanged" qwen3_moe "$code" 6 "${to[@]}"
  diff_plants "everything" qwen3_moe "[v.__setitem__(2, bytes(b ^ 1 for b in v[2])) for v in t.values()]" \
    "$(tensors "$TESTDATA/whole/qwen3_moe/hf" | wc -l)" "${to[@]}"
  code="n = 'model.norm.weight'; v = t[n]; v[0] = 'F32'
v[2] = b''.join(b'\\0\\0' + v[2][i:i + 2] for i in range(0, len(v[2]), 2))"
  diff_plants "a dtype" qwen3_moe "$code" 1
  diff_plants "a dtype, and an element" qwen3_moe "$code; v[2] = v[2][:4] + b'\\0\\0\\x60\\x40' + v[2][8:]" 1
  diff_plants "a shape" qwen3_moe "t['model.norm.weight'][1] = [8, 8]" 1
  diff_plants "a missing bias" gpt_oss "del t['model.layers.1.self_attn.o_proj.bias']" 1
}

# GatedDeltaNet's norm is one element w more in one naming than in the other. What w - 1 does not hold, in F32, is seen
# all the same.
diff_computed_norm() {
  local out=$WORK/diffn n=model.layers.1.linear_attn.norm.weight plant edit i=0
  plant="t['$n'] = ['F32', [12], struct.pack('<12I', *range(0x3f800000, 0x3f80000b), 0x3a800003)]"
  edited_model qwen3_next "$out.a" "$plant"
  for edit in "0x3a800002" "0" "0x80000000" "0x7fc00001" "0x7fc00002"; do
    edited_model qwen3_next "$out.$((++i))" "${plant/0x3a800003/$edit}"
    status "a norm's $edit against 0x3a800003: verify" 1 verify "$out.a" "$out.$i"
    check "a norm's $edit: verify names it: $OUT" has "$OUT" "row 0, column 11: 0.0009765628 (0x3a800003) in A"
    status "a norm's $edit against 0x3a800003: diff" 1 diff "$out.a" "$out.$i" "${diff_device[@]}"
  done
  status "a norm's 0 against its -0" 1 verify "$out.2" "$out.3"
  check "a norm's 0 against its -0: $OUT" has "$OUT" "0 (0x00000000) in A, -0 (0x80000000) in B"
  status "a norm's NaNs" 1 verify "$out.4" "$out.5"
  # The digest of bytes that pass is the digest of the files.
  status "such a norm regrouped" 0 convert "$out.a" "$out.g" --experts grouped --glu interleaved:4 \
    --allow-foreign-order -q
  status "such a norm regrouped: verify" 0 verify "$out.a" "$out.g"
  status "such a norm regrouped: diff" 0 diff "$out.a" "$out.g"
  status "such a norm regrouped: check" 0 check "$out.g"
  rm -rf "$out".*
}

# Rows behind vocab_size are no part of the model, and in no digest; the files are not the same all the same.
diff_padding() {
  local out=$WORK/diffp answers=(--from-glu contiguous --to-glu contiguous) pad
  status "padding: convert" 0 convert "$TESTDATA/whole/qwen3_moe/hf" "$out.m" --to megatron --format safetensors -q
  for pad in 1 2; do
    edited_checkpoint "$out.m" "$out.$pad" "v = t['output_layer.weight']
size = len(v[2]) // v[1][0]; v[1][0] += 3; v[2] += b'\\x3e' * (3 * size - 1) + b'\\x0$pad'"
  done
  status "padding: the same" 0 verify "$out.1" "$out.1" "${answers[@]}"
  check "padding: the same: $OUT" has "$OUT" "every tensor is byte-identical"
  status "padding: another" 0 verify "$out.1" "$out.2" "${answers[@]}"
  check "padding: another: $OUT" has "$OUT" "not byte-identical: 1 tensor differs in padding"
  check "padding: another: names it: $OUT" has "$OUT" "first in output_layer.weight"
  status "padding: --json" 0 verify "$out.1" "$out.2" "${answers[@]}" --json
  check "padding: --json" [ "$(json_get 'v["equal"], v["same_layout"], v["differing_padding"]')" == \
    "(True, False, ['output_layer.weight'])" ]
  rm -rf "$out".*
}

diff_text() {
  local hf=$TESTDATA/whole/qwen3_moe/hf out=$WORK/difft gate="model.layers.1.mlp.experts.3.gate_proj.weight"
  status "diff: equal" 0 diff "$hf" "$hf"
  check "diff: equal: $OUT" grep -qE '^equal: the same [0-9]+ matrices and tensors, ' <<<"$OUT"
  edited_model qwen3_moe "$out.b" "n = '$gate'; t[n][2] = b'\\x80\\x3f' + t[n][2][2:]"
  status "diff -v" 1 diff "$hf" "$out.b" -v
  # shellcheck disable=SC2016
  check "diff -v: $OUT" python3 - "$WORK/.out" <<'PY'
import re, sys
lines = open(sys.argv[1]).read().splitlines()
assert re.fullmatch(r"different: 1 of \d+ matrices and tensors differ, 0 only in A, 0 only in B", lines[0]), lines
assert lines[1].split() == "LAYER DIFFER ELEMENTS MAX ABS RMS RELATIVE COSINE".split(), lines
assert re.match(r"1 +1 of \d+ +1 \(", lines[2]), lines
assert lines[3] == "" and re.fullmatch(
    r"layer 1 routed expert 3 gate weight: 1 of 2048 elements differ, max abs \S+, rms \S+, relative norm \S+, cosine [0-9.]+; first in row 0, column 0: "
    r"\S+ \(0x[0-9a-f]{4}\) in A, 1 \(0x3f80\) in B", lines[4]), lines
assert lines[5:] == ["1 other layer is equal"], lines
PY
  status "diff" 1 diff "$hf" "$out.b"
  check "diff names the expert where few differ: $OUT" has "$OUT" "layer 1 routed expert 3 gate weight: 1 of 2048 elements differ"
  edited_model qwen3_moe "$out.c" "
for k in t:
    if 'experts' in k: t[k][2] = bytes([t[k][2][0] ^ 1]) + t[k][2][1:]
t['$gate'][2] = b'\x80\x44' + t['$gate'][2][2:]"
  status "diff of many" 1 diff "$hf" "$out.c"
  check "diff names what stands out: $OUT" grep -qE '^stands out: layer 1 routed expert 3: 3 matrices and tensors differ, max abs 1024[0-9.]*, rms [0-9.]+, relative norm [0-9.]+, cosine [0-9.e+-]+; [0-9.e+]+ times as far off as most$' <<<"$OUT"
  status "diff --json of many" 1 diff "$hf" "$out.c" --json
  check "diff --json has what stands out" [ "$(json_get '[(s["name"], s["layer"], s["expert"], s["tensors"], s["max_abs"] > 1000, s["times"] > 4, s["cosine"] < 1) for s in v["stands_out"]]')" == "[('layer 1 routed expert 3', 1, 3, 3, True, True, True)]" ]
  status "diff of many" 1 diff "$hf" "$out.c"
  check "diff names nothing else: $OUT" [ "$(grep -c '^stands out' <<<"$OUT")" == 1 ]
  edited_model qwen3_moe "$out.d" "
for k in t:
    if 'layers.1' in k and ('experts.2.' in k or 'experts.5.' in k or 'experts.6.' in k): t[k][2] = b'\x80\x44' + t[k][2][2:]"
  status "diff of three experts" 1 diff "$hf" "$out.d"
  check "diff names each of few experts: $OUT" [ "$(grep -oE '^layer 1 routed expert [0-9]: 3 matrices and tensors differ' <<<"$OUT" | cut -d' ' -f5 | sort | tr -d '\n')" == "2:5:6:" ]
  # Of what only one has no element was compared, and none is said to be equal.
  edited_model qwen3_moe "$out.e" "t['model.layers.1.more'] = ['F32', [2], bytes(8)]"
  status "diff of what only one has" 1 diff "$hf" "$out.e"
  check "diff of what only one has: $OUT" grep -qE '^1 +[01] of [0-9]+ +- +- +- +- +-  1 in only one$' <<<"$OUT"
  status "diff -q" 1 diff "$hf" "$out.b" -q
  if [[ $OUT != *$'\n'* && $OUT == "different: 1 of "*" matrices and tensors differ"* ]]; then pass; else bad "diff -q is one line: $OUT"; fi
  check "diff -q tells nothing beside it" [ -z "$ERR" ]
  status "verify -q" 1 verify "$hf" "$out.b" -q
  if [[ $OUT != *$'\n'* && $OUT == "different: 1 matrix or tensor differs"* ]]; then pass; else bad "verify -q is one line: $OUT"; fi
  check "verify -q tells nothing beside it" [ -z "$ERR" ]
  status "diff --tensors of another layer" 0 diff "$hf" "$out.b" --tensors '*.layers.0.*'
  status "diff --tensors of this expert" 1 diff "$hf" "$out.b" --tensors 'layer 1 routed expert 3 *'
  status "diff --tensors of nothing" 2 diff "$hf" "$out.b" --tensors 'nothing*'
  check "diff --tensors of nothing: says how to list them" has "$ERR" "inspect PATH --tensors"
  status "verify shows the same" 1 verify "$hf" "$out.b" -v
  check "verify shows the same: $OUT" has "$OUT" "layer 1 routed expert 3 gate weight: 1 of 2048 elements differ, max abs"
  check "verify prints numbers" has "$OUT" "in A, 1 (0x3f80) in B"
  status "verify --json shows the same" 1 verify "$hf" "$out.b" --json
  check "verify --json: one tensor" [ "$(json_get 'v["tensors"][0]["differing"]')" == 1 ]
  status "verify --json has its own layers" 1 verify "$hf" "$out.b" --json
  check "verify --json: layer 1" [ "$(json_get '[l["layer"] for l in v["layers"]]')" == "[1]" ]
  rm -rf "$out".*
}

diff_unknown_order() {
  local a=$TESTDATA/megatron/homogeneous out=$WORK/diffu
  status "diff: unknown orders of both" 0 diff "$a" "$a"
  check "diff: unknown orders: warned of" has "$ERR" "warning: nothing says in which order"
  status "diff: unknown order of one" 4 diff "$a" "$a" --from-glu contiguous --from-shared-glu contiguous
  rm -rf "$out".*
}
