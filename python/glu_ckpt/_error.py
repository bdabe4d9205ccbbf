"""The one exception, and what it is where arguments are wrong."""

from __future__ import annotations

# Type checkers take it for true (see _commands.py).
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Error(Exception):
    """A failure: the sentence names file, tensor and numbers and says what to do. It is the program's, with options as
    arguments (`overwrite=True` for `--overwrite`).

    slug: the short, stable name of the failure ("unknown-glu"), for programs.
    exit_status: what the program would end with (2 usage, 3 broken input, 4 refused, 5 machine, 6 stopped).
    file: the path of the file at fault, or None.
    tensor: the name of the tensor at fault, or None.
    result: the dict that the command had found by then, or None: `inspect` of a layout that is not recognized, the
        refusals of `plan`.
    """

    def __init__(
        self,
        message: str,
        slug: str = "usage",
        exit_status: int = 2,
        file: str | None = None,
        tensor: str | None = None,
        found: str | None = None,
    ) -> None:
        super().__init__(message)
        self.slug = slug
        self.exit_status = exit_status
        self.file = file
        self.tensor = tensor
        self.result: dict[str, Any] | None = None
        if found:
            import json

            self.result = json.loads(found)

    def __reduce__(self) -> tuple[Any, ...]:
        import json

        found = json.dumps(self.result) if self.result is not None else None
        return type(self), (self.args[0], self.slug, self.exit_status, self.file, self.tensor, found)


def from_program(message: str, *details: Any) -> Error:
    """The exception for a failure that the program words."""
    from ._spelling import in_python

    return Error(in_python(message), *details)


class ArgumentError(Error, ValueError):
    """A tensor or an option that an operator of `glu_ckpt.torch` cannot take; a ValueError too, as it is for torch."""
