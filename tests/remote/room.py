"""What the tests of remote checkpoints share: a folder for each, the program in it, and runs that are killed."""

import filecmp
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

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
