#!/usr/bin/env python3
"""Checks who includes whom, that code outside of src/families names no family of models and code outside of
src/quant/formats no quantized format, that no .cu reaches <filesystem>, that names of files and of shared types are
unique, that the functions that docs/architecture.md follows are in the files that it says, that READMEs of rooms say
what those may include, and that src/io, src/format and what decides about a conversion's output reach the disk through
src/io/system_calls.cpp alone. See docs/architecture.md, "Rooms".

Prints one line per offence and exits 1 if there is one.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUFFIXES = {".hpp", ".cpp", ".h", ".cu", ".cuh"}

# Room of the including file -> rooms it may include from. A public header belongs to a room (HEADER_ROOMS).
MAY_INCLUDE = {
    "core": {"core"},
    "families": {"core", "families"},
    "quant/formats": {"core", "quant/formats"},
    "layout": {"core", "families", "quant/formats", "layout"},
    "arch": {"core", "families", "layout", "arch"},
    "plan": {"core", "layout", "arch", "plan"},
    "io": {"core", "io"},
    "remote": {"core", "io", "remote"},
    "format": {"core", "io", "format"},
    "quant": {"core", "quant/formats", "layout", "io", "format", "quant"},
    "adapters": {"core", "families", "layout", "io", "format", "quant", "adapters"},
    "ranks": {"core", "ranks"},
    "kernels": {"core", "plan", "kernels"},
    "ops": {"core", "kernels", "ops"},
    "exec": {"core", "layout", "arch", "plan", "io", "kernels", "ranks", "exec"},
    "model": {"core", "families", "layout", "arch", "plan", "io", "format", "quant", "adapters", "exec", "model"},
    "forward": {"core", "families", "layout", "plan", "io", "format", "kernels", "exec", "model", "forward"},
    "verify": {"core", "layout", "arch", "plan", "io", "kernels", "ranks", "exec", "model", "forward", "verify"},
    "convert": {"core", "families", "layout", "plan", "io", "format", "quant", "ranks", "exec", "model", "forward", "verify", "convert", "arch"},
    "bench": {"core", "plan", "io", "format", "kernels", "exec", "forward", "report", "bench"},
    "report": {"core", "report"},
    "report/html": {"core", "report/html"},
    "cli": {"core", "layout", "plan", "io", "remote", "format", "ranks", "exec", "verify", "convert", "report", "bench", "cli"},
}

# Rooms of which a room sees the public headers alone.
MAY_INCLUDE_PUBLIC = {
    "families": {"layout"},
    "quant/formats": {"layout"},
    "kernels": {"layout", "plan"},
    "ops": {"layout", "plan"},
    "report": {"layout", "plan", "io", "exec", "model", "verify", "convert"},
    "report/html": {"layout", "io", "model", "forward", "verify"},
    "convert": {"kernels"},
    "bench": {"layout", "convert"},
    "cli": {"model", "forward", "report/html"},
}

# Public headers, below include/glu_ckpt -> the room that each belongs to: it may include what that room may include, as
# far as that is public, and is open to the rooms that may include that one.
HEADER_ROOMS = {
    "error.hpp": "core",
    "tensor.hpp": "core",
    "record.hpp": "core",
    "run_options.hpp": "core",
    "ops/cuda.hpp": "core",
    "ops/mxfp8.hpp": "core",
    "ops/decode_codes.hpp": "core",
    "layout.hpp": "layout",
    "config_difference.hpp": "arch",
    "explain_layout.hpp": "layout",
    "plan.hpp": "plan",
    "check.hpp": "format",
    "checkpoint.hpp": "io",
    "ranks.hpp": "ranks",
    "ops/device_copy.hpp": "kernels",
    "ops/device_forward.hpp": "kernels",
    "ops/tensor_diff.hpp": "kernels",
    "ops/glu_order.hpp": "exec",
    "ops/grouped_linear.hpp": "kernels",
    "ops/grouped_mlp.hpp": "kernels",
    "ops/grouped_mlp_backward.hpp": "kernels",
    "ops/offsets.hpp": "kernels",
    "ops/output_buffer.hpp": "kernels",
    "ops/token_padding.hpp": "kernels",
    "execute.hpp": "exec",
    "digest.hpp": "exec",
    "model.hpp": "model",
    "diff.hpp": "verify",
    "forward.hpp": "forward",
    "verify.hpp": "verify",
    "verify_forward.hpp": "verify",
    "expert_norms.hpp": "verify",
    "convert.hpp": "convert",
    "state_plan.hpp": "convert",
    "html_report.hpp": "report/html",
}

# Third-party headers that only some folders may see.
ONLY_IN = [
    (re.compile(r"^CLI/"), {"cli"}),
    (re.compile(r"^mpi"), {"ranks"}),
    (re.compile(r"^(cuda|cub/|thrust/)"), {"kernels", "exec", "ops", "forward", "bench"}),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# Headers that no .cu reaches, over headers of ours either.
NOT_IN_DEVICE_CODE = {"filesystem", "glu_ckpt/checkpoint.hpp"}
# Types of one name in two places are one to the linker, which takes either's functions for both.
NAMESPACE = re.compile(r"^namespace ([\w:]*) ?\{|^\}  // namespace ?([\w:]*)$")
TYPE = re.compile(r"^(?:struct|class) (\w+)(?: final)?(?: : [^;]*)? \{")
# The disk is reached through system_calls() alone, so that tests can put another file system there. In these rooms
# std::filesystem is for paths.
DISK_ROOMS = {"io", "format", "model", "convert"}
# The files that make the calls, and those that make a function of each durable step for everyone else.
DISK_PLACE = {"system_calls.hpp", "system_calls.cpp", "consumed_files.hpp", "consumed_files.cpp"}
CALLERS = {"directory.cpp", "file.cpp", "filesystem.cpp"}
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
# In every room: what removes or replaces is in one file, whose callers say how they know that it is their own.
REMOVER = "directory.cpp"
REMOVES = re.compile(
    r"(?:(?:\.|->|(?<![\w>])::)(?:unlink|unlinkat|rmdir|rename|renameat|renameat2)|\bstd::(?:remove|rename)"
    r"|\b(?:fs|filesystem)::(?:remove|remove_all|rename))\("
)
SYSTEM_CALLS = re.compile(r"\bsystem_calls\(\)")
STANDARD = re.compile(r"^[a-z_0-9]+$")


def room_of(path):
    """The room of a path below src: its first folder, or its first two where those are a room of their own."""
    folders = pathlib.PurePath(path).parts[:-1]
    inner = "/".join(folders[:2])
    return inner if inner in MAY_INCLUDE else folders[0]


def sources():
    """(path relative to the root, room) of every file the rules speak of."""
    for top in ("include", "src", "kernels"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.is_file() and path.suffix in SUFFIXES:
                relative = path.relative_to(ROOT)
                if top == "include":
                    room = HEADER_ROOMS.get(relative.relative_to("include/glu_ckpt").as_posix())
                else:
                    room = "kernels" if top == "kernels" else room_of(relative.relative_to(top))
                yield relative, room


def offence_of(room, public, bracket, target):
    """What is wrong with one #include, or None."""
    folder = room_of(target) if "/" in target else None
    if bracket == "<":
        if public and not STANDARD.match(target):
            return "a public header includes only the standard library and glu_ckpt/"
        for pattern, rooms in ONLY_IN:
            if pattern.match(target) and room not in rooms:
                return f"seen only in {', '.join(sorted(rooms))}"
        return None
    if folder == "glu_ckpt":
        owner = HEADER_ROOMS.get(target.removeprefix("glu_ckpt/"))
        if owner is None:
            return "belongs to no room; add it to HEADER_ROOMS in this script"
        if owner in MAY_INCLUDE[room] | MAY_INCLUDE_PUBLIC.get(room, set()):
            return None
        return f"is a header of {owner}, which {room} may not include"
    if public:
        return "a public header includes only the standard library and glu_ckpt/"
    if folder is None:
        return 'written as "folder/file.hpp"'
    if folder not in MAY_INCLUDE[room]:
        return f"{room} may include only {', '.join(sorted(MAY_INCLUDE[room]))} and glu_ckpt/"
    return None


def included(path):
    """The targets of a file's #includes."""
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    return [match.group(2) for line in lines if (match := INCLUDE.match(line))]


def device_offences(path):
    """Each header in NOT_IN_DEVICE_CODE that a .cu reaches, with the way to it."""
    ways = {path: str(path)}
    queue = [path]
    while queue:
        file = queue.pop()
        for target in included(file):
            way = f"{ways[file]} -> {target}"
            if target in NOT_IN_DEVICE_CODE:
                yield f"{way}: nvcc parses its includes several times, and {target} is too large for that"
            for top in ("include", "src", "."):
                header = pathlib.Path(top) / target
                if header not in ways and (ROOT / header).is_file():
                    ways[header] = way
                    queue.append(header)


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
    code = line.split("//")[0]
    if path.name not in DISK_PLACE | {REMOVER} and (found := REMOVES.search(code)):
        return f"{found.group(0).rstrip('(')}: {REMOVER} alone removes and replaces (remove_own, replace_own)"
    if room not in DISK_ROOMS or path.name in DISK_PLACE:
        return None
    for pattern in DISK:
        if found := pattern.search(code):
            return f"{found.group(0).rstrip('(')}: the disk is reached through system_calls() alone"
    if SYSTEM_CALLS.search(code) and path.name not in CALLERS:
        return f"system_calls() is called in {', '.join(sorted(CALLERS))} alone"
    return None


# What only the files of src/families may spell: a family's model_type.
MODEL_TYPE = re.compile(r'\.model_type = "([a-z0-9_.-]+)"|^ *\{"([a-z0-9_.-]+)", "(?:hf:|[a-z]+[ ,])')


def model_types():
    """Every model_type that a file of src/families is about, as a string of C++."""
    found = set()
    for path in (ROOT / "src" / "families").glob("*.cpp"):
        for line in path.read_text(encoding="utf-8").splitlines():
            found.update(f'"{name}"' for match in MODEL_TYPE.finditer(line) for name in match.groups() if name)
    return found


# What only the files of src/quant/formats may spell: a format's name and the quant_method that means it. These are the
# reader of configurations and a message about zero points, which still know some of them.
FORMAT_WORD = re.compile(r'^    \.name = "(\w+)"|[{(]\{"(\w+)", "\w|^ *\.methods = \{\{"(\w+)"')
NAMES_FORMATS = {"quant_config.cpp", "quantization_files.cpp", "quantization_text.cpp"}


def format_words():
    """Every name and quant_method of a format, as a string of C++."""
    found = set()
    for path in (ROOT / "src" / "quant" / "formats").glob("*_format.cpp"):
        for line in path.read_text(encoding="utf-8").splitlines():
            found.update(f'"{word}"' for match in FORMAT_WORD.finditer(line) for word in match.groups() if word)
    return found


def unknown_functions():
    """Rows of docs/architecture.md that name a function and its file."""
    row = re.compile(r"\| `(\w+)\(\)` \| `(src/[\w/.]+)` \|")
    found = 0
    for number, line in enumerate((ROOT / "docs/architecture.md").read_text(encoding="utf-8").splitlines(), 1):
        if match := row.match(line):
            found += 1
            path = ROOT / match.group(2)
            if not path.is_file() or not re.search(rf"\b{match.group(1)}\(", path.read_text(encoding="utf-8")):
                yield f"docs/architecture.md:{number}: {match.group(2)} has no {match.group(1)}()"
    if not found:
        yield "docs/architecture.md: no row names a function and its file"


def stale_readmes():
    """Each room's README ends with what it may include."""
    for room, rooms in MAY_INCLUDE.items():
        path = ROOT / "src" / room / "README.md"
        if not path.is_file():
            continue
        public = ", ".join(sorted(MAY_INCLUDE_PUBLIC.get(room, ())))
        line = "May include: " + (", ".join(sorted(rooms - {room})) or "nothing else")
        line += f"; public headers of {public}." if public else "."
        if path.read_text(encoding="utf-8").splitlines()[-1] != line:
            yield f"src/{room}/README.md: its last line has to be: {line}"


def names_said_twice():
    """A release compiles each of Meson's lists of a room as one unit, in which a file's own constants and types meet."""
    own = re.compile(r"(?:inline )?constexpr [\w:<>, ]+?\b(k[A-Z]\w*)|(?:class|struct|enum class) (\w+)[^;]*$")
    with_device = {}  # The rooms' device sources are one list of the top's meson.build.
    for build in sorted((ROOT / "src").glob("**/meson.build")):
        for name, files in re.findall(r"^(\w+) \+?= .*?files\(([^)]*)\)", build.read_text(encoding="utf-8"), re.MULTILINE):
            seen = with_device if name.endswith("_device_sources") else {}
            for file in re.findall(r"'([^']+\.cpp)'", files):
                path = (build.parent / file).relative_to(ROOT)
                for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
                    if (match := own.match(line)) is None:
                        continue
                    word = match.group(1) or match.group(2)
                    if seen.setdefault(word, path) != path:
                        yield f"{path}:{number}: {word} is in {seen[word]}, too, with which {name} compiles it as one unit"


def main():
    offences = [*unknown_functions(), *stale_readmes(), *names_said_twice()]
    formats = re.compile("|".join(sorted(format_words())))
    families = re.compile("|".join(sorted(map(re.escape, model_types()))))
    seen = {}
    types = {}
    for path, room in sources():
        if room not in MAY_INCLUDE:
            offences.append(f"{path}: belongs to no room; add it to docs/architecture.md and to this script")
            continue
        if path.name in seen:
            offences.append(f"{path}: the name is taken by {seen[path.name]}")
        seen.setdefault(path.name, path)
        if path.suffix == ".cu":
            offences.extend(device_offences(path))
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        for number, name in shared_types(lines):
            if name in types:
                offences.append(f"{path}:{number}: {name} is defined in {types[name]}, too")
            types.setdefault(name, f"{path}:{number}")
        for number, line in enumerate(lines, 1):
            match = INCLUDE.match(line)
            if match and (offence := offence_of(room, path.parts[0] == "include", *match.groups())):
                offences.append(f"{path}:{number}: {match.group(2)}: {offence}")
            if room != "families" and (name := families.search(line.split("//")[0])):
                offences.append(f"{path}:{number}: {name.group(0)}: generic code names no family; src/families does")
            if (room != "quant/formats" and path.parts[0] == "src" and path.name not in NAMES_FORMATS
                    and (word := formats.search(line.split("//")[0]))):
                offences.append(f"{path}:{number}: {word.group(0)}: generic code names no format; src/quant/formats does")
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
