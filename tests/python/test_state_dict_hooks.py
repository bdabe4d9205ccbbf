"""State-dict hooks: a model in any order and grouping loads and saves state dicts in any other, its optimizer, too.

The model that trains in the state dict's own form and order is the truth: what another model has after loading is what
`arranged` makes of the first one's values, by views."""

import copy

import pytest

torch = pytest.importorskip("torch")

import glu_ckpt.torch as ops  # noqa: E402

E, H, F = 3, 4, 8
ORDERS = (0, 2, 4)


class Linear(torch.nn.Module):
    """The parameters of TransformerEngine's GroupedLinear, without hooks of its own."""

    def __init__(self, num_gemms, rows, cols, grouped, bias=True):
        super().__init__()
        self.num_gemms = num_gemms
        for kind, shape in (("weight", (rows, cols)), ("bias", (rows,)))[: 1 + bias]:
            for expert in range(1 if grouped else num_gemms):
                name, whole = (kind, (num_gemms, *shape)) if grouped else (f"{kind}{expert}", shape)
                self.register_parameter(name, torch.nn.Parameter(torch.zeros(whole)))


def make_model(grouped, num_gemms=E):
    model = torch.nn.Module()
    model.router = torch.nn.Linear(H, num_gemms)
    model.mlp = torch.nn.Module()
    model.mlp.experts = torch.nn.Module()
    model.mlp.experts.linear_fc1 = Linear(num_gemms, 2 * F, H, grouped)
    model.mlp.experts.linear_fc2 = Linear(num_gemms, H, F, grouped)
    return model


def is_gated(name):
    return "linear_fc1" in name


def in_order(t, name, k, is_grouped):
    """Contiguous rows in the order of k, by the definition."""
    axis = 1 if is_grouped else 0
    if not k or not is_gated(name):
        return t
    return t.unflatten(axis, (2, F // k, k)).transpose(axis, axis + 1).flatten(axis, axis + 2)


def coded(model, k, grouped, first=0):
    """By name what the model's parameters are, in its order and grouping: numbers that say where they belong."""
    values = {}
    for name, parameter in model.named_parameters():
        stem = name.rstrip("0123456789")
        number = name[len(stem) :]
        seed = first + 10_000 * sorted({n.rstrip("0123456789") for n, _ in model.named_parameters()}).index(stem)
        whole = torch.arange(parameter.numel() * (E if number else 1), dtype=torch.float32).view(
            *((E,) if number else ()), *parameter.shape
        )
        plain = seed + (whole[int(number)] if number else whole)
        values[name] = in_order(plain, name, k, grouped)
    return values


def hooked(grouped, k, saved_k, experts, optimizer=True):
    model = make_model(grouped)
    adam = torch.optim.Adam(model.parameters()) if optimizer else None
    return model, adam, ops.add_state_dict_hooks(model, k, saved_k=saved_k, experts=experts, optimizer=adam)


def stepped(model, values, moments):
    """An Adam whose states are given, without having computed anything."""
    optimizer = torch.optim.Adam(model.parameters())
    for name, parameter in model.named_parameters():
        parameter.data.copy_(values[name])
        optimizer.state[parameter] = {
            "step": torch.tensor(7.0), "exp_avg": moments[name].clone(), "exp_avg_sq": moments[name] + 0.5
        }
    return optimizer


@pytest.mark.parametrize("k", ORDERS)
@pytest.mark.parametrize("saved_k", ORDERS)
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("saved_grouped", [False, True])
def test_loads_and_saves_every_form(k, saved_k, grouped, saved_grouped):
    saver = make_model(saved_grouped)
    values, moments = coded(saver, saved_k, saved_grouped), coded(saver, saved_k, saved_grouped, first=500_000)
    saver_adam = stepped(saver, values, moments)
    state, adam_state = copy.deepcopy(saver.state_dict()), copy.deepcopy(saver_adam.state_dict())

    model, adam, _ = hooked(grouped, k, saved_k, "grouped" if saved_grouped else "indexed")
    model.load_state_dict(state)
    adam.load_state_dict(adam_state)
    wanted, wanted_moments = coded(model, k, grouped), coded(model, k, grouped, first=500_000)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, wanted[name]), name
        assert torch.equal(adam.state[parameter]["exp_avg"], wanted_moments[name]), name
        assert torch.equal(adam.state[parameter]["exp_avg_sq"], wanted_moments[name] + 0.5), name
        assert adam.state[parameter]["step"] == 7

    # What it was given is as it was, and what it saves is the same.
    assert all(torch.equal(value, values[name]) for name, value in state.items())
    saved, saved_adam = model.state_dict(), adam.state_dict()
    assert saved.keys() == state.keys() and all(torch.equal(saved[name], state[name]) for name in state)
    assert saved_adam["param_groups"] == adam_state["param_groups"]
    assert saved_adam["state"].keys() == adam_state["state"].keys()
    for number, entry in adam_state["state"].items():
        assert all(torch.equal(saved_adam["state"][number][key], value) for key, value in entry.items())
    assert all(torch.equal(p, wanted[name]) for name, p in model.named_parameters())


def test_one_expert_has_two_forms_too():
    for saved_grouped in (False, True):
        for grouped in (False, True):
            saver, model = make_model(saved_grouped, 1), make_model(grouped, 1)
            zeros = {name: torch.zeros_like(p) for name, p in saver.named_parameters()}
            saver_adam = stepped(saver, zeros, zeros)
            adam = torch.optim.Adam(model.parameters())
            ops.add_state_dict_hooks(model, 2, optimizer=adam)
            model.load_state_dict(saver.state_dict())
            adam.load_state_dict(saver_adam.state_dict())
            assert all(adam.state[p]["exp_avg"].shape == p.shape for p in model.parameters())


def test_names_of_parameters_follow():
    saver, model = make_model(False), make_model(True)
    adam = torch.optim.Adam(saver.named_parameters())
    if "param_names" not in adam.state_dict()["param_groups"][0]:
        pytest.skip("this torch keeps no names")
    ours = torch.optim.Adam(model.named_parameters())
    ops.add_state_dict_hooks(model, 2, experts="indexed", optimizer=ours)
    names = [name for name, _ in saver.named_parameters()]
    assert ours.state_dict()["param_groups"][0]["param_names"] == names
    ours.load_state_dict(adam.state_dict())
    assert ours.param_groups[0]["param_names"] == [name for name, _ in model.named_parameters()]


def test_states_that_cannot_follow_are_refused():
    saver, model = make_model(False), make_model(True)
    zeros = {name: torch.zeros_like(p) for name, p in saver.named_parameters()}
    adam = torch.optim.Adam(model.parameters())
    hooks = ops.add_state_dict_hooks(model, 2, optimizer=adam)
    at = [name for name, _ in saver.named_parameters()].index("mlp.experts.linear_fc1.weight1")

    def broken(change):
        state = copy.deepcopy(stepped(saver, zeros, zeros).state_dict())
        change(state["state"])
        return state

    with pytest.raises(ValueError, match="'step' differs between the 3 weight tensors of a module's experts"):
        adam.load_state_dict(broken(lambda s: s[at].update(step=torch.tensor(8.0))))
    with pytest.raises(ValueError, match="not every weight of a module's 3 experts has the same states"):
        adam.load_state_dict(broken(lambda s: s.pop(at)))
    with pytest.raises(ValueError, match="'exp_avg' of a weight has shape \\[8, 4\\], but the weight \\[16, 4\\]"):
        adam.load_state_dict(broken(lambda s: [s[i].update(exp_avg=torch.zeros(F, H)) for i in (at - 1, at, at + 1)]))
    with pytest.raises(ValueError):
        adam.load_state_dict(torch.optim.Adam(torch.nn.Linear(2, 2).parameters()).state_dict())
    # Without states there is nothing to fold.
    adam.load_state_dict(torch.optim.Adam(saver.parameters()).state_dict())
    hooks.remove()
    with pytest.raises(ValueError):
        adam.load_state_dict(torch.optim.Adam(saver.parameters()).state_dict())

    shuffled = make_model(False)
    backwards = torch.optim.Adam(list(shuffled.parameters())[::-1])
    with pytest.raises(ValueError, match="not side by side"):
        ops.add_state_dict_hooks(shuffled, 2, optimizer=backwards)
    with pytest.raises(ValueError, match="indexed, grouped"):
        ops.add_state_dict_hooks(make_model(True), 2, experts="packed")


def test_incomplete_experts_do_not_load():
    saver, (model, _, _) = make_model(False), hooked(True, 2, 0, None, optimizer=False)
    state = saver.state_dict()
    del state["mlp.experts.linear_fc2.weight1"]
    with pytest.raises(RuntimeError, match="Missing key.*linear_fc2.weight"):
        model.load_state_dict(state)


def test_a_step_after_loading_is_the_same_step():
    """Order and grouping change no arithmetic of Adam's: the trained values are the same, moved."""
    saver = make_model(False)
    values = coded(saver, 0, False)
    saver_adam = stepped(saver, values, {name: value * 0.001 for name, value in values.items()})
    state, adam_state = copy.deepcopy(saver.state_dict()), copy.deepcopy(saver_adam.state_dict())
    model, adam, _ = hooked(True, 4, 0, "indexed")
    model.load_state_dict(state)
    adam.load_state_dict(adam_state)
    for net, optimizer, k, grouped in ((saver, saver_adam, 0, False), (model, adam, 4, True)):
        grads = coded(net, k, grouped, first=3)
        for name, parameter in net.named_parameters():
            parameter.grad = grads[name] * 0.01
        optimizer.step()
    saved = model.state_dict()
    assert all(torch.equal(saved[name], value) for name, value in saver.state_dict().items())
