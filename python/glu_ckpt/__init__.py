"""Converts Mixture-of-Experts checkpoints between layouts and programs, bit for bit.

The commands of the program `glu-ckpt` are functions here: `inspect`, `plan`, `convert`, `verify`, `diff`, `report`,
`digest`, `check` and `stamp`. `open` reads tensors of any format. `convert_state_dict` converts tensors in memory, and
`interleave` and its relatives permute them, of any library that speaks DLPack; `glu_ckpt.torch` has those as operators
of torch. Failures are `glu_ckpt.Error`.
"""

from ._commands import CheckpointWarning, check, convert, digest, inspect, plan, report, stamp, verify
from ._core import __version__
from ._error import Error
from ._reader import Checkpoint, TensorInfo, open
from ._state_dict import StatePlan, convert_state_dict, digest_state_dict, plan_state_dict
from ._tensors import (
    deinterleave,
    deinterleave_,
    diff,
    grouped_mlp,
    interleave,
    interleave_,
    splits_to_offsets,
)

__all__ = [
    "Checkpoint",
    "CheckpointWarning",
    "Error",
    "StatePlan",
    "TensorInfo",
    "__version__",
    "check",
    "convert",
    "convert_state_dict",
    "deinterleave",
    "deinterleave_",
    "diff",
    "digest",
    "digest_state_dict",
    "grouped_mlp",
    "inspect",
    "interleave",
    "interleave_",
    "open",
    "plan",
    "plan_state_dict",
    "report",
    "splits_to_offsets",
    "stamp",
    "verify",
]
