"""The files around the tensors: names that no file can have."""
import pathlib
import re
import struct

from case import Case, Run

SHARD = "model-00001-of-00002.safetensors"


def make_writable(source: pathlib.Path) -> None:
    for path in (source, *source.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def index_names(name: str):
    """Returns a change that gives a shard another name, in the index and, where a file can have it, on the disk."""

    def change(source: pathlib.Path) -> None:
        make_writable(source)
        (source / "model.safetensors").unlink()
        index = source / "model.safetensors.index.json"
        index.write_text(index.read_text().replace(SHARD, name))
        if len(name) <= 255:
            (source / SHARD).rename(source / name)

    return change


def metadata_names(name: str):
    """Returns a change that gives a .distcp file another name, in .metadata and, where a file can have it, on the disk."""

    def change(source: pathlib.Path) -> None:
        make_writable(source)
        path = next(source.rglob(".metadata"))
        data = path.read_bytes()
        old = re.search(rb"(?:\x8c.|X.\0\0\0)(__0_0\.distcp)", data, re.DOTALL)
        data = data.replace(old[0], b"X" + struct.pack("<I", len(name)) + name.encode())
        if data[2] == 0x95:  # the one frame of protocol 4
            data = data[:3] + struct.pack("<Q", len(data) - 11) + data[11:]
        path.write_bytes(data)
        if len(name) <= 255:
            (path.parent / "__0_0.distcp").rename(path.parent / name)

    return change


def name_cases(case: str, source: str, change, ending: str) -> list[Case]:
    """Names that are too long, under `note`s that say so, and the longest there can be."""
    faults = {"256 bytes": "m" * (256 - len(ending)) + ending,
              "300 bytes": "deep/" + "m" * (300 - len(ending)) + ending,
              "": "deep/" * 1000 + "m" + ending}  # so long that the message is cut before the number
    runs = {said: [Run(f"{command} SRC", 3, says=rf"{said}.*\[index-path\]") for command in ("digest", "check")]
            for said in faults}
    longest = "m" * (255 - len(ending)) + ending
    return [
        *(Case(case, source, runs[said], change=change(name), note=f"name of {said or '5000 bytes'}")
          for said, name in faults.items()),
        Case(case, source, [Run("digest SRC"), Run("check SRC")], change=change(longest), note="name of 255 bytes"),
    ]


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d7a2146" * 8 + b"\nsize 12345\n"
PAGE = b"\n<!DOCTYPE html>\n<html><head><title>404</title></head></html>\n"


def is_instead(file: str, content: bytes):
    """Returns a change that puts this content in place of a file."""

    def change(source: pathlib.Path) -> None:
        make_writable(source)
        path = next(source.rglob(file), source / file)
        path.write_bytes(content)

    return change


def stand_in_cases(case: str, source: str, file: str, status: int = 3, command: str = "inspect SRC --strict") -> list[Case]:
    """A pointer of Git LFS and a page of HTML in place of a file, and the file itself."""
    return [
        *(Case(case, source, [Run(command, status, says=rf"{re.escape(file)}.*{says}")],
               change=is_instead(file, content), note=f"{file} is a {note}")
          for note, content, says in (("pointer", POINTER, "Git LFS pointer.*`git lfs pull`"),
                                      ("page", PAGE, "HTML or XML.*download the file itself again"))),
        Case(case, source, [Run(command, (0, 3), never_says="Git LFS|HTML")], change=make_writable, note=f"{file} itself"),
    ]


def journal_is_left(source: pathlib.Path) -> None:
    make_writable(source)
    (source / "glu_ckpt.journal").write_bytes(b"GCJ1")


def has_no_journal(out: pathlib.Path) -> str:
    return "its journal was copied" if (out / "glu_ckpt.journal").exists() else ""


JOURNAL = "stale_quantization_config_hub", "src_fp8"
CASES = [
    Case(*JOURNAL, [Run("inspect SRC", says="glu_ckpt.journal: a run left it"),
                    Run("digest SRC", says="glu_ckpt.journal: a run left it"),
                    Run("convert SRC OUT --to megatron", says="glu_ckpt.journal: a run left it", check=has_no_journal),
                    Run("verify SRC OUT", says="glu_ckpt.journal: a run left it")],
         change=journal_is_left, note="a journal is left"),
    Case(*JOURNAL, [Run("inspect SRC", never_says="journal")], note="no journal is left"),
    *stand_in_cases("gptq_v1_borrow", "src_v1", "config.json"),
    *stand_in_cases("gptq_v1_borrow", "src_v1", "quantize_config.json"),
    *stand_in_cases("model_safetensors_beside_index", "src", "model.safetensors.index.json"),
    *stand_in_cases("optimizer_in_objects", "src", ".metadata"),
    *stand_in_cases("optimizer_in_objects", "src", "common.pt"),
    *stand_in_cases("optimizer_in_objects", "src", "__0_0.distcp"),
    *stand_in_cases("legacy_rank_missing", "src_ep2", "model_optim_rng.pt"),
    *name_cases("model_safetensors_beside_index", "src", index_names, ".safetensors"),
    *name_cases("wrapper_prefixes", "src_accelerate_dcp", metadata_names, ".distcp"),
]
