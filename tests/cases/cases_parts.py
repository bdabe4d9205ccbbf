"""Parts of a model: some of its routed experts. The right tensors are made here from the source's by their names."""
import json
import re

from case import TESTDATA, Case, Run, both, config_changed, read_safetensors, read_tensors, reported, tensors_changed, write_safetensors

NEW_EXPERT = re.compile(r"\.experts\.(\d+)\.")


def label(name: str, layers: int) -> str | None:
    """The layer in a name: "3", "mtp.0"; None where there is none."""
    if found := re.match(r"mtp\.layers\.(\d+)\.", name):
        return f"mtp.{found[1]}"
    if not (found := re.search(r"layers\.(\d+)\.", name)):
        return None
    layer = int(found[1])
    return f"mtp.{layer - layers}" if layer >= layers else str(layer)


def slabs(tensor, kept):
    """The slabs of a tensor along its first axis."""
    dtype, shape, data = tensor
    size = len(data) // shape[0]
    return dtype, [len(kept), *shape[1:]], b"".join(data[e * size : (e + 1) * size] for e in kept)


def keeps(name: str, lists, count: int = 0):
    """Returns a check that OUT has these experts of testdata's model `name`, and all else of it as it is. `lists` is one
    list, or one by layer."""
    source = TESTDATA / name

    def check(out):
        have, stored = read_tensors(out), read_tensors(source)
        text = json.loads((source / "config.json").read_text())
        config = json.loads((out / "config.json").read_text())
        text, config = text.get("text_config", text), config.get("text_config", config)
        layers = text["num_hidden_layers"]
        right = {}
        for key, tensor in stored.items():
            layer = label(key, layers)
            kept = lists if isinstance(lists, list) else lists.get(layer, [])
            if found := NEW_EXPERT.search(key):
                if int(found[1]) in kept:
                    right[f"{key[: found.start(1)]}{kept.index(int(found[1]))}{key[found.end(1) :]}"] = tensor
            elif re.search(r"mlp\.experts\.|mlp\.router\.|\.(mlp|mixer|block_sparse_moe)\.gate\.|correction_bias|expert_bias", key):
                right[key] = slabs(tensor, kept) if tensor[1] else tensor
            else:
                right[key] = tensor
        for key in sorted(right.keys() | have.keys()):
            if right.get(key) != have.get(key):
                return f"{key} is not what the source has"
        total = len(lists) if isinstance(lists, list) else len(next(iter(lists.values())))
        fields = [f for f in ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts") if f in text]
        if not fields or any(config[f] != total for f in fields):
            return f"config.json says {[config.get(f) for f in fields]} experts, not {total}"
        return ""

    return check


def list_beside(content):
    """Returns a change that writes CASE/keep.json."""
    return lambda source: (source.parent / "keep.json").write_text(json.dumps(content)) and None


def swap_router_rows(out):
    """Gives the first expert the second one's row."""
    path = next(out.glob("*.safetensors"))
    tensors = read_tensors(path)
    key = next(k for k in tensors if re.search(r"(gate|router)\.weight$", k))
    dtype, shape, data = tensors[key]
    row = len(data) // shape[0]
    tensors[key] = dtype, shape, data[row : 2 * row] + data[:row] + data[2 * row :]
    write_safetensors(path, tensors)
    (out / "glu_ckpt.json").unlink()
    return ""


def kept(family: str, kept_list, words: str, note: str, change=None, says: str = "") -> Case:
    """One that is written, right, told alike by verify, and lost to Megatron and back by nothing."""
    name = f"whole/{family}"
    return Case(name, "hf", [
        Run(f"convert SRC OUT {words}", says=says, check=keeps(f"{name}/hf", kept_list)),
        Run("inspect OUT --strict", plan=False),
        Run(f"verify SRC OUT {words}", plan=False),
        Run(f"convert SRC OUT2 --to megatron {words}"),
        Run("verify OUT OUT2", plan=False),
        Run(f"convert SRC OUT {words}", check=swap_router_rows),
        Run(f"verify SRC OUT {words}", 1, plan=False, says=r"router|gate"),
    ], change=change, note=note)


def with_states(spell):
    """Adds an optimizer's state of each weight, which says by its first bytes which layer it is of."""

    def edit(tensors: dict) -> None:
        for name, (_, shape, _) in list(tensors.items()):
            count = 1
            for extent in shape:
                count *= extent
            tensors[spell(name)] = ("F32", shape, bytes([ord((label(name, 99) or "9")[0])]) * 4 * count)

    return tensors_changed(edit)


def states_of_layer_1(spell):
    """Returns a check that OUT has the state of each of its weights, from layer 1 where it is one of a layer."""

    def check(out) -> str:
        found = read_tensors(out)
        weights = {name for name in found if "optimizer" not in name}
        if found.keys() - weights != {spell(name) for name in weights}:
            return "states of other weights than those that are there"
        wrong = [name for name in weights if found[spell(name)][2][:1] != (b"1" if label(name, 99) else b"9")]
        return f"a state of another layer for {wrong[0]}" if wrong else ""

    return check


TABLE = "model.layers.1.mlp.gate.tid2eid"


def table(dtype: str, experts: list[int]):
    """DeepSeek-V4's table of the experts of each token, of two for a token."""
    size = 8 if dtype == "I64" else 4
    return dtype, [len(experts) // 2, 2], b"".join(expert.to_bytes(size, "little") for expert in experts)


def table_is(out, dtype: str, experts: list[int]) -> str:
    found = read_tensors(out)[TABLE]
    return "" if found == table(dtype, experts) else f"tid2eid is {found}"


def refused(family: str, words: str, status: int, says: str, note: str, change=None, source: str = "hf") -> Case:
    return Case(f"whole/{family}", source, [Run(f"convert SRC OUT {words}", status, says=says)], change=change, note=note)


def quantized(name: str, words: str, note: str) -> Case:
    """Codes move with their scales: decoded before and after, they are the same."""
    return Case(f"quantized/{name}", ".", [
        Run(f"convert SRC OUT {words}"),
        Run("inspect OUT --strict", plan=False),
        Run(f"verify SRC OUT {words}", plan=False),
        Run(f"convert SRC OUT2 {words} --decode bf16"),
        Run("verify OUT OUT2 --decode bf16", plan=False),
    ], note=note)


def part_of_named_config(out):
    config = json.loads((out / "config.json").read_text())
    found = [config[f] for f in ("num_hidden_layers", "first_k_dense_replace", "n_routed_experts")]
    return "" if found == [2, 0, 4] else f"config.json says {found}"


CASES = [
    *(quantized(name, "--keep-experts 1-2", "part")
      for name in ("ct_int4_asym", "ct_int4_g32", "fp8_block128_ue8m0", "fp8_channel", "fp8_per_tensor", "gptq_int4",
                   "awq_int4", "mxfp4_gpt_oss")),
    quantized("nvfp4_modelopt", "--keep-experts 0-1", "part"),
    Case("quantized/nvfp4_modelopt", ".", [
        Run("convert SRC OUT --keep-experts 1-2", 3, says="names modules by their experts.*0-1 keeps their numbers")]),
    # A config.json that is named is that of the whole model.
    Case("whole/deepseek_v3", "hf", [
        Run("convert CASE/model.safetensors OUT --from-config SRC/config.json --layers 1-2 --keep-experts 1-4 --to hf",
            check=part_of_named_config, never_says="contradicts"),
    ], change=lambda source: (source / "model.safetensors").rename(source.parent / "model.safetensors") and None,
        note="named config"),
    kept("qwen3_moe", [0, 1, 2], "--keep-experts 0-2", "first experts"),
    Case("whole/qwen3_moe", "hf", [
        Run("convert SRC OUT --experts 4-5,7", check=keeps("whole/qwen3_moe/hf", [4, 5, 7])),
        Run("verify SRC OUT --keep-experts 4-5,7", plan=False),
    ], note="the range under --experts"),
    kept("qwen3_moe", [6, 1, 3], "--keep-experts CASE/keep.json", "in the order of the list", list_beside([6, 1, 3])),
    kept("qwen3_moe", {"0": [5, 2, 3], "1": [0, 7, 4]}, "--keep-experts CASE/keep.json", "by layer",
         list_beside({"0": [5, 2, 3], "1": [0, 7, 4]})),
    kept("qwen3_moe", {"0": [5, 2, 3], "1": [0, 7, 4]}, "--keep-experts CASE/keep.json", "by module",
         list_beside({"retained_experts": {"model.layers.0.mlp": [5, 2, 3], "model.layers.1.mlp": [0, 7, 4]}})),
    kept("qwen3_moe", {"0": [5, 2, 3], "1": [0, 7, 4]}, "--keep-experts CASE/keep.json", "lists in a list",
         list_beside([[5, 2, 3], [0, 7, 4]])),
    kept("deepseek_v3", {"1": [0, 2, 3, 5], "2": [1, 2, 3, 4], "mtp.0": [0, 1, 4, 5]}, "--keep-experts CASE/keep.json",
         "MTP counts behind the last layer", list_beside({"1": [0, 2, 3, 5], "2": [1, 2, 3, 4], "3": [0, 1, 4, 5]})),
    kept("deepseek_v3", {"1": [0, 2, 3, 5], "2": [1, 2, 3, 4], "mtp.0": [0, 1, 4, 5]}, "--keep-experts CASE/keep.json",
         "a list for each layer with experts", list_beside([[0, 2, 3, 5], [1, 2, 3, 4], [0, 1, 4, 5]])),
    kept("deepseek_v3", {"1": [0, 2, 3, 5], "2": [1, 2, 3, 4], "mtp.0": [0, 1, 4, 5]}, "--keep-experts CASE/keep.json",
         "a list for each layer", list_beside([None, [0, 2, 3, 5], [1, 2, 3, 4], [0, 1, 4, 5]])),
    kept("gpt_oss", [1, 3, 4, 5], "--keep-experts 1,3-5", "packed, with biases"),
    kept("qwen3_next", [1, 3], "--keep-experts 1,3", "with a shared expert and MTP"),
    kept("minimax_m2", [1, 3, 4], "--keep-experts 1,3-4", "with a correction bias"),
    kept("nemotron_h", [5, 3, 1], "--keep-experts 5,3,1", "without gates"),
    Case("whole/qwen3_moe", "hf", [
        Run("convert SRC OUT --keep-experts 2-5 --layers 1-1 --experts grouped"),
        Run("convert SRC OUT2 --keep-experts 2-5"),
        Run("verify OUT2 OUT", 1, plan=False, never_says="1.experts"),
    ], note="with layers"),
    refused("qwen3_moe", "--keep-experts 0-8", 3, "experts 0 to 7.*expert-missing", "an expert that there is not"),
    refused("qwen3_moe", "--keep-experts 0", 3, r"chooses 3 \(num_experts_per_tok\)", "fewer than the router chooses"),
    refused("qwen3_moe", "--keep-experts 0,1,1", 2, "expert 1 of layer 0 is there twice", "twice"),
    refused("qwen3_moe", "--keep-experts 3-1", 2, "is no range", "no range"),
    refused("qwen3_moe", "--experts 0-3 --keep-experts 0-3", 2, "said already", "said twice"),
    refused("qwen3_moe", "--keep-experts CASE/keep.json", 3, "not-found", "no file"),
    refused("qwen3_moe", "--keep-experts CASE/keep.json", 3, "layer 0 keeps 2 experts and layer 1 3", "different numbers",
            list_beside({"0": [0, 1], "1": [0, 1, 2]})),
    refused("qwen3_moe", "--keep-experts CASE/keep.json", 3, "no list for layer 1", "a layer that is not listed",
            list_beside({"0": [0, 1]})),
    refused("qwen3_moe", "--keep-experts CASE/keep.json", 3, "layer 2, which has none", "a layer that there is not",
            list_beside({"0": [0, 1], "1": [0, 1], "2": [0, 1]})),
    refused("qwen3_moe", "--keep-experts CASE/keep.json", 2, "taken out, not those that are kept", "what is pruned",
            list_beside({"pruned_experts": {"0": [0, 1], "1": [0, 1]}})),
    refused("qwen3_moe", "--keep-experts CASE/keep.json", 2, "two lists, 'retained_experts' and 'kept_experts'",
            "two lists by two names", list_beside({"kept_experts": {"0": [4, 5, 6], "1": [4, 5, 6]},
                                                   "retained_experts": {"0": [0, 1, 2], "1": [0, 1, 2]}})),
    refused("deepseek_v3", "--keep-experts CASE/keep.json", 3, "no list for layer mtp.0.*--drop mtp", "MTP is not listed",
            list_beside({"1": [0, 1, 2, 3], "2": [0, 1, 2, 3]})),
    Case("whole/deepseek_v3", "hf", [
        Run("convert SRC OUT --drop mtp --keep-experts CASE/keep.json",
            says="warning: .*expert 2 of layer 1 comes from group 0 to group 1"),
        Run("convert SRC OUT --keep-experts 0-1,3-4", never_says="comes from group"),
    ],
         change=list_beside({"1": [0, 1, 2, 3], "2": [0, 1, 2, 3]}), note="MTP is dropped"),
    refused("bailing_moe_v2", "--keep-experts 0-3", 4, r"4 experts.*3 groups.*multiple of 3.*not-divisible", "groups cut"),
    refused("bailing_moe_v2", "--keep-experts 0-2", 3, "two of its experts: keep 6", "groups of one",
            config_changed(num_experts_per_tok=2)),
    kept("bailing_moe_v2", [0, 1, 2, 3, 4, 5], "--keep-experts 0-5", "groups kept"),
    refused("llama3", "--keep-experts 0-3", 4, "no routed experts", "a dense model"),
    refused("qwen3_moe", "--keep-experts 2-5", 3, "'model.layers.0.mlp.gate.experts_of'", "a table of experts that no rule knows",
            tensors_changed(lambda tensors: tensors.update({"model.layers.0.mlp.gate.experts_of": ("I64", [4, 2], bytes(64))}))),
    Case("whole/minimax_m2", "hf", [
        Run("convert SRC OUT --to hf --layers 0 --keep-experts 0-1"),
        Run("verify SRC OUT --layers 0 --keep-experts 0-1", plan=False, says="--from-layers 0 --keep-experts 0-1 compares"),
        Run("verify SRC OUT --from-layers 0 --keep-experts 0-1", plan=False, says="equal: ", never_says="is a part"),
    ], note="--layers of verify"),
    # A part is compared with the same part of its source.
    *[Case("whole/" + family, "hf", [
        Run("convert SRC OUT --to megatron" + part), Run("verify SRC OUT", 1, plan=False, says="is a part .*" + part.strip().replace("--layers", "--from-layers")),
        Run("verify SRC OUT" + part.replace("--layers", "--from-layers"), plan=False, says="equal"),
        Run("diff SRC OUT" + part.replace("--layers", "--from-layers"), plan=False, says="equal"),
        Run("verify SRC OUT --from-layers 0-0" + (" --drop mtp" if "mtp" in part else ""), 1, plan=False)],
           note="compared: " + part)
      for family, part in (("qwen3_moe", " --layers 1-1"), ("exaone_moe", " --layers 1-2"),
                           ("deepseek_v3", " --layers 0-1 --drop mtp"))],
    # An optimizer's states under the keys of the hub.
    *[Case("whole/qwen3_moe", "hf", [Run("convert SRC OUT --layers 1-1", check=states_of_layer_1(spell))],
           change=with_states(spell), note=f"{note} states")
      for note, spell in (("Megatron's", lambda name: "optimizer.state.exp_avg." + name), ("FSDP's", lambda name: f"optimizer.state.{name}.exp_avg"))],
    Case("whole/qwen3_moe", "hf", [
        Run("convert SRC OUT --layers 1-1", 4, says=r"'optimizer\.state\.7\.exp_avg'.*--optimizer drop.*\[optimizer-buckets\]"),
        Run("convert SRC OUT --layers 1-1 --optimizer drop")],
         change=tensors_changed(lambda tensors: tensors.update({"optimizer.state.7.exp_avg": ("F32", [4], bytes(16))})), note="states that are counted"),
    *[Case("whole/qwen3_moe", "hf", [
        Run("convert SRC OUT --keep-experts 5,2-4", check=lambda out, dtype=dtype: table_is(out, dtype, [1, 0, 3, 2, 2, 0])),
        Run("verify SRC OUT --keep-experts 5,2-4", plan=False),
        Run("convert SRC OUT2 --keep-experts 2-4", 3, says=r"tid2eid' \[3, 2\]: its number 1 is 5,.* of layer 1 .*expert-missing")],
         change=tensors_changed(lambda tensors, dtype=dtype: tensors.update({TABLE: table(dtype, [2, 5, 4, 3, 3, 5])})),
         note=f"experts of tokens, {dtype}") for dtype in ("I64", "I32")],
    Case("whole/qwen3_moe", "hf", [Run("convert SRC OUT --keep-experts 2-5")],
         change=tensors_changed(lambda tensors: tensors.update({"model.layers.0.extra": ("F32", [8], bytes(32))})),
         note="a table of something else"),
]


# ---- padding -------------------------------------------------------------------------------------

DOWN = re.compile(r"(down_proj|\.w2)(\.weight)?$")
WIDE = re.compile(r"(gate_proj|up_proj|\.w1|\.w3)\.weight$|gate_up_proj(_bias)?$|experts\.down_proj$|(down_proj|w2)\.weight$")


def widened(tensor, axis: int, unit: int, half: bool = False):
    """The tensor with zeros up to a multiple of `unit` along an axis, or behind each second element of it (`half`)."""
    dtype, shape, data = tensor
    size = len(data)
    for extent in shape:
        size //= extent
    inner = size
    for extent in shape[axis + 1 :]:
        inner *= extent
    run, width = shape[axis] * inner, shape[axis] // (2 if half else 1)
    more = bytes((-width % unit) * (2 if half else 1) * inner)
    data = b"".join(data[at : at + run] + more for at in range(0, len(data), run))
    return dtype, [*shape[:axis], (width + -width % unit) * (2 if half else 1), *shape[axis + 1 :]], data


def padded(name: str, unit: int, shared: bool = False):
    """Returns a check that OUT's experts, and with `shared` the shared one, end in zeros and all else is as it was."""
    source = TESTDATA / name

    def check(out):
        have, stored = read_tensors(out), read_tensors(source)
        for key, tensor in stored.items():
            is_shared = "shared_expert" in key
            if WIDE.search(key) and (".experts." in key or (is_shared and shared)):
                # gpt-oss has [expert, in, out], with gate and up in turn.
                packed = len(tensor[1]) == 3 or key.endswith("_bias")
                if packed:
                    axis, half = (1, False) if DOWN.search(key) else (len(tensor[1]) - 1, True)
                else:
                    axis, half = (1 if DOWN.search(key) else 0), False
                tensor = widened(tensor, axis, unit, half)
            if have.get(key) != tensor:
                return f"{key} is not the source's with zeros behind it: {have.get(key, ['?', '?'])[1]}, right is {tensor[1]}"
        return "" if have.keys() == stored.keys() else "other tensors"

    return check


def same_as(name: str):
    """Returns a check that OUT has the tensors and the configuration of testdata's model."""

    def check(out):
        if read_tensors(out) != read_tensors(TESTDATA / name):
            return "other tensors"
        configs = [json.loads((path / "config.json").read_text()) for path in (out, TESTDATA / name)]
        return "" if configs[0] == configs[1] else "another config.json"

    return check


def not_zero(out, pattern=r"experts\.1\.(gate_proj|w1)\.weight$"):
    """Changes the last element of an expert's gate in place, record and all kept."""
    path = sorted(out.glob("*.safetensors"))[-1]
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    key = next(k for k in header if re.search(pattern, k))
    data[8 + size + header[key]["data_offsets"][1] - 1] = 0x3F
    path.write_bytes(data)
    return ""


def padding(family: str, unit: int, shared: bool = False, checked: bool = True) -> Case:
    name = f"whole/{family}/hf"
    return Case(f"whole/{family}", "hf", [
        Run(f"convert SRC OUT --pad-experts {unit}", says="padded with zeros from",
            check=padded(name, unit, shared) if checked else None),
        Run("inspect OUT --strict", plan=False),
        Run("verify SRC OUT --forward", plan=False, says="0 bits differ"),
        # Equal, and not as they are stored.
        Run("verify OUT SRC", plan=False, says="are padded from a width of.*without the padding",
            never_says="byte-identical"),
        Run(f"verify SRC OUT --pad-experts {unit}", plan=False, says="equal: the same"),
        Run(f"verify SRC OUT --pad-experts {unit} --forward", plan=False, says="pads A before its experts run"),
        Run("diff SRC OUT", plan=False),
        Run("convert OUT OUT2 --to megatron"),
        Run("verify SRC OUT2 --forward", plan=False, says="0 bits differ"),
        Run("convert OUT2 OUT --unpad --to hf", check=same_as(name)),
    ], note=f"padded to {unit}")


def fp8(words: str, note: str) -> Case:
    return Case("quantized/fp8_block128", ".", [
        Run(f"convert SRC OUT {words}"),
        Run("inspect OUT --strict", plan=False),
        Run("verify SRC OUT", plan=False),
        Run("convert OUT OUT2 --decode bf16"),
        Run("convert OUT2 OUT --unpad"),
        Run("verify SRC OUT --decode bf16", plan=False),
    ], note=note)


def one_group(source) -> None:
    """Leaves of each expert's groups the first, which is for all columns then."""
    for path in source.glob("model*.safetensors"):
        tensors = read_safetensors(path)
        for name, (dtype, shape, data) in list(tensors.items()):
            part = name.rsplit(".", 1)[1]
            if part in ("scales", "qzeros"):
                tensors[name] = (dtype, [1, shape[1]], data[: len(data) // shape[0]])
            elif part in ("weight_scale", "weight_zero_point"):
                run = len(data) // shape[0] // shape[1]
                tensors[name] = (dtype, [shape[0], 1], b"".join(data[at : at + run] for at in range(0, len(data), run * shape[1])))
            elif part == "g_idx":
                tensors[name] = (dtype, shape, bytes(len(data)))
        write_safetensors(path, tensors)
    config = json.loads((source / "config.json").read_text())
    said = config["quantization_config"]
    if "config_groups" in said:
        said["config_groups"]["group_0"]["weights"].update(group_size=None, strategy="channel")
    else:
        said["group_size"] = -1
    (source / "config.json").write_text(json.dumps(config))


def codes(name: str, unit: int, change=None, note: str = "codes") -> Case:
    """Codes that are padded stand for the weights that are padded, and come back as they were."""
    return Case(f"quantized/{name}", ".", [
        Run(f"convert SRC OUT --pad-experts {unit}", says="padded with zeros from"),
        Run("inspect OUT --strict", plan=False),
        Run("verify SRC OUT", plan=False),
        Run("convert OUT OUT2 --unpad"),
        Run("verify SRC OUT2", plan=False, says="every tensor is byte-identical"),
        Run(f"convert SRC OUT2 --decode bf16 --pad-experts {unit}"),
        Run("verify OUT OUT2 --decode bf16", plan=False),
    ], change=change, note=f"{note} padded to {unit}")


CASES += [
    padding("qwen3_moe", 64), padding("deepseek_v3", 32, shared=True), padding("gpt_oss", 48), padding("minimax_m2", 24),
    padding("qwen3_next", 80), padding("bailing_moe_v2", 128, shared=True), padding("exaone_moe", 128, checked=False),
    padding("nemotron_h", 48, checked=False),
    fp8("--pad-experts 176", "padded in the last block"), fp8("--pad-experts 320", "padded by a block"),
    Case("whole/qwen3_moe", "hf", [
        Run("convert SRC OUT --pad-experts 64", check=not_zero),
        Run("convert OUT OUT2 --unpad", 4, says=r"experts\.1\.gate_proj\.weight.*row \d+, column \d+ is not zero.*not-exact"),
        Run("verify SRC OUT", 1, plan=False, says=r"experts\.1\.gate_proj\.weight.*is not zero"),
        Run("diff SRC OUT", 1, plan=False, says=r"experts\.1\.gate_proj\.weight.*is not zero"),
    ], note="a padded row that is not zero"),
    Case("whole/qwen3_moe", "hf", [
        Run("convert SRC OUT --pad-experts 40"), Run("convert OUT OUT2 --pad-experts 64 --experts grouped --glu contiguous"),
        Run("convert OUT2 OUT --unpad --experts indexed --glu split", check=same_as("whole/qwen3_moe/hf")),
    ], note="padded twice"),
    refused("qwen3_moe", "--unpad", 3, "no record says", "no padding"),
    refused("qwen3_moe", "--pad-experts 0", 2, "number from 1", "no number"),
    refused("llama3", "--pad-experts 128", 4, "no routed experts", "a dense model is not padded"),
    Case("quantized/gptq_int4", ".", [
        Run("convert SRC OUT --pad-experts 56", 4, says=r"width of 112 is no multiple of 32.*\[not-exact\]"),
        Run("convert SRC OUT --pad-experts 56 --decode bf16")], note="half a group is not padded"),
    *[codes(name, unit) for name, unit in (
        ("ct_int4_g32", 160), ("nvfp4_modelopt", 160), ("mxfp4_gpt_oss", 160), ("fp8_channel", 56),
        ("gptq_int4", 128), ("awq_int4", 128), ("ct_int4_asym", 160))],
    *[codes(name, 104, one_group, "one group") for name in ("gptq_int4", "awq_int4", "ct_int4_asym")],
    # A code, or the zero point below it, that is not the one of padding.
    *[Case(f"quantized/{name}", ".", [
        Run("convert SRC OUT --pad-experts 160", check=lambda out, part=part: not_zero(out, rf"experts\.1\.(up|gate)_proj\.{part}$")),
        Run("convert OUT OUT2 --unpad", 4, says=rf"{part}.*row \d+, column \d+ is not zero.*not-exact")],
          note=f"padded, another {part}")
      for name, parts in (("gptq_int4", ("qweight", "qzeros")), ("awq_int4", ("qweight", "qzeros")), ("ct_int4_asym", ("weight_packed", "weight_zero_point")))
      for part in parts],
    Case("quantized/ct_int4_g32", ".", [Run("convert SRC OUT --pad-experts 72", 4, says=r"width of 144 is no multiple of 32")],
         note="half a group is not padded"),
    Case("quantized/ct_int4_g32", ".", [
        Run("convert SRC OUT --pad-experts 160", check=lambda out: not_zero(out, r"experts\.1\.gate_proj\.weight_packed$")),
        Run("convert OUT OUT2 --unpad", 4, says=r"weight_packed.*row \d+, column \d+ is not zero.*not-exact"),
    ], note="a padded code that is not zero"),
]


# ---- the language model alone --------------------------------------------------------------------


def language(name: str, root: str, model_type: str):
    """Returns a check that OUT has the tensors of the language model under its own keys, and its configuration."""

    def check(out):
        right = {}
        # Keys of the one that speaks, too, are as its thinker has them.
        kept_root = root if "omni" in name else "model."
        front = root.removesuffix("model.") if root != "model.language_model." else ""
        for key, tensor in read_tensors(TESTDATA / name).items():
            if key.startswith(root):
                right[kept_root + key.removeprefix(root)] = tensor
            elif key == front + "lm_head.weight":
                right[kept_root.removesuffix("model.") + "lm_head.weight"] = tensor
        if read_tensors(out) != right:
            return "other tensors"
        config = json.loads((out / "config.json").read_text())
        whole = json.loads((TESTDATA / name / "config.json").read_text())
        text = whole.get("text_config") or whole["thinker_config"]["text_config"]
        if {key: config.get(key) for key in text if key != "tie_word_embeddings"} != {
                key: value for key, value in text.items() if key != "tie_word_embeddings"}:
            return "config.json is not the language model's"
        if config["model_type"] != model_type or "vision_config" in config:
            return f"config.json is of type {config['model_type']}"
        return ""

    return check


def alone(family: str, root: str, model_type: str, loads: str) -> Case:
    name = f"whole/{family}/hf"
    return Case(f"whole/{family}", "hf", [
        Run("convert SRC OUT --drop vision", says=loads, check=language(name, root, model_type)),
        Run("inspect OUT", plan=False),
        Run("verify SRC OUT --drop vision", plan=False),
        Run("convert SRC OUT2 --drop vision --to megatron"),
        Run("verify OUT OUT2", plan=False),
        Run("convert SRC OUT2 --drop vision --layers 0-1 --keep-experts 0-3"),
    ], note="the language model alone")


CASES += [
    alone("glm4v_moe", "model.language_model.", "glm4v_moe_text", "no class for 'glm4v_moe_text' by itself"),
    alone("kimi_k25", "language_model.model.", "kimi_k2", "loads in"),
    alone("qwen3_omni_moe", "thinker.model.", "qwen3_omni_moe_text", "no class for 'qwen3_omni_moe_text' by itself"),
    Case("whole/glm4v_moe", "hf", [
        Run("convert SRC OUT --drop vision"),
        Run(f"convert OUT OUT2 --fill-from {TESTDATA / 'whole/glm4v_moe/hf'}", check=same_as("whole/glm4v_moe/hf")),
    ], note="the language model alone, and back"),
    refused("qwen3_moe", "--drop vision", 3, "language model alone.*layer-missing", "nothing sees"),
    refused("deepseek_v3", "--drop mtp,vision", 3, "no text_config", "nothing sees beside MTP"),
    refused("deepseek_v3", "--drop head", 2, "'head' is not one of mtp, vision", "no part"),
]

# The note says that multi-token prediction stays, and calls all layers no part.
CASES += [
    Case("whole/deepseek_v3", "hf", [
        Run("convert SRC OUT --layers 0-1", says="a part of the model: layers 0-1 of 3, with multi-token prediction\n"),
        Run("convert SRC OUT --layers 0-1 --drop mtp", says="layers 0-1 of 3, without multi-token prediction"),
        Run("convert SRC OUT --layers 0-2", says="the output is the whole model", never_says="a part of the model"),
        Run("verify SRC OUT", says="^equal"),
    ], note="what the note says of layers"),
]


# ---- a pruner lists all layers of a model, and an adapter knows its modules by their numbers in it ----------

PRUNED = [0, 1, 3, 4]


def of_each_layer(content, words: str, note: str) -> Case:
    """A list with layers that the part has not, or without them, is the list of those that it has."""
    return Case("whole/deepseek_v3", "hf", [
        Run(f"convert SRC OUT {words} --keep-experts 0-1,3-4"),
        Run(f"convert SRC OUT2 {words} --keep-experts CASE/keep.json"),
        Run("verify OUT OUT2", plan=False),
        Run(f"verify SRC OUT2 {words.replace('--layers', '--from-layers')} --keep-experts CASE/keep.json", plan=False),
    ], change=list_beside(content), note=note)


def merged_part(out) -> str:
    """Layer 1's experts 3 and 1 of what PEFT merged."""
    found = read_tensors(out)
    merged = read_tensors(reported() / "adapter_qwen3_sep_peft018/merged_default.safetensors")
    for old, new in ((3, 0), (1, 1)):
        for word in ("gate_proj", "up_proj", "down_proj"):
            name = f"model.layers.0.mlp.experts.{new}.{word}.weight"
            if found.get(name) != merged[f"model.layers.1.mlp.experts.{old}.{word}.weight"]:
                return f"{name} is not the merged one of expert {old}"
    return "" if not any(".experts.2." in name or "layers.1." in name for name in found) else "more than the part"


MERGED_PART = "--merge CASE/adapter --keep-experts 3,1"

CASES += [
    of_each_layer({"1": PRUNED, "2": PRUNED, "3": PRUNED}, "--drop mtp", "a list with the layer of MTP that is dropped"),
    of_each_layer([PRUNED, PRUNED, PRUNED], "--drop mtp", "lists of all layers with experts, MTP dropped"),
    of_each_layer([PRUNED, PRUNED], "--drop mtp", "lists without MTP's, which is dropped"),
    of_each_layer({"1": PRUNED}, "--layers 0-1 --drop mtp", "a list of the layers of the part"),
    of_each_layer({"1": PRUNED, "2": [5]}, "--layers 0-1 --drop mtp", "a list of more layers than the part has"),
    refused("deepseek_v3", "--layers 0-0 --drop mtp", 4, r"it has no layer with experts.*take a layer that has some along.*no-experts",
            "layers without experts"),
    Case("adapter_qwen3_sep_peft018", "base", [
        Run(f"convert SRC OUT {MERGED_PART} --layers 1-1 --force", check=merged_part),
        Run(f"verify SRC OUT {MERGED_PART} --from-layers 1-1", plan=False),
        Run("verify SRC OUT --keep-experts 3,1 --from-layers 1-1", 1, plan=False),
        Run("convert SRC OUT --merge CASE/adapter --layers 0-0 --force"),
        Run(f"convert SRC OUT2 {MERGED_PART} --layers 1-1 --to megatron"),
        Run(f"verify SRC OUT2 {MERGED_PART} --from-layers 1-1", plan=False),
    ], note="a part of what is merged"),
]
