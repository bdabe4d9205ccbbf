#!/usr/bin/env python3
"""Makes the wheel that has the program alone: one that needs no shared library, for every Python from 3.7 on.

usage: scripts/program_wheel.py DIST VERSION ARCHITECTURE PROGRAM [LICENSE...]

pip prefers the wheel with the module where there is one for its Python; this one is for older ones, for other C
libraries (Alpine), and for `uvx glu-ckpt`. The same arguments give the same bytes, dated SOURCE_DATE_EPOCH.
"""

import base64
import hashlib
import os
import pathlib
import sys
import time
import zipfile

METADATA = """Metadata-Version: 2.1
Name: glu-ckpt
Version: {version}
Summary: Converts Mixture-of-Experts checkpoints between layouts and programs, bit for bit
Author: the glu-ckpt authors
License: Apache-2.0
Keywords: checkpoint,mixture-of-experts,megatron-core,transformers,safetensors,quantization,LLM
Classifier: Development Status :: 4 - Beta
Classifier: Environment :: Console
Classifier: Intended Audience :: Developers
Classifier: Intended Audience :: Science/Research
Classifier: License :: OSI Approved :: Apache Software License
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Requires-Python: >=3.7
Description-Content-Type: text/markdown

The program `glu-ckpt`, without the Python module, which the wheels for CPython 3.10 and later have.
"""
WHEEL = """Wheel-Version: 1.0
Generator: glu-ckpt
Root-Is-Purelib: false
"""


def main(dist, version, architecture, program, *licenses):
    platforms = [f"manylinux_2_17_{architecture}", f"musllinux_1_1_{architecture}"]
    name, tag = f"glu_ckpt-{version}", f"py3-none-{'.'.join(platforms)}"
    info = f"{name}.dist-info"
    files = [
        (f"{name}.data/scripts/glu-ckpt", pathlib.Path(program).read_bytes(), 0o755),
        (f"{info}/METADATA", METADATA.format(version=version).encode(), 0o644),
        (f"{info}/WHEEL", (WHEEL + "".join(f"Tag: py3-none-{each}\n" for each in platforms)).encode(), 0o644),
        *((f"{info}/licenses/{pathlib.Path(path).name}", pathlib.Path(path).read_bytes(), 0o644) for path in licenses),
    ]
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for path, data, _ in files
    )
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode(), 0o644))
    # A zip's first year is 1980.
    date = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315532800))[:6]
    with zipfile.ZipFile(pathlib.Path(dist) / f"{name}-{tag}.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data, mode in files:
            entry = zipfile.ZipInfo(path, date)
            entry.external_attr, entry.compress_type, entry.create_system = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED, 3
            wheel.writestr(entry, data)


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
