"""Modules whose parameters have the names and shapes of Megatron-Core's and TransformerEngine's experts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional, Union

import torch

from ._grouped_linear import linear_with_buffers
from ._grouped_mlp import check_order, is_gated, make_call, mlp_with_buffers
from ._operands import check_dtype, check_tensor, listed, places_of
from ._weight_grads import Buffers, MainGrads
from .megatron import regroup


class GroupedLinear(torch.nn.Module):
    """TransformerEngine's GroupedLinear: y_i = x_i W_i^T + b_i for the rows of each expert.

    Its parameters are `weight0`, `weight1`, ... [out_features, in_features] and `bias0`, ...; with
    single_grouped_weight `weight` [num_gemms, out_features, in_features], with single_grouped_bias `bias`. State dicts
    of either form load.
    fuse_wgrad_accumulation: the weights' gradients are added to `main_grad` of the parameters (what `get_main_grad()`
        gives, where they have that), which has to be there when the backward runs; with `overwrite_main_grad` of the
        first one they replace it.
    """

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        single_grouped_weight: bool = False,
        single_grouped_bias: bool = False,
        fuse_wgrad_accumulation: bool = False,
        params_dtype: Optional[torch.dtype] = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        if min(num_gemms, in_features, out_features) < 1:
            raise ValueError(f"{num_gemms} experts of [{out_features}, {in_features}]: sizes are at least 1")
        check_dtype("params_dtype", params_dtype or torch.get_default_dtype())
        self.num_gemms, self.in_features, self.out_features = num_gemms, in_features, out_features
        self.use_bias = bias
        self.single_grouped_weight, self.single_grouped_bias = single_grouped_weight, single_grouped_bias
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self._names: dict[str, list[str]] = {}
        self._add("weight", single_grouped_weight, (out_features, in_features), params_dtype, device)
        if bias:
            self._add("bias", single_grouped_bias, (out_features,), params_dtype, device)
        self.reset_parameters()
        self.register_load_state_dict_pre_hook(_change_grouping)

    def _add(self, name: str, grouped: bool, shape: tuple[int, ...], dtype: Optional[torch.dtype], device: Any) -> None:
        def parameter(*leading: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.empty(*leading, *shape, dtype=dtype, device=device))

        if grouped:
            self.register_parameter(name, parameter(self.num_gemms))
            return
        self._names[name] = [f"{name}{i}" for i in range(self.num_gemms)]
        for each in self._names[name]:
            self.register_parameter(each, parameter())

    def reset_parameters(self) -> None:
        """Weights of a standard deviation of 0.02, as Megatron's default, and biases of 0."""
        for weight in self.weights():
            torch.nn.init.normal_(weight, std=0.02)
        for bias in self.biases():
            torch.nn.init.zeros_(bias)

    def weights(self) -> list[torch.Tensor]:
        """The grouped weight, or one for each expert."""
        return [self.weight] if self.single_grouped_weight else self._of_experts("weight")

    def biases(self) -> list[torch.Tensor]:
        """The grouped bias, or one for each expert; none without biases."""
        if not self.use_bias:
            return []
        return [self.bias] if self.single_grouped_bias else self._of_experts("bias")

    def _of_experts(self, name: str) -> list[torch.Tensor]:
        """Of hundreds of experts, past torch's search for each attribute; but not past parametrizations, which are none of
        the module's parameters."""
        names, parameters = self._names[name], self._parameters
        if all([each in parameters for each in names]):
            return [parameters[each] for each in names]
        return [getattr(self, each) for each in names]

    def weight_buffers(self, weights: list[torch.Tensor], is_first_microbatch: Optional[bool]) -> Buffers:
        """Where the gradients of its weights go: `main_grad`, or None for `.grad`."""
        return MainGrads(weights, is_first_microbatch) if self.fuse_wgrad_accumulation else None

    def _check_list(self, inp: torch.Tensor, m_splits: Sequence[int]) -> None:
        if not hasattr(m_splits, "__len__"):
            raise ValueError(f"m_splits: {type(m_splits).__name__}; give a list or a tensor")
        if len(m_splits) != self.num_gemms:
            raise ValueError(f"m_splits: {len(m_splits)} splits for {self.num_gemms} experts")
        rows = math.prod(inp.shape[:-1])
        if sum(m_splits) < rows:
            raise ValueError(
                f"m_splits: {sum(m_splits)} rows in a list, but inp has {rows}; give a tensor where rows belong to no expert"
            )

    def forward(
        self,
        inp: torch.Tensor,
        m_splits: Union[torch.Tensor, Sequence[int]],
        is_first_microbatch: Optional[bool] = None,
        out: Optional[torch.Tensor] = None,
        dgrad_out: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """inp: [..., in_features]; m_splits: rows of each expert, in a list all of inp's, in a tensor all or fewer. With
        is_first_microbatch=True the gradients replace what main_grad holds. out, dgrad_out: as those of `grouped_mlp`."""
        check_tensor("inp", inp)
        if inp.dim() < 1 or inp.shape[-1] != self.in_features:
            raise ValueError(f"inp: shape {list(inp.shape)}, expected [..., {self.in_features}]")
        if isinstance(m_splits, torch.Tensor):
            if m_splits.shape != (self.num_gemms,):
                raise ValueError(f"m_splits: shape {list(m_splits.shape)}, splits for {self.num_gemms} experts are expected")
        else:
            self._check_list(inp, m_splits)
        weights = listed("weight", self.weights())
        buffers = self.weight_buffers(weights, is_first_microbatch)
        biases = listed("bias", self.biases())
        return linear_with_buffers(inp, m_splits, weights, biases, buffers, places_of(out, dgrad_out))

    def extra_repr(self) -> str:
        """Sizes, for print()."""
        return f"num_gemms={self.num_gemms}, in_features={self.in_features}, out_features={self.out_features}"


def _gathered(value: torch.Tensor) -> torch.Tensor:
    """A sharded tensor with all its rows on every rank: those of one expert, or of all, may be on another."""
    if not hasattr(value, "placements"):
        return value
    from torch.distributed.tensor import Replicate

    return value.redistribute(placements=[Replicate()] * len(value.placements))


def _change_grouping(module: GroupedLinear, state: dict[str, Any], prefix: str, *unused: Any) -> None:
    """Megatron-Core's rule: what is there under one form only is given the other. Of a module without quantizers there is
    no extra state, which Megatron-Core writes empty."""
    for number in ("", *range(module.num_gemms)):
        state.pop(f"{prefix}_extra_state{number}", None)
    regroup(state, prefix, module, _gathered)


def _options_of(options: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(options[name] for name in ("k", "activation", "alpha", "limit", "offset"))


class GroupedMLP(torch.nn.Module):
    """The experts of a layer, with the parameters of Megatron-Core's TEGroupedMLP: `linear_fc1.weight0`, ... [2F, H] and
    `linear_fc2.weight0`, ... [H, F], or grouped.

    moe_intermediate_size: F. k: FC1 has blocks of so many gate and up rows; 0: all gate rows first.
    bias, single_grouped_weight, single_grouped_bias, fuse_wgrad_accumulation, params_dtype, device: as GroupedLinear's.
    activation, alpha, limit, offset, recompute: as those of `grouped_mlp`.

    Parameters are read where they stand, and the forward of `linear_fc1` and `linear_fc2` is not called: FSDP2's
    `fully_shard` goes around this module, not around those.
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        moe_intermediate_size: int,
        *,
        k: int = 0,
        activation: str = "swiglu",
        alpha: Optional[float] = None,
        limit: Optional[float] = None,
        offset: Optional[float] = None,
        bias: bool = False,
        recompute: bool = False,
        single_grouped_weight: bool = False,
        single_grouped_bias: bool = False,
        fuse_wgrad_accumulation: bool = False,
        params_dtype: Optional[torch.dtype] = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.options = {"k": k, "activation": activation, "alpha": alpha, "limit": limit, "offset": offset}
        self.recompute = recompute
        forms = {
            "bias": bias,
            "single_grouped_weight": single_grouped_weight,
            "single_grouped_bias": single_grouped_bias,
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
            "params_dtype": params_dtype,
            "device": device,
        }
        make_call("F32", num_experts, hidden_size, _options_of(self.options))
        rows = moe_intermediate_size * (2 if is_gated(activation) else 1)
        check_order(rows, k, activation)
        self.linear_fc1 = GroupedLinear(num_experts, hidden_size, rows, **forms)
        self.linear_fc2 = GroupedLinear(num_experts, moe_intermediate_size, hidden_size, **forms)

    def forward(
        self,
        x: torch.Tensor,
        splits: Union[torch.Tensor, Sequence[int]],
        probs: Optional[torch.Tensor] = None,
        is_first_microbatch: Optional[bool] = None,
        out: Optional[torch.Tensor] = None,
        dgrad_out: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """x: [..., H], tokens sorted by expert; splits: [E], rows of each; probs: [T], the router's; out, dgrad_out: as
        those of `grouped_mlp`."""
        fc1, fc2 = self.linear_fc1, self.linear_fc2
        w1, w2 = listed("fc1", fc1.weights()), listed("fc2", fc2.weights())
        lists = [w1, w2, listed("fc1_bias", fc1.biases()), listed("fc2_bias", fc2.biases())]
        buffers = fc1.weight_buffers(w1, is_first_microbatch), fc2.weight_buffers(w2, is_first_microbatch)
        options, places = _options_of(self.options), places_of(out, dgrad_out)
        return mlp_with_buffers(x, splits, probs, lists, buffers, self.recompute, options, places)

    def extra_repr(self) -> str:
        """Options, for print()."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items() if value is not None)
