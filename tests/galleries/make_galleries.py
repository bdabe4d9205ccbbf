#!/usr/bin/env python3
"""Writes DIRECTORY/format, DIRECTORY/torch and DIRECTORY/layout: one file or directory for each way in which a checkpoint
can be broken, named for it, and a manifest.tsv in each with what the program must say. The build calls this.

Deterministic; standard library only.
usage: make_galleries.py DIRECTORY [STAMP]   STAMP is a file that is written when all is done
       make_galleries.py --tiny              writes testdata/tiny anew: sound checkpoints of unusual composition
"""
import pathlib
import sys

import format_gallery
import layout_gallery
import torch_gallery


def main():
    if sys.argv[1:] == ["--tiny"]:
        return layout_gallery.tiny(pathlib.Path(__file__).resolve().parents[2] / "testdata" / "tiny")
    root = pathlib.Path(sys.argv[1])
    format_gallery.write(root / "format")
    torch_gallery.write(root / "torch")
    layout_gallery.write(root / "layout")
    if len(sys.argv) > 2:
        pathlib.Path(sys.argv[2]).touch()
    return None


if __name__ == "__main__":
    sys.exit(main())
