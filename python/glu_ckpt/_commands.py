"""The program's commands as functions.

Options are the program's long options with underscores: `glu="interleaved:32"` is `--glu interleaved:32`. True is a flag
that is given; False and None are options that are not; a list is joined by commas. The program's own parser reads them,
so values and checks are the same, and messages but for the spelling of options (_spelling); `glu-ckpt convert --help`
describes them. Results are the JSON objects
that the program prints.
"""

from __future__ import annotations

import os

from . import _core
from ._error import Error
from ._options import ABOUT

# Type checkers take it for true; typing itself would be half of the time that the import takes.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from typing_extensions import Unpack

    from . import results
    from ._options import (
        CheckOptions,
        ConvertOptions,
        DigestOptions,
        InspectOptions,
        PathLike,
        Progress,
        ReportOptions,
        StampOptions,
        VerifyOptions,
    )


class CheckpointWarning(UserWarning):
    """A checkpoint may load and be wrong. It comes before the work."""


#: Words of the command line that mean nothing, or something else, in a function.
_NOT_HERE = frozenset({"json", "color", "quiet", "verbose", "help", "version"})


def _word(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(_word(item) for item in value)
    return os.fsdecode(value) if isinstance(value, (str, bytes, os.PathLike)) else str(value)


def _option_words(command: str, options: Any) -> list[str]:
    words = []
    for name, value in options.items():
        if name in _NOT_HERE:
            raise Error(f"{command}: '{name}' is an option of the command line only")
        option = "--" + name.replace("_", "-")
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            words.append(f"{option}={_word(value)}")
    return words


def _path_word(path: PathLike) -> str:
    text = os.fsdecode(path)
    # What begins with a dash would be an option.
    return os.path.join(os.curdir, text) if text.startswith("-") else text


def _warn(sentence: str) -> None:
    import warnings

    from ._spelling import in_python

    warnings.warn(in_python(sentence), CheckpointWarning, stacklevel=4)


def run(command: str, paths: list[PathLike], options: Any, progress: Progress | None = None) -> Any:
    """Runs a command on paths and returns its JSON object."""
    import json

    # Behind the paths, an option that lacks its value does not take one of them for it.
    words = [command, *map(_path_word, paths), *_option_words(command, options)]
    if progress is not None and not callable(progress):
        raise TypeError(f"progress is {type(progress).__name__}; a callable is needed")
    return json.loads(_core.run_command([os.fsencode(word) for word in words], progress, _warn))


def inspect(path: PathLike, **options: Unpack[InspectOptions]) -> results.Inspection:
    """Says what a checkpoint is: format, layout, layers, experts, shapes, dtypes, problems. Reads headers only.

    Raises Error where the layout is not recognized; its `result` has what could be told.
    """
    return run("inspect", [path], options)


def plan(
    src: PathLike, dst: PathLike, *, progress: Progress | None = None, **options: Unpack[ConvertOptions]
) -> results.Plan:
    """Says what `convert` would do, and writes nothing: bytes, peak memory, disk needed.

    Raises Error where `convert` would refuse; its `result` has the refusals.
    """
    return run("plan", [src, dst], options, progress)


def convert(
    src: PathLike, dst: PathLike, *, progress: Progress | None = None, **options: Unpack[ConvertOptions]
) -> results.Conversion:
    """Writes the checkpoint at `src` to `dst` in another layout, verified.

    `dst` is absent or complete at every instant; work in progress lies in `dst` + ".partial". `progress` is called with
    a dict at the beginning and the end of each stage and about ten times a second: {"phase", "bytes", "total",
    "seconds", "bottleneck"}, bytes done of so many, since the stage began. What it raises stops the run, is raised here,
    and leaves what `resume=True` goes on with; so does Ctrl-C. Other threads of Python run meanwhile.
    """
    return run("convert", [src, dst], options, progress)


def verify(
    a: PathLike, b: PathLike, *, progress: Progress | None = None, **options: Unpack[VerifyOptions]
) -> results.Verdict:
    """Compares two checkpoints, in whatever layouts: are they the same model? The answer is `["equal"]`.

    A difference is a result, not an error.
    """
    return run("verify", [a, b], options, progress)


class _Page(dict):  # type: ignore[type-arg]
    """A result that a notebook shows as the page."""

    def _repr_html_(self) -> str:
        import html

        with open(self["output"], encoding="utf-8") as file:
            page = html.escape(file.read())
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 80vh; border: 0"></iframe>'


def report(
    a: PathLike,
    b: PathLike | None = None,
    *,
    html: PathLike | None = None,
    progress: Progress | None = None,
    **options: Unpack[ReportOptions],
) -> results.Report:
    """Writes one page about a checkpoint, or about how two differ, to the file `html`. It needs no other file.

    The result has `output`, `bytes` and, where there is a `b`, `equal`; a notebook shows it as the page. Without `html`
    the page is a file of a new folder for temporary files.
    """
    if html is None:
        import tempfile

        html = os.path.join(tempfile.mkdtemp(prefix="glu_ckpt-"), "report.html")
    page: Any = _Page(run("report", [a] if b is None else [a, b], {"html": html, **options}, progress))
    return page


def digest(path: PathLike, *, progress: Progress | None = None, **options: Unpack[DigestOptions]) -> results.Digest:
    """One fingerprint, the same for every layout of the same weights: `["digest"]`. Reads everything.

    Raises Error ("record-contradicts") where the checkpoint's own record says another.
    """
    return run("digest", [path], options, progress)


def check(path: PathLike, *, progress: Progress | None = None, **options: Unpack[CheckOptions]) -> results.Check:
    """Reads everything and compares it with the checkpoint's own record and checksums. The answer is `["ok"]`.

    With `strict`, a checkpoint of which nothing says what the data should be is not ok.
    """
    return run("check", [path], options, progress)


def stamp(path: PathLike, **options: Unpack[StampOptions]) -> results.Stamp:
    """Records in a checkpoint a layout that its owner knows and the files do not say."""
    return run("stamp", [path], options)


# help() lists the options: a signature shows none of them.
for _function, _name in (
    (inspect, "inspect"), (plan, "convert"), (convert, "convert"), (verify, "verify"), (report, "report"),
    (digest, "digest"), (check, "check"), (stamp, "stamp"),
):  # fmt: skip
    _function.__doc__ = f"{(_function.__doc__ or '').rstrip()}\n\n    Options:\n\n{ABOUT[_name]}"
