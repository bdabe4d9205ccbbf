"""The arguments that a trainer saved, the fields of config.json, and optimizer state that is no tensor."""
import argparse
import io
import pathlib
import pickle
import zipfile

from case import Case, Run, config_changed

REFUSED = (3, 4)


class Foreign:
    """Pickles as a call of a class that no reader knows."""

    def __init__(self, module: str, name: str):
        self.module, self.name = module, name

    def __setstate__(self, state) -> None:
        """Nobody needs it."""


class ForeignPickler(pickle._Pickler):
    dispatch = dict(pickle._Pickler.dispatch)

    def save_foreign(self, value: Foreign) -> None:
        self.write(pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode())
        self.save(("a",))
        self.write(pickle.REDUCE)

    dispatch[Foreign] = save_foreign


def read_common(path: pathlib.Path):
    class Reader(pickle.Unpickler):
        def find_class(self, module, name):
            return argparse.Namespace if name == "Namespace" else lambda *args: Foreign(module, name)

    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        return Reader(io.BytesIO(archive.read(name))).load()


def write_common(path: pathlib.Path, value) -> None:
    text = io.BytesIO()
    ForeignPickler(text, 2).dump(value)
    path.chmod(0o644)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("common/data.pkl", text.getvalue())
        archive.writestr("common/version", "3\n")


def args_changed(**values):
    """Returns a change that sets arguments in common.pt; an argument of `...` is removed."""

    def change(source: pathlib.Path) -> None:
        path = source / "iter_0000100" / "common.pt"
        state = read_common(path)
        for name, value in values.items():
            if value is ...:
                vars(state["args"]).pop(name, None)
            else:
                setattr(state["args"], name, value)
        write_common(path, state)

    return change


def hf_config_changed(**fields):
    """Returns a change that sets fields of hf/config.json."""
    return lambda source: config_changed(**fields)(source / "hf")


def refused_by_name(word: str) -> list[Run]:
    return [Run("convert SRC OUT --to hf", REFUSED, says=word)]


UNREADABLE = [
    Case("unreadable_arguments", "src", [
        Run("convert SRC OUT --to hf --from-glu contiguous", 4, says=r"glu-conflict"),
        Run("convert SRC OUT --to hf", 0, says=r"other_package\.arguments\.SchedulerType"),
        Run("inspect SRC", 0, says=r"lr_scheduler_type.*other_package\.arguments\.SchedulerType"),
        Run("inspect SRC --strict", 3, says=r"lr_scheduler_type"),
    ]),
    Case("unreadable_arguments", "src", [
        Run("convert SRC OUT --to hf --from-glu contiguous", 4, says=r"glu-conflict"),
        Run("convert SRC OUT --to hf", 0, never_says="not read"),
        Run("inspect SRC", 0, never_says="lr_scheduler_type"),
    ], change=args_changed(lr_scheduler_type="cosine", save=pathlib.PurePosixPath("runs/1")), note="all readable"),
    Case("unreadable_arguments", "src", [
        Run("convert SRC OUT --to hf --from-glu contiguous", 0, says=r"moe_mlp_glu_interleave_size.*a\.b\.C"),
        Run("convert SRC OUT --to hf", 4, says=r"unknown-glu"),
    ], change=args_changed(moe_mlp_glu_interleave_size=Foreign("a.b", "C")), note="the order itself"),
    Case("small_messages", "src_partial", [Run("convert SRC OUT --to hf", 4, says=r"functools\.partial"),
                                           Run("inspect SRC", 0, says=r"functools\.partial")]),
    Case("small_messages", "src_partial", [Run("convert SRC OUT --to hf", 0, says="the output loads in")],
         change=args_changed(hook=...), note="without the partial"),
]

WARNINGS = [
    Case("rope_interleave_with_yarn", source, [Run("convert SRC OUT --to megatron", 0, says="rope_interleave is false")])
    for source in ("src_plain", "src_yarn")
] + [
    Case("rope_interleave_with_yarn", source, [Run("convert SRC OUT --to megatron", 0, never_says="rope_interleave")],
         change=config_changed(rope_interleave=True), note="true")
    for source in ("src_plain", "src_yarn")
] + [
    Case("small_messages", "src_swish", [Run("convert SRC OUT --to megatron", 0, never_says="hidden_act")]),
    Case("small_messages", "src_swish", [Run("convert SRC OUT --to megatron", 0, says="hidden_act is 'gelu'")],
         change=config_changed(hidden_act="gelu"), note="gelu"),
]

CASES = UNREADABLE + WARNINGS
