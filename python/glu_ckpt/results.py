"""Types of what the commands return, for annotations and type checkers: `def look(found: results.Inspection) -> None`.

At run time the results are plain dicts. docs/json.md says what the fields mean; fields are only ever added.
"""

from __future__ import annotations

from typing import TypedDict, Union

#: A number, "mtp.0", or None for what is in no layer.
Layer = Union[int, str, None]


class _Result(TypedDict):
    command: str
    source: str | None
    destination: str | None


class _LayoutAlways(TypedDict):
    naming: str
    experts: str
    glu: str
    shared_glu: str | None
    glu_source: str


class Layout(_LayoutAlways, total=False):
    """How a family names, groups and orders its experts."""

    optimizer_glu: str


class Loader(TypedDict):
    """A program that loads a checkpoint."""

    program: str
    versions: str
    flags: str


class _Loaded(_Result):
    loads_in: list[Loader]
    warnings: list[str]


class _LoadedByNothing(_Loaded, total=False):
    loads_in_nothing: str


class LayerContent(TypedDict):
    """Bytes of one layer."""

    layer: Layer
    num_experts: int
    expert_bytes: int
    shared_bytes: int
    other_bytes: int
    beside_bytes: dict[str, int]


class ListedTensor(TypedDict):
    """A stored tensor."""

    name: str
    dtype: str
    shape: list[int]
    bytes: int
    file: str
    matrix: str | None


class Adapter(TypedDict):
    """A LoRA adapter by itself."""

    base_class: str
    base: str
    ranks: list[int]
    lora_alpha: float
    lora_alphas: list[float]
    rslora: bool
    dora: bool
    targets: list[str]
    expert_modules: int
    other_modules: int


class _InspectionAlways(_LoadedByNothing):
    format: str
    layout: Layout | None
    moe_layers: int
    mtp_moe_layers: int
    num_experts: int | None
    hidden_size: int | None
    moe_intermediate_size: int | None
    parameters: int | None
    active_parameters: int | None
    num_layers: int | None
    experts_per_token: int | None
    vocab_size: int | None
    context: int | None
    attention_heads: int | None
    key_value_heads: int | None
    attention: str
    tied_embeddings: bool
    dtypes: list[str]
    tensors: int
    files: int
    bytes: int
    optimizer: bool
    quantized: list[str]
    quantized_parts: list[str]
    scales: list[str]
    problems: list[str]
    layers: list[LayerContent]


class Inspection(_InspectionAlways, total=False):
    """What `inspect` returns."""

    adapter: Adapter
    part: str
    padded_from: str
    tensor_list: list[ListedTensor]


# One of its names is a word of the language.
_Ends = TypedDict("_Ends", {"from": "Layout | None", "to": "Layout | None"})


class _ConversionAlways(_LoadedByNothing, _Ends):
    output: str
    tensors_written: int
    bytes_written: int
    bytes_cloned: int
    seconds: float
    bytes_per_second: float
    peak_memory: int
    device: str
    digest: str | None
    verified: str | None
    up_to_date: bool
    refusals: list[str]
    notes: list[str]


class Conversion(_ConversionAlways, total=False):
    """What `convert` returns. With `part`, `pending` alone says why the output is not there yet."""

    pending: str


class Plan(_ConversionAlways):
    """What `plan` returns."""

    disk_needed: int
    disk_free: int
    filesystem: str
    estimated_seconds: float | None
    megatron_args: list[str]


class ElementPlace(TypedDict):
    """The first element that differs: bits, and the numbers that they are."""

    row: int
    column: int
    a: str
    b: str
    number_a: str
    number_b: str


class _Figures(TypedDict):
    max_abs: float | None
    max_rel: float | None
    rms: float | None
    relative_norm: float | None
    cosine: float | None


class LayerDiff(_Figures):
    """What differs of a layer."""

    layer: Layer
    tensors: int
    differing: int
    only_in_one: int
    unlike: int
    elements: int
    differing_elements: int


class TensorDiff(_Figures):
    """A matrix or tensor that differs."""

    name: str
    layer: Layer
    expert: int | None
    only_in: str | None
    dtype_a: str | None
    shape_a: list[int] | None
    tensor_a: str | None
    dtype_b: str | None
    shape_b: list[int] | None
    tensor_b: str | None
    elements: int | None
    differing: int | None
    nan_in_one: int | None
    first: ElementPlace | None
    differing_rows: int
    rows: list[int]


class ConfigDifference(TypedDict):
    """A field of config.json that changes what a model computes."""

    field: str
    a: str
    b: str


class _Differences(_Result):
    equal: bool
    compared: int
    config_differences: list[ConfigDifference]
    layers: list[LayerDiff]
    tensors: list[TensorDiff]
    warnings: list[str]


class FarOff(_Figures):
    """An expert, or a tensor of none, with a NaN in only one, or whose relative norm is far above that of most."""

    name: str
    layer: Layer
    expert: int | None
    tensors: int
    times: float | None


class Diff(_Differences):
    """What `diff` of two paths returns."""

    stands_out: list[FarOff]
    bytes: int
    equal_layers: int


class ElementsDiff(TypedDict):
    """What `diff` of two tensors in memory returns."""

    equal: bool
    elements: int
    differing: int
    first: int | None
    max_abs: float
    max_rel: float
    nan_in_one: int
    nan_in_both: int


class FirstDifference(ElementPlace):
    """Where two models differ first."""

    layer: Layer
    expert: int | None
    role: str | None
    head: int | None
    state: str
    set: str
    kind: str
    tensor: str
    hint: str


class LayerForward(TypedDict):
    """What the experts of a layer compute, compared."""

    layer: Layer
    set: str
    tokens: int
    differing_bits: int | None
    max_abs: float | None
    max_rel: float | None
    first_expert: int | None
    differing_experts: int
    control_caught: bool
    fault: str


class Verdict(_Differences):
    """What `verify` returns."""

    digest_a: str
    digest_b: str
    missing: list[str]
    extra: list[str]
    differing: int
    unlike: int
    only_in_a: int
    only_in_b: int
    in_both: int
    same_layout: bool
    differing_padding: list[str]
    first_difference: FirstDifference | None
    forward: list[LayerForward]


class Report(_Result):
    """What `report` returns."""

    output: str
    bytes: int
    equal: bool | None
    warnings: list[str]


class Digest(_Result):
    """What `digest` returns."""

    digest: str
    tensors: int
    bytes: int


class CheckedFile(TypedDict):
    """A file that was compared with what is recorded of it."""

    name: str
    state: str
    detail: str


class Check(_Result):
    """What `check` returns."""

    ok: bool
    sound: bool
    compared_data: bool
    has_checksums: bool
    has_manifest: bool
    files: list[CheckedFile]
    manifest: list[CheckedFile]
    recorded_digest: str | None
    digest: str | None


class _StampAlways(_Result):
    path: str
    file: str
    dry_run: bool


class Stamp(_StampAlways, total=False):
    """What `stamp` returns: what is recorded, or with `remove` whether a record was taken out."""

    naming: str
    experts: str
    glu: str
    shared_glu: str
    optimizer_glu: str
    removed: bool
