#!/usr/bin/env python3
"""Reads checkpoints over the network: from a plain server, from one that answers as the hub does, and from S3.

usage: run_remote.py PROGRAM [WORD]   only the tests whose names hold WORD
"""

import filecmp
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

from models import moe_files
from servers import Bucket, Hub, Plain, Proxy, tls_context

PROGRAM = pathlib.Path(sys.argv[1]).resolve()
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOKEN = "hf_secretOfTheTest"
REPOSITORY = "org/name"


class Failed(Exception):
    pass


def check(condition, text):
    if not condition:
        raise Failed(text)


class Room:
    """A folder for one test, and the environment of its programs."""

    def __init__(self, folder):
        self.folder = folder
        clean = ("HF_", "AWS_", "SSL_", "CURL_", "REQUESTS_", "HTTP", "http", "ALL_", "all_", "no_proxy", "NO_PROXY")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(clean)}
        self.environment |= {"HOME": str(folder), "GLU_CKPT_RETRIES": "3", "HF_HUB_DOWNLOAD_TIMEOUT": "2"}
        self.environment.pop("XDG_CACHE_HOME", None)
        self.servers = []

    def start(self, server):
        self.servers.append(server)
        return server

    def run(self, *words, status=0):
        """What the program printed, to either stream."""
        done = subprocess.run([PROGRAM, *map(str, words)], env=self.environment, cwd=self.folder, capture_output=True,
                              text=True, timeout=120)
        text = done.stdout + done.stderr
        check(done.returncode == status, f"{words}: status {done.returncode}, not {status}: {text[-600:]}")
        return text

    def write(self, files, name="local"):
        for file, data in files.items():
            path = self.folder / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return self.folder / name

    def convert(self, source, name="out", *options, status=0):
        return self.run("convert", source, self.folder / name, "--experts", "grouped", "-q", *options, status=status)

    def same(self, name, other):
        """Two outputs have the same bytes, but for where they came from."""
        one, two = self.folder / name, self.folder / other
        files = sorted(path.name for path in one.iterdir())
        check(files == sorted(path.name for path in two.iterdir()), f"{files} differ from {list(two.iterdir())}")
        for file in files:
            if file != "glu_ckpt.json":
                check(filecmp.cmp(one / file, two / file, shallow=False), f"{file} differs")

    def nothing_published(self, name="out"):
        check(not (self.folder / name).exists(), "there is an output after a failure")


# ---- plain servers ------------------------------------------------------------------------------


def plain(room, **options):
    files = moe_files()
    server = room.start(Plain({f"dir/{name}": data for name, data in files.items()}, **options))
    return server, room.write(files)


def test_http_directory(room):
    server, local = plain(room)
    room.convert(local, "expected")
    for number, address in enumerate(("/dir", "/dir/", "/dir/model.safetensors.index.json")):
        room.convert(server.url + address, f"out{number}")
        room.same(f"out{number}", "expected")
    text = room.run("inspect", server.url + "/dir")
    check("96" in text or "experts" in text, text)
    check(room.run("digest", server.url + "/dir").split()[0] == room.run("digest", local).split()[0], "digests differ")
    room.run("verify", server.url + "/dir", room.folder / "expected")
    room.run("diff", server.url + "/dir", local)
    room.run("check", server.url + "/dir")
    room.run("plan", server.url + "/dir", room.folder / "new", "--experts", "grouped")
    room.run("report", server.url + "/dir", "--html", room.folder / "page.html")
    one = room.run("inspect", server.url + "/dir/model-00001-of-00004.safetensors")
    check("model-00001-of-00004.safetensors" in one, one)


def test_http_without_list(room):
    server, local = plain(room, lists=False)
    room.convert(local, "expected")
    room.convert(server.url + "/dir", "out")
    # The names that a checkpoint's other files have are asked for one by one.
    room.same("out", "expected")
    check("[not-found]" in room.run("inspect", server.url + "/other", status=3), "no such directory")


def test_http_few_requests(room):
    files = moe_files(shards=200, layers=10, experts=16)
    server = room.start(Plain({f"dir/{name}": data for name, data in files.items()}))
    for words in (("inspect", f"{server.url}/dir"), ("plan", f"{server.url}/dir", "new", "--experts", "grouped")):
        server.forget()
        room.run(*words)
        asked = server.seen()
        check(len(asked) <= 203, f"{words[0]}: {len(asked)} requests for 200 shards: {sorted(asked)[:8]}")


def test_http_far_away(room):
    files = moe_files(shards=200, layers=10, experts=16)
    server = room.start(Plain({f"dir/{name}": data for name, data in files.items()}))
    server.plant("safetensors$", "far", -1)
    begun = time.monotonic()
    room.run("inspect", f"{server.url}/dir")
    # One after another they would take 10 s.
    check(time.monotonic() - begun < 5, f"{time.monotonic() - begun:.1f} s for 200 headers, of 50 ms each")


def test_http_faults(room):
    server, local = plain(room)
    room.convert(local, "expected")
    passing = ("500", "502", "503", "429", "408", "cut", "other-range", "longer", "short-range", "chunked", "silent",
               "hang-up", "garbage", "headers", "retry-after 1")
    for number, fault in enumerate(passing):
        server.plant("00002-of", fault, 1)
        room.convert(server.url + "/dir", f"out{number}")
        room.same(f"out{number}", "expected")
        check(all(row[2] == 0 for row in server.faults), f"{fault} was not met")
    lasting = [("500", 5, "network"), ("cut", 5, "network"), ("longer", 5, "network"), ("hang-up", 5, "network"),
               ("garbage", 5, "network"), ("headers", 5, "network"), ("other-range", 5, "network"),
               ("401", 3, "access-denied"), ("403", 3, "access-denied"), ("404", 3, "not-found"),
               ("418", 5, "network"), ("retry-after 9999", 5, "network")]
    for fault, status, slug in lasting:
        server.faults = []
        server.plant("00002-of", fault, -1)
        text = room.convert(server.url + "/dir", "out", status=status)
        check("model-00002-of-00004.safetensors" in text, f"{fault}: {text}")
        check(f"[{slug}]" in text, f"{fault}: {text}")
        room.nothing_published()


def big_plain(room, **options):
    """Shards of which a part is read after their headers."""
    files = moe_files(shards=2, layers=2, experts=8, width=128, hidden=256)
    return room.start(Plain({f"dir/{name}": data for name, data in files.items()}, **options)), room.write(files)


def test_http_source_changes(room):
    server, _ = big_plain(room)
    for fault in ("etag", "shrunk"):
        server.faults = []
        server.forget()
        # The first answer is the header's.
        server.plant("00002-of", "none", 1)
        server.plant("00002-of", fault, -1)
        text = room.convert(server.url + "/dir", "out", status=3)
        check("[source-changed]" in text and "model-00002-of-00002" in text, f"{fault}: {text}")
        room.nothing_published()


def test_http_faults_in_the_middle(room):
    server, local = big_plain(room)
    room.convert(local, "expected")
    for number, fault in enumerate(("cut", "500", "429", "retry-after 1", "silent", "hang-up", "garbage", "short-range",
                                    "chunked", "longer", "other-range")):
        server.faults = []
        server.plant("00002-of", "none", 1)
        server.plant("00002-of", fault, 2)
        room.convert(server.url + "/dir", f"out{number}")
        room.same(f"out{number}", "expected")
    server.faults = []
    server.plant("00002-of", "whole", -1)
    text = room.convert(server.url + "/dir", "out", status=3)
    check("[not-supported]" in text and "whole files only" in text, text)
    room.nothing_published()
    for fault, slug in (("401", "access-denied"), ("403", "access-denied"), ("404", "not-found"), ("410", "not-found")):
        server.faults = []
        server.plant("00002-of", "none", 1)
        server.plant("00002-of", fault, -1)
        text = room.convert(server.url + "/dir", "out", status=3)
        check(f"[{slug}]" in text and "model-00002-of-00002" in text, f"{fault}: {text}")
        room.nothing_published()
    server.faults = []
    server.plant("00002-of", "none", 1)
    server.plant("00002-of", "500", -1)
    text = room.convert(server.url + "/dir", "out", status=5)
    check("[network]" in text and "--resume" in text, text)
    room.nothing_published()
    server.faults = []
    room.convert(server.url + "/dir", "out", "--resume")
    room.same("out", "expected")


def test_http_dead(room):
    server, _ = plain(room)
    url = server.url
    server.close()
    room.servers.clear()
    room.environment["GLU_CKPT_RETRIES"] = "1"
    text = room.run("inspect", url + "/dir", status=5)
    check("[network]" in text and "Connection refused" in text, text)
    check("[network]" in room.run("inspect", "http://no-such-host.invalid/dir", status=5), "an unknown host")


def stops(room, ready, *words):
    """Interrupts the program once it waits. That ends it, however long its server lets it wait."""
    process = subprocess.Popen([PROGRAM, *map(str, words)], env=room.environment, cwd=room.folder, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
    try:
        while not ready() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        text = process.communicate(timeout=60)[0]
    finally:
        process.kill()
    # Some commands have nothing to tidy up, and die of it.
    if process.returncode != -signal.SIGINT or words[0] == "convert":
        check(process.returncode == 6 and "SIGINT" in text, f"{words}: status {process.returncode}: {text}")


def test_http_stopped(room):
    server, local = big_plain(room)
    room.convert(local, "expected")
    room.environment |= {"GLU_CKPT_RETRIES": "100", "HF_HUB_DOWNLOAD_TIMEOUT": "3600"}
    for fault in ("dead", "retry-after 290", "hang-up"):
        for command in ("inspect", "plan", "convert", "verify", "diff", "digest", "check"):
            server.faults = []
            server.forget()
            # At first, or at the first tensors.
            server.plant("00002-of", "none", 1 if command == "convert" else 0)
            server.plant("00002-of", fault, -1)
            more = {"plan": ["planned", "--experts", "grouped"], "convert": ["out", "--experts", "grouped", "--resume", "-q"],
                    "verify": ["expected"], "diff": [local]}.get(command, [])
            stops(room, lambda: len(server.seen("00002-of")) > (command == "convert"), command, server.url + "/dir", *more)
    room.nothing_published()
    server.faults = []
    room.convert(server.url + "/dir", "out", "--resume")
    room.same("out", "expected")


def test_http_stopped_while_it_connects(room):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        # Whoever comes next waits for a place in the queue, which it never gets.
        waiting = [socket.socket() for _ in range(4)]
        for other in waiting:
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        room.environment |= {"HF_HUB_DOWNLOAD_TIMEOUT": "3600"}
        stops(room, lambda: True, "convert", f"http://127.0.0.1:{full.getsockname()[1]}/dir", "out", "--to", "hf")
        room.environment |= {"HF_HUB_DOWNLOAD_TIMEOUT": "0.3", "GLU_CKPT_RETRIES": "1"}
        text = room.run("inspect", f"http://127.0.0.1:{full.getsockname()[1]}/dir", status=5)
        check("[network]" in text and "timed out" in text, text)
        for other in waiting:
            other.close()


def test_https(room):
    context, certificate = tls_context(room.folder)
    server, local = plain(room, context=context)
    text = room.run("inspect", server.url + "/dir", status=3)
    check("[access-denied]" in text and "SSL_CERT_FILE" in text, text)
    room.convert(local, "expected")
    proxy = room.start(Proxy())
    for number, name in enumerate(("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "https_proxy")):
        room.environment[name] = proxy.url if name == "https_proxy" else str(certificate)
        room.convert(server.url + "/dir", f"out{number}")
        room.same(f"out{number}", "expected")
        if name != "https_proxy" and number < 2:
            del room.environment[name]
    check(proxy.seen("CONNECT"), "the proxy was not asked")


def test_http_proxy(room):
    server, _ = plain(room)
    proxy = room.start(Proxy())
    room.environment["http_proxy"] = proxy.url
    room.run("inspect", server.url + "/dir")
    check(proxy.seen("http://127"), "the proxy was not asked")
    proxy.forget()
    room.environment["no_proxy"] = "example.org, 127.0.0.1"
    room.run("inspect", server.url + "/dir")
    check(not proxy.seen(), "the proxy was asked in spite of no_proxy")


# ---- the hub ------------------------------------------------------------------------------------


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


def kills_are_resumed(room, source, store, shards):
    """Kills conversions at random; the last one ends, with the bytes of one that nobody kills."""
    rng = random.Random(int(os.environ.get("KILL_SEED", "1")))
    words = [PROGRAM, "convert", source, room.folder / "out", "--experts", "grouped", "-q", "--resume", "-j", "2"]
    store.plant(shards, "slow", -1)
    begun = time.monotonic()
    subprocess.run([*words[:3], room.folder / "timed", *words[4:7]], env=room.environment, check=True, capture_output=True)
    whole = time.monotonic() - begun
    kills = 0
    for _ in range(min(100, int(os.environ.get("KILLS", "10")))):
        process = subprocess.Popen(words, env=room.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0, whole))
        process.send_signal(signal.SIGKILL)
        if process.wait() == -signal.SIGKILL:
            kills += 1
        else:
            # It was done: from the beginning again.
            room.same("out", "expected")
            shutil.rmtree(room.folder / "out")
    room.run(*words[1:])
    room.same("out", "expected")
    check(kills > 0, "no run was killed")


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


# ---- S3 -----------------------------------------------------------------------------------------


def bucket(room, files=None, **options):
    files = files or moe_files()
    # Keys may hold what an address may not.
    prefix = "models/a b+c%20&d"
    server = room.start(Bucket("bucket", {f"{prefix}/{name}": data for name, data in files.items()}, **options))
    room.environment["AWS_ENDPOINT_URL"] = server.url
    return server, room.write(files), f"s3://bucket/{prefix}"


def test_s3(room):
    server, local, source = bucket(room)
    room.convert(local, "expected")
    text = room.run("inspect", source, status=3)
    check("[access-denied]" in text and "AWS_ACCESS_KEY_ID" in text, text)
    room.environment |= {"AWS_ACCESS_KEY_ID": server.key, "AWS_SECRET_ACCESS_KEY": "wrong"}
    check("[access-denied]" in room.run("inspect", source, status=3), "a wrong secret")
    room.environment["AWS_SECRET_ACCESS_KEY"] = server.secret
    room.convert(source, "out")
    room.same("out", "expected")
    room.convert(source + "/", "slash")
    room.same("slash", "expected")
    text = room.run("inspect", "s3://bucket/nowhere", status=3)
    check("[not-found]" in text and "nowhere" in text, text)
    server.session = "token/of/session=="
    room.environment["AWS_SESSION_TOKEN"] = server.session
    room.run("digest", source)
    server.region = room.environment["AWS_REGION"] = "eu-central-1"
    room.run("inspect", source + "/model-00001-of-00004.safetensors")


# moto hands botocore the address without its percent signs, by which no client's signature holds: this gives the one that
# came.
MOTO = """
import flask, moto.server
from moto.iam.access_control import S3IAMRequest
made = S3IAMRequest._create_aws_request
def make(self):
    self._path = flask.request.environ["REQUEST_URI"]
    return made(self)
S3IAMRequest._create_aws_request = make
moto.server.main()
"""


def start_moto(room, files, bucket_name, prefix):
    """A S3 that others wrote, moto's, whose signatures botocore checks: its address and a key. Nothing without moto."""
    try:
        import boto3
        import moto.server  # noqa: F401
    except ImportError as error:
        print(f"test_s3_moto: not run: {error}")
        return None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([sys.executable, "-c", MOTO, "-H", "127.0.0.1", "-p", str(port)],
                               env=room.environment | {"INITIAL_NO_AUTH_ACTION_COUNT": "inf"}, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    room.start(process).close = process.kill
    while process.poll() is None and socket.socket().connect_ex(("127.0.0.1", port)) != 0:
        time.sleep(0.05)
    access = {"endpoint_url": url, "region_name": "us-east-1", "aws_access_key_id": "any", "aws_secret_access_key": "any"}
    s3, iam = boto3.client("s3", **access), boto3.client("iam", **access)
    s3.create_bucket(Bucket=bucket_name)
    for name, data in files.items():
        s3.put_object(Bucket=bucket_name, Key=f"{prefix}/{name}", Body=data)
    iam.create_user(UserName="reader")
    allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=json.dumps(allowed))
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    # From now on every request has to be signed.
    signed = urllib.request.Request(f"{url}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"}, method="POST")
    urllib.request.urlopen(signed).close()
    return url, key["AccessKeyId"], key["SecretAccessKey"]


def test_s3_moto(room):
    files = moe_files()
    local = room.write(files)
    prefix = "models/a b+c&d"
    if (started := start_moto(room, files, "bucket", prefix)) is None:
        return
    url, key, secret = started
    source = f"s3://bucket/{prefix}"
    room.environment |= {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": "wrong"}
    text = room.run("inspect", source, status=3)
    check("[access-denied]" in text, text)
    room.environment["AWS_SECRET_ACCESS_KEY"] = secret
    room.convert(local, "expected")
    room.convert(source, "out")
    room.same("out", "expected")
    room.run("check", source)
    room.run("verify", source, "expected")


def test_s3_files(room):
    server, _, source = bucket(room, region="eu-west-3")
    folder = room.folder / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text(f"[other]\naws_access_key_id = no\n\n[mine]\naws_access_key_id={server.key}\n"
                                        f"aws_secret_access_key = {server.secret}\n")
    (folder / "config").write_text(f"[profile mine]\nregion = eu-west-3\nendpoint_url = {server.url}\n")
    del room.environment["AWS_ENDPOINT_URL"]
    room.environment["AWS_PROFILE"] = "mine"
    room.run("inspect", source)


def test_s3_kills(room):
    server, local, source = bucket(room, moe_files(shards=4, layers=4, experts=8, width=128, hidden=256))
    room.environment |= {"AWS_ACCESS_KEY_ID": server.key, "AWS_SECRET_ACCESS_KEY": server.secret}
    room.convert(local, "expected")
    kills_are_resumed(room, source, server, "safetensors$")


def test_s3_few_requests(room):
    server, _, source = bucket(room, moe_files(shards=200, layers=10, experts=16), key=None, page=1000)
    for words in (("inspect", source), ("plan", source, "new", "--experts", "grouped")):
        server.forget()
        room.run(*words)
        check(len(server.seen()) <= 203, f"{words[0]}: {len(server.seen())} requests")


def test_s3_faults(room):
    server, local, source = bucket(room, key=None)
    room.convert(local, "expected")
    for number, fault in enumerate(("500", "503", "cut", "longer", "hang-up")):
        server.faults = []
        server.plant("list-type", "503", 1)
        server.plant("00002-of", fault, 1)
        room.convert(source, f"out{number}")
        room.same(f"out{number}", "expected")
    server.faults = []
    server.plant("00002-of", "etag", -1)
    text = room.convert(source, "out", status=3)
    check("[source-changed]" in text, text)
    room.nothing_published()


# ---- the guide ----------------------------------------------------------------------------------


def test_guide(room):
    """Each command of "From the hub without a copy", with servers of this machine for those that it names."""
    files = {path.name: path.read_bytes() for path in (ROOT / "testdata/hf/qwen3_moe").iterdir()}
    server, local = hub(room, files)
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
    for name, test in list(globals().items()):
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
