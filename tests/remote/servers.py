"""Servers for tests, on loopback: a plain one, one that answers as the Hugging Face hub does, with its files on a second
host, and a proxy. Faults are planted by name, for the answers to come.
"""

import functools
import hashlib
import hmac
import html
import http.server
import json
import re
import select
import socket
import ssl
import threading
import time
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


# A bytes object keeps its hash, so files are looked up at once.
@functools.lru_cache(maxsize=None)
def etag_of(data):
    return hashlib.md5(data).hexdigest()


class Server:
    """One port. `answer(handler)` makes the answers; each request is kept in `requests`."""

    def __init__(self, context=None):
        self.requests = []
        self.faults = []  # [regular expression on the path, fault, times]
        self.lock = threading.Lock()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self):
                with server.lock:
                    server.requests.append((self.path, dict(self.headers.items())))
                server.answer(self)

            def log_message(self, *_):
                pass

        class Threads(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, *_):
                pass

        self.http = Threads(("127.0.0.1", 0), Handler)
        if context:
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.port = self.http.server_address[1]
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.port}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    def plant(self, path, fault, times=1):
        """The next `times` answers to paths that match have the fault; -1: all of them."""
        self.faults.append([re.compile(path), fault, times])

    def fault_of(self, path):
        with self.lock:
            for row in self.faults:
                if row[2] != 0 and row[0].search(path):
                    row[2] -= 1
                    return row[1]
        return None

    def seen(self, pattern=""):
        with self.lock:
            return [path for path, _ in self.requests if re.search(pattern, path)]

    def forget(self):
        with self.lock:
            self.requests.clear()


def send(handler, status, body=b"", headers=(), length=None):
    handler.send_response(status)
    for name, value in headers:
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.end_headers()
    handler.wfile.write(body)


def send_file(handler, data, fault, headers=()):
    """A file, or the range of it that was asked for, with a fault of its own."""
    asked = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
    first, last = (int(asked[1]), min(int(asked[2]), len(data) - 1)) if asked else (0, len(data) - 1)
    headers = list(headers)
    if fault is None:
        pass
    elif fault.isdigit():
        return send(handler, int(fault), b"no")
    elif fault.startswith("retry-after "):
        return send(handler, 429, b"", [("Retry-After", fault.split()[1])])
    elif fault == "silent":
        time.sleep(3)
        handler.close_connection = True
        return None
    elif fault == "dead":
        # As if the machine were gone: until the other side hangs up.
        handler.connection.recv(1)
        handler.close_connection = True
        return None
    elif fault == "slow":
        time.sleep(0.01)
    elif fault == "far":
        time.sleep(0.05)
    elif fault == "hang-up":
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True
        return None
    elif fault == "garbage":
        handler.wfile.write(b"\x00\x01\x02 hello\r\n\r\n")
        handler.close_connection = True
        return None
    elif fault == "headers":
        handler.wfile.write(b"HTTP/1.1 206 OK\r\n" + b"X-Line: filler filler filler\r\n" * 100000)
        handler.close_connection = True
        return None
    elif fault == "whole":
        return send(handler, 200, data, headers)
    elif fault == "shrunk":
        data = data[: len(data) - 8]
        last = min(last, len(data) - 1)
    elif fault == "etag":
        headers = [(name, '"another"' if name == "ETag" else value) for name, value in headers]
    if asked and first >= len(data):
        return send(handler, 416, b"", [("Content-Range", f"bytes */{len(data)}")])
    body = data[first : last + 1]
    length = len(body)
    shown = first
    if fault == "cut":
        body = body[: len(body) // 2]
        handler.close_connection = True
    elif fault == "other-range":
        shown = first + 1
    elif fault == "longer":
        length += 7
        body += b"1234567"
    elif fault == "short-range":
        last = first + max(1, len(body) // 3) - 1
        body = data[first : last + 1]
        length = len(body)
    elif fault == "chunked":
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for at in range(0, len(body), 5000):
            part = body[at : at + 5000]
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        return handler.wfile.write(b"0\r\n\r\n")
    if not asked:
        return send(handler, 200, body, headers, length)
    return send(handler, 206, body, [*headers, ("Content-Range", f"bytes {shown}-{last}/{len(data)}")], length)


class Plain(Server):
    """Files by their paths ("dir/config.json" -> bytes), with pages that list them or without."""

    def __init__(self, files, lists=True, context=None):
        self.files = files
        self.lists = lists
        super().__init__(context)

    def answer(self, handler):
        path = urllib.parse.unquote(handler.path.removeprefix(self.url)).lstrip("/")
        fault = self.fault_of(handler.path)
        if path in self.files:
            data = self.files[path]
            return send_file(handler, data, fault, [("ETag", f'"{etag_of(data)}"')])
        if self.lists and (path == "" or path.endswith("/")):
            names = {name[len(path) :].split("/")[0] + ("/" if "/" in name[len(path) :] else "")
                     for name in self.files if name.startswith(path)}
            if names:
                links = "".join(f'<li><a href="{urllib.parse.quote(name)}">{html.escape(name)}</a></li>'
                                for name in ["../", *sorted(names)])
                return send(handler, 200, f"<html><ul>{links}</ul></html>".encode(), [("Content-Type", "text/html")])
        return send(handler, 404, b"no such file")


class Store(Server):
    """Where the hub's large files are: at signed addresses, for requests without a token."""

    def __init__(self):
        self.files = {}
        self.signature = "first"
        super().__init__()

    def answer(self, handler):
        url = urllib.parse.urlsplit(handler.path)
        if handler.headers.get("Authorization"):
            return send(handler, 400, b"a token came to another host")
        if urllib.parse.parse_qs(url.query).get("signature") != [self.signature]:
            return send(handler, 403, b"expired")
        data = self.files.get(url.path.lstrip("/"))
        if data is None:
            return send(handler, 404, b"no such file")
        return send_file(handler, data, self.fault_of(handler.path), [("ETag", f'"{etag_of(data)}"')])


class Hub(Server):
    """A repository as the hub shows it: a list with commit, sizes and SHA-256; large files lie in a Store."""

    def __init__(self, repository, files, token=None, sizes=True):
        self.repository = repository
        self.files = files
        self.token = token
        self.sizes = sizes
        self.commit = COMMIT
        self.linked = {}
        self.store = Store()
        for name, data in files.items():
            self.store.files[sha_of(data)] = data
        super().__init__()

    def close(self):
        self.store.close()
        super().close()

    def is_large(self, name):
        return name.endswith((".safetensors", ".bin", ".distcp"))

    def answer(self, handler):
        path = urllib.parse.unquote(handler.path)
        if self.token and handler.headers.get("Authorization") != f"Bearer {self.token}":
            return send(handler, 401, b"{}", [("X-Error-Code", "RepoNotFound")])
        fault = self.fault_of(handler.path)
        if fault == "gated":
            return send(handler, 403, b"{}", [("X-Error-Code", "GatedRepo")])
        listed = re.fullmatch(rf"/api/models/{self.repository}/revision/([^?]+)(\?blobs=true)?", path)
        if listed:
            if fault and fault.isdigit():
                return send(handler, int(fault), b"no")
            if fault and fault.startswith("json "):
                return send(handler, 200, fault[5:].encode())
            if listed[1] not in ("main", "refs/pr/1", self.commit):
                return send(handler, 404, b"{}", [("X-Error-Code", "RevisionNotFound")])
            return send(handler, 200, json.dumps(self.list()).encode(), [("Content-Type", "application/json")])
        if path.startswith("/api/"):
            return send(handler, 404, b"{}", [("X-Error-Code", "RepoNotFound")])
        asked = re.fullmatch(rf"/{self.repository}/resolve/([^/]+)/(.*)", path)
        if not asked or asked[1] != self.commit or asked[2] not in self.files:
            return send(handler, 404, b"{}", [("X-Error-Code", "EntryNotFound")])
        data = self.files[asked[2]]
        sha = sha_of(data)
        headers = [("X-Repo-Commit", self.commit)]
        if not self.is_large(asked[2]):
            return send_file(handler, data, fault, [*headers, ("ETag", f'"{blob_of(data)}"')])
        headers += [("X-Linked-Etag", f'"{self.linked.get("etag", sha)}"'),
                    ("X-Linked-Size", str(self.linked.get("size", len(data)))),
                    ("Location", f"{self.store.url}/{sha}?signature={self.store.signature}")]
        return send(handler, 302, b"Found", headers)

    def list(self):
        rows = []
        for name, data in self.files.items():
            row = {"rfilename": name}
            if self.sizes:
                row |= {"size": len(data), "blobId": blob_of(data)}
                if self.is_large(name):
                    row["lfs"] = {"sha256": sha_of(data), "size": len(data), "pointerSize": 134}
            rows.append(row)
        return {"id": self.repository, "sha": self.commit, "siblings": rows}


@functools.lru_cache(maxsize=None)
def sha_of(data):
    return hashlib.sha256(data).hexdigest()


@functools.lru_cache(maxsize=None)
def blob_of(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Bucket(Server):
    """A bucket of S3, in path style, which checks signatures of version 4 as AWS's documents say them."""

    def __init__(self, bucket, files, key="AKIDTEST", secret="secret/of+test", session=None, region="us-east-1", page=3):
        self.bucket = bucket
        self.files = files
        self.key, self.secret, self.session, self.region = key, secret, session, region
        self.page = page
        super().__init__()

    def is_signed(self, handler):
        found = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, SignedHeaders=([^,]+), "
                             r"Signature=([0-9a-f]{64})", handler.headers.get("Authorization", ""))
        if not found or found[1] != self.key or found[3] != self.region:
            return False
        names = found[4].split(";")
        if not {"host", "x-amz-date", "x-amz-content-sha256"} <= set(names):
            return False
        if handler.headers.get("x-amz-security-token") != self.session:
            return False
        url = urllib.parse.urlsplit(handler.path)
        pairs = sorted(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        query = "&".join(f"{urllib.parse.quote(name, safe='-_.~')}={urllib.parse.quote(value, safe='-_.~')}"
                         for name, value in pairs)
        path = urllib.parse.quote(urllib.parse.unquote(url.path), safe="/-_.~")
        lines = "".join(f"{name}:{handler.headers[name].strip()}\n" for name in names)
        request = "\n".join(["GET", path, query, lines, found[4], handler.headers["x-amz-content-sha256"]])
        date = handler.headers["x-amz-date"]
        scope = f"{found[2]}/{found[3]}/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(request.encode()).hexdigest()])
        key = ("AWS4" + self.secret).encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        return date.startswith(found[2]) and hmac.new(key, text.encode(), "sha256").hexdigest() == found[5]

    def answer(self, handler):
        if self.key and not self.is_signed(handler):
            return send(handler, 403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        url = urllib.parse.urlsplit(handler.path)
        path = urllib.parse.unquote(url.path)
        if path in (f"/{self.bucket}", f"/{self.bucket}/"):
            return self.list(handler, dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True)))
        data = self.files.get(path.removeprefix(f"/{self.bucket}/"))
        if data is None:
            return send(handler, 404, b"<Error><Code>NoSuchKey</Code></Error>")
        return send_file(handler, data, self.fault_of(handler.path), [("ETag", f'"{etag_of(data)}"')])

    def list(self, handler, query):
        fault = self.fault_of(handler.path)
        if fault:
            return send_file(handler, b"", fault)
        names = sorted(name for name in self.files if name.startswith(query["prefix"]))
        begin = int(query.get("continuation-token", "0/+=").split("/")[0])
        rows = "".join(f"<Contents><Key>{html.escape(name)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                       f"<ETag>&quot;{etag_of(self.files[name])}&quot;</ETag><Size>{len(self.files[name])}</Size>"
                       "<StorageClass>STANDARD</StorageClass></Contents>" for name in names[begin : begin + self.page])
        more = begin + self.page < len(names)
        token = f"<NextContinuationToken>{begin + self.page}/+=</NextContinuationToken>" if more else ""
        text = (f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
                f"<Name>{self.bucket}</Name><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}"
                "</ListBucketResult>")
        return send(handler, 200, text.encode(), [("Content-Type", "application/xml")])


class Proxy(Server):
    """An HTTP proxy: whole addresses, and CONNECT."""

    def __init__(self):
        super().__init__()
        outer = self

        def connect(handler):
            with outer.lock:
                outer.requests.append((f"CONNECT {handler.path}", dict(handler.headers.items())))
            host, port = handler.path.rsplit(":", 1)
            with socket.create_connection((host, int(port))) as there:
                handler.send_response(200)
                handler.end_headers()
                pair = {handler.connection: there, there: handler.connection}
                while True:
                    for side in select.select(list(pair), [], [])[0]:
                        data = side.recv(65536)
                        if not data:
                            handler.close_connection = True
                            return
                        pair[side].sendall(data)

        self.http.RequestHandlerClass.do_CONNECT = connect

    def answer(self, handler):
        url = urllib.parse.urlsplit(handler.path)
        with socket.create_connection((url.hostname, url.port)) as there:
            lines = [f"GET {url.path} HTTP/1.1", f"Host: {url.netloc}", "Connection: close"]
            if handler.headers.get("Range"):
                lines.append(f"Range: {handler.headers['Range']}")
            there.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
            while data := there.recv(65536):
                handler.wfile.write(data)
        handler.close_connection = True


def tls_context(folder):
    """A server's context, and the file of the certificate that it shows."""
    import subprocess

    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout",
                    folder / "key.pem", "-out", folder / "cert.pem"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context, folder / "cert.pem"
