"""Hooks by which a model's experts load and save state dicts of another order of FC1's rows, or of another grouping."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch

from ._error import ArgumentError
from ._orders import deinterleave, deinterleave_, interleave, interleave_
from .megatron import regroup

#: FC1 and FC2 of routed experts as Megatron-Core and TransformerEngine name them.
_LINEAR = re.compile(r"(^|\.)experts\.(.*\.)?linear_fc([12])$")
_PARAMETER = re.compile(r"(weight|bias)(\d*)$")
_FORMS = ("indexed", "grouped")


class StateDictHooks:
    """Hooks that are there until `remove()`. `modules` are the names of those whose FC1 is reordered."""

    def __init__(self, modules: list[str], handles: list[Any]) -> None:
        self.modules = modules
        self._handles = handles

    def remove(self) -> None:
        """Takes the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


@dataclasses.dataclass
class GroupedForm:
    """How a module of grouped linear layers keeps its parameters, in the words of TransformerEngine's own attributes."""

    num_gemms: int
    single_grouped_weight: bool
    single_grouped_bias: bool
    use_bias: bool


def _form_of(module: torch.nn.Module) -> Optional[GroupedForm]:
    """None of a linear layer of one expert."""
    own = dict(module.named_parameters(recurse=False))
    found = getattr(module, "num_gemms", None)
    if found is None:
        weight = own.get("weight")
        found = sum(re.fullmatch(r"weight\d+", name) is not None for name in own) if weight is None else 0
        if weight is not None and weight.dim() == 3:
            found = weight.shape[0]
    if not found:
        return None
    biases = any(name.startswith("bias") for name in own)
    return GroupedForm(int(found), "weight" in own, "bias" in own, biases)


@dataclasses.dataclass(frozen=True)
class _Order:
    """Rows of FC1: those of the model and those of state dicts, as block sizes; 0 is contiguous."""

    model: int
    saved: int

    def permute(self, t: torch.Tensor, axis: int, *, to_model: bool, in_place: bool = False) -> torch.Tensor:
        """In memory of its own, if not in place and the orders differ."""
        begin, end = (self.saved, self.model) if to_model else (self.model, self.saved)
        if begin == end:
            return t
        made = t
        if begin:
            made = deinterleave_(made, begin, axis=axis) if in_place else deinterleave(made, begin, axis=axis)
        if end:
            # What the first step made is nobody else's.
            made = interleave_(made, end, axis=axis) if in_place or begin else interleave(made, end, axis=axis)
        return made


_AS_IT_IS = _Order(0, 0)


class _LinearHooks:
    """The hooks of one FC1 or FC2."""

    def __init__(self, module: torch.nn.Module, order: _Order, saved_form: Optional[str]) -> None:
        self.order = order
        #: How the module keeps its experts, and how state dicts have them that it saves.
        self.form = _form_of(module)
        self.saved = self.form
        if self.form is not None and saved_form is not None:
            grouped = saved_form == "grouped"
            self.saved = dataclasses.replace(self.form, single_grouped_weight=grouped, single_grouped_bias=grouped)
        # What a load in progress brings: parameters by name, and the addresses that the state dict has for them.
        self._loaded: dict[str, int] = {}

    @staticmethod
    def axis(name: str, t: torch.Tensor) -> int:
        return t.dim() - (1 if name.startswith("bias") else 2)

    def before_load(self, module: torch.nn.Module, state: dict[str, Any], prefix: str, *unused: Any) -> None:
        if self.form is not None:
            regroup(state, prefix, self.form)
        self._loaded = {}
        for name, parameter in module.named_parameters(recurse=False):
            value = state.get(prefix + name)
            # What is missing or of another shape is not loaded; torch says so.
            if _PARAMETER.match(name) and isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                self._loaded[name] = value.data_ptr()

    def after_load(self, module: torch.nn.Module, unused: Any) -> None:
        loaded, self._loaded = self._loaded, {}
        for name, address in loaded.items():
            parameter = module.get_parameter(name)
            if parameter.is_meta:
                continue
            # With assign=True the parameter is the caller's tensor, which is left as it is.
            is_theirs = parameter.data_ptr() == address and parameter.numel() > 0
            axis = self.axis(name, parameter)
            permuted = self.order.permute(parameter.data, axis, to_model=True, in_place=not is_theirs)
            if is_theirs:
                parameter.data = permuted

    def after_save(self, module: torch.nn.Module, state: dict[str, Any], prefix: str, unused: Any) -> None:
        for name, parameter in module.named_parameters(recurse=False):
            if _PARAMETER.match(name) and prefix + name in state:
                value = state[prefix + name].detach()
                state[prefix + name] = self.order.permute(value, self.axis(name, parameter), to_model=False)
        if self.saved is not self.form:
            regroup(state, prefix, self.saved)


@dataclasses.dataclass
class _Run:
    """What stands side by side in an optimizer's list for one kind of parameter of one module: E tensors, or one."""

    hooks: Optional[_LinearHooks] = None
    kind: str = ""
    #: Of one expert's tensor.
    shape: tuple[int, ...] = ()
    grouped: bool = True

    def in_form(self, grouped: bool) -> _Run:
        has_forms = self.hooks is not None and self.hooks.form is not None
        return dataclasses.replace(self, grouped=grouped) if has_forms else self

    def as_saved(self) -> _Run:
        saved = self.hooks.saved if self.hooks is not None else None
        if saved is None:
            return self
        return self.in_form(saved.single_grouped_bias if self.kind == "bias" else saved.single_grouped_weight)

    @property
    def experts(self) -> int:
        return self.hooks.form.num_gemms if self.hooks is not None and self.hooks.form is not None else 1

    @property
    def length(self) -> int:
        return 1 if self.grouped else self.experts

    @property
    def held_shape(self) -> tuple[int, ...]:
        """Of a state of one of its tensors."""
        has_axis = self.grouped and self.hooks is not None and self.hooks.form is not None
        return (self.experts, *self.shape) if has_axis else self.shape


def _runs(parameters: Sequence[torch.Tensor], known: dict[int, tuple[str, _LinearHooks]]) -> list[_Run]:
    runs: list[_Run] = []
    rest: list[str] = []  # What has to follow.
    for parameter in parameters:
        name, hooks = known.get(id(parameter), ("", None))
        if rest:
            if name != rest.pop(0):
                raise ArgumentError("optimizer: the tensors of a module's experts are not side by side in its list")
            continue
        found = _PARAMETER.match(name)
        if hooks is None or found is None:
            runs.append(_Run())
            continue
        kind, number = found.groups()
        shape = tuple(parameter.shape)
        if hooks.form is None or number:
            run = _Run(hooks, kind, shape, grouped=hooks.form is None)
            rest = [f"{kind}{expert}" for expert in range(1, run.length)]
        else:
            run = _Run(hooks, kind, shape[1:])
        runs.append(run)
    return runs


class _OptimizerHooks:
    """The same for the states of torch's optimizers, which know parameters by their place in a list alone."""

    def __init__(self, optimizer: torch.optim.Optimizer, known: dict[int, tuple[str, _LinearHooks]]) -> None:
        self._own = [_runs(group["params"], known) for group in optimizer.param_groups]

    def before_load(self, optimizer: Any, state: dict[str, Any]) -> Optional[dict[str, Any]]:
        groups = state["param_groups"]
        for form in (self._own, *([[run.in_form(g) for run in runs] for runs in self._own] for g in (False, True))):
            if [sum(run.length for run in runs) for runs in form] == [len(group["params"]) for group in groups]:
                if all(map(self._fits, [state] * len(form), groups, form)):
                    return self._changed(state, form, self._own, to_model=True)
        return None  # torch says what does not fit.

    def after_save(self, optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
        return self._changed(state, self._own, [[run.as_saved() for run in runs] for runs in self._own], to_model=False)

    @staticmethod
    def _fits(state: dict[str, Any], group: dict[str, Any], runs: Sequence[_Run]) -> bool:
        """With one expert the forms differ in their shapes alone."""
        numbers = iter(group["params"])
        return all(
            value.dim() == len(run.held_shape)
            for run in runs
            for number in itertools.islice(numbers, run.length)
            for value in state["state"].get(number, {}).values()
            if run.hooks is not None and isinstance(value, torch.Tensor) and value.dim() > 0
        )

    @staticmethod
    def _changed(
        state: dict[str, Any], begin: list[list[_Run]], end: list[list[_Run]], *, to_model: bool
    ) -> dict[str, Any]:
        groups, states, count = [], {}, 0
        for group, before, after in zip(state["param_groups"], begin, end):
            held = iter([state["state"].get(number) for number in group["params"]])
            names = iter(group.get("param_names", []))
            new_names: list[str] = []
            first = count
            for old, new in zip(before, after):
                entries = list(itertools.islice(held, old.length))
                for entry in _converted(entries, old, new, to_model):
                    if entry is not None:
                        states[count] = entry
                    count += 1
                new_names += _renamed(list(itertools.islice(names, old.length)), old, new)
            groups.append({**group, "params": list(range(first, count))})
            if "param_names" in group:
                groups[-1]["param_names"] = new_names
        return {**state, "state": states, "param_groups": groups}


def _renamed(names: list[str], old: _Run, new: _Run) -> list[str]:
    if old.grouped == new.grouped or not names:
        return names
    return [names[0][:-1]] if new.grouped else [f"{names[0]}{expert}" for expert in range(new.experts)]


def _converted(entries: list[Any], old: _Run, new: _Run, to_model: bool) -> list[Any]:
    """States of the tensors of one run, None where there is none, in another order and form."""
    entries = [entry and _permuted(entry, old, to_model) for entry in entries]
    if old.grouped == new.grouped:
        return entries
    if all(entry is None for entry in entries):
        return [None] * new.length
    return [_folded(entries, old)] if new.grouped else _split(entries[0], old)


def _has_rows(key: str, value: Any, run: _Run) -> bool:
    """Whether a state is one of each element, such as exp_avg; of the others only numbers by themselves are understood."""
    if isinstance(value, torch.Tensor) and tuple(value.shape) == run.held_shape:
        return True
    if isinstance(value, torch.Tensor) and value.numel() > 1:
        raise ArgumentError(
            f"optimizer: '{key}' of a {run.kind} has shape {list(value.shape)}, but the {run.kind} "
            f"{list(run.held_shape)}; how its rows go with those of the {run.kind} is not known"
        )
    return False


def _permuted(entry: dict[str, Any], run: _Run, to_model: bool) -> dict[str, Any]:
    order = run.hooks.order if run.hooks is not None else _AS_IT_IS
    if order.model == order.saved:
        return entry
    axis = len(run.held_shape) - (1 if run.kind == "bias" else 2)
    return {
        key: order.permute(value, axis, to_model=to_model) if _has_rows(key, value, run) else value
        for key, value in entry.items()
    }


def _unshared(value: Any) -> Any:
    """A counter of steps is counted up where it stands."""
    return value.clone() if isinstance(value, torch.Tensor) else value


def _folded(entries: list[Any], run: _Run) -> dict[str, Any]:
    if any(entry is None or entry.keys() != entries[0].keys() for entry in entries):
        raise ArgumentError(f"optimizer: not every {run.kind} of a module's {run.experts} experts has the same states")
    folded = {}
    for key, first in entries[0].items():
        values = [entry[key] for entry in entries]
        if all([_has_rows(key, value, run) for value in values]):
            folded[key] = torch.stack(values)
        elif any(value != first for value in values):
            raise ArgumentError(f"optimizer: '{key}' differs between the {run.experts} {run.kind} tensors of a module's experts")
        else:
            folded[key] = _unshared(first)
    return folded


def _split(entry: dict[str, Any], run: _Run) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{} for _ in range(run.experts)]
    for key, value in entry.items():
        has_rows = _has_rows(key, value, run)
        for expert, part in enumerate(parts):
            part[key] = value[expert] if has_rows else _unshared(value)
    return parts


def add_state_dict_hooks(
    model: torch.nn.Module,
    k: int = 32,
    *,
    saved_k: int = 0,
    experts: Optional[str] = None,
    select: Optional[Callable[[str, torch.nn.Module], bool]] = None,
    optimizer: Optional[torch.optim.Optimizer] = None,
) -> StateDictHooks:
    """Lets a model whose FC1s are interleaved:`k` load and save state dicts whose FC1s are interleaved:`saved_k`; 0 is
    contiguous. State dicts with a tensor for each expert and grouped ones load both.

    experts: "indexed" or "grouped", as state dicts are saved; None: as the model has them.
    optimizer: one of torch's, whose state dicts then follow: states of a parameter's shape (exp_avg, a master weight).
        Its parameters are those of the model, in its order.

    `load_state_dict` fills parameters and then permutes them where they stand, so a GPU needs no second copy.
    `state_dict` has permuted copies of FC1 weights and biases, since the model goes on with its own; everything
    else is as without hooks. Modules are chosen by name as Megatron-Core and TransformerEngine have them
    (`...experts...linear_fc1`, and `linear_fc2`, whose rows stay), or by `select(name, module)`, which chooses FC1s;
    parameters are `weight`, `weight0`, ..., `bias`, ... of shape [2F, H], [E, 2F, H], [2F] or [E, 2F].

    Raises ValueError where no module is chosen, and where states cannot follow: of a shape of their own, or different
    between experts that become one tensor.
    """
    if experts not in (None, *_FORMS):
        raise ArgumentError(f"experts: {experts!r}; one of {', '.join(_FORMS)}")
    order = _Order(k, saved_k)
    chosen = []
    for name, module in model.named_modules():
        found = _LINEAR.search(name)
        if select(name, module) if select else found and found[3] == "1":
            chosen.append((name, module, order))
        elif not select and found and _form_of(module) is not None:
            chosen.append((name, module, _AS_IT_IS))
    modules = [name for name, _, of in chosen if of is order]
    if not modules:
        raise ValueError("no module is named ...experts...linear_fc1; choose modules with select=")
    handles, known = [], {}
    for _, module, of in chosen:
        hooks = _LinearHooks(module, of, experts)
        known.update((id(parameter), (name, hooks)) for name, parameter in module.named_parameters(recurse=False))
        before = getattr(module, "register_load_state_dict_pre_hook", None)
        handles.append(
            before(hooks.before_load)
            if before
            else module._register_load_state_dict_pre_hook(hooks.before_load, with_module=True)
        )
        handles.append(module.register_load_state_dict_post_hook(hooks.after_load))
        after = getattr(module, "register_state_dict_post_hook", None) or module._register_state_dict_hook
        # torch marks what it is given, which a method does not bear.
        handles.append(after(functools.partial(hooks.after_save)))
    if optimizer is not None:
        states = _OptimizerHooks(optimizer, known)
        handles.append(optimizer.register_load_state_dict_pre_hook(states.before_load))
        handles.append(optimizer.register_state_dict_post_hook(states.after_save))
    return StateDictHooks(modules, handles)
