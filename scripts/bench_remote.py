#!/usr/bin/env python3
"""Converts a checkpoint from a server on loopback beside downloads of the same files by curl, in one run.

usage: scripts/bench_remote.py PROGRAM FOLDER [--kind http|hub|s3] [--layers N] [--rounds N] [--jobs N]

The server is a plain one, or answers as the hub does (a list with commit and SHA-256, and a redirection for each large file
to another host) or as S3 does for requests without a signature.

Makes a model of Qwen3-30B-A3B's shapes in FOLDER, which should be memory (3 layers: 3.9 GB in 8 files), serves it by
processes that use sendfile, and prints the median seconds of `curl -Z`, of `convert --to megatron` and of `convert --to
hf --experts grouped`, with their ratios to curl's. Outputs go to FOLDER, too, and are removed.
"""

import argparse
import hashlib
import http.server
import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import time

HIDDEN, WIDTH, EXPERTS, VOCAB, HEADS, KV, HEAD = 2048, 768, 128, 32000, 32, 4, 128
FILES = 8
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def tensors(layers):
    yield "model.embed_tokens.weight", [VOCAB, HIDDEN]
    yield "lm_head.weight", [VOCAB, HIDDEN]
    yield "model.norm.weight", [HIDDEN]
    for layer in range(layers):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", [HIDDEN]
        yield at + "post_attention_layernorm.weight", [HIDDEN]
        for name, rows, cols in (("q", HEADS * HEAD, HIDDEN), ("k", KV * HEAD, HIDDEN), ("v", KV * HEAD, HIDDEN),
                                 ("o", HIDDEN, HEADS * HEAD)):
            yield f"{at}self_attn.{name}_proj.weight", [rows, cols]
        yield at + "self_attn.q_norm.weight", [HEAD]
        yield at + "self_attn.k_norm.weight", [HEAD]
        yield at + "mlp.gate.weight", [EXPERTS, HIDDEN]
        for e in range(EXPERTS):
            for name, shape in (("gate", [WIDTH, HIDDEN]), ("up", [WIDTH, HIDDEN]), ("down", [HIDDEN, WIDTH])):
                yield f"{at}mlp.experts.{e}.{name}_proj.weight", shape


def make_model(folder, layers):
    folder.mkdir(parents=True)
    every = [(name, shape, 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)) for name, shape in tensors(layers)]
    total = sum(size for _, _, size in every)
    shards, filled = [[] for _ in range(FILES)], 0
    for entry in every:
        shards[min(FILES - 1, filled * FILES // total)].append(entry)
        filled += entry[2]
    noise, weight_map = os.urandom(1 << 24), {}
    for number, shard in enumerate(shards, 1):
        name, header, at = f"model-{number:05}-of-{FILES:05}.safetensors", {}, 0
        for key, shape, size in shard:
            header[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
            weight_map[key], at = name, at + size
        text = json.dumps(header).encode()
        with open(folder / name, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for begin in range(0, at, len(noise)):
                file.write(noise[: at - begin])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps({
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": HIDDEN, "vocab_size": VOCAB,
        "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": HEAD,
        "num_experts": EXPERTS, "num_experts_per_tok": 8, "moe_intermediate_size": WIDTH, "intermediate_size": 6144,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "hidden_act": "silu", "max_position_embeddings": 40960,
        "torch_dtype": "bfloat16", "attention_bias": False}))
    return total


def sha256_of(path):
    digest, block = hashlib.sha256(), memoryview(bytearray(1 << 20))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(block[:count])
    return digest.hexdigest()


def blob_of(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def write_lists(folder):
    """What the hub and S3 say of the files."""
    rows, objects = [], ""
    for path in sorted(folder.iterdir()):
        size = path.stat().st_size
        row = {"rfilename": path.name, "size": size}
        if path.suffix == ".safetensors":
            row["lfs"] = {"sha256": sha256_of(path), "size": size}
            row["blobId"] = hashlib.sha1(path.name.encode()).hexdigest()
        else:
            row["blobId"] = blob_of(path.read_bytes())
        rows.append(row)
        objects += (f"<Contents><Key>model/{path.name}</Key><Size>{size}</Size><ETag>&quot;{path.name}-{size}&quot;</ETag>"
                    "</Contents>")
    (folder / "hub.json").write_text(json.dumps({"id": "org/name", "sha": COMMIT, "siblings": rows}))
    (folder / "s3.xml").write_text(f"<ListBucketResult><IsTruncated>false</IsTruncated>{objects}</ListBucketResult>")


def handler_of(folder):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def answer(self, status, body, *headers):
            self.send_response(status)
            for name, value in (*headers, ("Content-Length", str(len(body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            if self.path.startswith("/api/models/"):
                return self.answer(200, (folder / "hub.json").read_bytes())
            if "list-type=2" in self.path:
                return self.answer(200, (folder / "s3.xml").read_bytes())
            if "/resolve/" in self.path and self.path.endswith(".safetensors"):
                name = self.path.rsplit("/", 1)[-1]
                file = next(row for row in json.loads((folder / "hub.json").read_text())["siblings"] if row["rfilename"] == name)
                place = f"http://localhost:{self.server.server_port}/store/{name}"
                return self.answer(302, b"", ("Location", place), ("X-Repo-Commit", COMMIT),
                                   ("X-Linked-Etag", f'"{file["lfs"]["sha256"]}"'), ("X-Linked-Size", str(file["size"])))
            path = folder / self.path.rsplit("/", 1)[-1]
            if not path.is_file():
                self.send_error(404)
                return
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
                begin = int(wanted[1]) if wanted else 0
                end = min(size, int(wanted[2]) + 1) if wanted and wanted[2] else size
                self.send_response(206 if wanted else 200)
                self.send_header("Content-Length", str(end - begin))
                self.send_header("Accept-Ranges", "bytes")
                if "/resolve/" in self.path:
                    self.send_header("X-Repo-Commit", COMMIT)
                    self.send_header("ETag", f'"{blob_of(path.read_bytes())}"')
                else:
                    self.send_header("ETag", f'"{path.name}-{size}"')
                if wanted:
                    self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
                self.end_headers()
                while begin < end:
                    begin += os.sendfile(self.connection.fileno(), file.fileno(), begin, end - begin)

        def log_message(self, *_):
            pass

    return Handler


def serve(folder, processes):
    """Forks processes that accept on one port, a thread for each connection. Returns the port and the processes."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    children = []
    for _ in range(processes):
        child = os.fork()
        if child == 0:
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler_of(folder), bind_and_activate=False)
            server.socket, server.server_address = listening, listening.getsockname()
            server.server_name, server.server_port, server.daemon_threads = "127.0.0.1", listening.getsockname()[1], True
            try:
                server.serve_forever()
            finally:
                os._exit(0)
        children.append(child)
    return listening.getsockname()[1], children


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--kind", choices=["http", "hub", "s3"], default="http")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if shutil.which("curl") is None:
        print("bench_remote: not run: there is no curl")
        return 77
    source, out = options.folder / "model", options.folder / "out"
    total = make_model(source, options.layers)
    write_lists(source)
    port, children = serve(source, max(2, options.jobs // 2))
    host = f"http://127.0.0.1:{port}/"
    url, address = {"http": (host + "model/", host + "model/"), "hub": (f"{host}org/name/resolve/{COMMIT}/", "hf://org/name"),
                    "s3": (host + "bucket/model/", "s3://bucket/model")}[options.kind]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "HF_", "http"))}
    environment = clean | {"HF_ENDPOINT": host, "AWS_ENDPOINT_URL": host, "HOME": str(options.folder)}
    names = [path.name for path in sorted(source.glob("*.safetensors"))]
    convert = [options.program, "convert", address, str(out), "-q", "-j", str(options.jobs)]
    commands = {
        "curl -Z": ["curl", "-sLZ", "--no-progress-meter", "--parallel-immediate", "--parallel-max", "16", "--fail", "--create-dirs",
                    *(word for name in names for word in ("-o", str(out / name), url + name))],
        "convert --to megatron": [*convert, "--to", "megatron"],
        "convert --to hf --experts grouped": [*convert, "--to", "hf", "--experts", "grouped", "--force"],
    }
    taken = {name: [] for name in commands}
    try:
        for _ in range(options.rounds):
            for name, command in commands.items():
                begin = time.perf_counter()
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
                taken[name].append(time.perf_counter() - begin)
                shutil.rmtree(out)
    finally:
        for child in children:
            os.kill(child, 15)
        shutil.rmtree(source)
    first = statistics.median(taken["curl -Z"])
    print(f"{options.kind}: {total / 1e9:.2f} GB in {FILES} files, -j {options.jobs}, {options.rounds} rounds; seconds: median, all; of curl's")
    for name, seconds in taken.items():
        all_of_them = ", ".join(f"{each:.2f}" for each in seconds)
        median = statistics.median(seconds)
        print(f"  {name:34} {median:6.2f}   {all_of_them}   {median / first:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
