"""State dicts in memory, beside the same conversions of files."""

import json
import os
import pathlib
import random
import re

import glu_ckpt
import numpy as np
import pytest

WHOLE = pathlib.Path(os.environ["GLU_CKPT_TESTDATA"]) / "whole"
QWEN = WHOLE / "qwen3_moe" / "hf"


def loaded(path):
    """All tensors, as handles that any library takes."""
    checkpoint = glu_ckpt.open(path)
    return {name: checkpoint[name] for name in checkpoint}


def bits(tensor):
    array = tensor if isinstance(tensor, np.ndarray) else tensor.numpy(raw=True)
    return array.tobytes()


def expect_equal(made, path):
    there = loaded(path)
    assert sorted(made) == sorted(there)
    for name, tensor in there.items():
        assert tuple(made[name].shape) == tuple(tensor.shape), name
        assert bits(made[name]) == bits(tensor), name


@pytest.mark.parametrize("family", sorted(path.name for path in WHOLE.iterdir()))
def test_a_state_dict_converts_as_its_files_do(family, tmp_path):
    for options in ({"to": "megatron"}, {"to": "megatron", "experts": "indexed"}, {"to": "torchtitan"}):
        source = WHOLE / family / "hf"
        there = tmp_path / "-".join(options.values())
        try:
            glu_ckpt.convert(source, there, **options)
        except glu_ckpt.Error as error:
            with pytest.raises(glu_ckpt.Error) as caught:
                glu_ckpt.convert_state_dict(loaded(source), config=source, **options)
            assert caught.value.slug == error.slug
        else:
            expect_equal(glu_ckpt.convert_state_dict(loaded(source), config=source, **options), there)


def write_files(state, folder, config):
    """What a program that has this state dict would save."""
    header, at = {}, 0
    for name, tensor in state.items():
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [at, at + len(bits(tensor))]}
        at = header[name]["data_offsets"][1]
    folder.mkdir(parents=True)
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + b"".join(bits(tensor) for tensor in state.values()))
    (folder / "config.json").write_bytes((config / "config.json").read_bytes())


def random_part(state, choose):
    """Some of a model: a rank's experts, a stage's layers, a tensor less, or whatever; under a wrapper's word, or none."""
    names = list(state)

    def numbers(word):
        return sorted({int(n) for name in names for n in re.findall(rf"\.{word}\.(\d+)\.", name)})

    kind = choose.choice(["experts", "layers", "one less", "any", "all"])
    if kind in ("experts", "layers") and (found := numbers(kind)):
        kept = choose.sample(found, choose.randint(1, len(found)))
        if choose.random() < 0.5:
            first = choose.choice(found)
            kept = [n for n in found if first <= n < first + max(1, len(found) // 2)]
        names = [name for name in names
                 if (n := re.search(rf"\.{kind}\.(\d+)\.", name)) is None and choose.random() < 0.7 or n and int(n[1]) in kept]
    elif kind == "one less":
        names.remove(choose.choice(names))
    elif kind == "any":
        names = choose.sample(names, choose.randint(1, len(names)))
    prefix = choose.choice(["", "", "", "module.", "language_model.", "model.", "text."])
    return {prefix + name: state[name] for name in names}


def slug_or(call, *arguments, **options):
    try:
        return None, call(*arguments, **options)
    except glu_ckpt.Error as error:
        return error.slug, None


def test_random_parts_go_as_their_files_do_or_are_refused_alike(tmp_path):
    choose = random.Random(52)
    forms = [{"to": "megatron"}, {"to": "hf", "experts": "grouped", "glu": "contiguous"}, {"scope": "experts", "to": "megatron"},
             {"naming": "megatron", "scope": "experts", "experts": "grouped", "glu": "interleaved:4"}, {"to": "torchtitan"}]
    states = {family: loaded(WHOLE / family / "hf") for family in ("qwen3_moe", "deepseek_v3", "gpt_oss", "llama3")}
    trained = {}
    for family, state in states.items():
        made = glu_ckpt.convert_state_dict(state, config=WHOLE / family / "hf", to="megatron")
        trained[family] = {name: tensor for name, tensor in made.items() if hasattr(tensor, "dtype")}
    slugs, equal = set(), 0
    for number in range(200):
        family = choose.choice(list(states))
        config = WHOLE / family / "hf"
        state, options = random_part(states[family], choose), dict(choose.choice(forms))
        there = tmp_path / str(number)
        write_files(state, there / "source", config)
        slug, _ = slug_or(glu_ckpt.convert, there / "source", there / "made", **options)
        found, made = slug_or(glu_ckpt.convert_state_dict, state, config=config, **options)
        assert found == slug, (number, family, options, sorted(state)[:3])
        slugs.add(slug)
        if slug is None:
            expect_equal(made, there / "made")
            equal += 1
    # Both ways were taken, for several reasons.
    assert equal >= 40 and len(slugs) >= 5, (equal, slugs)


@pytest.mark.parametrize("family", sorted(path.name for path in WHOLE.iterdir()))
def test_the_digest_of_a_state_dict_is_that_of_its_files(family, tmp_path):
    source = WHOLE / family / "hf"
    state = loaded(source)
    wanted = glu_ckpt.digest(source)["digest"]
    assert glu_ckpt.digest_state_dict(state, config=source) == wanted
    try:
        made = glu_ckpt.convert_state_dict(state, config=source, to="megatron")
    except glu_ckpt.Error:
        return
    trained = glu_ckpt.convert(source, tmp_path / "there", to="megatron")
    assert trained["digest"] == wanted
    # What says the order of gate and up is what a file's record says.
    found = next((tmp_path / "there").rglob("glu_ckpt.json"))
    record = {key: value for key, value in json.loads(found.read_text()).items() if isinstance(value, str)}
    assert glu_ckpt.digest_state_dict(made, config=source, record=record) == wanted


def test_a_digest_sees_every_bit():
    state = float_state()
    wanted = glu_ckpt.digest_state_dict(state, config=QWEN)
    for name in state:
        changed = state[name].copy()
        changed.reshape(-1).view("u4")[-1] ^= 1
        assert glu_ckpt.digest_state_dict({**state, name: changed}, config=QWEN) != wanted, name


def test_a_digest_refuses_what_files_refuse():
    state = {"decoder.layers.0.mlp.experts.linear_fc1.weight": np.zeros((2, 8, 4), "f4"),
             "decoder.layers.0.mlp.experts.linear_fc2.weight": np.zeros((2, 4, 4), "f4")}
    with pytest.raises(glu_ckpt.Error) as caught:
        glu_ckpt.digest_state_dict(state)
    assert caught.value.slug == "unknown-glu"
    assert glu_ckpt.digest_state_dict(state, from_glu="contiguous").startswith("gck2:")
    with pytest.raises(glu_ckpt.Error, match="no_such_option. is no option"):
        glu_ckpt.digest_state_dict(state, no_such_option=1)


def float_state():
    """The model with F32 weights, as numpy has them."""
    state = {}
    for number, (name, tensor) in enumerate(loaded(QWEN).items()):
        count = int(np.prod(tensor.shape))
        state[name] = (np.arange(count, dtype="f4") + 1000 * number).reshape(tensor.shape)
    return state


def test_names_are_changed_without_copies_and_plans_are_run_again():
    state = float_state()
    plan = glu_ckpt.plan_state_dict(state, config=json.loads((QWEN / "config.json").read_text()), to="megatron")
    made = plan.run(state)
    assert plan.renamed and all(made[name] is state[source] for name, source in plan.renamed.items())
    assert all(isinstance(tensor, np.ndarray) and tensor.dtype == "f4" for tensor in made.values())
    others = {name: -tensor for name, tensor in state.items()}
    out = {name: np.full(info.shape, np.nan, "f4") for name, info in plan.outputs.items()}
    again = plan.run(others, out)
    for name, tensor in made.items():
        assert again[name] is out[name]
        assert np.array_equal(out[name], -tensor), name
    back = glu_ckpt.convert_state_dict(
        made, config=QWEN, to="hf", from_glu="contiguous", from_shared_glu="contiguous", experts="indexed"
    )
    assert all(np.array_equal(back[name], tensor) for name, tensor in state.items())


def test_shapes_are_enough_for_a_plan_which_says_where_bytes_go():
    state = float_state()
    shapes = {name: ("F32", tensor.shape) for name, tensor in state.items()}
    plan = glu_ckpt.plan_state_dict(shapes, config=QWEN, to="megatron", glu="interleaved:4")
    made = plan.run(state)
    for output in plan.to_json()["outputs"]:
        memory = bytearray(output["bytes"])
        for move in output["moves"]:
            source = state[move["from"]].tobytes()
            places = [(move["from_offset"], move["offset"])]
            for loop in move["loops"]:
                places = [
                    (a + i * loop["from_step"], b + i * loop["step"]) for a, b in places for i in range(loop["count"])
                ]
            for a, b in places:
                memory[b : b + move["run_bytes"]] = source[a : a + move["run_bytes"]]
        assert bytes(memory) == made[output["name"]].tobytes(), output["name"]


def refused(call, *words, **named):
    with pytest.raises(glu_ckpt.Error) as caught:
        call(*words, **named)
    return caught.value


def test_what_is_wrong_is_refused_and_nothing_is_written():
    state = float_state()
    plan = glu_ckpt.plan_state_dict(state, config=QWEN, to="megatron")
    out = {name: np.zeros(info.shape, "f4") for name, info in plan.outputs.items()}
    name = next(iter(plan.outputs))
    wrong = [
        ({**state, "lm_head.weight": state["lm_head.weight"].astype("f8")}, out, "lm_head.weight"),
        ({key: value for key, value in state.items() if key != "lm_head.weight"}, out, "lm_head.weight"),
        (state, {key: value for key, value in out.items() if key != name}, name),
        (state, {**out, "other": out[name]}, "other"),
        (state, {**out, name: out[name].T if out[name].ndim > 1 else out[name][:-1]}, name),
        (state, {**out, name: out[name].astype("f8")}, name),
    ]
    frozen = out[name].copy()
    frozen.flags.writeable = False
    wrong.append((state, {**out, name: frozen}, name))
    moved = next(key for key in plan.outputs if key not in plan.renamed)
    memory = np.zeros(max(out[moved].size, state["lm_head.weight"].size) + 1, "f4")
    shared = {**out, moved: memory[: out[moved].size].reshape(out[moved].shape)}
    head = memory[1 : 1 + state["lm_head.weight"].size].reshape(state["lm_head.weight"].shape)
    wrong.append(({**state, "lm_head.weight": head}, shared, "share memory"))
    for values, room, word in wrong:
        error = refused(plan.run, values, room)
        assert error.slug in ("usage", "not-supported") and word in str(error), str(error)
    assert not any(tensor.any() for tensor in out.values())
    assert refused(glu_ckpt.plan_state_dict, {**state, "text": "x"}, config=QWEN, to="megatron").tensor == "text"
    with pytest.raises(TypeError, match="overwrite"):
        glu_ckpt.plan_state_dict(state, config=QWEN, to="megatron", overwrite=True)
    megatron = plan.run(state)
    assert refused(glu_ckpt.convert_state_dict, megatron, config=QWEN, to="hf").slug == "unknown-glu"


def test_optimizer_states_go_with_their_weights_and_extra_states_stay():
    rows = {f"decoder.layers.0.mlp.experts.linear_fc{n}.weight{e}": None for n in (1, 2) for e in range(4)}
    state = {}
    for number, name in enumerate(rows):
        shape = (16, 6) if "fc1" in name else (6, 8)
        for offset, text in enumerate(("{}", "optimizer.state.exp_avg.{}", "optimizer.state.exp_avg_sq.{}")):
            base = np.arange(96, dtype="f4")[: shape[0] * shape[1]].reshape(shape)
            state[text.format(name)] = base + 1000 * number + 100 * offset
    state["decoder.layers.0.mlp.experts.linear_fc1._extra_state"] = None
    made = glu_ckpt.convert_state_dict(state, from_glu="contiguous", glu="interleaved:2", experts="grouped")
    assert "decoder.layers.0.mlp.experts.linear_fc1._extra_state" in made
    for text in ("{}", "optimizer.state.exp_avg.{}"):
        key = text.format("decoder.layers.0.mlp.experts.linear_fc1.weight")
        whole = np.stack([state[f"{key}{e}"] for e in range(4)])
        assert np.array_equal(made[key], glu_ckpt.interleave(whole, 2))


def test_a_trainers_experts_go_into_the_fused_ones_of_a_rollout_engine():
    name = "decoder.layers.{}.mlp.experts.linear_fc{}.weight"
    contiguous = {name.format(0, 1): np.arange(4 * 16 * 6, dtype="f4").reshape(4, 16, 6)}
    contiguous[name.format(0, 2)] = -np.arange(4 * 6 * 8, dtype="f4").reshape(4, 6, 8)
    trained = {**contiguous, name.format(0, 1): glu_ckpt.interleave(contiguous[name.format(0, 1)], 4)}
    options = {"naming": "vllm", "scope": "experts", "glu": "contiguous"}
    made = glu_ckpt.convert_state_dict(trained, from_glu="interleaved:4", **options)
    fused = "model.layers.0.mlp.experts.{}_weight"
    assert set(made) == {fused.format("w13"), fused.format("w2")}
    assert np.array_equal(made[fused.format("w13")], contiguous[name.format(0, 1)])
    assert made[fused.format("w2")] is trained[name.format(0, 2)]
    back = {"naming": "megatron", "scope": "experts", "glu": "interleaved:4"}
    assert refused(glu_ckpt.convert_state_dict, made, **back).slug == "unknown-glu"
    again = glu_ckpt.convert_state_dict(made, from_glu="contiguous", **back)
    assert all(np.array_equal(again[key], tensor) for key, tensor in trained.items())
    single = glu_ckpt.convert_state_dict(made, from_glu="contiguous", naming="hf:qwen3_moe", scope="experts",
                                         experts="indexed", glu="split")
    gate, up = (single[f"model.layers.0.mlp.experts.3.{part}_proj.weight"] for part in ("gate", "up"))
    assert np.array_equal(np.concatenate([gate, up]), contiguous[name.format(0, 1)][3])


@pytest.mark.parametrize("wrapper", ["", "module.", "module.module."])
def test_one_pipeline_stages_layers_convert_under_wrappers(wrapper):
    name = wrapper + "decoder.layers.{}.mlp.experts.linear_fc{}.weight{}"
    state = {wrapper + "decoder.final_layernorm.weight": np.ones(6, "f4")}
    for layer, e in ((layer, e) for layer in (4, 5) for e in range(4)):
        state[name.format(layer, 1, e)] = np.random.rand(16, 6).astype("f4")
        state[name.format(layer, 2, e)] = np.random.rand(6, 8).astype("f4")
    options = {"naming": "hf:qwen3_moe", "scope": "experts", "glu": "split"}
    made = glu_ckpt.convert_state_dict(state, from_glu="contiguous", **options)
    assert len(made) == 2 * 4 * 3 + 1
    halves = [made[f"{wrapper}model.layers.5.mlp.experts.2.{part}_proj.weight"] for part in ("gate", "up")]
    assert np.array_equal(np.concatenate(halves), state[name.format(5, 1, 2)])
    del state[name.format(5, 1, 2)]
    error = refused(glu_ckpt.convert_state_dict, state, from_glu="contiguous", **options)
    assert error.slug == "expert-missing"


def test_words_of_wrappers_are_taken_off_and_nothing_is_copied_for_them():
    state = float_state()
    words = {name.replace(".mlp.", "._orig_mod.mlp."): tensor for name, tensor in state.items()}
    plan = glu_ckpt.plan_state_dict(words, config=QWEN, to="megatron")
    made, wanted = plan.run(words), glu_ckpt.convert_state_dict(state, config=QWEN, to="megatron")
    assert made.keys() == wanted.keys() and all(np.array_equal(made[name], tensor) for name, tensor in wanted.items())
    assert any(made[name] is words[source] for name, source in plan.renamed.items() if "_orig_mod" in source)
    sources = {move["from"] for output in plan.to_json()["outputs"] for move in output["moves"]}
    assert sources <= words.keys() and any("_orig_mod" in name for name in sources)


@pytest.mark.parametrize("first_expert, first_layer", [(0, 0), (4, 0), (0, 12), (8, 3)])
def test_one_ranks_part_has_the_whole_models_numbers(first_expert, first_layer):
    """Megatron's modules count from 0 on each rank; the hub's names, which this writes down, count through the model."""
    name = "decoder.layers.{}.mlp.experts.linear_fc{}.weight{}"
    trained, hub = {}, {}
    for layer, expert in ((layer, expert) for layer in range(2) for expert in range(4)):
        first = 10_000.0 * layer + 1_000.0 * expert
        fc1 = first + np.arange(16 * 6, dtype="f4").reshape(16, 6)
        fc2 = 500 + first + np.arange(6 * 8, dtype="f4").reshape(6, 8)
        trained[name.format(layer, 1, expert)] = glu_ckpt.interleave(fc1, 4)
        trained[name.format(layer, 2, expert)] = fc2
        prefix = f"model.layers.{layer + first_layer}.mlp.experts.{expert + first_expert}."
        hub.update(zip((prefix + f"{part}_proj.weight" for part in ("gate", "up", "down")), (fc1[:8], fc1[8:], fc2)))
    part = {"first_expert": first_expert, "first_layer": first_layer, "scope": "experts"}
    to_hub = {"from_glu": "interleaved:4", "naming": "hf:qwen3_moe", "experts": "indexed", "glu": "split", **part}
    made = glu_ckpt.convert_state_dict(trained, **to_hub)
    assert made.keys() == hub.keys() and all(np.array_equal(made[key], tensor) for key, tensor in hub.items())
    out = {key: np.zeros_like(tensor) for key, tensor in hub.items()}
    glu_ckpt.plan_state_dict(trained, **to_hub).run(trained, out)
    assert all(np.array_equal(out[key], tensor) for key, tensor in hub.items())
    back = glu_ckpt.convert_state_dict(hub, naming="megatron", experts="indexed", glu="interleaved:4", **part)
    assert back.keys() == trained.keys() and all(np.array_equal(back[key], tensor) for key, tensor in trained.items())
    plan = glu_ckpt.plan_state_dict(hub, naming="megatron", experts="indexed", glu="interleaved:4", **part)
    assert {move["from"] for output in plan.to_json()["outputs"] for move in output["moves"]} == hub.keys()


def test_parts_that_cannot_be_are_refused():
    hub = {
        f"model.layers.2.mlp.experts.{expert}.{part}_proj.weight": np.zeros((8, 8), "f4")
        for expert in (4, 5) for part in ("gate", "up", "down")
    }
    options = {"naming": "megatron", "scope": "experts", "glu": "contiguous", "first_layer": 2}
    assert refused(glu_ckpt.convert_state_dict, hub, **options).slug == "expert-missing"
    error = refused(glu_ckpt.convert_state_dict, hub, first_expert=5, **options)
    assert error.slug == "usage" and "expert 4, but the first expert of this part is 5" in str(error)
    assert refused(glu_ckpt.convert_state_dict, hub, first_expert=-1, **options).slug == "usage"
    assert refused(glu_ckpt.convert_state_dict, hub, first_expert=4, decode="bf16", **options).slug == "usage"
    del hub["model.layers.2.mlp.experts.5.up_proj.weight"]
    error = refused(glu_ckpt.convert_state_dict, hub, first_expert=4, **options)
    assert error.slug == "expert-missing" and "first_expert=4" in str(error)
