"""Lines of "command TAB object": each object has the fields, and they the types, that glu_ckpt.results says.

usage: typed_results.py RESULTS.PY LINES
"""

import importlib.util
import json
import sys
import types
import typing

TYPES = {"inspect": "Inspection", "plan": "Plan", "convert": "Conversion", "verify": "Verdict", "diff": "Diff",
         "report": "Report", "digest": "Digest", "check": "Check", "stamp": "Stamp"}  # fmt: skip


def faults(value, wanted, where):
    origin = typing.get_origin(wanted)
    if origin in (typing.Union, types.UnionType):
        if all(list(faults(value, one, where)) for one in typing.get_args(wanted)):
            yield f"{where}: {value!r} is no {wanted}"
    elif origin is list:
        if not isinstance(value, list):
            yield f"{where}: {value!r} is no list"
            return
        for index, item in enumerate(value):
            yield from faults(item, typing.get_args(wanted)[0], f"{where}[{index}]")
    elif origin is dict:
        if not isinstance(value, dict):
            yield f"{where}: {value!r} is no dict"
            return
        for key, item in value.items():
            yield from faults(item, typing.get_args(wanted)[1], f"{where}[{key!r}]")
    elif typing.is_typeddict(wanted):
        if not isinstance(value, dict):
            yield f"{where}: {value!r} is no dict"
            return
        hints = typing.get_type_hints(wanted)
        lacking, unknown = wanted.__required_keys__ - set(value), set(value) - set(hints)
        if lacking or unknown:
            yield f"{where}: lacks {sorted(lacking)}; {wanted.__name__} has no {sorted(unknown)}"
        for key, hint in hints.items():
            if key in value:
                yield from faults(value[key], hint, f"{where}.{key}")
    elif wanted is float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            yield f"{where}: {value!r} is no number"
    elif type(value) is not wanted:
        yield f"{where}: {value!r} is no {wanted.__name__}"


def main():
    spec = importlib.util.spec_from_file_location("results", sys.argv[1])
    results = importlib.util.module_from_spec(spec)
    sys.modules["results"] = results
    spec.loader.exec_module(results)
    seen = set()
    with open(sys.argv[2], encoding="utf-8") as file:
        for line in file:
            command, text = line.split("\t", 1)
            found = json.loads(text)
            # Of several paths and of a list there is no function.
            if command not in TYPES or "digests" in found or "checked" in found:
                continue
            seen.add(command)
            fault = next(faults(found, getattr(results, TYPES[command]), command), None)
            assert fault is None, fault
    assert seen == set(TYPES), set(TYPES) - seen


if __name__ == "__main__":
    main()
