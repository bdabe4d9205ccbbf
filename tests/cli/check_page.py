#!/usr/bin/env python3
"""Checks a page that `glu-ckpt report` wrote.

usage: check_page.py PAGE [--diff JSON [--some]] [--verify JSON] [--norms CHECKPOINT] [--names TEXT...]

Its structure always: what a screen reader needs, and that nothing comes from elsewhere or is run. --diff: its figures
are those of `diff --json`, with --some of one with --tensors. --verify: its forward errors are those of `verify --forward --json`. --norms: its norms are
those of a checkpoint of hf:qwen3_moe in BF16. --names: these texts stand on the page as text, whatever is in them.
"""

import argparse
import collections
import glob
import html.parser
import json
import math
import os
import struct
import sys

VOID = {"meta", "link", "br", "img", "input", "hr", "base", "embed", "source", "area", "wbr", "col", "param", "track"}
#: Elements that HTML closes by itself where the next one begins.
ENDED_BY = {"td": {"td", "th", "tr", "tbody"}, "th": {"td", "th", "tr", "thead"}, "tr": {"tr", "tbody", "thead"}}
ELEMENTS = set(
    "html head meta title style body a header h1 main section h2 p div table caption thead tbody tr th td code br span"
    " strong figure figcaption svg rect text pattern form fieldset legend input label details summary footer i b".split())


class Node:
    """An element, or a text, whose tag is None."""

    def __init__(self, tag, attributes=(), text=""):
        self.tag, self.attributes, self.text, self.children = tag, dict(attributes), text, []

    def all(self, tag):
        for child in self.children:
            if child.tag == tag:
                yield child
            yield from child.all(tag)

    def words(self):
        return self.text + "".join(child.words() for child in self.children)


class Tree(html.parser.HTMLParser):
    """The page as a tree; elements that nobody closes are findings."""

    def __init__(self, text):
        super().__init__()
        self.root = Node("root")
        self.open = [self.root]
        self.feed(text)
        self.close()
        assert len(self.open) == 1, f"not closed: {[node.tag for node in self.open[1:]]}"

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice: {names}"
        while self.open[-1].tag in ENDED_BY and tag in ENDED_BY[self.open[-1].tag]:
            self.open.pop()
        node = Node(tag, attributes)
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag, attributes):
        self.open[-1].children.append(Node(tag, attributes))

    def handle_endtag(self, tag):
        while self.open[-1].tag != tag and self.open[-1].tag in ENDED_BY:
            self.open.pop()
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(Node(None, (), data))


def check_structure(root):
    tags = collections.Counter()
    ids = collections.Counter()
    every = []

    def walk(node):
        if node.tag is not None:
            every.append(node)
            tags[node.tag] += 1
            if "id" in node.attributes:
                ids[node.attributes["id"]] += 1
        for child in node.children:
            walk(child)

    walk(root.children[-1] if root.children[-1].tag else root.children[-2])
    assert set(tags) <= ELEMENTS, f"unexpected elements: {set(tags) - ELEMENTS}"
    assert all(count == 1 for count in ids.values()), f"ids twice: {ids}"
    for tag in ("title", "h1", "main", "header", "footer"):
        assert tags[tag] == 1, f"{tags[tag]} elements {tag}"
    for node in every:
        for name, value in node.attributes.items():
            assert not name.startswith("on") and name not in ("src", "srcset", "action", "formaction", "background")
            assert name != "href" or value[1:] in ids and value[0] == "#", f"a link to {value}"
            assert name != "style" or "url" not in value and "expression" not in value
            for other in ("aria-labelledby", "for"):
                assert name != other or value in ids, f"{other} names '{value}', which is not there"
    policy = [m for m in every if m.tag == "meta" and m.attributes.get("http-equiv") == "Content-Security-Policy"]
    assert policy[0].attributes["content"] == "default-src 'none'; style-src 'unsafe-inline'"
    style = "".join(node.words() for node in root.all("style"))
    assert "url(" not in style and "@import" not in style and "prefers-color-scheme: dark" in style
    assert next(root.all("html")).attributes["lang"] == "en"
    for svg in root.all("svg"):
        assert svg.attributes["role"] == "img" and svg.attributes["aria-label"]
    for table in root.all("table"):
        assert next(table.all("caption")).words()
        assert all("scope" in th.attributes for th in table.all("th"))
        columns = len(list(next(table.all("thead")).all("th")))
        for row in next(table.all("tbody")).all("tr"):
            assert len(list(row.all("td"))) <= columns - 1
    for node in every:
        if node.attributes.get("role") == "region":
            assert node.attributes["tabindex"] == "0" and node.attributes["aria-label"]
        if node.tag == "input":
            assert node.attributes["id"] in {label.attributes["for"] for label in root.all("label")}


def rows_of(root, caption):
    """{heading of a row: its cells} of the table whose caption begins so."""
    for table in root.all("table"):
        if next(table.all("caption")).words().startswith(caption):
            return {next(row.all("th")).words(): [cell.words().strip() for cell in row.all("td")]
                    for row in next(table.all("tbody")).all("tr")}
    raise AssertionError(f"no table '{caption}'")


def number(value, digits):
    if value is None:
        return "none"
    return f"{value:.{digits}g}" if math.isfinite(value) else "inf"


FIGURES = ("max_abs", "rms", "relative_norm")


def check_diff(root, found, some):
    # JSON has no infinity; a ratio to 0 is null there.
    def same(text, value):
        return text == number(value, 3) or (value is None and text == "inf")

    def close(text, value):
        return text == ("none" if value is None else f"{value:.6g}")

    layers = rows_of(root, "Layers that differ")
    assert list(layers) == ["no layer" if x["layer"] is None else str(x["layer"]) for x in found["layers"]]
    for layer, cells in zip(found["layers"], layers.values()):
        assert all(same(cell, layer[name]) for cell, name in zip(cells[:3], FIGURES)), cells
        assert close(cells[3], layer["cosine"]), cells
        assert cells[4] == f"{layer['differing']} of {layer['tensors']}"
        assert cells[5] == f"{layer['differing_elements']} of {layer['elements']}"
        assert cells[6:8] == [str(layer["only_in_one"]), str(layer["unlike"])]
    tensors = rows_of(root, "Matrices and tensors that differ, the largest")
    folded = [details for details in root.all("details") if "more that differ" in next(details.all("summary")).words()]
    assert bool(folded) == (len(found["tensors"]) > 25), len(tensors)
    for details in folded:
        rest = rows_of(details, "Matrices and tensors that differ, continued")
        assert next(details.all("summary")).words() == f"{len(rest)} more that differ", len(rest)
        tensors |= rest
    assert list(tensors) == [tensor["name"] for tensor in found["tensors"][:500]]
    for tensor, cells in zip(found["tensors"], tensors.values()):
        assert all(same(cell, tensor[name]) for cell, name in zip(cells[:3], FIGURES)), cells
        assert close(cells[3], tensor["cosine"]), cells
        assert cells[4] == (f"{tensor['differing']} of {tensor['elements']}" if tensor["elements"] is not None else "none")
    # Of each expert the largest of its matrices.
    largest = collections.defaultdict(float)
    for tensor in found["tensors"]:
        parts = tensor["name"].split()
        if "routed" in parts:
            key = str(tensor["layer"]), int(parts[parts.index("expert") + 1])
            value = math.nan if tensor["max_abs"] is None else tensor["max_abs"]
            largest[key] = value if math.isnan(value) or math.isnan(largest[key]) else max(largest[key], value)
    cells = rows_of(root, "Largest difference: rows")
    for layer, row in cells.items():
        for expert, cell in enumerate(row):
            value = largest.pop((layer, expert), math.nan if some else 0.0)
            assert cell == number(None if math.isnan(value) else value, 3), (layer, expert, cell)
    assert not largest, f"not on the map: {largest}"
    check_experts(root, found)


def check_experts(root, found):
    """The relative norm of each expert is that of its matrices together."""
    moved, norms, unknown = collections.defaultdict(float), collections.defaultdict(float), set()
    for tensor in found["tensors"]:
        key = str(tensor["layer"]), tensor["expert"]
        if not tensor["relative_norm"]:
            unknown.add(key)
        else:
            square = tensor["rms"] ** 2 * tensor["elements"]
            moved[key] += square
            norms[key] += square / tensor["relative_norm"] ** 2
    for layer, row in rows_of(root, "Relative norm: rows").items():
        for expert, cell in enumerate(row):
            if moved[layer, expert] > 0 and (layer, expert) not in unknown:
                wanted = math.sqrt(moved[layer, expert] / norms[layer, expert])
                assert abs(float(cell) - wanted) <= 5e-3 * wanted, (layer, expert, cell, wanted)
    titles = [label.words() for label in root.all("label")]
    for title in ("RMS of the difference", "1 - cosine", "logarithmic", "linear", "linear in each layer", "only layers that differ"):
        assert title in titles, titles


def check_forward(root, found):
    cells = rows_of(root, "Forward error: rows")
    for layer in found["forward"]:
        if layer["set"] == "routed":
            row = [float(cell) for cell in cells[str(layer["layer"])]]
            assert f"{max(row):.3g}" == f"{layer['max_abs']:.3g}"
            assert sum(value > 0 for value in row) <= layer["differing_experts"]


def check_norms(root, checkpoint):
    squares = collections.defaultdict(float)
    for path in glob.glob(os.path.join(checkpoint, "*.safetensors")):
        with open(path, "rb") as file:
            data = file.read()
        size = struct.unpack("<Q", data[:8])[0]
        for name, tensor in json.loads(data[8:8 + size]).items():
            parts = name.split(".")
            if "experts" not in parts:
                continue
            begin, end = (8 + size + offset for offset in tensor["data_offsets"])
            for (bits,) in struct.iter_unpack("<H", data[begin:end]):
                squares[parts[2], int(parts[5])] += struct.unpack("<f", struct.pack("<I", bits << 16))[0] ** 2
    cells = rows_of(root, "Norm of the weights")
    assert sum(len(row) for row in cells.values()) == len(squares)
    for layer, row in cells.items():
        for expert, cell in enumerate(row):
            wanted = math.sqrt(squares[layer, expert])
            assert abs(float(cell) - wanted) <= 5e-3 * wanted, (layer, expert, cell, wanted)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("page")
    parser.add_argument("--diff")
    parser.add_argument("--some", action="store_true")
    parser.add_argument("--verify")
    parser.add_argument("--norms")
    parser.add_argument("--names", nargs="*", default=[])
    arguments = parser.parse_args()
    with open(arguments.page, encoding="utf-8") as file:
        root = Tree(file.read()).root
    check_structure(root)
    if arguments.diff:
        check_diff(root, json.load(open(arguments.diff, encoding="utf-8")), arguments.some)
    if arguments.verify:
        check_forward(root, json.load(open(arguments.verify, encoding="utf-8")))
    if arguments.norms:
        check_norms(root, arguments.norms)
    words = next(root.all("main")).words()
    for name in arguments.names:
        assert name in words, f"not on the page: {name}"


if __name__ == "__main__":
    sys.exit(main())
