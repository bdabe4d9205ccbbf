#!/usr/bin/env python3
"""Checks who includes whom, and that names of files and of shared types are unique. See docs/architecture.md, "Rooms".

Prints one line per offence and exits 1 if there is one.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUFFIXES = {".hpp", ".cpp", ".h", ".cu", ".cuh"}

# Folder of the including file -> folders it may include from. Public headers are open to all.
MAY_INCLUDE = {
    "core": {"core"},
    "layout": {"core", "layout"},
    "plan": {"core", "layout", "plan"},
    "io": {"core", "io"},
    "format": {"core", "io", "format"},
    "kernels": {"core", "kernels"},
    "ranks": {"core", "ranks"},
    "exec": {"core", "layout", "plan", "io", "kernels", "ranks", "exec"},
    "verify": {"core", "layout", "plan", "io", "kernels", "ranks", "exec", "verify"},
    "report": {"core", "report"},
    "cli": {"core", "layout", "plan", "io", "format", "ranks", "exec", "verify", "report", "cli"},
}

# Third-party headers that only some folders may see.
ONLY_IN = [
    (re.compile(r"^CLI/"), {"cli"}),
    (re.compile(r"^simdjson"), {"core", "format"}),
    (re.compile(r"^mpi"), {"ranks"}),
    (re.compile(r"^(cuda|cub/|thrust/)"), {"kernels", "exec"}),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# Types of one name in two places are one to the linker, which takes either's functions for both.
NAMESPACE = re.compile(r"^namespace ([\w:]*) ?\{|^\}  // namespace ?([\w:]*)$")
TYPE = re.compile(r"^(?:struct|class) (\w+)(?: final)?(?: : [^;]*)? \{")
STANDARD = re.compile(r"^[a-z_0-9]+$")


def sources():
    """(path relative to the root, room) of every file the rules speak of."""
    for top in ("include", "src", "kernels"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.is_file() and path.suffix in SUFFIXES:
                relative = path.relative_to(ROOT)
                room = {"include": "public", "kernels": "kernels"}.get(top) or relative.parts[1]
                yield relative, room


def offence_of(room, bracket, target):
    """What is wrong with one #include, or None."""
    folder = target.split("/")[0] if "/" in target else None
    if bracket == "<":
        if room == "public" and not STANDARD.match(target):
            return "a public header includes only the standard library and glu_ckpt/"
        for pattern, rooms in ONLY_IN:
            if pattern.match(target) and room not in rooms:
                return f"seen only in {', '.join(sorted(rooms))}"
        return None
    if folder == "glu_ckpt":
        return None
    if room == "public":
        return "a public header includes only the standard library and glu_ckpt/"
    if folder is None:
        return 'written as "folder/file.hpp"'
    if folder not in MAY_INCLUDE[room]:
        return f"{room} may include only {', '.join(sorted(MAY_INCLUDE[room]))} and glu_ckpt/"
    return None


def shared_types(lines):
    """(line number, name with its namespaces) of the types that other files' code can mean, too."""
    names = []
    for number, line in enumerate(lines, 1):
        if match := NAMESPACE.match(line):
            names = names + [match.group(1)] if line.startswith("namespace") else names[:-1]
        elif (match := TYPE.match(line)) and "" not in names:
            yield number, "::".join([*names, match.group(1)])


def main():
    offences = []
    seen = {}
    types = {}
    for path, room in sources():
        if room != "public" and room not in MAY_INCLUDE:
            offences.append(f"{path}: no such room; add it to docs/architecture.md and to this script")
            continue
        if path.name in seen:
            offences.append(f"{path}: the name is taken by {seen[path.name]}")
        seen.setdefault(path.name, path)
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        for number, name in shared_types(lines):
            if name in types:
                offences.append(f"{path}:{number}: {name} is defined in {types[name]}, too")
            types.setdefault(name, f"{path}:{number}")
        for number, line in enumerate(lines, 1):
            match = INCLUDE.match(line)
            if match and (offence := offence_of(room, *match.groups())):
                offences.append(f"{path}:{number}: {match.group(2)}: {offence}")
    for offence in offences:
        print(offence)
    if not seen:
        print("no source files found")
        return 1
    if not offences:
        print(f"{len(seen)} files keep the rules")
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
