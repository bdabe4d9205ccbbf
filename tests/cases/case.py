"""What a case says of the program, and small tools to make a case's neighbours. Python's standard library alone.

Example: the checkpoint small_messages/src_mlx of testdata/cases.tar.xz is refused, and the message names `switch_mlp`:

    Case("small_messages", "src_mlx", [Run("convert SRC OUT --to megatron", 4, says=r"switch_mlp")])
"""
import dataclasses
import functools
import json
import os
import pathlib
import shutil
import struct
import tarfile
import tempfile
from typing import Callable

REFUSED = (3, 4)
TESTDATA = pathlib.Path(os.environ.get("GLU_CKPT_TESTDATA", pathlib.Path(__file__).resolve().parents[2] / "testdata"))
UNPACKED = tempfile.TemporaryDirectory()


@functools.cache
def reported() -> pathlib.Path:
    """Returns a folder of what two archives of testdata hold: a folder for each fault that somebody reported, and for
    each adapter that PEFT wrote and merged."""
    for archive in ("cases.tar.xz", "adapters.tar.xz"):
        with tarfile.open(TESTDATA / archive) as tar:
            tar.extractall(UNPACKED.name)
    return pathlib.Path(UNPACKED.name)


@dataclasses.dataclass
class Run:
    """One command and what is right of it.

    Of `command`, SRC stands for the input, CASE for the case's folder, OUT and OUT2 for fresh paths. An OUT that an
    earlier run of the case wrote stays for those that read it, and goes before one that writes it.
    """

    command: str
    status: int | tuple[int, ...] = 0
    says: str = ""  # a regular expression that the output, both streams together, must match
    never_says: str = ""  # one that it must not match
    truth: str = ""  # a safetensors file of the case's folder: the tensors that OUT holds
    some: bool = False  # the truth holds some of OUT's tensors only
    check: Callable[[pathlib.Path], str] | None = None  # takes OUT; returns what is wrong, or ""
    plan: bool = True  # `plan` is asked the same and must end alike; False says why not in a comment beside it


@dataclasses.dataclass
class Case:
    """One input, and the commands that are run on it, in order."""

    name: str  # the folder in testdata/cases.tar.xz; "" for an input that is made from nothing
    source: str  # the input in that folder
    runs: list[Run]
    # Turns a copy of the input into another one; what it returns, if anything, is SRC then.
    change: Callable[[pathlib.Path], pathlib.Path | None] | None = None
    note: str = ""  # tells apart the neighbours of one input
    # Commands that refuse the input alike: with one status, slug and named tensor, whose name holds the word.
    alike: tuple[list[str], str] | None = None

    def title(self) -> str:
        return " ".join(filter(None, (self.name, self.source, self.note)))


def read_safetensors(path: pathlib.Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Returns the dtype, shape and bytes of each tensor."""
    data = path.read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    body = memoryview(data)[8 + size :]
    return {
        name: (t["dtype"], t["shape"], bytes(body[t["data_offsets"][0] : t["data_offsets"][1]]))
        for name, t in header.items()
    }


def write_safetensors(path: pathlib.Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    """Writes the tensors in the order of the mapping, without holes."""
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def read_tensors(path: pathlib.Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Returns the tensors of all safetensors files of a directory, or of one file."""
    tensors = {}
    for file in sorted(path.glob("*.safetensors")) if path.is_dir() else [path]:
        tensors.update(read_safetensors(file))
    return tensors


def config_changed(**fields) -> Callable[[pathlib.Path], None]:
    """Returns a change that sets fields of config.json; a field of None is removed."""

    def change(source: pathlib.Path) -> None:
        path = source / "config.json"
        config = json.loads(path.read_text())
        for name, value in fields.items():
            if value is None:
                config.pop(name, None)
            else:
                config[name] = value
        path.write_text(json.dumps(config))

    return change


def tensors_changed(edit: Callable[[dict], None], file: str = "model.safetensors") -> Callable[[pathlib.Path], None]:
    """Returns a change that edits the mapping of one file's tensors in place."""

    def change(source: pathlib.Path) -> None:
        tensors = read_safetensors(source / file)
        edit(tensors)
        write_safetensors(source / file, tensors)

    return change


def both(*changes: Callable[[pathlib.Path], None]) -> Callable[[pathlib.Path], None]:
    """Returns a change that makes several, one after the other."""

    def change(source: pathlib.Path) -> None:
        for one in changes:
            one(source)

    return change


def config_lacks(*fields: str) -> Callable[[pathlib.Path], str]:
    """Returns a check that OUT's config.json has none of these fields, at the top or in text_config."""

    def check(out: pathlib.Path) -> str:
        config = json.loads((out / "config.json").read_text())
        found = [f for f in fields if f in config or f in config.get("text_config", {})]
        return f"config.json has {', '.join(found)}" if found else ""

    return check


def copy_tree(source: pathlib.Path, target: pathlib.Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)
