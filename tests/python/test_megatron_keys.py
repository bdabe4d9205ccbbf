"""Megatron-Core's rules for grouped and indexed keys.

Cases named S1 to S6, M1 to M8 and O1 to O9 are those of Megatron-LM's own tests (test_transformer_engine_grouped_linear.py
and test_distrib_optimizer_grouped_quantized.py), in their order.
"""

import ast
import importlib.util
import itertools
import pathlib
import random
from types import SimpleNamespace

import numpy as np
import pytest
from glu_ckpt.megatron import (
    GroupingError,
    normalize_grouped_parameter_keys,
    normalize_state_dict_for_grouped_params,
    split_grouped_checkpoint_tensor,
)

FC1 = "experts.linear_fc1"


def tensor(*shape, first=0):
    return np.arange(first, first + int(np.prod(shape)), dtype="f4").reshape(shape)


def module(experts, *, weight=False, bias=False, use_bias=False):
    found = SimpleNamespace(
        num_gemms=experts, single_grouped_weight=weight, single_grouped_bias=bias, use_bias=use_bias
    )
    found._split_grouped_checkpoint_tensor = lambda t, key: split_grouped_checkpoint_tensor(t, key, experts)
    return found


def same(a, b):
    """Keys in the same order, and the same tensors."""
    return list(a) == list(b) and all(
        np.shape(a[key]) == np.shape(b[key]) and np.array_equal(a[key], b[key]) for key in a
    )


class Grouped:
    """A GroupedTensor of TransformerEngine."""

    shape = (3, 4)

    def __init__(self, members, cached):
        self.members, self.quantized_tensors = members, members if cached else None

    def split_into_quantized_tensors(self):
        return self.members


# ---- splitting one tensor --------------------------------------------------------------------------


@pytest.mark.parametrize("cached", [False, True])
def test_s1_and_s4_members_of_an_object_go_before_its_shape(cached):
    members = [object(), object()]
    assert split_grouped_checkpoint_tensor(Grouped(members, cached), "w", 2) == members
    with pytest.raises(GroupingError, match="has 2 groups, expected 3"):
        split_grouped_checkpoint_tensor(Grouped(members, cached), "w", 3)


@pytest.mark.parametrize(
    ("shape", "experts", "parts"),
    [
        ((3, 4), 3, (4,)),  # S2
        ((6, 3), 3, (2, 3)),  # S3
        ((3,), 3, ()),
        ((2, 4, 5), 2, (4, 5)),
        ((24,), 4, (6,)),  # a flat buffer stays flat
        ((4, 1), 4, (1,)),  # packed single rows are taken for experts
        ((0, 5), 2, (0, 5)),
    ],
)
def test_s2_and_s3_a_tensor_is_cut_along_its_first_axis(shape, experts, parts):
    whole = tensor(*shape)
    split = split_grouped_checkpoint_tensor(whole, "w", experts)
    assert [np.shape(part) for part in split] == [parts] * experts
    assert np.array_equal(np.concatenate([np.ravel(part) for part in split]), whole.ravel())


@pytest.mark.parametrize(("shape", "experts"), [((4, 2), 3), ((), 2), ((5,), 2), ((2, 4), 0), ((2, 4), -1)])  # S5, S6
def test_s5_and_s6_what_does_not_divide_is_refused(shape, experts):
    with pytest.raises(RuntimeError, match="cannot be split") as caught:
        split_grouped_checkpoint_tensor(tensor(*shape), "layer.weight", experts)
    assert caught.value.slug == "expert-shape" and caught.value.tensor == "layer.weight"


# ---- the keys of one module ------------------------------------------------------------------------

PARTS = {f"layer.weight{e}": tensor(2, 3, first=10 * e) for e in range(3)}
WHOLE = {"layer.weight": np.stack(list(PARTS.values()))}
BIASES = {f"layer.bias{e}": tensor(2, first=100 + e) for e in range(3)}
WHOLE_BIAS = {"layer.bias": np.stack(list(BIASES.values()))}


@pytest.mark.parametrize(
    ("state", "flags", "wanted"),
    [
        (PARTS, {"weight": True}, WHOLE),  # M1
        (PARTS | BIASES, {"weight": True, "bias": True, "use_bias": True}, WHOLE | WHOLE_BIAS),  # M2
        (WHOLE, {}, PARTS),  # M3
        (WHOLE | WHOLE_BIAS, {"use_bias": True}, PARTS | BIASES),  # M4
        (PARTS | BIASES, {"weight": True}, BIASES | WHOLE),  # M5: new keys go to the end
        (WHOLE | {"layer.weight0": 0}, {"weight": True}, WHOLE | {"layer.weight0": 0}),  # M6
        (WHOLE | {"layer.weight0": 0}, {}, WHOLE | {"layer.weight0": 0}),
        ({"layer.weight0": 0, "layer.weight2": 2}, {"weight": True}, {"layer.weight0": 0, "layer.weight2": 2}),  # M7
        (PARTS | WHOLE_BIAS, {"weight": True, "use_bias": True}, WHOLE | BIASES),  # modes are independent
        ({"layer.weight7": 7} | PARTS, {"weight": True}, {"layer.weight7": 7} | WHOLE),
        (PARTS | {"layer._extra_state": 1, "layer._extra_state1": 2}, {"weight": True},
         {"layer._extra_state": 1, "layer._extra_state1": 2} | WHOLE),
        ({"my" + key: value for key, value in PARTS.items()}, {"weight": True},
         {"my" + key: value for key, value in PARTS.items()}),
        ({}, {"weight": True, "bias": True, "use_bias": True}, {}),
    ],
)
def test_m_keys_get_the_form_that_the_module_wants(state, flags, wanted):
    before = dict(state)
    made = normalize_grouped_parameter_keys(state, "layer.", module(3, **flags))
    assert same(made, wanted) and same(state, before)


def test_m8_folding_and_splitting_gives_the_tensors_back():
    folded = normalize_grouped_parameter_keys(PARTS, "layer.", module(3, weight=True))
    assert same(normalize_grouped_parameter_keys(folded, "layer.", module(3)), PARTS)
    many = {f"weight{e}": tensor(1, first=e) for e in reversed(range(12))}
    made = normalize_grouped_parameter_keys(many, "", module(12, weight=True))
    assert made["weight"].ravel().tolist() == list(range(12))


@pytest.mark.parametrize("member", [tensor(3, 2), tensor(2, 3).astype("f8")])
def test_only_equal_members_fold_and_a_failure_changes_nothing(member):
    state = PARTS | BIASES | {"layer.bias1": member}
    before = dict(state)
    with pytest.raises(GroupingError, match="expert 1"):
        normalize_grouped_parameter_keys(state, "layer.", module(3, weight=True, bias=True, use_bias=True))
    assert same(state, before)


def test_flags_that_a_module_lacks_are_off():
    assert same(normalize_grouped_parameter_keys(WHOLE, "layer.", SimpleNamespace(num_gemms=3)), PARTS)


# ---- the weights of a whole model ------------------------------------------------------------------


def named(prefix, experts=2, first=0):
    return {f"{prefix}{FC1}.weight{e}": tensor(1, first=first + e) for e in range(experts)}


def whole(prefix, experts=2):
    return {f"{prefix}{FC1}.weight": tensor(experts, 1)}


@pytest.mark.parametrize(
    ("state", "flags", "wanted"),
    [
        (named(""), {"weight": True}, whole("")),  # O1
        (whole(""), {}, named("")),  # O2
        (named("") | {f"{FC1}.bias0": tensor(1), f"{FC1}.bias1": tensor(1, first=1)},
         {"weight": True, "bias": True, "use_bias": True}, whole("") | {f"{FC1}.bias": tensor(2, 1)}),  # O3
        (named("") | {f"{FC1}.bias0": 0, f"{FC1}.bias1": 1}, {"weight": True},
         {f"{FC1}.bias0": 0, f"{FC1}.bias1": 1} | whole("")),  # O4
        (whole("") | named(""), {"weight": True}, whole("") | named("")),  # O6
        ({f"{FC1}.weight0": 0}, {"weight": True}, {f"{FC1}.weight0": 0}),  # O7
        ({f"a.{FC1}.weight0": 0, f"b.{FC1}.weight0": 0, f"a.{FC1}.weight1": 1}, {"weight": True},
         {f"a.{FC1}.weight0": 0, f"b.{FC1}.weight0": 0, f"a.{FC1}.weight1": 1}),  # O8
        (named("module.a."), {"weight": True}, whole("module.a.")),
        ({f"b.{FC1}.weight1": tensor(1, first=1), f"a.{FC1}.weight0": tensor(1)}, {"weight": True}, whole("a.")),
        (whole("mlp.shared_"), {}, named("mlp.shared_")),
        (whole("mlp.shared_") | named("mlp."), {"weight": True}, whole("mlp.shared_") | named("mlp.")),
        (whole("") | {f"a.{FC1}.weight1": 1}, {}, whole("") | {f"a.{FC1}.weight1": 1}),
        (whole("a.") | whole("b."), {}, whole("a.") | whole("b.")),
        ({f"a.{FC1}.weight0": 9, f"b.{FC1}.weight0": 9} | whole("a."), {},
         {f"a.{FC1}.weight0": tensor(1), f"b.{FC1}.weight0": 9, f"a.{FC1}.weight1": tensor(1, first=1)}),
        ({f"{FC1}.weight2": 2, f"{FC1}.weight00": 0, "007": 7}, {"weight": True},
         {f"{FC1}.weight2": 2, f"{FC1}.weight00": 0, "007": 7}),
    ],
)
def test_o_keys_are_matched_by_how_they_end(state, flags, wanted):
    for path in (FC1, f"module.{FC1}", f"module.module.{FC1}"):  # O5
        made = normalize_state_dict_for_grouped_params(state, [("", object()), (path, module(2, **flags))])
        assert same(made, wanted)


def test_o9_other_modules_and_names_further_in_are_left_alone():
    state = named("")
    plain = SimpleNamespace(num_gemms=2, single_grouped_weight=True)
    assert same(normalize_state_dict_for_grouped_params(state, [(FC1, plain)]), state)
    inner = [("module.experts.module.linear_fc1", module(2, weight=True))]
    assert same(normalize_state_dict_for_grouped_params(state, inner), state)
    bare = normalize_state_dict_for_grouped_params(
        {"x.weight0": tensor(1), "weight1": tensor(1, first=1)}, [("", module(2, weight=True))]
    )
    assert same(bare, {"x.weight": tensor(2, 1)})


# ---- beside the originals --------------------------------------------------------------------------


def originals():
    """Megatron-Core's own three functions, cut out of its files."""
    torch = pytest.importorskip("torch")
    found = importlib.util.find_spec("megatron")
    if found is None:
        pytest.skip("no Megatron-Core")
    core = next(iter(found.submodule_search_locations))
    functions = {"torch": torch}
    for file, name in (
        ("extensions/transformer_engine.py", "_normalize_grouped_parameter_keys"),
        ("extensions/transformer_engine.py", "_split_grouped_checkpoint_tensor"),
        ("optimizer/distrib_optimizer.py", "_normalize_state_dict_for_grouped_params"),
    ):
        tree = ast.parse((pathlib.Path(core) / "core" / file).read_text())
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
        if not nodes:
            pytest.skip(f"this Megatron-Core has no {name}")
        nodes[0].decorator_list = []
        exec(compile(ast.Module([nodes[0]], []), file, "exec"), functions)
    return torch, functions


def test_thousands_of_state_dicts_become_what_megatron_makes_of_them():
    torch, theirs = originals()
    choose = random.Random(3)
    changed = 0
    for _ in range(3000):
        experts = choose.choice((1, 2, 3))
        flags = {name: choose.random() < 0.5 for name in ("weight", "bias", "use_bias")}
        ours = module(experts, **flags)
        upstream = module(experts, **flags)
        split = theirs["_split_grouped_checkpoint_tensor"]
        upstream._split_grouped_checkpoint_tensor = lambda t, key, upstream=upstream: split(upstream, t, key)
        suffixes = ["", *map(str, range(experts + 1))]
        keys = [
            f"{prefix}{FC1}.{name}{suffix}"
            for prefix, name, suffix in itertools.product(("", "a.", "shared_"), ("weight", "bias"), suffixes)
        ]
        kept = choose.choice((0.2, 0.6, 0.95))
        prefixes = choose.sample(("", "a.", "shared_"), choose.choice((1, 1, 2)))
        state = {
            key: torch.randn(experts, 2) if key[-1] in "ts" else torch.randn(2)
            for key in keys
            if choose.random() < kept and any(key.startswith(prefix + FC1) for prefix in prefixes)
        }
        wanted = dict(state)
        theirs["_normalize_state_dict_for_grouped_params"](
            wanted, SimpleNamespace(named_modules=lambda upstream=upstream: [(f"module.{FC1}", upstream)])
        )
        made = normalize_state_dict_for_grouped_params(state, [(f"module.{FC1}", ours)])
        changed += list(made) != list(state)
        assert list(made) == list(wanted) and all(torch.equal(made[key], wanted[key]) for key in made)
        wanted = dict(state)
        theirs["_normalize_grouped_parameter_keys"](upstream, wanted, f"a.{FC1}.", None, None, None, None, None)
        made = normalize_grouped_parameter_keys(state, f"a.{FC1}.", ours)
        changed += list(made) != list(state)
        assert list(made) == list(wanted) and all(torch.equal(made[key], wanted[key]) for key in made)
    assert changed > 500
