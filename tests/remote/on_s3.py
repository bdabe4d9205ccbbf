"""Checkpoints in buckets: ours, which checks signatures, and moto's."""

import json
import socket
import subprocess
import sys
import time
import urllib.request

from models import moe_files
from room import check, kills_are_resumed
from servers import Bucket


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
