#!/usr/bin/env python3
"""Writes DIRECTORY/format, DIRECTORY/torch and DIRECTORY/layout: one file or directory for each way in which a checkpoint
can be broken, named for it, and a manifest.tsv in each with what the program must say. DIRECTORY/tiny has sound
checkpoints of unusual composition, DIRECTORY/corpus the seeds of the fuzzers (testdata/corpus.tar.xz). The build calls
this.

Deterministic; standard library only.
usage: make_galleries.py DIRECTORY [STAMP]   STAMP is a file that is written when all is done
"""
import pathlib
import sys
import tarfile

import format_gallery
import layout_gallery
import torch_gallery


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[1])
    format_gallery.write(root / "format")
    torch_gallery.write(root / "torch")
    layout_gallery.write(root / "layout")
    layout_gallery.tiny(root / "tiny")
    with tarfile.open(pathlib.Path(__file__).resolve().parents[2] / "testdata" / "corpus.tar.xz") as corpus:
        corpus.extractall(root)
    if len(sys.argv) > 2:
        pathlib.Path(sys.argv[2]).touch()


if __name__ == "__main__":
    main()
