"""Checkpoints on plain servers: faults, sources that change, proxies, and runs that are stopped."""

import signal
import socket
import subprocess
import time
from pathlib import Path

from models import moe_files
from room import PROGRAM, check
from servers import Plain, Proxy, tls_context


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


def connecting(port):
    """How many sockets of this machine wait for an answer to their SYN from `port`: state 02 of /proc/net/tcp."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[3] == "02" and row[2].endswith(f":{port:04X}") for row in rows)


def test_http_stopped_while_it_connects(room):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        # Whoever comes next waits for a place in the queue, which it never gets.
        waiting = [socket.socket() for _ in range(4)]
        for other in waiting:
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        port = full.getsockname()[1]
        before = connecting(port)
        room.environment |= {"HF_HUB_DOWNLOAD_TIMEOUT": "3600"}
        stops(room, lambda: connecting(port) > before, "convert", f"http://127.0.0.1:{port}/dir", "out", "--to", "hf")
        room.environment |= {"HF_HUB_DOWNLOAD_TIMEOUT": "0.3", "GLU_CKPT_RETRIES": "1"}
        text = room.run("inspect", f"http://127.0.0.1:{port}/dir", status=5)
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
