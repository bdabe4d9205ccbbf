"""--fill-from: a model that lost tensors gets them from its release, and nothing else. The release is testdata's model, the
model that was trained is the same with other weights (each bit of a low byte turned), without what training dropped."""
import json
import re
import shutil

from case import TESTDATA, Case, Run, both, config_changed, read_tensors, tensors_changed, write_safetensors

DEEPSEEK = TESTDATA / "whole/deepseek_v3/hf"
QWEN = TESTDATA / "whole/qwen3_moe/hf"


def trained(tensor):
    dtype, shape, data = tensor
    return dtype, shape, bytes(byte ^ 1 if i % 2 == 0 else byte for i, byte in enumerate(data))


def lost(pattern: str, **fields):
    """Returns a change that trains all tensors and loses those whose names fit, and sets fields of config.json."""

    def edit(tensors):
        for name in list(tensors):
            if re.search(pattern, name):
                del tensors[name]
            else:
                tensors[name] = trained(tensors[name])

    return both(tensors_changed(edit), config_changed(**fields))


def filled(name: str, pattern: str, copies=(), config=None):
    """Returns a check that OUT has the release's tensors where names fit the pattern, `copies` of its own ones, and the
    trained ones otherwise."""

    def check(out):
        release, have = read_tensors(TESTDATA / name), read_tensors(out)
        for key, tensor in release.items():
            own = next((original for copy, original in copies if key == copy), None)
            right = trained(release[own]) if own else tensor if re.search(pattern, key) else trained(tensor)
            if have.get(key) != right:
                return f"{key} is not the right one"
        if have.keys() != release.keys():
            return "other names"
        found = json.loads((out / "config.json").read_text())
        return "" if config is None or all(found.get(k) == v for k, v in config.items()) else f"config.json: {found}"

    return check


def text_model_alone(source):
    """Makes a directory of the language model of a multimodal one alone."""
    config = json.loads((source / "config.json").read_text())
    text = dict(config["text_config"], architectures=["Glm4vMoeTextModel"], tie_word_embeddings=False)
    (source / "config.json").write_text(json.dumps(text))
    path = source / "model.safetensors"
    tensors = {key.replace("model.language_model.", "model."): trained(tensor)
               for key, tensor in read_tensors(path).items() if "visual" not in key}
    write_safetensors(path, tensors)


def other_bytes(out):
    """Gives one filled tensor other bytes, as of another model."""
    path = next(out.glob("*.safetensors"))
    tensors = read_tensors(path)
    tensors["model.layers.3.eh_proj.weight"] = trained(tensors["model.layers.3.eh_proj.weight"])
    write_safetensors(path, tensors)
    (out / "glu_ckpt.json").unlink()
    return ""


def flipped(out):
    """Changes one byte of a tensor in the archive of a torch file, whose checksum stays."""
    path = next(path for path in out.rglob("*") if path.suffix in (".bin", ".pt", ".pth"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return ""


OWN_EMBEDDING = "model.layers.3.embed_tokens.weight"


def own_embedding(tensors):
    """Gives multi-token prediction an embedding that differs from the model's in its last byte alone."""
    dtype, shape, data = tensors[OWN_EMBEDDING]
    tensors[OWN_EMBEDDING] = dtype, shape, data[:-1] + bytes([data[-1] ^ 1])


def has_own_embedding(out):
    release, have = read_tensors(DEEPSEEK), read_tensors(out)
    own_embedding(release)
    return "" if have[OWN_EMBEDDING] == release[OWN_EMBEDDING] else "not the embedding of multi-token prediction"


def second_mtp_layer(tensors):
    tensors.update({name.replace(".layers.3.", ".layers.4."): tensor for name, tensor in tensors.items() if ".layers.3." in name})


def has_both_mtp_layers(out):
    release, have = read_tensors(DEEPSEEK), read_tensors(out)
    for name, tensor in release.items():
        if ".layers.3." not in name:
            continue
        if have.get(name) != trained(tensor):
            return f"{name} is not the model's own"
        copy = next((original for key, original in MTP_COPIES if key == name), None)
        right = trained(release[copy]) if copy else tensor
        if have.get(name.replace(".layers.3.", ".layers.4.")) != right:
            return f"{name} is not there for the second layer"
    return "" if json.loads((out / "config.json").read_text())["num_nextn_predict_layers"] == 2 else "the count"


TRAINED_FIELDS = {"rms_norm_eps": 0.5, "num_experts_per_tok": 1, "max_position_embeddings": 4096, "routed_scaling_factor": 2.5}


def has_text_fields(out):
    config = json.loads((out / "config.json").read_text())
    wrong = [key for key, value in TRAINED_FIELDS.items() if config["text_config"].get(key) != value]
    return f"{wrong} are not the model's own" if wrong or config["model_type"] != "glm4v_moe" else ""


def beside(change, release=DEEPSEEK):
    """Returns a change that puts a changed copy of the release beside the source."""

    def put(source):
        target = source.parent / "release"
        shutil.copytree(release, target)
        change(target)

    return put


def copied(source):
    """A second model beside the source."""
    target = source.parent / "lacking"
    shutil.copytree(source, target)
    return target


def fill(family: str, pattern: str, note: str, change=None, copies=(), config=None, says: str = "") -> Case:
    name = f"whole/{family}/hf"
    words = f"--fill-from {TESTDATA / name}"
    return Case(f"whole/{family}", "hf", [
        Run(f"convert SRC OUT {words}", says=says or "filled: '", check=filled(name, pattern, copies, config)),
        Run("inspect OUT --strict", plan=False),
        Run(f"verify SRC OUT {words}", plan=False),
        Run("verify SRC OUT", 1, plan=False, says="--fill-from .* compares"),
    ], change=change or lost(pattern), note=f"filled: {note}")


MTP = r"layers\.3\."
MTP_COPIES = (("model.layers.3.embed_tokens.weight", "model.embed_tokens.weight"),
              ("model.layers.3.shared_head.head.weight", "lm_head.weight"))

CASES = [
    fill("deepseek_v3", MTP, "MTP", copies=MTP_COPIES, says=r"experts\.\[0-5\]\.up_proj"),
    fill("deepseek_v3", MTP, "MTP that config.json does not count", lost(MTP, num_nextn_predict_layers=0), MTP_COPIES,
         {"num_nextn_predict_layers": 1}),
    fill("deepseek_v3", MTP, "MTP of which config.json says nothing", lost(MTP, num_nextn_predict_layers=None), MTP_COPIES,
         {"num_nextn_predict_layers": 1}),
    fill("minimax_m2", "correction_bias", "correction biases"),
    fill("qwen3_moe", "lm_head", "a head"),
    fill("glm4v_moe", "visual", "what sees"),
    fill("glm4v_moe", "visual", "what sees, for a language model alone", text_model_alone,
         config={"model_type": "glm4v_moe"}),
    # From Megatron's checkpoint, which has no MTP, and on to it.
    Case("whole/deepseek_v3", "hf", [
        Run("convert SRC OUT2 --to megatron"),
        Run(f"convert OUT2 OUT --to hf --fill-from {DEEPSEEK}", check=filled("whole/deepseek_v3/hf", MTP, MTP_COPIES)),
        Run(f"convert OUT2 OUT --to megatron --fill-from {DEEPSEEK}"),
        Run(f"verify SRC OUT --fill-from {DEEPSEEK}", plan=False),
    ], change=lost(MTP, num_nextn_predict_layers=0), note="filled: Megatron's"),
    Case("whole/deepseek_v3", "hf", [
        Run(f"convert SRC OUT --fill-from {DEEPSEEK}", check=other_bytes),
        Run(f"verify SRC OUT --fill-from {DEEPSEEK}", 1, plan=False, says="mtp.0"),
    ], change=lost(MTP), note="filled: a tensor of another model"),
    Case("whole/deepseek_v3", "hf", [
        Run(f"convert SRC OUT --fill-from {DEEPSEEK}",
            says=r"warning: --fill-from: rms_norm_eps is 0\.5 in config\.json of .* and 1e-06 in that of"),
    ], change=lost(MTP, rms_norm_eps=0.5), note="filled: of a model that computes otherwise"),
    # The release's MTP has an embedding that was trained on its own, and a head that repeats the model's.
    Case("whole/deepseek_v3", "hf", [
        Run("convert SRC OUT --fill-from CASE/release", check=has_own_embedding,
            says="'model.layers.3.embed_tokens.weight' should repeat .*: it is moved as a tensor of its own"),
        Run("convert SRC OUT2 --fill-from CASE/release --to megatron", 3, says=r"model.layers.3.embed_tokens.weight.*copy-differs"),
    ], change=both(lost(MTP), beside(tensors_changed(own_embedding))), note="filled: an embedding of MTP's own"),
    # A release with a second layer of multi-token prediction gives all of it.
    Case("whole/deepseek_v3", "hf", [
        Run("convert SRC OUT --fill-from CASE/release", check=has_both_mtp_layers),
        Run("inspect OUT --strict", plan=False),
        Run("convert SRC OUT2 --fill-from CASE/release --to megatron"),
    ], change=both(lost("nothing"), beside(both(tensors_changed(second_mtp_layer), config_changed(num_nextn_predict_layers=2)))),
         note="filled: a second layer of multi-token prediction"),
    # A model that was trained on keeps what it computes, inside of what sees.
    Case("whole/glm4v_moe", "hf", [
        Run(f"convert SRC OUT --fill-from {TESTDATA / 'whole/glm4v_moe/hf'}", check=has_text_fields,
            says="rms_norm_eps is 0.5 in config.json of"),
        Run("inspect OUT --strict", plan=False),
    ], change=both(text_model_alone, config_changed(**TRAINED_FIELDS)), note="filled: what sees, for a model that computes otherwise"),
    Case("whole/qwen3_moe", "hf", [
        Run(f"convert SRC OUT --fill-from {QWEN} --to megatron", says="--fill-from changes nothing"),
        Run(f"convert SRC OUT --fill-from {QWEN}", 4, says="--fill-from changes nothing.*already-in-layout"),
    ], change=lost("lm_head", tie_word_embeddings=True), note="filled: no head that is the embedding"),
    Case("whole/qwen3_moe", "hf", [
        Run(f"convert {QWEN} OUT --encode fp8:channel"),
        Run(f"convert OUT OUT2 --fill-from {QWEN}", 3, says=r"`glu-ckpt convert \S+ DST --decode bf16` makes numbers of these first"),
    ], note="filled: numbers beside codes"),
    # Options beside --fill-from describe SRC.
    Case("whole/qwen3_moe", "hf", [
        Run("convert SRC OUT --fill-from CASE/release", 4,
            says=r"Options beside --fill-from describe SRC: convert \S*/release on its own first", never_says="Run:")],
         change=both(lost("lm_head"), beside(lambda release: (release / "config.json").unlink(), QWEN)),
         note="filled: of what does not say its model"),
    Case("whole/deepseek_v3", "hf", [
        Run(f"convert {DEEPSEEK} OUT --format torch"),
        Run("convert SRC OUT2 --fill-from OUT"),
    ], change=lost(MTP), note="filled: of a torch file"),
    Case("whole/deepseek_v3", "hf", [
        Run(f"convert {DEEPSEEK} OUT --format torch", check=flipped),
        # Reads no tensors.
        Run("convert SRC OUT2 --fill-from OUT", 3, says="pytorch_model.bin.*zip-crc", plan=False),
    ], change=lost(MTP), note="filled: of a torch file with a wrong byte"),
    Case("whole/deepseek_v3", "hf", [
        Run(f"convert SRC OUT --to megatron --fill-from {DEEPSEEK}", 3, says="layer 1 is missing")],
         change=lost(r"layers\.1\."), note="filled: never a whole layer"),
    Case("whole/qwen3_moe", "hf", [Run(f"convert SRC OUT --fill-from {QWEN}", 3, says="expert-missing")],
         change=lost(r"layers\.0.*experts\.2\.down"), note="filled: never an expert"),
    Case("whole/qwen3_moe", "hf", [
        Run(f"convert SRC OUT --fill-from {QWEN} --to megatron", says="--fill-from changes nothing")],
         note="filled: nothing is lacking"),
    Case("whole/qwen3_moe", "hf", [
        Run(f"convert SRC OUT --fill-from {TESTDATA / 'whole/olmoe/hf'}", 3, says="no checkpoint of the same model.*model_type")],
         change=lost("lm_head"), note="filled: another family"),
    Case("whole/qwen3_moe", "hf", [
        Run("convert SRC OUT --layers 0"), Run("convert SRC OUT2 --fill-from OUT", 3, says="num_hidden_layers")],
         change=lost("nothing"), note="filled: another depth"),
    Case("whole/qwen3_moe", "hf", [
        Run("convert SRC OUT --encode fp8:channel"),
        Run("convert CASE/lacking OUT2 --fill-from OUT", 3, says="codes.*--decode bf16"),
        Run("convert CASE/lacking OUT2 --fill-from OUT --decode bf16", says="lm_head"),
    ], change=lambda source: lost("lm_head")(copied(source)) and None, note="filled: codes beside numbers"),
]
