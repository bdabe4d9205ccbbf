"""Megatron-Core's rules for the keys of grouped linear modules, on state dicts of torch or numpy.

A module of E experts has one tensor an expert, `weight0`, `weight1`, ... and `bias0`, ..., or one for all, `weight` and
`bias` (single_grouped_weight, single_grouped_bias). What is there under one form only is given the other. These are the
rules of `_split_grouped_checkpoint_tensor` and `_normalize_grouped_parameter_keys` (Megatron-LM,
megatron/core/extensions/transformer_engine.py) and `_normalize_state_dict_for_grouped_params`
(megatron/core/optimizer/distrib_optimizer.py), at d98e8a6. Differences, all towards refusal: a failure changes nothing,
since a new dict is returned, and members of different dtypes are not folded, which would change their bits.

They change the grouping of experts alone; `glu_ckpt.convert_state_dict` changes the order of gate and up, too, and
proves that no tensor was lost.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping

from ._error import Error
from ._tensors import _library

# Type checkers take it for true (see _commands.py).
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "GroupingError",
    "normalize_grouped_parameter_keys",
    "normalize_state_dict_for_grouped_params",
    "split_grouped_checkpoint_tensor",
]


class GroupingError(Error, RuntimeError):
    """Tensors that cannot be grouped or split; a RuntimeError, too, as in Megatron-Core."""


def _fail(key: str, text: str) -> None:
    raise GroupingError(f"'{key}': {text}", "expert-shape", 4, tensor=key)


def split_grouped_checkpoint_tensor(tensor: Any, key: str, num_gemms: int) -> list[Any]:
    """A grouped tensor as one for each expert; the first rule that fits:

    1. of a GroupedTensor of TransformerEngine its members, as they are; they must be as many as experts;
    2. [E, ...]: E slices without that axis, so [E, in] that was made of E packed [1, in] loses the axis of rows;
    3. [E * n, ...]: E chunks with that axis; a flat tensor gives flat ones.

    Raises GroupingError for everything else. `key` is for its message.
    """
    splitter = getattr(tensor, "split_into_quantized_tensors", None)
    if callable(splitter):
        members = getattr(tensor, "quantized_tensors", None)
        members = list(splitter() if members is None else members)
        if len(members) != num_gemms:
            _fail(key, f"has {len(members)} groups, expected {num_gemms}")
        return members
    shape = list(tensor.shape)
    if num_gemms < 1 or not shape or shape[0] % num_gemms:
        _fail(key, f"shape {shape} cannot be split for {num_gemms} experts")
    if shape[0] == num_gemms:
        return [tensor[expert] for expert in range(num_gemms)]
    rows = shape[0] // num_gemms
    return [tensor[expert * rows : (expert + 1) * rows] for expert in range(num_gemms)]


def _stacked(members: list[Any], key: str) -> Any:
    first = members[0]
    for number, member in enumerate(members):
        if tuple(member.shape) != tuple(first.shape) or member.dtype != first.dtype:
            _fail(
                key,
                f"expert {number} has {member.dtype} of shape {list(member.shape)}, expert 0 {first.dtype} of shape "
                f"{list(first.shape)}",
            )
    return sys.modules["numpy" if _library(first) == "numpy" else "torch"].stack(members)


def _forms(module: Any) -> list[tuple[str, bool]]:
    """The parameters of a module and whether it wants them grouped; a flag that it lacks is off."""
    forms = [("weight", bool(getattr(module, "single_grouped_weight", False)))]
    if getattr(module, "use_bias", False):
        forms.append(("bias", bool(getattr(module, "single_grouped_bias", False))))
    return forms


def normalize_grouped_parameter_keys(
    state: Mapping[str, Any], prefix: str, module: Any, *, taken: Callable[[Any], Any] = lambda tensor: tensor
) -> dict[str, Any]:
    """The state dict with the keys that a module expects under `prefix`, which is empty or ends in ".".

    module: anything with `num_gemms` and the flags `single_grouped_weight`, `single_grouped_bias` and `use_bias`.
    taken: what is done to each tensor before it is folded or split, such as gathering a sharded one.

    A complete set of indexed keys is folded where a grouped one is wanted and not there; a grouped key is split where
    indexed ones are wanted and none is there. Everything else stays: incomplete sets, keys of the other form beside the
    wanted one, indices from E on, biases of a module without, `_extra_state`. New keys go to the end.
    """
    made = dict(state)
    for name, grouped in _forms(module):
        whole = prefix + name
        parts = [f"{whole}{expert}" for expert in range(module.num_gemms)]
        if grouped and whole not in made and all(part in made for part in parts):
            made[whole] = _stacked([taken(made.pop(part)) for part in parts], whole)
        elif not grouped and whole in made and not any(part in made for part in parts):
            split = split_grouped_checkpoint_tensor(taken(made.pop(whole)), whole, module.num_gemms)
            made.update(zip(parts, split))
    return made


def regroup(
    state: dict[str, Any], prefix: str, module: Any, taken: Callable[[Any], Any] = lambda tensor: tensor
) -> None:
    """`normalize_grouped_parameter_keys` where the state dict stands, as hooks of modules have to."""
    changed = normalize_grouped_parameter_keys(state, prefix, module, taken=taken)
    for key in state.keys() - changed.keys():
        del state[key]
    state.update((key, changed[key]) for key in changed.keys() - state.keys())


def normalize_state_dict_for_grouped_params(
    state: Mapping[str, Any], named_modules: Iterable[tuple[str, Any]]
) -> dict[str, Any]:
    """The state dict of model weights with the keys that a model's grouped modules expect, whatever stands before them.

    named_modules: as `model.named_modules()` gives them. What leads a module's name as `module.` is taken off, and
        modules without `num_gemms` and `_split_grouped_checkpoint_tensor` are none of these.

    Keys are matched by how they end, so: `experts.linear_fc1` also matches `shared_experts.linear_fc1`; keys of one fold
    may begin differently, and that of expert 0 names the result; an index that several keys match counts as absent,
    which stops a fold, but not a split, and that may then overwrite one of them.
    """
    made = dict(state)
    for path, module in named_modules:
        if not hasattr(module, "num_gemms") or not hasattr(module, "_split_grouped_checkpoint_tensor"):
            continue
        while path.startswith("module."):
            path = path[len("module.") :]
        for name, grouped in _forms(module):
            _normalize_suffix(made, f"{path}.{name}" if path else name, grouped, module)
    return made


def _normalize_suffix(made: dict[str, Any], suffix: str, grouped: bool, module: Any) -> None:
    wholes = [key for key in made if key.endswith(suffix)]
    matched = {}
    for expert in range(module.num_gemms):
        keys = [key for key in made if key.endswith(f"{suffix}{expert}")]
        if len(keys) == 1:
            matched[expert] = keys[0]
    if grouped and not wholes and matched and len(matched) == module.num_gemms:
        prefix = matched[0][: -len(f"{suffix}0")]
        made[prefix + suffix] = _stacked([made.pop(matched[expert]) for expert in sorted(matched)], prefix + suffix)
    elif not grouped and not matched and len(wholes) == 1:
        whole = wholes[0]
        parts = module._split_grouped_checkpoint_tensor(made.pop(whole), whole)
        made.update((f"{whole}{expert}", part) for expert, part in enumerate(parts))
