"""Messages that name the thing that is there."""
import json
import pathlib
import struct

from case import Case, Run, both, config_changed, read_safetensors, tensors_changed


def recorded_naming(naming: str):
    """Returns a check that the record of OUT names this naming."""

    def check(out: pathlib.Path) -> str:
        said = json.loads((out / "glu_ckpt.json").read_text())["naming"]
        return "" if said == naming else f"the record says {said}, not {naming}"

    return check


V5 = recorded_naming("hf:qwen3_vl_moe-v5")
GROUP = "--experts grouped --glu contiguous"
QWEN3_VL = "qwen3_vl_per_expert"

QWEN3_VL_CASES = [
    Case(QWEN3_VL, f"src_{word}", [
        Run("convert SRC OUT --force", check=V5),
        Run(f"convert SRC OUT {GROUP}", check=V5),
        Run("verify SRC OUT"),
        Run("convert OUT OUT2 --experts indexed --glu split"),
        Run("verify SRC OUT2 --decode bf16"),
        Run("convert SRC OUT --decode bf16", truth=f"truth_{word}.safetensors", some=True, check=V5),
        Run(f"convert SRC OUT --decode bf16 {GROUP}", check=V5),
        Run("verify SRC OUT --decode bf16"),
        Run("convert OUT OUT2 --experts indexed --glu split", truth=f"truth_{word}.safetensors", some=True),
        # The hub's own form, [in, out], which `--to hf` gives.
        Run("convert OUT OUT2 --to hf", check=recorded_naming("hf:qwen3_vl_moe")),
    ])
    for word in ("awq", "nvfp4")
]

HEAD = "model.layers.2.shared_head.head.weight"
TO_MEGATRON = "convert SRC OUT --decode bf16 --to megatron"


def bf16(value: float) -> bytes:
    return struct.pack("<f", value)[2:]


def from_bf16(data: bytes) -> float:
    return struct.unpack("<f", b"\0\0" + data)[0]


def e4m3(code: int) -> float:
    exponent, fraction = code >> 3 & 15, code & 7
    size = fraction / 512 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7)
    return -size if code & 128 else size


def head_off_by(steps: float, index: int):
    """Returns a change of one number of lm_head to what its code in MTP's copy stands for, and so many steps more."""

    def edit(tensors: dict) -> None:
        codes, scales = tensors[HEAD], tensors[HEAD + "_scale"]
        dtype, shape, data = tensors["lm_head.weight"]
        code, scale = codes[2][index] & 127, from_bf16(scales[2][index // shape[1] * 2 :][:2])
        number = (e4m3(code) + steps * (e4m3(code + 1) - e4m3(code))) * scale
        number = -number if codes[2][index] & 128 else number
        tensors["lm_head.weight"] = dtype, shape, data[: 2 * index] + bf16(number) + data[2 * index + 2 :]

    return tensors_changed(edit)


def names_swapped(a: str, b: str, tensors: dict) -> None:
    """Of two weights, and their scales, each gets the other's name."""
    for end in ("", "_scale"):
        first, second = tensors.pop(a + end, None), tensors.pop(b + end, None)
        if first:
            tensors[b + end] = first
        if second:
            tensors[a + end] = second


def as_integers(bits: int):
    """Returns a change of the copy to signed integers with a scale for each row, as compressed-tensors stores them."""

    def edit(tensors: dict) -> None:
        _, (rows, cols), data = tensors["lm_head.weight"]
        most, codes, scales = 2 ** (bits - 1), b"", b""
        for row in range(rows):
            numbers = [from_bf16(data[2 * i :][:2]) for i in range(row * cols, (row + 1) * cols)]
            scale = from_bf16(bf16(max(map(abs, numbers)) / (most - 1)))
            found = [max(-most, min(most - 1, round(n / scale))) for n in numbers]
            if bits == 4:
                found = [found[i] + 8 | found[i + 1] + 8 << 4 for i in range(0, cols, 2)]
            codes += struct.pack(f"<{len(found)}{'b' if bits == 8 else 'B'}", *found)
            scales += bf16(scale)
        tensors[HEAD + "_scale"] = "BF16", [rows, 1], scales
        del tensors[HEAD]
        if bits == 8:
            tensors[HEAD] = "I8", [rows, cols], codes
        else:
            tensors[HEAD + "_packed"] = "I32", [rows, cols // 8], codes
            tensors[HEAD + "_shape"] = "I64", [2], struct.pack("<2q", rows, cols)

    def change(source: pathlib.Path) -> None:
        tensors_changed(edit)(source)
        path = source / "config.json"
        config = json.loads(path.read_text())
        weights = {"num_bits": bits, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False}
        group = {"targets": ["re:.*shared_head.head$"], "weights": weights, "input_activations": None,
                 "format": "int-quantized" if bits == 8 else "pack-quantized"}
        config["quantization_config"]["config_groups"] = {
            "group_1": group, **config["quantization_config"]["config_groups"]}
        path.write_text(json.dumps(config))

    return change


def embedding_is_quantized(tensors: dict) -> None:
    """MTP's embedding is the head's codes, and the model's embedding what those were made of."""
    for end in ("", "_scale"):
        tensors["model.layers.2.embed_tokens.weight" + end] = tensors[HEAD + end]
    tensors["model.embed_tokens.weight"] = tensors["lm_head.weight"]


def head_is_tied(tensors: dict) -> None:
    """The head is the embedding's, and MTP has none of its own."""
    embedding_is_quantized(tensors)
    names_swapped("lm_head.weight", HEAD, tensors)
    for name in (HEAD, "model.layers.2.embed_tokens.weight"):
        tensors[name] = tensors["model.embed_tokens.weight"]
        tensors.pop(name + "_scale", None)


def not_ignored(source: pathlib.Path) -> None:
    path = source / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["ignore"].remove("lm_head")
    path.write_text(json.dumps(config))


WITHIN = r"within the rounding of codes"
COPIES = "mtp_head_quantized"
ROUND_TRIP = [
    Run(TO_MEGATRON, says=WITHIN),
    Run("verify SRC OUT --decode bf16"),
    Run("convert OUT OUT2 --to hf"),
    Run("verify SRC OUT2 --decode bf16", says="equal", never_says="byte-identical"),
]

COPY_CASES = [
    Case(COPIES, "src_glm", [
        *ROUND_TRIP,
        Run("convert SRC OUT --decode bf16", truth="truth_glm.safetensors"),
        Run("verify SRC OUT --decode bf16", says="byte-identical"),
        Run("convert SRC OUT --decode f32 --to megatron", says=WITHIN),
        Run("convert SRC OUT --decode bf16 --to torchtitan", (0, 3, 4), never_says="copy-differs"),
    ]),
    *(Case(COPIES, "src_glm", ROUND_TRIP, change=as_integers(bits), note=f"int{bits}") for bits in (4, 8)),
    Case(COPIES, "src_glm", ROUND_TRIP, note="the model's head is codes",
         change=both(not_ignored, tensors_changed(lambda t: names_swapped("lm_head.weight", HEAD, t)))),
    Case(COPIES, "src_glm", ROUND_TRIP, change=tensors_changed(embedding_is_quantized), note="embedding"),
    Case(COPIES, "src_glm", ROUND_TRIP, note="tied",
         change=both(not_ignored, config_changed(tie_word_embeddings=True), tensors_changed(head_is_tied))),
    *(Case(COPIES, "src_glm", [Run(TO_MEGATRON, says=WITHIN)], change=head_off_by(steps, 300), note=f"{steps} steps")
      for steps in (0.45, -0.2)),
    *(Case(COPIES, "src_glm", [Run(TO_MEGATRON, 3, says=r"shared_head.head.weight' should repeat 'lm_head.weight'")],
           change=head_off_by(steps, index), note=f"{steps} steps at {index}")
      for steps in (0.8, -1.0) for index in (0, 300, 767)),
]

DECODE = "convert SRC OUT --decode bf16"
MESSAGES = "quantized_messages"
FALSE_WAYS = r"download complete|--decode bf16 reads them"


def refusals(says: str) -> list[Run]:
    return [Run(command, (3, 4), says=says, never_says=FALSE_WAYS)
            for command in (DECODE, "convert SRC OUT --to megatron", "inspect SRC --strict")]


def shard_is(content: bytes):
    """Returns a change that puts something else in place of the second shard."""

    def change(source: pathlib.Path) -> None:
        (source / "model-00002-of-00003.safetensors").write_bytes(content)

    return change


def dtype_is(dtype: str):
    """Returns a change of the codes' dtype to another one of eight bits."""

    def edit(tensors: dict) -> None:
        for name, (old, shape, data) in tensors.items():
            if old == "F8_E4M3FNUZ":
                tensors[name] = dtype, shape, data

    return tensors_changed(edit)


def scales_are_of_rows(source: pathlib.Path) -> None:
    path = source / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["config_groups"]["group_0"]["weights"]["strategy"] = "channel"
    path.write_text(json.dumps(config))


def second_file_listed(source: pathlib.Path) -> None:
    path = source / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"].update({name: "mtp.safetensors" for name in read_safetensors(source / "mtp.safetensors")})
    path.write_text(json.dumps(index))


MESSAGE_CASES = [
    Case(MESSAGES, "src_fnuz", refusals(r"F8_E4M3FNUZ \[")),
    Case(MESSAGES, "src_fnuz", refusals(r"F8_E5M2FNUZ \["), change=dtype_is("F8_E5M2FNUZ"), note="e5m2"),
    Case(MESSAGES, "src_fnuz", [Run(DECODE), Run("inspect SRC --strict")], note="e4m3",
         change=both(dtype_is("F8_E4M3"), scales_are_of_rows)),
    Case(MESSAGES, "src_f4", refusals(r"codes in F4 \[")),
    Case(MESSAGES, "src_bnb", refusals("bitsandbytes")),
    Case(MESSAGES, "src_mlx", refusals("MLX")),
    Case(MESSAGES, "src_llama4", refusals("llama4")),
    Case(MESSAGES, "src_lfs", refusals("Git LFS")),
    *(Case(MESSAGES, "src_lfs", refusals(says), change=shard_is(content), note=note) for note, says, content in (
        ("html", "HTML", b"<!DOCTYPE html>\n<html><head><title>404</title></head></html>\n"),
        ("xml", "HTML or XML", b"\n<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>\n"),
        ("text", "it is text", b"Access to model x/y is restricted and you are not in the authorized list.\n"),
        ("binary", "header", bytes(range(128, 256))))),
    Case(MESSAGES, "src_unlisted_mtp", [Run("inspect SRC --strict", 3, says=r"mtp\.safetensors is in no index"),
                                        Run("convert SRC OUT --to megatron", says=r"warning: mtp\.safetensors")]),
    Case(MESSAGES, "src_unlisted_mtp", [Run("inspect SRC --strict", never_says="in no index")],
         change=second_file_listed, note="listed"),
    Case(MESSAGES, "src_unlisted_mtp", [Run("inspect SRC --strict", never_says="in no index")],
         change=config_changed(num_nextn_predict_layers=0), note="not promised"),
]

def narrowed(word: str, *experts: int):
    """Returns a change that cuts columns off tensors of layer 0."""

    def edit(tensors: dict) -> None:
        for name in [n for n in tensors if n.startswith("model.layers.0.") and n.endswith(word)]:
            if experts and int(name.split(".experts.")[1].split(".")[0]) not in experts:
                continue
            dtype, (rows, cols), data = tensors[name]
            tensors[name] = dtype, [rows, cols - 4], data[: len(data) // cols * (cols - 4)]

    return tensors_changed(edit)


def stray(name: str, dtype: str = "F32"):
    """Returns a change that adds a tensor of that name, of eight bytes."""
    shape = [{"F32": 2, "U16": 4}.get(dtype, 8)]
    return tensors_changed(lambda tensors: tensors.update({name: (dtype, shape, bytes(8))}))


# Neither a weight nor a bias of anything: `convert` to another naming refuses it, and `inspect` passed it in silence.
STRAY = [
    Case("whole/qwen3_moe", "hf", [
        Run("inspect SRC --strict", 3, says=f"problem.*'{name}' is a tensor that a qwen3_moe model is not known to have"),
    ], change=stray(name, dtype), note=f"stray {name} of {dtype}")
    for name in ("model.layers.0.mlp.zzz", "foo.bar")
    # One tensor of codes made the model a quantized one, whose unknown tensors other rules judge.
    for dtype in ("F32", "F8_E8M0", "F8_E5M2", "U16")
]
# The tensor that is wrong is named, not the one beside it.
BLAMED = [
    Case("whole/qwen3_moe", "hf", [
        Run("inspect SRC", 3, says=r"down_proj\.weight' has shape \[64, 28\], expected \[64, 32\] beside an FC1 with F = 32"),
    ], change=narrowed("down_proj.weight", *experts), note=f"narrower FC2 {experts}")
    for experts in ((1,), ())
]

CASES = [
    Case("whole/qwen3_moe", "hf", [
        Run("plan SRC OUT --to megatron --consume-source", says=r"warning: --consume-source saves no room here: it needs .* SRC is one file"),
    ], note="one file to consume"),
    *BLAMED,
    *STRAY,
    *COPY_CASES,
    *MESSAGE_CASES,
    Case("small_messages", "src_mlx", [Run("inspect SRC", 0)]),
    *QWEN3_VL_CASES,
]
