"""The functions of `glu_ckpt` on torch tensors, as operators of torch, and hooks for state dicts.

Importing this module imports torch; nothing else in the package does. The operators are `torch.ops.glu_ckpt.*`:
`torch.compile` keeps them in its graph, fake tensors have their shapes, and gradients flow through them, but for
`splits_to_offsets` and what works in place. On a GPU they run on torch's current stream and do not wait for it.
"""

from __future__ import annotations

from ._grouped_linear import grouped_linear
from ._grouped_mlp import grouped_mlp
from ._modules import GroupedLinear, GroupedMLP
from ._orders import (
    deinterleave,
    deinterleave_,
    deinterleave_glu_tensor,
    interleave,
    interleave_,
    interleave_glu_tensor,
    splits_to_offsets,
)
from ._recipes import Mxfp8Tensor, pad_tokens, token_alignment, unpad_tokens
from ._state_dict_hooks import StateDictHooks, add_state_dict_hooks
from ._tensors import diff

__all__ = [
    "GroupedLinear",
    "GroupedMLP",
    "Mxfp8Tensor",
    "StateDictHooks",
    "add_state_dict_hooks",
    "deinterleave",
    "deinterleave_",
    "deinterleave_glu_tensor",
    "diff",
    "grouped_linear",
    "grouped_mlp",
    "interleave",
    "interleave_",
    "interleave_glu_tensor",
    "pad_tokens",
    "splits_to_offsets",
    "token_alignment",
    "unpad_tokens",
]
