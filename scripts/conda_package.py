#!/usr/bin/env python3
"""Builds the conda package of a release's archive by packaging/conda/recipe.yaml, and runs the recipe's tests where it can.

usage: scripts/conda_package.py DIST VERSION ARCHITECTURE

Reads DIST/glu-ckpt-VERSION-ARCHITECTURE-linux.tar.gz and makes DIST/conda a channel that has the package. Needs zstd, and
what packaging/conda/requirements.txt lists. The package has no dependencies, so no other channel is asked. The same
archive gives the same bytes, dated SOURCE_DATE_EPOCH: rattler-build writes the time of day into them, so its archives are
written anew.
"""

import hashlib
import io
import json
import os
import pathlib
import platform
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
import zipfile

from rattler_build.cli_api import build_recipes
from rattler_build.package import Package

RECIPE = pathlib.Path(__file__).parent.parent / "packaging/conda/recipe.yaml"
SUBDIRS = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}


def zstd(data, *options):
    return subprocess.run(["zstd", "-q", "-c", *options], input=data, stdout=subprocess.PIPE, check=True).stdout


def dated(data, epoch):
    """The same tar.zst in order of names, of that date and nobody's."""
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(zstd(data, "-d"))) as old, tarfile.open(fileobj=out, mode="w") as new:
        for entry in sorted(old.getmembers(), key=lambda member: member.name):
            content = old.extractfile(entry).read() if entry.isfile() else b""
            if entry.name == "info/index.json":
                content = json.dumps(json.loads(content) | {"timestamp": epoch * 1000}, indent=2).encode()
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = epoch, 0, 0, "", ""
            entry.pax_headers, entry.size = {}, len(content)
            new.addfile(entry, io.BytesIO(content))
    return zstd(out.getvalue(), "-19", "--single-thread")


def index_of(package):
    """What a channel's repodata.json says of a package."""
    data = package.read_bytes()
    with zipfile.ZipFile(package) as parts:
        info, = (name for name in parts.namelist() if name.startswith("info-"))
        with tarfile.open(fileobj=io.BytesIO(zstd(parts.read(info), "-d"))) as tar:
            index = json.load(tar.extractfile("info/index.json"))
    sums = {"md5": hashlib.md5(data).hexdigest(), "sha256": hashlib.sha256(data).hexdigest()}
    return index | sums | {"size": len(data)}


def write_repodata(folder, packages):
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"info": {"subdir": folder.name}, "packages": {}, "packages.conda": packages}, indent=2)
    (folder / "repodata.json").write_text(text + "\n", encoding="utf-8")


def main(dist, version, architecture):
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    dist = pathlib.Path(dist).resolve()
    subdir = SUBDIRS[architecture]
    folder = dist / "conda" / subdir
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["GLU_CKPT_VERSION"] = version
    os.environ["GLU_CKPT_ARCHIVE"] = str(dist / f"glu-ckpt-{version}-{architecture}-linux.tar.gz")
    warnings.simplefilter("ignore", DeprecationWarning)
    with tempfile.TemporaryDirectory() as work:
        os.environ["RATTLER_CACHE_DIR"] = f"{work}/cache"  # which knows packages by their names alone
        build_recipes([RECIPE], channel=[], output_dir=work, target_platform=subdir, test="skip", no_include_recipe=True)
        built, = pathlib.Path(work, subdir).glob("*.conda")
        package = folder / built.name
        date = time.gmtime(max(epoch, 315532800))[:6]  # A zip's first year is 1980.
        with zipfile.ZipFile(built) as old, zipfile.ZipFile(package, "w", zipfile.ZIP_STORED) as new:
            for name in old.namelist():
                content = old.read(name)
                new.writestr(zipfile.ZipInfo(name, date), dated(content, epoch) if name.endswith(".zst") else content)
        write_repodata(folder, {package.name: index_of(package)})
        write_repodata(dist / "conda/noarch", {})  # Without this folder conda takes no channel.
        if architecture == platform.machine():
            for result in Package.from_file(package).run_tests(channel=[f"file://{dist}/conda"]):
                if not result.success:
                    sys.exit("conda_package: a test of the recipe failed:\n" + "\n".join(result.output))
    print(package)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
