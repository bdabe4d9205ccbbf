"""Messages of the program, in the words of Python: `overwrite=True` where the command line says `--overwrite`."""

from __future__ import annotations

import re
import shlex

from ._options import FUNCTIONS, OPTIONS

_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]*)(?:([ =])('[^'\n]*'|[^\s`,;)]+))?")
_UNKNOWN = re.compile(r"--([a-z][a-z-]*) is no option of glu-ckpt ([a-z]+)")
_QUOTED = re.compile(r"`glu-ckpt ([a-z]+)([^`\n]*)`")
_PASTED = re.compile(r"^  glu-ckpt ([a-z]+) (.*)$", re.MULTILINE)


def _is_value(words: tuple[str, ...], text: str) -> bool:
    """Whether a word behind an option is its value, and not the next word of the sentence."""
    if re.fullmatch(r"[A-Z][A-Z_]*|[0-9].*|'.*'", text) or re.search(r"[|:*/%=]", text):
        return True
    return any(text == word or text.startswith(word.split(":")[0] + ":") for word in words)


def _value(text: str) -> str:
    if re.fullmatch(r"[A-Z][A-Z_]*|[0-9]+", text):  # what is to be filled in, or a number
        return text
    return '"' + text.strip("'") + '"'


def _option(found: re.Match[str]) -> str:
    name, between, word = found.groups()
    if name not in OPTIONS:
        return found[0]
    argument, words = name.replace("-", "_"), OPTIONS[name]
    behind = (between or "") + (word or "")
    if words is None:
        return argument + "=True" + behind
    text = (word or "").rstrip(".:?")
    if not text or not (between == "=" or _is_value(words, text)):
        is_code = found.string[found.start() - 1 : found.start()] == "`" or found.string[found.end() :].startswith(":")
        return (argument if is_code else f"`{argument}`") + behind
    return f"{argument}={_value(text)}{(word or '')[len(text) :]}"


def _call(command: str, line: str, path: object) -> str:
    """A command line as a call. `path` spells a path."""
    arguments = []
    words = shlex.split(line)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            arguments.append(path(word))  # type: ignore[operator]
            continue
        name, _, value = word[2:].partition("=")
        values = [value] if value else []
        while OPTIONS.get(name) is not None and not value and words and not words[0].startswith("-"):
            values.append(words.pop(0))
            if name != "dtype":
                break
        shown = [_value(each) for each in values] or ["True"]
        arguments.append(f"{name.replace('-', '_')}={shown[0] if len(shown) == 1 else '[' + ', '.join(shown) + ']'}")
    return f"glu_ckpt.{command}({', '.join(arguments)})"


def _pasted(found: re.Match[str]) -> str:
    return "  " + _call(found[1], found[2], repr) if found[1] in FUNCTIONS else found[0]


def _quoted(found: re.Match[str]) -> str:
    command, line = found.groups()
    if command not in FUNCTIONS:
        return found[0]
    return f"`{_call(command, line, str) if line.strip() else 'glu_ckpt.' + command}`"


def in_python(message: str) -> str:
    """Spells options, and command lines of commands that are functions here, as Python does; all else stays."""
    message = _UNKNOWN.sub(lambda found: f"'{found[1].replace('-', '_')}' is no option of glu_ckpt.{found[2]}", message)
    message = _QUOTED.sub(_quoted, _PASTED.sub(_pasted, message))
    return _OPTION.sub(_option, message)
