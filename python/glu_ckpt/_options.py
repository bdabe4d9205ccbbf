"""Options of the commands, for type checkers: the package itself does not import this."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypedDict, Union

PathLike = Union[str, "os.PathLike[str]"]
Progress = Callable[[dict[str, Any]], object]


class SourceOptions(TypedDict, total=False):
    """What the caller knows about the source."""

    from_naming: str
    from_config: PathLike
    from_glu: str
    from_shared_glu: str
    from_optimizer_glu: str
    decode: str
    decode_as: str
    encode: str


class InspectOptions(SourceOptions, total=False):
    """Options of `inspect`."""

    tensors: bool | str
    strict: bool


class WorkOptions(TypedDict, total=False):
    """How the machine is used. Sizes are bytes, or texts such as "512MiB"."""

    jobs: int
    max_memory: int | str
    device: str
    device_memory: int | str


class CheckOptions(WorkOptions, total=False):
    """Options of `check`."""

    manifest: str
    strict: bool


class ActivationOptions(TypedDict, total=False):
    """What experts compute, where they are run."""

    activation: str
    alpha: float
    limit: float
    offset: float
    compute: str


class ConvertOptions(SourceOptions, WorkOptions, ActivationOptions, total=False):
    """Options of `convert` and `plan`."""

    to: str
    scope: str
    unknown: str
    naming: str
    experts: str
    bias_experts: str
    glu: str
    shared_glu: str
    format: str
    optimizer: str
    max_shard_size: int | str
    verify: str
    reflink: str
    manifest: str
    allow_foreign_order: bool
    force: bool
    overwrite: bool
    resume: bool


class VerifyOptions(SourceOptions, WorkOptions, ActivationOptions, total=False):
    """Options of `verify`."""

    to_naming: str
    to_glu: str
    to_shared_glu: str
    to_optimizer_glu: str
    forward: bool
    layers: str | list[Any]
    sample: float | str
    part: str
    seed: int


class DiffOptions(SourceOptions, WorkOptions, total=False):
    """Options of `diff` on two checkpoints."""

    to_naming: str
    to_glu: str
    to_shared_glu: str
    to_optimizer_glu: str
    tensors: str
    html: PathLike
    overwrite: bool


class ReportOptions(SourceOptions, WorkOptions, ActivationOptions, total=False):
    """Options of `report`."""

    html: PathLike
    to_naming: str
    to_glu: str
    to_shared_glu: str
    to_optimizer_glu: str
    forward: bool
    overwrite: bool


class DigestOptions(SourceOptions, WorkOptions, total=False):
    """Options of `digest`."""


class StampOptions(TypedDict, total=False):
    """Options of `stamp`."""

    glu: str
    shared_glu: str
    optimizer_glu: str
    naming: str
    remove: bool
