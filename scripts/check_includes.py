#!/usr/bin/env python3
"""Checks who includes whom, that names of files and of shared types are unique, and that src/io, src/format and what
decides about a conversion's output reach the disk through src/io/system_calls.cpp alone. See docs/architecture.md,
"Rooms".

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
    "ranks": {"core", "ranks"},
    "kernels": {"core", "kernels"},
    "ops": {"core", "kernels", "ops"},
    "exec": {"core", "layout", "plan", "io", "kernels", "ranks", "exec"},
    "forward": {"core", "layout", "plan", "io", "kernels", "exec", "forward"},
    "verify": {"core", "layout", "plan", "io", "kernels", "ranks", "exec", "forward", "verify"},
    "convert": {"core", "layout", "plan", "io", "format", "ranks", "exec", "verify", "report", "cli", "convert"},
    "bench": {"core", "plan", "kernels", "exec", "forward", "report", "bench"},
    "report": {"core", "bench", "report"},
    "cli": {"core", "layout", "plan", "io", "format", "ranks", "exec", "verify", "convert", "report", "bench", "cli"},
}

# Third-party headers that only some folders may see.
ONLY_IN = [
    (re.compile(r"^CLI/"), {"cli"}),
    (re.compile(r"^simdjson"), {"core", "format"}),
    (re.compile(r"^mpi"), {"ranks"}),
    (re.compile(r"^(cuda|cub/|thrust/)"), {"kernels", "exec", "ops", "forward", "bench"}),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# Types of one name in two places are one to the linker, which takes either's functions for both.
NAMESPACE = re.compile(r"^namespace ([\w:]*) ?\{|^\}  // namespace ?([\w:]*)$")
TYPE = re.compile(r"^(?:struct|class) (\w+)(?: final)?(?: : [^;]*)? \{")
# A disk is reached in one place, so that tests can put another file system there. std::filesystem is for paths.
DISK_ROOMS = {"io", "format"}
DISK_FILES = {"check_output.cpp", "conversion.cpp"}
DISK_PLACE = {"system_calls.hpp", "system_calls.cpp"}
# Who calls it: each durable step is one function there, for everyone else.
CALLERS = {"directory.cpp", "file.cpp", "filesystem.cpp"}
# Staging as it is done now makes its subdirectories itself.
DISK_EXCEPTIONS = {"staged_checkpoint.cpp"}
CALLS = (
    "access|chmod|close|closedir|copy_file_range|creat|fallocate|fchmod|fclose|fdatasync|fdopen|flock|fopen|fread|fstat"
    "|fstatat|fsync|ftruncate|fwrite|ioctl|link|linkat|lockf|lstat|mkdir|mkdirat|mkdtemp|mkostemp|mkstemp|mmap|msync"
    "|open|openat|opendir|posix_fadvise|posix_fallocate|pread|preadv|preadv2|pwrite|pwritev|pwritev2|read|readahead"
    "|readdir|readlink|readlinkat|realpath|remove|rename|renameat|renameat2|rmdir|sendfile|splice|stat|statfs|statvfs"
    "|symlink|sync|sync_file_range|syncfs|syscall|truncate|unlink|unlinkat|utimensat|write"
)
# Names that methods and locals have, too, count with "::" before them only.
SHARED_WORDS = set("access close link open read remove rename splice stat sync truncate write".split())
LONE_CALLS = "|".join(word for word in CALLS.split("|") if word not in SHARED_WORDS)
DISK = [
    re.compile(rf"(?<![\w>:])::(?:{CALLS})\("),
    re.compile(rf"(?<![\w:.>])(?:std::)?(?:{LONE_CALLS})\("),
    re.compile(r"\bstd::(?:rename|tmpfile)\("),
    re.compile(r"\bstd::(?:basic_)?[io]?f(?:stream|ilebuf)\b"),
    re.compile(r"\b(?:fs|filesystem)::(?!path\b|absolute\b)\w+"),
]
SYSTEM_CALLS = re.compile(r"\bsystem_calls\(\)")
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


def disk_offence(path, room, line):
    """What in a line of code reaches the disk past the one place for it, or None."""
    if room not in DISK_ROOMS and path.name not in DISK_FILES or path.name in DISK_PLACE | DISK_EXCEPTIONS:
        return None
    code = line.split("//")[0]
    for pattern in DISK:
        if found := pattern.search(code):
            return f"{found.group(0).rstrip('(')}: the disk is reached through system_calls() alone"
    if SYSTEM_CALLS.search(code) and path.name not in CALLERS:
        return f"system_calls() is called in {', '.join(sorted(CALLERS))} alone"
    return None


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
            if offence := disk_offence(path, room, line):
                offences.append(f"{path}:{number}: {offence}")
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
