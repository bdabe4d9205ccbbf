#!/usr/bin/env python3
"""Reads checkpoints over the network: from a plain server, from one that answers as the hub does, and from S3.

usage: run_remote.py PROGRAM [WORD]   only the tests whose names hold WORD
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import on_hub
import on_plain
import on_s3
from room import Failed, REPOSITORY, ROOT, Room, check
from servers import Bucket, Plain


def test_guide(room):
    """Each command of "From the hub without a copy", with servers of this machine for those that it names."""
    files = {path.name: path.read_bytes() for path in (ROOT / "testdata/hf/qwen3_moe").iterdir()}
    server, local = on_hub.hub(room, files)
    plain_server = room.start(Plain({f"models/name/{name}": data for name, data in files.items()}))
    store = room.start(Bucket("bucket", {f"models/name/{name}": data for name, data in files.items()}))
    room.environment |= {"AWS_ENDPOINT_URL": store.url, "AWS_ACCESS_KEY_ID": store.key, "AWS_SECRET_ACCESS_KEY": store.secret}
    section = (ROOT / "docs/guide.md").read_text().split("\n## From the hub without a copy\n")[1].split("\n## ")[0]
    commands = re.findall(r"^glu-ckpt +(.*)$", section, re.MULTILINE)
    check(len(commands) >= 5, f"{len(commands)} commands")
    shutil.copytree(local, room.folder / "LOCAL")
    for command in commands:
        for name, here in {"Qwen/Qwen3-30B-A3B": REPOSITORY, "@v1.2": f"@{server.commit}", "https://host": plain_server.url}.items():
            command = command.replace(name, here)
        room.run(*command.split())
    room.run("verify", local, "START")


def main():
    word = sys.argv[2] if len(sys.argv) > 2 else ""
    failed = passed = 0
    tests = {name: test for module in (on_plain, on_hub, on_s3) for name, test in vars(module).items()} | globals()
    for name, test in tests.items():
        if not name.startswith("test_") or word not in name:
            continue
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            room = Room(pathlib.Path(folder))
            try:
                test(room)
                passed += 1
                if "-v" in sys.argv:
                    print(f"{name}: {time.monotonic() - begun:.1f} s")
            except (Failed, subprocess.SubprocessError) as error:
                failed += 1
                print(f"{name}: {error}")
            for server in room.servers:
                server.close()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
