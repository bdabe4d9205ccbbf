#!/usr/bin/env python3
"""Writes a container image with nothing in it but a static program, as an archive in the OCI layout.

usage: oci_image.py OUTPUT.tar ARCHITECTURE VERSION PROGRAM [FILE:PLACE...]

`podman load -i OUTPUT.tar`, `skopeo copy oci-archive:OUTPUT.tar ...` and containerd take it. The same input gives the
same bytes; SOURCE_DATE_EPOCH is its date.
"""
import gzip
import hashlib
import io
import json
import os
import pathlib
import sys
import time

import tarfile

output, architecture, version, program, *others = sys.argv[1:]
epoch = int(os.environ["SOURCE_DATE_EPOCH"])
created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))


def archive(files):
    """A tar archive of {name: (bytes, mode)}."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        folders = sorted({str(p) for name in files for p in pathlib.PurePosixPath(name).parents if str(p) != "."})
        for folder in folders:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o755, epoch
            tar.addfile(entry)
        for name, (data, mode) in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(data), mode, epoch
            tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


files = {"usr/bin/glu-ckpt": (pathlib.Path(program).read_bytes(), 0o755)}
for other in others:
    path, place = other.split(":")
    files[place] = (pathlib.Path(path).read_bytes(), 0o644)

blobs = {}


def blob(data, media_type):
    blobs[sha256(data)] = data
    return {"mediaType": "application/vnd.oci.image." + media_type, "digest": "sha256:" + sha256(data), "size": len(data)}


def blob_json(value, media_type):
    return blob(json.dumps(value, sort_keys=True).encode(), media_type)


layer = archive(files)
config = blob_json({
    "architecture": architecture,
    "os": "linux",
    "created": created,
    "config": {"Entrypoint": ["/usr/bin/glu-ckpt"], "WorkingDir": "/data",
               "Labels": {"org.opencontainers.image.title": "glu-ckpt", "org.opencontainers.image.version": version,
                          "org.opencontainers.image.description": "Converts Mixture-of-Experts checkpoints, bit for bit",
                          "org.opencontainers.image.licenses": "Apache-2.0"}},
    "rootfs": {"type": "layers", "diff_ids": ["sha256:" + sha256(layer)]},
    "history": [{"created": created, "comment": "glu-ckpt " + version}],
}, "config.v1+json")
manifest = blob_json({
    "schemaVersion": 2,
    "mediaType": "application/vnd.oci.image.manifest.v1+json",
    "config": config,
    "layers": [blob(gzip.compress(layer, 9, mtime=0), "layer.v1.tar+gzip")],
}, "manifest.v1+json")
manifest["platform"] = {"architecture": architecture, "os": "linux"}
manifest["annotations"] = {"org.opencontainers.image.ref.name": f"glu-ckpt:{version}"}
entries = {
    "oci-layout": json.dumps({"imageLayoutVersion": "1.0.0"}).encode(),
    "index.json": json.dumps({"schemaVersion": 2, "manifests": [manifest]}, sort_keys=True).encode(),
} | {"blobs/sha256/" + digest: data for digest, data in blobs.items()}
pathlib.Path(output).write_bytes(archive({name: (data, 0o644) for name, data in entries.items()}))
