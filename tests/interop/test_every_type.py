"""docs/targets.md has a row for every type of model with experts that transformers knows, and says what the program does."""

import inspect
import json
import pathlib
import re

from glu_program import need

need("transformers")
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES  # noqa: E402

FIELDS = {"num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", "num_routed_experts", "n_experts"}
# Its field is in a configuration inside of a configuration.
NESTED = {"dbrx"}
TARGETS = (pathlib.Path(__file__).parents[2] / "docs" / "targets.md").read_text()


def has_experts(config_class):
    names = set(getattr(config_class, "attribute_map", {})) | set(inspect.signature(config_class.__init__).parameters)
    for each in config_class.__mro__:
        names |= set(getattr(each, "__annotations__", {}))
    return bool(names & FIELDS)


def types_with_experts():
    return {name for name in CONFIG_MAPPING_NAMES if has_experts(CONFIG_MAPPING[name])} | NESTED


def rows(heading):
    """The cells of the table under a heading."""
    section = TARGETS.split(f"\n## {heading}", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")][1:]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def types_of(cell):
    return re.findall(r"`([^`]+)`", cell)


def every_type():
    """Type: the others of its row, what the row says that converts, and why not more."""
    found = {}
    for types, what, why in rows("Every type"):
        first, *others = types_of(types)
        assert first not in found, f"{first} has two rows"
        found[first] = (others, what, why)
    return found


def whole_types():
    return {name for cells in rows("Families") if cells[2] != "refused" for name in types_of(cells[0])}


def named_types(glu):
    layouts = json.loads(glu.run("layouts", "--json").stdout)["layouts"]
    own = {layout["naming"].removeprefix("hf:") for layout in layouts if layout["naming"].startswith("hf:")}
    return own | {name for layout in layouts for name in layout["model_types"]}


def test_every_type_has_a_row():
    assert types_with_experts() == set(every_type())


def test_rows_say_what_the_program_does(glu):
    whole, named = whole_types(), named_types(glu)
    for name, (others, what, why) in every_type().items():
        names = {name, *others}
        right = "whole" if names & whole else "hub to hub" if names & named else "not named"
        assert what == right, f"{name} is {right}, and docs/targets.md says {what}"
        assert why or what != "not named", f"{name}: docs/targets.md does not say why"
