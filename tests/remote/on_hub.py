"""Checkpoints on a server that answers as the hub does: revisions, sums, tokens, changes, kills and memory."""

import json
import subprocess
import sys

from models import moe_files
from room import PROGRAM, REPOSITORY, TOKEN, check, kills_are_resumed
from servers import Hub


def hub(room, files=None, **options):
    files = files or moe_files()
    server = room.start(Hub(REPOSITORY, files, **options))
    room.environment["HF_ENDPOINT"] = server.url
    return server, room.write(files)


def test_hub(room):
    for number, sizes in enumerate((True, False)):
        server, local = hub(room, sizes=sizes)
        if number == 0:
            room.convert(local, "expected")
        room.convert(f"hf://{REPOSITORY}", f"out{number}")
        room.same(f"out{number}", "expected")
        room.convert(f"hf://{REPOSITORY}@{server.commit}", f"pinned{number}")
        room.run("inspect", f"hf://{REPOSITORY}@refs/pr/1")
        room.run("inspect", f"hf://{REPOSITORY}@refs%2Fpr%2F1")
        room.run("inspect", f"hf://{REPOSITORY}/model-00001-of-00004.safetensors")
        text = room.run("inspect", f"hf://{REPOSITORY}@nowhere", status=3)
        check("no revision 'nowhere'" in text and "[not-found]" in text, text)
        text = room.run("inspect", "hf://org/other", status=3)
        check("HF_TOKEN" in text and "[not-found]" in text, text)
    text = room.run("inspect", "hf://org", status=2)
    check("[usage]" in text, text)


def test_hub_sums(room):
    files = moe_files(shards=2, layers=2, experts=8, width=128, hidden=256)
    server, _ = hub(room, files)
    room.convert(f"hf://{REPOSITORY}", "good")
    record = json.loads((room.folder / "good" / "glu_ckpt.json").read_text())
    check(record["options"]["source"] == f"hf://{REPOSITORY}@{server.commit}", f"{record['options']}")
    text = room.run("check", f"hf://{REPOSITORY}", "-v")
    check("2 of 4 files ok" in text, text)
    # Other bytes of the same length, under the same address.
    for sha, data in server.store.files.items():
        if data == files["model-00002-of-00002.safetensors"]:
            server.store.files[sha] = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
    text = room.run("check", f"hf://{REPOSITORY}", status=3)
    check("model-00002-of-00002.safetensors" in text, text)
    text = room.run("digest", f"hf://{REPOSITORY}", "-j", "2", status=3)
    check("[source-changed]" in text and "SHA-256" in text, text)


def test_hub_few_requests(room):
    server, _ = hub(room, moe_files(shards=200, layers=10, experts=16))
    for words in (("inspect", f"hf://{REPOSITORY}"), ("plan", f"hf://{REPOSITORY}", "new", "--experts", "grouped")):
        server.forget()
        server.store.forget()
        room.run(*words)
        check(len(server.seen()) <= 203, f"{words[0]}: {len(server.seen())} requests: {sorted(server.seen())[:8]}")
        check(len(server.store.seen()) <= 200, f"{words[0]}: {len(server.store.seen())} requests to the store")


def test_hub_token(room):
    server, local = hub(room, token=TOKEN)
    room.convert(local, "expected")
    text = room.run("inspect", f"hf://{REPOSITORY}", status=3)
    check("[access-denied]" in text and "HF_TOKEN" in text, text)
    room.environment["HF_TOKEN"] = TOKEN
    printed = room.convert(f"hf://{REPOSITORY}", "out", "-v")
    room.same("out", "expected")
    del room.environment["HF_TOKEN"]
    token = room.folder / ".cache" / "huggingface" / "token"
    token.parent.mkdir(parents=True)
    token.write_text(TOKEN + "\n")
    printed += room.run("inspect", f"hf://{REPOSITORY}", "--json")
    server.plant("resolve", "gated", -1)
    text = room.run("inspect", f"hf://{REPOSITORY}", status=3)
    check("accept" in text and "[access-denied]" in text, text)
    check(TOKEN not in printed + text, "the token was printed")
    for path in (room.folder / "out").iterdir():
        check(TOKEN.encode() not in path.read_bytes(), f"the token is in {path.name}")
    check(all("Authorization" not in headers for _, headers in server.store.requests), "the token left its host")


def test_hub_changes(room):
    files = moe_files(shards=2, layers=2, experts=8, width=128, hidden=256)
    server, local = hub(room, files)
    for linked in ({"etag": "0" * 64}, {"size": 12345}):
        server.linked = linked
        text = room.convert(f"hf://{REPOSITORY}", "out", status=3)
        check("[source-changed]" in text, text)
        room.nothing_published()
    server.linked = {}
    # An address that ends while it is in use is asked for again.
    room.convert(local, "expected")
    server.store.plant("signature=first", "none", 3)
    server.store.plant("signature=first", "403", -1)
    server.store.signature = "first"
    room.convert(f"hf://{REPOSITORY}", "out", status=3)
    server.store.faults = []
    room.convert(f"hf://{REPOSITORY}", "out", "--resume")
    room.same("out", "expected")


def test_hub_hostile(room):
    server, _ = hub(room)
    sha = server.commit
    for text, slug in (("{", "not-supported"), ("[]", "not-supported"), ("{}", "not-supported"),
                       (json.dumps({"sha": sha}), "not-supported"),
                       (json.dumps({"sha": "main", "siblings": []}), "not-supported"),
                       (json.dumps({"sha": sha, "siblings": [{}]}), "not-supported"),
                       (json.dumps({"sha": sha, "siblings": [{"rfilename": "../../etc/passwd"}]}), "not-supported"),
                       (json.dumps({"sha": sha, "siblings": [{"rfilename": "/etc/passwd"}]}), "not-supported"),
                       (json.dumps({"sha": sha, "siblings": [{"rfilename": "a\u0000b"}]}), "not-supported"),
                       ("[" * 100000, "not-supported"),
                       (json.dumps({"sha": sha, "siblings": [{"rfilename": "config.json", "size": -5}]}), None)):
        server.faults = []
        server.plant("/api/", "json " + text, -1)
        printed = room.run("inspect", f"hf://{REPOSITORY}", status=3)
        check(slug is None or f"[{slug}]" in printed, f"{text[:80]}: {printed}")


def test_hub_kills(room):
    server, local = hub(room, moe_files(shards=4, layers=4, experts=8, width=128, hidden=256))
    room.convert(local, "expected")
    kills_are_resumed(room, f"hf://{REPOSITORY}", server.store, "signature")


def test_hub_memory(room):
    """A model of 75 MB takes no more than the limit beside what `inspect` takes, from the disk and from the hub."""
    if b"__asan_init" in PROGRAM.read_bytes():
        print("test_hub_memory: not run: a sanitizer's own memory is in the way")
        return
    # Meson has malloc fill what it hands out, so that memory counts which is reserved and never used.
    room.environment["MALLOC_PERTURB_"] = "0"
    _, local = hub(room, moe_files(shards=4, layers=2, experts=48, width=256, hidden=512))

    def peak(*words):
        # The figure of a child counts what its parent has at first, so a small process is in between.
        between = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=-3, check=True); "
                   "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10)")
        done = subprocess.run([sys.executable, "-S", "-c", between, PROGRAM, *map(str, words)], env=room.environment,
                              cwd=room.folder, capture_output=True, text=True, timeout=120)
        check(done.returncode == 0, f"{words}: {done.stderr[-600:]}")
        return int(done.stdout)

    for name, source in (("disk", local), ("hub", f"hf://{REPOSITORY}")):
        own = peak("inspect", source)
        for limit in (16, 48):
            most = peak("convert", source, room.folder / f"{name}{limit}", "--experts", "grouped", "-q", "-j", "4",
                        "--max-memory", f"{limit}MiB")
            check(most < own + (limit << 20), f"{source}: {most} bytes; inspect took {own}, the limit is {limit} MiB")
