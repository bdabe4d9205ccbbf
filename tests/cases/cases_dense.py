"""Dense models: the order of gate and up in their FC1s, torchtitan, Gemma; and routers that are wider than weights."""
import pathlib
import shutil

from case import Case, Run, config_changed, read_tensors, write_safetensors

FC1 = "decoder.layers.0.mlp.linear_fc1.weight"
TO_HUB = "convert SRC OUT --to hf"


def rows(data: bytes, count: int) -> list[bytes]:
    size = len(data) // count
    return [data[i * size : (i + 1) * size] for i in range(count)]


def interleaved(k: int):
    """FC1 of layer 0 in OUT, a safetensors directory, has blocks of k rows of the hub's gate and up in turn."""

    def check(out: pathlib.Path) -> str:
        hub = read_tensors(out.parent / "case" / "hf")
        halves = [hub[f"model.layers.0.mlp.{word}_proj.weight"] for word in ("gate", "up")]
        width = halves[0][1][0]
        gate, up = (rows(half[2], width) for half in halves)
        want = b"".join(b"".join(part[at : at + k]) for at in range(0, width, k) for part in (gate, up))
        return "" if read_tensors(out)[FC1][2] == want else "FC1 of layer 0 has other rows"

    return check


def dense(family: str, k: int, bad: int) -> list[Case]:
    name = f"whole/{family}"
    to = "convert SRC OUT --to megatron --format safetensors --naming megatron"
    return [
        Case(name, "hf", [
            Run(f"{to} --glu interleaved:{k}", 0, says=f"a dense model, interleaved:{k}", check=interleaved(k)),
            Run("verify SRC OUT"),
            Run("inspect OUT", says=f"a dense model, interleaved:{k}"),
            Run("convert OUT OUT2 --to hf", 0, says="loads in +transformers"),
            Run("verify SRC OUT2"),
            Run("convert OUT OUT2 --glu contiguous", 0, says="a dense model, contiguous"),
            Run("verify SRC OUT2"),
            Run("convert OUT2 OUT --to hf", 0),
            Run("verify SRC OUT"),
        ], note="there and back"),
        Case(name, "hf", [Run(f"convert SRC OUT --to megatron --glu interleaved:{bad}", 4,
                              says=rf"linear_fc1\.weight: \d+ rows; interleaved:{bad} needs.*\[not-divisible\]"),
                          Run("convert SRC OUT --to megatron --glu split", 4, says=r"--glu split.*\[no-spelling\]"),
                          Run("convert SRC OUT --glu contiguous", 4, says=r"--glu contiguous.*\[no-spelling\]"),
                          Run("convert SRC OUT --to megatron --from-glu contiguous", 4, says=r"\[glu-conflict\]"),
                          Run("convert SRC OUT --to megatron --shared-glu contiguous", 4, says=r"\[no-experts\]"),
                          Run("convert SRC OUT --to megatron", 0, says="loads in +Megatron-Core")],
             note="orders that do not fit"),
        Case(name, "", [
            Run(TO_HUB, 4, says=r"--from-glu ORDER.*\[unknown-glu\]"),
            Run("convert SRC OUT --glu contiguous", 4, says=r"\[unknown-glu\]"),
            Run("digest SRC", 4, says=r"\[unknown-glu\]"),
            Run("inspect SRC", 0, says="a dense model, unknown"),
            Run(f"{TO_HUB} --from-glu interleaved:{bad}", 4, says=r"\[not-divisible\]"),
            Run(f"{TO_HUB} --from-glu split", 4, says=r"\[glu-conflict\]"),
            Run(f"{TO_HUB} --from-glu contiguous", 0),
            Run("verify CASE/hf OUT"),
            Run("stamp SRC --glu contiguous"),
            Run(TO_HUB, 0, says="loads in +transformers"),
            Run("verify CASE/hf OUT"),
            Run(f"{TO_HUB} --from-glu interleaved:{k}", 4, says=r"the record says contiguous.*\[glu-conflict\]"),
        ], change=truth_of(family), note="nobody says the order"),
    ]


def truth_of(family: str):
    def change(changed: pathlib.Path) -> None:
        case = changed.parent
        for source, name in ((case / "truth.safetensors", "model.safetensors"), (case / "hf/config.json", "config.json")):
            shutil.copy(source, changed / name)

    return change


def q_bias(source: pathlib.Path) -> None:
    tensors = read_tensors(source)
    for layer in range(3):
        dtype, shape, _ = tensors[f"model.layers.{layer}.self_attn.q_proj.weight"]
        tensors[f"model.layers.{layer}.self_attn.q_proj.bias"] = (dtype, shape[:1], bytes(2 * shape[0]))
    write_safetensors(source / "model.safetensors", tensors)


def gemma(model_type: str, says: str, **fields: object) -> Case:
    """Keys of Gemma are Llama's; what it computes is not what Megatron-Core does."""
    return Case("whole/llama3", "hf", [
        *(Run(f"convert SRC OUT --to {to}", 4, says=rf"models of type '{model_type}' are not converted: .*{says}.*\[no-map\]")
          for to in ("megatron", "torchtitan", "hf")),
        Run("inspect SRC", 0, says=says, never_says="loads in +(Megatron|transformers)"),
        Run("verify SRC SRC"),
        Run("digest SRC"),
    ], change=config_changed(model_type=model_type, **fields), note=model_type)


def wide_routers(source: pathlib.Path) -> None:
    """As transformers saves some families: BF16 weights, F32 routers."""
    tensors = read_tensors(source)
    for name, (dtype, shape, data) in tensors.items():
        if name.endswith("mlp.gate.weight"):
            assert dtype == "BF16"
            tensors[name] = ("F32", shape, b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2)))
    write_safetensors(source / "model.safetensors", tensors)


def zero_experts(count: int | None, keep_down: bool = False):
    """LongCat's last experts do nothing; transformers saves an FC1 for each, and no FC2."""

    def change(source: pathlib.Path) -> None:
        config_changed(model_type="longcat_flash", num_experts=6, zero_expert_num=count)(source)
        tensors = {name.replace("mlp.gate.", "mlp.router.classifier."): tensor
                   for name, tensor in read_tensors(source).items() if keep_down
                   or not any(f".experts.{expert}.down_proj" in name for expert in (6, 7))}
        write_safetensors(source / "model.safetensors", tensors)

    return change


CASES = [
    Case("whole/qwen3_moe", "hf", [
        Run("inspect SRC --strict", says="2: 6 experts", never_says="problem"),
        Run("convert SRC OUT --experts grouped --glu contiguous", says="unknown: only the experts were looked at"),
        Run("verify SRC OUT"),
        Run("convert OUT OUT2 --experts indexed --glu split"),
        Run("verify SRC OUT2"),
        Run("convert SRC OUT2 --to megatron", 4, says=r"two attentions.*\[no-map\]"),
    ], change=zero_experts(2), note="experts that do nothing"),
    Case("whole/qwen3_moe", "hf", [Run("convert SRC OUT --experts grouped --glu contiguous", 3, says=r"\[expert-")],
         change=zero_experts(None), note="FC1s of experts that nobody counts"),
    Case("whole/qwen3_moe", "hf", [Run("convert SRC OUT --experts grouped --glu contiguous", (3, 4), says=r"\[")],
         change=zero_experts(2, keep_down=True), note="an FC2 of an expert that does nothing"),
    Case("whole/qwen3_moe", "hf", [
        Run("plan SRC OUT --to megatron", says=r"warning: 2 routers, the first of layer 0, are F32.*--bf16 rounds"),
        Run("convert SRC OUT --to megatron", says=r"warning: 2 routers"),
        Run("convert OUT OUT2 --to hf", never_says="routers"),
        Run("verify SRC OUT2"),
    ], change=wide_routers, note="F32 routers"),
    Case("whole/qwen3_moe", "hf", [Run("convert SRC OUT --to megatron", never_says="routers")], note="BF16 routers"),
    gemma("gemma", "GeGLU", hidden_act="gelu_pytorch_tanh"),
    gemma("gemma2", "caps the scores of attention", attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
    gemma("gemma3_text", "a rotary base of their own", rope_local_base_freq=10000.0),
    *dense("llama3", 6, 7),
    *dense("mistral", 4, 7),
    *dense("qwen2", 4, 9),
    *dense("qwen3", 4, 9),
    Case("whole/llama3", "hf", [
        Run("convert SRC OUT --to torchtitan", says="loads in +torchtitan"),
        Run("verify SRC OUT"),
        Run("diff SRC OUT", says="equal"),
        Run("convert OUT OUT2 --to hf", says="loads in +transformers"),
        Run("verify SRC OUT2"),
        Run("convert OUT OUT2 --to megatron"),
        Run("verify SRC OUT2"),
        Run("convert OUT2 OUT --to torchtitan"),
        Run("verify SRC OUT"),
    ], note="torchtitan, pairs of rows"),
    Case("whole/llama3", "hf", [
        Run("convert SRC OUT --to torchtitan", (3, 4), says=r"q_proj\.bias"),
    ], change=lambda source: q_bias(source), note="a bias has no place in torchtitan"),
    Case("whole/mistral", "hf", [Run("convert SRC OUT --to torchtitan", 4, says=r"\[no-map\]")],
         note="torchtitan has no Mistral"),
    Case("whole/llama3", "hf", [
        Run("convert SRC OUT --to megatron --glu interleaved:4", 0,
            says=r"nothing loads the output.*interleaved:32 alone, and this is interleaved:4"),
    ], note="a size that Megatron-Core's fused MLP does not read"),
]
