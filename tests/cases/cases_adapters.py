"""Adapters of PEFT. testdata/adapters.tar.xz has models and adapters as PEFT 0.18.1, 0.19.1 and 0.21.2 wrote them, and
the experts after its own merge_and_unload(), and with safe_merge=True where that gives other bytes."""
import json
import pathlib
import re
import shutil
import struct
import tempfile

from case import REFUSED, TESTDATA, Case, Run, both, read_safetensors, read_tensors, reported, write_safetensors

MERGE = "convert SRC OUT --merge CASE/adapter"
SAFE = MERGE + " --merge-as peft-safe"
FACTORS = "adapter/adapter_model.safetensors"

# Adapters, and whether the safe merge has other bytes.
MERGED = {
    "gpt_oss_packed_peft018": False,
    "gpt_oss_packed_peft021": False,
    "mixtral_sep_bf16_peft018": True,
    "mixtral_sep_loaded_and_saved_bf16_peft021": False,
    "mixtral_sep_rslora_pattern_peft018": True,
    "qwen3_packed_bf16_pattern_peft021": False,
    "qwen3_packed_peft018": False,
    "qwen3_packed_peft019": False,
    "qwen3_packed_peft021": False,
    "qwen3_sep_equalA_peft018": True,
    "qwen3_sep_loaded_and_saved_equalA_peft021": False,
    "qwen3_sep_loaded_and_saved_peft021": False,
    "qwen3_dora_peft018": False,
    "qwen3_sep_peft018": True,
}


def config(**fields):
    """Returns a change of adapter_config.json."""

    def change(source: pathlib.Path) -> pathlib.Path:
        path = source.parent / "adapter/adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
        return source.parent / "base"

    return change


def factors(edit):
    """Returns a change of the adapter's tensors."""

    def change(source: pathlib.Path) -> pathlib.Path:
        tensors = read_safetensors(source.parent / FACTORS)
        edit(tensors)
        write_safetensors(source.parent / FACTORS, tensors)
        return source.parent / "base"

    return change


def lost(word: str):
    def edit(tensors: dict) -> None:
        for name in [name for name in tensors if word in name]:
            del tensors[name]

    return factors(edit)


def renamed(old: str, new: str):
    def edit(tensors: dict) -> None:
        for name in [name for name in tensors if old in name]:
            tensors[name.replace(old, new)] = tensors.pop(name)

    return factors(edit)


def widened(tensors: dict) -> None:
    """Gives each B a column more, and leaves A as it is."""
    for name, (dtype, (rows, cols), data) in list(tensors.items()):
        if "lora_B" in name:
            size = len(data) // rows // cols
            lines = [data[i * cols * size : (i + 1) * cols * size] + bytes(size) for i in range(rows)]
            tensors[name] = (dtype, [rows, cols + 1], b"".join(lines))


def adapter(name: str, *runs: Run, change=None, note: str = "") -> Case:
    return Case(f"adapter_{name}", "base", list(runs), change=change, note=note)


def write_adapter(made: pathlib.Path, model: pathlib.Path, base_class: str, front: str = "", others: str = "lm_head") -> None:
    """Writes an adapter of the layers' projections and `others` of a model behind the text `front`, as PEFT writes one of that
    model alone."""
    factors, targets, number = {}, set(), 0
    for name, (_, shape, _) in read_tensors(model).items():
        if not (found := re.match(rf"{re.escape(front)}(model\.layers\.\d+\..*?(\w+_proj)|{others})\.weight$", name)):
            continue
        targets.add(found[2] or found[1])
        for factor, extents in (("A", [2, shape[1]]), ("B", [shape[0], 2])):
            number += 1
            values = [((i * 7 + number) % 13 - 6) / 8 for i in range(extents[0] * extents[1])]
            factors[f"base_model.model.{found[1]}.lora_{factor}.weight"] = ("F32", extents, struct.pack(f"<{len(values)}f", *values))
    made.mkdir()
    write_safetensors(made / "adapter_model.safetensors", factors)
    (made / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": sorted(targets),
        "auto_mapping": {"base_model_class": base_class}}))


def of_language_model(base_class: str, others: str = "lm_head"):
    """Puts beside a multimodal model an adapter of the language model in it."""
    return lambda source: write_adapter(source.parent / "adapter", source, base_class, "language_model.", others)


def of_decoded(name: str):
    """Puts beside a quantized model an adapter of what it decodes to."""
    decoded = TESTDATA / "quantized" / name / "decoded.safetensors"
    return lambda source: write_adapter(source.parent / "adapter", decoded, "Qwen3MoeForCausalLM")


def refused(name: str, change, says: str, note: str, status=3) -> Case:
    return adapter(name, Run(MERGE, status, says=says), Run("convert SRC OUT --force"), change=change, note=note)


# ---- adapters by themselves ----------------------------------------------------------------------

CONVERT = "convert SRC OUT --from-config CASE/base/config.json"
GROUPED, INDEXED = " --to hf --experts grouped", " --to hf --experts indexed"
PEFT018 = " --to-lora peft-0.18"


def same_as(name: str, config: dict | None = None):
    """Returns a check that OUT has the tensors of another adapter, and that adapter_config.json says so."""

    def check(out: pathlib.Path) -> str:
        have, want = read_tensors(out), read_safetensors(reported() / name / FACTORS)
        if have.keys() != want.keys():
            return f"has other tensors than {name}: {sorted(have.keys() ^ want.keys())[:2]}"
        for key in want:
            if have[key] != want[key]:
                return f"differs from {name} in {key}"
        return says_config(config or {})(out)

    return check


def columns_by_expert(name: str):
    """Returns a check that OUT has the tensors of an adapter as Unsloth's older files have them."""

    def check(out: pathlib.Path) -> str:
        with tempfile.TemporaryDirectory() as folder:
            made = pathlib.Path(folder) / "adapter"
            shutil.copytree(reported() / f"adapter_{name}/adapter", made)
            own_factors(by_expert)(made)
            return "" if read_tensors(out) == read_tensors(made) else "has other bytes than Unsloth's files"

    return check


def says_config(fields: dict):
    def check(out: pathlib.Path) -> str:
        found = json.loads((out / "adapter_config.json").read_text())
        wrong = [f"{key} is {found.get(key)}" for key, value in fields.items() if found.get(key) != value]
        return "adapter_config.json: " + ", ".join(wrong) if wrong else ""

    return check


def again(name: str, *runs: Run, change=None, note: str = "") -> Case:
    """A case of an adapter by itself."""
    return Case(f"adapter_{name}", "adapter", list(runs), change=change, note=note)


def own_config(**fields):
    def change(source: pathlib.Path) -> None:
        path = source / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


def own_factors(edit):
    def change(source: pathlib.Path) -> None:
        tensors = read_safetensors(source / "adapter_model.safetensors")
        edit(tensors)
        write_safetensors(source / "adapter_model.safetensors", tensors)

    return change


def by_expert(tensors: dict) -> None:
    """Puts the columns of each B, which are by rank, by expert: of 4 experts."""
    for name, (dtype, (rows, cols), data) in list(tensors.items()):
        if "lora_B" not in name:
            continue
        size, ranks = len(data) // rows // cols, cols // 4
        columns = [(j * 4 + e) * size for e in range(4) for j in range(ranks)]
        lines = [data[i * cols * size : (i + 1) * cols * size] for i in range(rows)]
        tensors[name] = (dtype, [rows, cols], b"".join(line[c : c + size] for line in lines for c in columns))


def exchanged(tensors: dict) -> None:
    """Gives gate's factors to up."""
    for name in [name for name in tensors if ".gate_proj." in name]:
        other = name.replace(".gate_proj.", ".up_proj.")
        tensors[name], tensors[other] = tensors[other], tensors[name]


# An adapter, options, and the adapter of PEFT whose tensors that gives.
LAID_OUT = [
    ("qwen3_sep_peft018", GROUPED + " --grow-rank", "qwen3_sep_loaded_and_saved_peft021",
     {"r": 4, "lora_alpha": 8, "rank_pattern": {"gate_up_proj": 8}, "alpha_pattern": {"gate_up_proj": 16},
      "target_modules": [], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}),
    ("qwen3_sep_loaded_and_saved_peft021", " --to hf", "qwen3_sep_peft018",
     {"r": 4, "lora_alpha": 8, "rank_pattern": {}, "alpha_pattern": {}, "target_parameters": None,
      "target_modules": ["down_proj", "gate_proj", "up_proj"]}),
    ("qwen3_sep_equalA_peft018", GROUPED, "qwen3_packed_peft021", {"rank_pattern": {}, "alpha_pattern": {}}),
    ("qwen3_packed_peft021", INDEXED, "qwen3_sep_equalA_peft018", {"rank_pattern": {}, "alpha_pattern": {}}),
    ("qwen3_packed_peft018", GROUPED, "qwen3_packed_peft021", {}),
    ("qwen3_packed_peft018", " --to vllm", "qwen3_sep_equalA_peft018", {}),
    ("qwen3_packed_peft019", " --to sglang", "qwen3_sep_equalA_peft018", {}),
    ("qwen3_packed_peft019", GROUPED + " --force", "qwen3_packed_peft021", {}),
    ("qwen3_sep_loaded_and_saved_equalA_peft021", " --to hf", "qwen3_sep_equalA_peft018", {}),
    ("qwen3_sep_equalA_peft018", " --to sglang --force", "qwen3_sep_equalA_peft018", {}),
    ("gpt_oss_packed_peft018", " --to hf --force", "gpt_oss_packed_peft021", {}),
    ("gpt_oss_packed_peft021", " --to vllm --force", "gpt_oss_packed_peft018", {}),
    ("qwen3_dora_peft018", " --to hf --force", "qwen3_dora_peft018", {"use_dora": True}),
]
def one_for_all(source: pathlib.Path) -> None:
    """Makes of expert 0's factors, in which gate and up have one A, Megatron-Bridge's pair for all experts."""
    path = source / "adapter_model.safetensors"
    old, new = read_safetensors(path), {}
    for layer in (0, 1):
        part = lambda word: old[f"base_model.model.model.layers.{layer}.mlp.experts.0.{word}.weight"]
        module = f"decoder.layers.{layer}.mlp.experts.linear_fc"
        new[module + "1.adapter.linear_in.weight"] = part("gate_proj.lora_A")
        dtype, (rows, rank), gate = part("gate_proj.lora_B")
        new[module + "1.adapter.linear_out.weight"] = (dtype, [2 * rows, rank], gate + part("up_proj.lora_B")[2])
        new[module + "2.adapter.linear_in.weight"] = part("down_proj.lora_A")
        new[module + "2.adapter.linear_out.weight"] = part("down_proj.lora_B")
    write_safetensors(path, new)


def stacked(source: pathlib.Path, a: int, b: int, gate_up: bool) -> None:
    """Makes of factors of single experts those that experts share, as SGLang reads them: A of gate and up, and B of down, of
    the experts up to `a` and `b`."""
    path = source / "adapter_model.safetensors"
    old, new = read_safetensors(path), {}
    for layer in (0, 1):
        prefix = f"base_model.model.model.layers.{layer}.mlp.experts."

        def stack(names, experts):
            parts = [[old[f"{prefix}{e}.{name}.weight"] for name in names] for e in range(experts)]
            dtype, (rows, cols), _ = parts[0][0]
            return dtype, [experts, len(names) * rows, cols], b"".join(part[2] for of_one in parts for part in of_one)

        for module, names in (("gate_up_proj", ["gate_proj", "up_proj"]),) if gate_up else (
                ("gate_proj", ["gate_proj"]), ("up_proj", ["up_proj"])):  # fmt: skip
            new[f"{prefix}{module}.lora_A.weight"] = stack([names[0] + ".lora_A"], a)
            new[f"{prefix}{module}.lora_B.weight"] = stack([name + ".lora_B" for name in names], 4)
        new[f"{prefix}down_proj.lora_A.weight"] = stack(["down_proj.lora_A"], 4)
        new[f"{prefix}down_proj.lora_B.weight"] = stack(["down_proj.lora_B"], b)
    write_safetensors(path, new)


def shared_outer(out: pathlib.Path) -> str:
    """Each expert has its own inner factors, and the outer ones of the first."""
    want = read_safetensors(reported() / "adapter_qwen3_sep_equalA_peft018" / FACTORS)
    have = read_tensors(out)
    for name in want:
        outer = "down_proj.lora_B" in name or ("down_proj" not in name and "lora_A" in name)
        if have.get(name) != want[re.sub(r"experts\.\d+", "experts.0", name) if outer else name]:
            return f"has another {name}"
    return "" if have.keys() == want.keys() else "other names"


def canonical(source: pathlib.Path) -> None:
    """Makes of the factors of single experts Megatron-Bridge's CanonicalLoRA of each expert."""
    path = source / "adapter_model.safetensors"
    old, new = read_safetensors(path), {}
    words = {"gate_proj": "1.adapter.adapter_gate", "up_proj": "1.adapter.adapter_up", "down_proj": "2.adapter"}
    for layer in (0, 1):
        for word, module in words.items():
            for factor, end in (("lora_A", "linear_in"), ("lora_B", "linear_out")):
                parts = [old[f"base_model.model.model.layers.{layer}.mlp.experts.{e}.{word}.{factor}.weight"] for e in range(4)]
                name = f"decoder.layers.{layer}.mlp.experts.linear_fc{module}.{end}.weight"
                new[name] = (parts[0][0], [4, *parts[0][1]], b"".join(part[2] for part in parts))
    write_safetensors(path, new)


def all_are_the_first(out: pathlib.Path) -> str:
    want = read_safetensors(reported() / "adapter_qwen3_sep_equalA_peft018" / FACTORS)
    for name, tensor in read_tensors(out).items():
        first = ".".join("0" if before == "experts" else word for before, word in zip([""] + name.split("."), name.split(".")))
        if tensor != want[first]:
            return f"has another {name} than {first}"
    return "" if len(read_tensors(out)) == len(want) else "lacks tensors"


def of_expert_0(everything: bool):
    """Gives all experts the outer factors of the first, or all of its factors."""

    def edit(tensors: dict) -> None:
        for name in tensors:
            outer = "down_proj.lora_B" in name or ("down_proj" not in name and "lora_A" in name)
            if ".experts." in name and (outer or everything):
                tensors[name] = tensors[re.sub(r"experts\.\d+", "experts.0", name)]

    return own_factors(edit)


def in_memory(source: pathlib.Path) -> None:
    """Makes of factors of single experts AutoModel's parameters: [E, in, r] and [E, r, out]."""
    path = source / "adapter_model.safetensors"
    old, new = read_safetensors(path), {}
    for layer in (0, 1):
        prefix = f"base_model.model.model.layers.{layer}.mlp.experts."

        def turned(name: str, experts=range(4)):
            parts = []
            for e in experts:
                dtype, (rows, cols), data = old[f"{prefix}{e}.{name}.weight"]
                parts.append([data[(r * cols + c) * 4 : (r * cols + c) * 4 + 4] for c in range(cols) for r in range(rows)])
            return dtype, [cols, rows], parts

        def put(name: str, dtype, shape, parts):
            new[f"{prefix}{name}"] = (dtype, [4, *shape], b"".join(b"".join(part) for part in parts))

        put("lora_gate_and_up_A", *turned("gate_proj.lora_A"))
        put("lora_down_A", *turned("down_proj.lora_A"))
        put("lora_down_B", *turned("down_proj.lora_B"))
        dtype, (ranks, width), gates = turned("gate_proj.lora_B")
        _, _, ups = turned("up_proj.lora_B")
        put("lora_gate_and_up_B", dtype, [ranks, 2 * width],
            [[x for r in range(ranks) for x in gate[r * width : (r + 1) * width] + up[r * width : (r + 1) * width]]
             for gate, up in zip(gates, ups)])
    write_safetensors(path, new)


# Adapters and the options for each layout; both ways are exact.
THERE_AND_BACK = {
    "qwen3_sep_peft018": (GROUPED + " --grow-rank", INDEXED),
    "qwen3_sep_equalA_peft018": (GROUPED, INDEXED),
    "mixtral_sep_bf16_peft018": (GROUPED + " --grow-rank", INDEXED),
    "mixtral_sep_rslora_pattern_peft018": (GROUPED + " --grow-rank", INDEXED),
    "qwen3_packed_peft021": (INDEXED, GROUPED),
    "qwen3_packed_bf16_pattern_peft021": (INDEXED, GROUPED),
    "qwen3_sep_loaded_and_saved_peft021": (INDEXED, GROUPED + " --grow-rank"),
    "mixtral_sep_loaded_and_saved_bf16_peft021": (INDEXED, GROUPED + " --grow-rank"),
    "gpt_oss_packed_peft021": (" --to sglang", " --to hf"),
}
# Each adapter in each layout: "=" is exact, there and back to the same bytes; "+" is exact with more ranks, of zeros; else why
# it is refused. A layout in memory is read alone: its program saves others.
LAYOUTS = {
    "indexed": INDEXED, "grouped": GROUPED, "grown": GROUPED + " --grow-rank", "megatron": " --to megatron",
    "megatron grown": " --to megatron --grow-rank", "canonical": " --to megatron --glu split",
    "megatron shared": " --to megatron --experts shared", "sglang shared": " --to sglang --experts shared",
    "vllm shared": " --to vllm --experts shared"}
EACH_IN_EACH = """
gpt_oss_packed_peft018                     =  =  =  =  =  =  not-exact      unknown-glu  not-exact
gpt_oss_packed_peft021                     =  =  =  =  =  =  not-exact      unknown-glu  not-exact
mixtral_sep_bf16_peft018                   =  not-exact      +  not-exact      +  =  not-exact  not-exact  not-exact
mixtral_sep_loaded_and_saved_bf16_peft021  +  =  =  not-exact  +  +  not-exact  not-exact  not-exact
mixtral_sep_rslora_pattern_peft018         =  not-exact      +  not-exact  not-exact  not-exact  not-exact  not-exact  not-exact
qwen3_dora_peft018                         =  not-supported  not-supported  not-supported  not-supported  not-supported  not-supported  not-supported  not-supported
qwen3_packed_bf16_pattern_peft021          =  =  =  not-exact  not-exact  not-exact  not-exact  not-exact  not-exact
qwen3_packed_peft018                       =  =  =  =  =  =  not-exact  not-exact  not-exact
qwen3_packed_peft019                       =  =  =  =  =  =  not-exact  not-exact  not-exact
qwen3_packed_peft021                       =  =  =  =  =  =  not-exact  not-exact  not-exact
qwen3_sep_equalA_peft018                   =  =  =  =  =  =  not-exact  not-exact  not-exact
qwen3_sep_loaded_and_saved_equalA_peft021  +  =  =  not-exact  +  +  not-exact  not-exact  not-exact
qwen3_sep_loaded_and_saved_peft021         +  =  =  not-exact  +  +  not-exact  not-exact  not-exact
qwen3_sep_peft018                          =  not-exact      +  not-exact      +  =  not-exact  not-exact  not-exact
one_outer_factor                           =  =  =  =  =  =  not-exact  =          =
one_pair                                   =  =  =  =  =  =  =          =          =
in_memory                                  =  =  =  =  =  =  not-exact  not-exact  not-exact
"""
# Adapters that are made of qwen3_sep_equalA_peft018, and where it is another one the adapter whose bytes come back.
MADE_OF_IT = {"one_outer_factor": of_expert_0(False), "one_pair": of_expert_0(True), "in_memory": in_memory}
COMES_BACK_AS = {"in_memory": "qwen3_sep_equalA_peft018"}


def comes_back(name: str):
    """Returns a check that OUT2 has the bytes that the adapter has in a layout that is written."""

    def check(out: pathlib.Path) -> str:
        if name not in MADE_OF_IT or name in COMES_BACK_AS:
            return same_as("adapter_" + COMES_BACK_AS.get(name, name))(out)
        with tempfile.TemporaryDirectory() as folder:
            made = pathlib.Path(folder) / "adapter"
            shutil.copytree(reported() / "adapter_qwen3_sep_equalA_peft018/adapter", made)
            MADE_OF_IT[name](made)
            return "" if read_tensors(out) == read_tensors(made) else "other bytes come back"

    return check


def in_each_layout() -> list[Case]:
    cases = []
    for line in EACH_IN_EACH.strip().splitlines():
        name, *answers = line.split()
        assert len(answers) == len(LAYOUTS), line
        own = GROUPED if "packed" in name or "loaded_and_saved" in name else INDEXED
        if name == "qwen3_packed_peft018":
            own += PEFT018
        runs = []
        # What can be grouped can be so in the files of each program.
        of_programs = {"peft-0.18": GROUPED + PEFT018, "by-expert": GROUPED + " --to-lora by-expert"}
        both_kinds = zip({**LAYOUTS, **of_programs}.items(), answers + [answers[list(LAYOUTS).index("grouped")]] * 2)
        for (layout, options), answer in both_kinds:
            options = CONVERT + options + " --force"
            if answer not in "=+":
                runs.append(Run(options, REFUSED, plan=False, says=rf"\[{answer}\]"))
                continue
            runs += [Run(options, plan=False), Run("verify SRC OUT --from-config CASE/base/config.json", plan=False)]
            if answer == "=":
                runs.append(Run(f"convert OUT OUT2{own} --force", plan=False, check=comes_back(name)))
        base = "qwen3_sep_equalA_peft018" if name in MADE_OF_IT else name
        cases.append(again(base, *runs, change=MADE_OF_IT.get(name), note=f"{name} in each layout"))
    return cases


# Adapters of one model that add the same products, though one has more ranks or another layout.
ALIKE = ("qwen3_packed_peft018", "qwen3_packed_peft019", "qwen3_packed_peft021", "qwen3_sep_equalA_peft018",
         "qwen3_sep_loaded_and_saved_equalA_peft021")
VERIFY = "verify SRC CASE/other --from-config CASE/base/config.json"


def beside(name: str, change=None):
    """Returns a change that puts another adapter beside this one."""

    def add(source: pathlib.Path) -> None:
        other = source.parent / "other"
        shutil.copytree(reported() / name / "adapter", other)
        if change is not None:
            change(other)

    return add


ALONE = in_each_layout() + [
    again(name.removeprefix("adapter_"), Run(CONVERT + options, check=same_as("adapter_" + other, says)),
          Run("check OUT"), Run("verify SRC OUT --from-config CASE/base/config.json"), note=options.strip())
    for name, options, other, says in LAID_OUT
] + [
    again(name, Run(CONVERT + there), Run("convert OUT OUT2" + back, check=same_as("adapter_" + name)),
          Run("verify SRC OUT2 --from-config CASE/base/config.json", says="equal"), note="there and back")
    for name, (there, back) in THERE_AND_BACK.items()
] + [
    again(a, Run(VERIFY, says="equal"), change=beside("adapter_" + b), note=f"is {b}")
    for a in ALIKE for b in ALIKE if a < b
] + [
    # Merged after a change of layout: the same weights as PEFT's safe merge of the packed form.
    Case("adapter_qwen3_sep_peft018", "base", [
        Run("convert CASE/adapter OUT --from-config CASE/base/config.json" + GROUPED + " --grow-rank"),
        Run("convert SRC OUT2 --merge OUT", truth="merged_safe.safetensors", some=True)], note="packed, then merged"),
] + [
    # Megatron-Bridge's names.
    again(name, Run(CONVERT + " --to megatron"), Run("check OUT"), Run("inspect OUT --strict", says="grouped experts"),
          Run("convert OUT OUT2" + back, check=same_as("adapter_" + name)), Run("verify SRC OUT --from-config CASE/base/config.json"),
          note="through Megatron's names")
    for name, back in {"qwen3_packed_peft021": GROUPED, "qwen3_sep_equalA_peft018": INDEXED, "gpt_oss_packed_peft021": " --to hf"}.items()
] + [
    again("qwen3_sep_peft018", Run(CONVERT + " --to megatron", 4, says="--grow-rank"), Run(CONVERT + " --to megatron --grow-rank"),
          Run("verify SRC OUT --from-config CASE/base/config.json", says="equal"), note="Megatron's names, two A"),
    again("qwen3_packed_bf16_pattern_peft021", Run(CONVERT + " --to megatron", 4, says=r"has one of each for all modules.*\[not-exact\]"),
          note="Megatron's names, two ranks"),
    again("qwen3_sep_equalA_peft018", Run(CONVERT + " --to hf", check=all_are_the_first), Run("convert OUT OUT2" + GROUPED),
          Run("verify SRC OUT2 --from-config CASE/base/config.json"), change=one_for_all, note="one pair for all experts"),
    # SGLang's factors that experts share, and Megatron-Bridge's with gate and up apart.
    *[again("qwen3_sep_equalA_peft018", Run("inspect SRC --from-config CASE/base/config.json", says="grouped experts"),
            Run(CONVERT + " --to hf", check=same_as("adapter_qwen3_sep_equalA_peft018") if a == 4 else shared_outer),
            Run("convert OUT OUT2" + GROUPED), Run("verify SRC OUT2 --from-config CASE/base/config.json"),
            Run(CONVERT + " --to sglang"), change=lambda source, a=a, gate_up=gate_up: stacked(source, a, a, gate_up),
            note=f"stacked, {'gate_up' if gate_up else 'gate and up'}, outer of {a}")
      for a, gate_up in ((1, True), (4, True), (1, False), (4, False))],
    again("qwen3_sep_equalA_peft018", Run(CONVERT + " --to hf", 3, says=r"experts\.gate_up_proj.*3, 4"),
          change=lambda source: stacked(source, 3, 4, True), note="stacked, of 3 experts"),
    Case("adapter_qwen3_sep_equalA_peft018", "base", [
        Run("convert SRC OUT --merge CASE/adapter", truth="merged_safe.safetensors", some=True)],
         change=lambda source: stacked(source.parent / "adapter", 4, 4, True), note="stacked, merged"),
    again("qwen3_sep_peft018", Run(CONVERT + " --to hf", check=same_as("adapter_qwen3_sep_peft018")),
          Run("inspect SRC --strict --from-config CASE/base/config.json", says="grouped experts"),
          change=canonical, note="Megatron's names, gate and up apart"),
    again("qwen3_sep_equalA_peft018", Run("inspect SRC --strict --from-config CASE/base/config.json", says="grouped experts"),
          Run("inspect SRC --strict"), Run(CONVERT + " --to hf", check=same_as("adapter_qwen3_sep_equalA_peft018")), change=in_memory,
          note="AutoModel's parameters"),
    # SGLang reads r and lora_alpha alone.
    again("qwen3_packed_bf16_pattern_peft021", Run(CONVERT + " --to sglang", 4, says=r"has rank \d+ and scale .*vLLM reads both.*\[not-exact\]"),
          Run(CONVERT + " --to sglang --experts indexed", 4, says=r"has rank \d+ and scale .*vLLM reads both.*\[not-exact\]"),
          Run(CONVERT + " --to sglang --experts grouped", 4, says=r"no names for PEFT's factors.*\[no-spelling\]"),
          Run(CONVERT + " --to vllm"), note="SGLang reads no patterns"),
    again("qwen3_sep_equalA_peft018", Run(CONVERT + " --to sglang --force", check=says_config({"use_rslora": False, "lora_alpha": 12, "r": 4})),
          Run("verify SRC OUT --from-config CASE/base/config.json"), change=own_config(use_rslora=True), note="SGLang reads no rslora"),
    again("gpt_oss_packed_peft021", Run(CONVERT + " --to sglang --experts shared", 4, says=r"gate's and up's in turn.*--to sglang without --experts shared"),
          note="a pair that experts share"),
    again("qwen3_sep_equalA_peft018", Run(CONVERT + " --to hf --experts shared", 4, says="--to sglang, --to vllm and --to megatron write them"),
          Run(CONVERT + " --to vllm --experts shared", 4, says=r"gate_proj\.lora_A.*expert 1\) differs from .*expert 0"),
          Run(CONVERT + " --to hf --glu split", 2, says="is for models"),
          Run("convert CASE/base OUT --to vllm --experts shared", 2, says="--experts shared: is for adapters"), note="factors that experts share"),
    again("qwen3_sep_peft018", Run(CONVERT + " --to hf", REFUSED, says="let experts share factors"), change=own_factors(
        lambda tensors: tensors.update({f"base_model.model.model.layers.0.mlp.experts.w1.lora_{f}.weight": tensors[
            f"base_model.model.model.layers.0.mlp.experts.0.gate_proj.lora_{f}.weight"] for f in "AB"})),
          note="a pair without an expert"),
    # An adapter of another model, whose names and shapes may be alike.
    *[again(name, *[Run(f"convert SRC OUT --from-config {wrong} {words}", REFUSED, says="it is for a .*, and config.json of the model says")
                    for words in ("--to vllm", "--experts indexed", "--to hf --experts grouped")],
            Run(f"verify SRC SRC --from-config {wrong}", REFUSED, plan=False, says="it is for a"),
            Run(f"inspect SRC --strict --from-config {wrong}", 3, plan=False, says="it is for a"), note="another model's config.json")
      for name, wrong in (("gpt_oss_packed_peft021", TESTDATA / "whole/qwen3_moe/hf"), ("qwen3_packed_peft021", TESTDATA / "whole/gpt_oss/hf"),
                          ("qwen3_packed_peft021", TESTDATA / "hf/mixtral"))],
    again("qwen3_dora_peft018", *[Run(CONVERT + f" --to {program} --force", REFUSED, says=rf"is DoRA .use_dora., and {word} takes none: .*--merge ADAPTER")
                                  for program, word in (("vllm", "vLLM"), ("sglang", "SGLang"))],
          Run("inspect SRC", plan=False, says="loads in +PEFT", never_says="vLLM|SGLang"), note="who reads DoRA"),
    # What is not exact, not told, or has no place.
    again("qwen3_sep_peft018", Run(CONVERT + GROUPED, 4, says=r"factors A of their own.*--grow-rank.*\[not-exact\]"), note="two A"),
    again("qwen3_packed_peft021", Run("convert SRC OUT" + INDEXED, 4, says=r"--from-config FILE.*\[no-map\]"),
          Run("digest SRC", 4, says="--from-config FILE"), note="no configuration"),
    again("qwen3_sep_peft018", Run("convert SRC OUT --to hf --force"), Run("convert SRC OUT --to sglang --force", check=same_as("adapter_qwen3_sep_peft018")),
          Run("convert SRC OUT --to hf", 4,
              says=r"adapter with indexed experts already; that is what these options ask for, so its files can be used as they are.*\[already-in-layout\]"),
          Run("convert SRC OUT --to torchtitan", 4, says="no adapters of routed experts"),
          Run("convert SRC OUT --glu contiguous", 2, says="is for models"),
          Run("convert SRC OUT --to hf --layers 0", 2, says="--layers: is for models"),
          Run("convert SRC OUT --to hf --fill-from CASE/base", 2, says="--fill-from: is for models"),
          Run("convert SRC OUT --to hf --merge CASE/adapter", 2, says="--merge: SRC is the model"),
          Run("convert CASE/base OUT --to megatron --grow-rank", 2, says="--grow-rank: is for adapters"),
          Run("convert SRC OUT --to hf --force --format torch", 4, says="adapter_model.safetensors"),
          note="no configuration"),
    again("qwen3_dora_peft018", Run(CONVERT + GROUPED, 3, says="no DoRA for packed experts"), note="packed"),
    again("qwen3_sep_equalA_peft018", Run(CONVERT + GROUPED, REFUSED, says=r"has the scale .*\[not-exact\]"),
          Run(CONVERT + " --to hf --force", check=says_config({"alpha_pattern": {"up_proj": 3}})),
          change=own_config(alpha_pattern={"up_proj": 3}), note="two scales"),
    again("qwen3_sep_equalA_peft018", Run(CONVERT + GROUPED), Run("convert OUT OUT2" + INDEXED),
          change=own_factors(lambda tensors: [tensors.pop(name) for name in list(tensors) if ".experts.2." in name]),
          note="an expert without factors"),
    again("qwen3_packed_peft021", Run(CONVERT + INDEXED, 3, says=r"--from-lora by-expert"),
          Run(CONVERT + INDEXED + " --from-lora by-expert", check=same_as("adapter_qwen3_sep_equalA_peft018")),
          change=both(own_factors(by_expert), own_config(auto_mapping={"unsloth_fixed": True})), note="Unsloth's columns"),
    again("qwen3_packed_peft021", Run(CONVERT + GROUPED + " --from-lora by-expert", check=same_as("adapter_qwen3_packed_peft021")),
          Run("inspect OUT", says=r"layers 0 to 1: routed experts .*in each(.*\n)*.*PEFT.*0\.19 or later"), Run("verify SRC OUT --from-lora by-expert --from-config CASE/base/config.json"),
          Run("convert OUT OUT2 --to hf --experts indexed", check=same_as("adapter_qwen3_sep_equalA_peft018")),
          change=both(own_factors(by_expert), own_config(auto_mapping={"unsloth_fixed": True})), note="Unsloth's columns, as PEFT's"),
    again("qwen3_sep_equalA_peft018", Run(CONVERT + GROUPED),
          Run("verify SRC OUT --from-config CASE/base/config.json", says="equal", never_says="byte-identical"), note="other tensors"),
    # Files for an older PEFT and an older Unsloth; the record says what they are.
    again("qwen3_packed_peft021", Run(CONVERT + " --to-lora peft-0.18", says=r"to +adapter \(LoRA\), grouped experts, for PEFT 0\.18(.*\n)*loads in.*PEFT.*0\.18", check=same_as("adapter_qwen3_packed_peft018")),
          Run("inspect OUT", says=r"loads in.*PEFT.*0\.18"), Run("check OUT"), Run("verify SRC OUT --from-config CASE/base/config.json"),
          Run("convert OUT OUT2 --from-lora peft-0.19 --to hf --experts indexed", 3, says=r"record.*peft-0\.18.*\[record-contradicts\]"),
          Run("convert OUT OUT2 --to-lora peft-0.19", check=same_as("adapter_qwen3_packed_peft021")), note="for PEFT 0.18"),
    again("qwen3_packed_peft021", Run(CONVERT + " --to-lora by-expert", says=r"to +adapter \(LoRA\), grouped experts, for Unsloth(.*\n)*loads in.*Unsloth", check=columns_by_expert("qwen3_packed_peft021")),
          Run("inspect OUT", says=r"loads in.*Unsloth"), Run("verify SRC OUT --from-config CASE/base/config.json"),
          Run("convert OUT OUT2 --to hf --experts indexed", check=same_as("adapter_qwen3_sep_equalA_peft018")), note="for Unsloth"),
    again("qwen3_sep_equalA_peft018", Run(CONVERT + INDEXED + " --to-lora peft-0.18", 2, says="--to hf --experts grouped writes"),
          Run(CONVERT + " --to vllm --to-lora by-expert", 2, says="--to hf --experts grouped writes"),
          Run(CONVERT + " --to megatron --to-lora by-expert", 2, says="--to hf --experts grouped writes"),
          Run("convert CASE/base OUT --to megatron --to-lora peft-0.18", 2, says="--to-lora: is for adapters"), note="--to-lora elsewhere"),
    again("qwen3_packed_peft018", Run("inspect SRC --from-config CASE/base/config.json", says=r"loads in.*PEFT.*0\.18"),
          Run("inspect SRC", says=r"--from-config FILE"), note="who reads it"),
    again("qwen3_packed_peft021", Run(CONVERT + INDEXED + " --from-lora peft-0.18", 3, says=r"\[size-mismatch\]"),
          Run(CONVERT + INDEXED + " --from-lora peft-0.19", check=same_as("adapter_qwen3_sep_equalA_peft018"))),
    # Faults that a program may make, seen by comparing.
    again("qwen3_packed_peft021", Run(VERIFY, 1, says="lora_B"),
          change=beside("adapter_qwen3_packed_peft021", own_factors(by_expert)), note="B by expert taken as by rank"),
    again("qwen3_sep_peft018", Run(VERIFY, 1, says=r"gate_proj.lora_A"),
          change=beside("adapter_qwen3_sep_peft018", own_factors(exchanged)), note="gate's under up"),
    again("qwen3_sep_peft018", Run(VERIFY, 1, says="lora_scale"),
          change=beside("adapter_qwen3_sep_peft018", own_config(lora_alpha=4)), note="another alpha"),
    again("qwen3_packed_bf16_pattern_peft021", Run(VERIFY, 1, says="lora_scale"),
          change=beside("adapter_qwen3_packed_bf16_pattern_peft021", own_config(alpha_pattern={})), note="a lost alpha"),
    # What it is.
    again("qwen3_sep_peft018", Run("inspect SRC --strict", says=r"adapter .LoRA., indexed experts(.|\n)*Qwen3MoeForCausalLM(.|\n)*ranks       4, lora_alpha 8(.|\n)*24 of routed experts"), note="inspect"),
    again("qwen3_packed_peft021", Run("inspect SRC --strict", says=r"grouped experts(.|\n)*mlp.experts.gate_up_proj(.|\n)*4 of routed experts"),
          Run("inspect SRC --strict --from-config CASE/base/config.json"), note="inspect"),
    again("qwen3_sep_peft018", Run("inspect SRC --strict", (1, 3), says="part-missing|its other factor is not"),
          change=own_factors(lambda tensors: tensors.pop(next(iter(tensors)))), note="inspect half a pair"),
]

CASES = [
    adapter(name, Run(MERGE, truth="merged_default.safetensors", some=True, says="is merged .peft."),
            Run("verify SRC OUT --merge CASE/adapter"), Run("verify SRC OUT", 1),
            Run(SAFE, truth=f"merged_{'safe' if is_other else 'default'}.safetensors", some=True))
    for name, is_other in MERGED.items()
] + [
    # The model in other layouts, before and after.
    adapter(name, Run("convert SRC OUT --to megatron --glu interleaved:4"),
            Run("convert OUT OUT2 --to hf --merge CASE/adapter", truth="merged_default.safetensors", some=True),
            Run(MERGE + " --to megatron"), Run("convert OUT OUT2 --to hf", truth="merged_default.safetensors", some=True),
            Run("convert SRC OUT --experts grouped --glu contiguous --allow-foreign-order"),
            Run("convert OUT OUT2 --to hf --experts indexed --glu split --merge CASE/adapter --max-memory 64MB",
                truth="merged_default.safetensors", some=True), note="other layouts")
    for name in ("qwen3_sep_peft018", "qwen3_packed_peft018", "qwen3_packed_bf16_pattern_peft021", "mixtral_sep_bf16_peft018",
                 "qwen3_dora_peft018")
] + [
    adapter("gpt_oss_packed_peft021", Run("convert SRC OUT --to megatron --glu contiguous"),
            Run("convert OUT OUT2 --to hf --merge CASE/adapter", truth="merged_default.safetensors", some=True), note="other layouts"),
    adapter("qwen3_sep_peft018", Run("convert SRC OUT --to megatron --format safetensors"),
            Run("convert OUT OUT2 --merge CASE/adapter --force --from-glu interleaved:2", REFUSED), note="an order that contradicts"),
    # What is more than a product of two factors, or not whole, or for another model.
    refused("qwen3_packed_peft021", config(auto_mapping={"base_model_class": "MixtralForCausalLM"}),
            "it is for a MixtralForCausalLM, and config.json of the model says Qwen3MoeForCausalLM", "another architecture"),
    adapter("qwen3_packed_peft021", Run(MERGE), change=config(auto_mapping={"base_model_class": "Qwen3MoeModel"}), note="another head"),
    adapter("qwen3_packed_peft021", Run(MERGE), change=config(auto_mapping=None), note="nobody says the class"),
    # An adapter of a language model, merged into it where it is inside another one.
    *[Case("whole/kimi_k25", "hf", [
        Run(MERGE), Run("verify SRC OUT --merge CASE/adapter", plan=False), Run("verify SRC OUT", 1, plan=False),
        Run("convert OUT OUT2 --drop vision"), Run("convert SRC OUT --drop vision --merge CASE/adapter"),
        Run("verify OUT OUT2", plan=False, says="byte-identical")], change=of_language_model(base_class), note=f"{base_class} in another model")
      for base_class in ("DeepseekV3ForCausalLM", "KimiK2ForCausalLM")],
    Case("whole/kimi_k25", "hf", [Run(MERGE, REFUSED, says="it is for a MixtralForCausalLM, and config.json of the model says Kimi_K25")],
         change=of_language_model("MixtralForCausalLM"), note="another language model"),
    Case("whole/kimi_k25", "hf", [Run(MERGE, REFUSED, says="an embedding: PEFT calls the factors of one lora_embedding_A")],
         change=of_language_model("DeepseekV3ForCausalLM", r"model\.embed_tokens"), note="factors of an embedding under a linear layer's names"),
    *[Case(f"quantized/{name}", ".", [Run(MERGE, 3, says="--decode bf16 beside --merge makes numbers of codes first.*not-supported"),
                                     Run(MERGE + " --decode bf16", says="is merged")],
           change=of_decoded(name), note="merged into codes")
      for name in ("nvfp4_modelopt", "fp8_block128")],
    # A head that multi-token prediction repeats; codes under other names; a pattern that cannot be read.
    Case("whole/deepseek_v3", "hf", [Run(MERGE + " --to megatron", 3, says="--merge changed one of the two; --drop mtp leaves .*copy-differs"),
                                     Run(MERGE + " --to megatron --drop mtp")],
         change=lambda source: write_adapter(source.parent / "adapter", source, "DeepseekV3ForCausalLM"), note="a head that is repeated"),
    Case("quantized/awq_int4", ".", [Run(MERGE, REFUSED, says="--decode bf16 beside --merge makes numbers of them first"), Run(MERGE + " --decode bf16")],
         change=of_decoded("awq_int4"), note="merged into codes"),
    refused("qwen3_sep_peft018", config(rank_pattern={"((": 2}), r"error: \S*/adapter\S*: adapter_config.json: the pattern", "no pattern"),
    adapter("mixtral_sep_rslora_pattern_peft018", Run(MERGE + " --encode fp8:channel", says="note: 32 weights are rounded to fp8:channel"),
            Run(MERGE), Run("convert OUT OUT2 --encode fp8:channel", says="note: 32 weights are rounded to fp8:channel"), note="merged, then encoded"),
    # Merged twice, and an adapter by itself.
    adapter("qwen3_packed_peft021", Run(MERGE), Run("convert OUT OUT2 --merge CASE/adapter", says="warning: .*'adapter' is merged already"),
            Run("convert CASE/adapter OUT2 --to megatron", REFUSED, says="adapter"), note="twice"),
    refused("qwen3_dora_peft018", lost("lora_magnitude"), r"no lora_magnitude_vector.*\[part-missing\]", "no magnitudes"),
    refused("qwen3_dora_peft018", config(use_dora=False), "neither lora_A nor lora_B, but of DoRA", "DoRA that is not said"),
    refused("qwen3_sep_peft018", config(bias="all"), "bias is set", "biases"),
    refused("qwen3_sep_peft018", config(init_lora_weights="pissa"), "'pissa', which begins from other weights", "PiSSA"),
    refused("qwen3_sep_peft018", config(modules_to_save=["lm_head"]), "modules_to_save is set", "whole modules"),
    refused("qwen3_sep_peft018", config(use_newlora=True), "use_newlora is set", "a method that is not known"),
    refused("qwen3_sep_peft018", config(peft_type="IA3"), "peft_type is 'IA3'", "another kind"),
    refused("qwen3_sep_peft018", config(lora_alpha="8"), 'lora_alpha is "8", where a number', "no number"),
    refused("qwen3_sep_peft018", config(r=8), "says rank 8", "another rank"),
    refused("qwen3_sep_peft018", config(alpha_pattern={"(?<=x)gate": 3}), "is not read here", "a pattern of another kind"),
    refused("qwen3_sep_peft018", lost("experts.1.up_proj.lora_B"), r"its other factor is not.*\[part-missing\]", "a lost B"),
    refused("qwen3_sep_peft018", factors(widened), r"lora_B.*\[size-mismatch\]", "another width"),
    refused("qwen3_packed_peft021", factors(widened), r"/adapter/adapter_model.safetensors: byte \d+: .*lora_B.*\[size-mismatch\]",
            "another width"),
    refused("qwen3_sep_peft018", renamed("layers.1.", "layers.7."), r"which the model does not have.*\[unknown-tensor\]",
            "another model", 4),
    refused("qwen3_packed_peft021", renamed("layers.1.", "layers.7."), r"the model has none there.*\[unknown-tensor\]", "another model", 4),
    refused("qwen3_sep_peft018", renamed("0.gate_proj.lora_A", "0.gate_proj.lora_magnitude_vector"), "neither lora_A nor lora_B", "other parts"),
    adapter("qwen3_sep_peft018", Run("convert SRC OUT --merge CASE/base", 3, says="has no adapter_config.json")),
    adapter("qwen3_sep_peft018", Run("convert SRC OUT --merge-as peft", 2, says="--merge ADAPTER says which")),
    # Some modules only, a start that changes nothing, other fields of PEFT.
    adapter("qwen3_sep_peft018", Run(MERGE, says="is merged"), Run("verify SRC OUT --merge CASE/adapter"),
            change=lost("experts.1.up_proj.lora"), note="some experts"),
    *[adapter("qwen3_sep_peft018", Run(MERGE, says=r"warning: .*in layers_to_transform .* does not name (12|24) of the .*'model\.layers\.1\."),
              change=config(layers_to_transform=layers, **more), note=f"layers_to_transform {layers} {more}")
      for layers, more in ((0, {}), ([0], {}), ([0, 7], {"layers_pattern": "layers"}))],
    *[adapter("qwen3_sep_peft018", Run(MERGE, never_says="layers_to_transform"), change=config(layers_to_transform=layers),
              note=f"layers_to_transform {layers}") for layers in ([], None, [1, 0])],
    adapter("qwen3_packed_peft021", Run(MERGE), Run("verify SRC OUT --merge CASE/adapter"),
            change=both(lost("experts.base_layer"), config(target_parameters=["mlp.experts.down_proj"])), note="down alone"),
    adapter("qwen3_sep_peft018", Run(MERGE, truth="merged_default.safetensors", some=True),
            change=config(init_lora_weights="gaussian", use_rslora=False, lora_dropout=0.1, megatron_config=None, inference_mode=False),
            note="other fields"),
] + ALONE
