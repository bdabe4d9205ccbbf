#!/usr/bin/env python3
"""Conversions on two hosts that share a directory of a third one through sshfs.

usage: two_hosts.py PROGRAM MPI_PROGRAM|- [ROUNDS [SEED]]
       two_hosts.py PROGRAM MPI_PROGRAM figures   only times: 226 MB by one process, by parts and by ranks

Whatever happens to a host or to the file server, the output has the bytes of one process on one machine, or there is none
yet and the same command goes on. Exits 77, skipped, where this machine cannot be several hosts.
"""

import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).parent.parent / "cli"))
import consume_kills  # noqa: E402
from consume_kills import OPTIONS, WORK, files, make_model  # noqa: E402
from host import Host, make_keys, wait_for, why_not  # noqa: E402


class Cluster:
    def __init__(self, work, program, mpi_program, options=(*OPTIONS, *WORK)):
        self.work, self.program, self.mpi_program = work, program, mpi_program
        self.options = [*options, "--reflink", "never"]
        # What is at one path on all hosts: the server's own name for it is another one.
        self.export, self.shared = work / "export", work / "shared"
        self.export.mkdir()
        make_keys(work)
        make_model(self.export / "model")
        subprocess.run([program, "convert", self.export / "model", work / "reference", *self.options],
                       check=True, capture_output=True)
        self.reference = files(work / "reference")
        self.server = Host("server", work)
        self.server.number = 0
        self.hosts = [self.add(number) for number in (1, 2)]
        self.server.start_sshd()
        for host in self.hosts:
            self.join(host)

    def add(self, number):
        host = Host(f"host{number}", self.work)
        host.number = number
        host.connect(self.server, number)
        return host

    def join(self, host):
        host.start_sshd()
        host.mount(self.export, self.shared)

    def lose(self, host):
        """The host is gone; another one of the same name comes in its place."""
        host.lose()
        self.hosts[self.hosts.index(host)] = again = self.add(host.number)
        self.join(again)
        return again

    def convert(self, *more):
        return [self.program, "convert", self.shared / "model", self.shared / "out", *self.options, *more]

    def mpi(self, ranks):
        """mpirun of the first host."""
        agent = f"ssh -i {self.work}/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
        places = ",".join(f"{host.address}:{max(1, ranks // 2)}" for host in self.hosts)
        return ["env", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "mpirun", "-np", ranks, "--host",
                places, "--oversubscribe", "--bind-to", "none", "--mca", "plm_rsh_agent", agent, "--mca", "btl", "tcp,self",
                "--mca", "btl_tcp_if_include", "10.77.0.0/16", "--mca", "oob_tcp_if_include", "10.77.0.0/16",
                self.mpi_program, *self.convert()[1:]]

    def clear(self):
        for path in self.export.glob("out*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def wrong(self):
        """Says what is wrong with the output."""
        out = self.export / "out"
        if not out.is_dir():
            return f"no output, {sorted(path.name for path in self.export.iterdir())}"
        if files(out) != self.reference:
            return "other bytes"
        left = [path.name for path in self.export.iterdir() if path.name not in ("model", "out")]
        return f"{left} left" if left else ""

    def end(self):
        for host in [*self.hosts, self.server]:
            host.lose()


class Tests:
    def __init__(self, cluster, rounds, seed):
        self.cluster, self.rounds, self.rng = cluster, rounds, random.Random(seed)
        self.passed, self.failed = 0, 0
        # Of one process, and of ranks, on hosts that have done it once.
        self.took, self.ranks_took = 0.0, 0.0

    def check(self, what, good, why=""):
        self.passed += bool(good)
        self.failed += not good
        if not good:
            print(f"FAIL {what}: {why}", flush=True)

    def is_whole(self, what):
        self.check(what, not self.cluster.wrong(), self.cluster.wrong())

    def ended(self, what, run, statuses):
        try:
            out, err = run.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.check(what, False, "not within 60 s")
            run.kill()
            out, err = run.communicate()
        self.check(what, run.returncode in statuses, f"exit {run.returncode}: {err[-600:]} {out[-200:]}")
        return err

    def until_done(self, what, host, command, tries=4):
        """Starts it again while it says that the machine failed."""
        for _ in range(tries):
            done = host.run(*command)
            if done.returncode != 5:
                break
        self.check(what, done.returncode == 0, f"exit {done.returncode}: {done.stderr[-600:]}")

    # ---- equal bytes ------------------------------------------------------------------------------

    def one_process(self):
        c = self.cluster
        for host in c.hosts:
            c.clear()
            start = time.monotonic()
            done = host.run(*c.convert())
            self.took = time.monotonic() - start
            self.check(f"{host.name} alone", done.returncode == 0, done.stderr)
            self.is_whole(f"{host.name} alone: the bytes")

    def parts(self):
        c = self.cluster
        for of in (2, 4):
            c.clear()
            runs = [c.hosts[part % 2].start(*c.convert("--part", f"{part + 1}/{of}")) for part in range(of)]
            for part, run in enumerate(runs):
                self.ended(f"part {part + 1}/{of}", run, (0,))
            self.is_whole(f"{of} parts on two hosts: the bytes")

    def ranks(self):
        c = self.cluster
        if c.mpi_program == "-":
            return
        for ranks in (2, 4):
            c.clear()
            start = time.monotonic()
            self.ended(f"{ranks} ranks", c.hosts[0].start(*c.mpi(ranks)), (0,))
            self.ranks_took = time.monotonic() - start
            self.is_whole(f"{ranks} ranks on two hosts: the bytes")

    # ---- what fails -------------------------------------------------------------------------------

    def lost_part(self):
        """Parts of a lost host go on elsewhere, or where they were."""
        c, met = self.cluster, 0
        for number in range(self.rounds):
            c.clear()
            of = (1, 2, 4)[number % 3]
            # The last one is on the host that is lost.
            runs = {part: c.hosts[(of - part + 1) % 2].start(*c.convert("--part", f"{part}/{of}"))
                    for part in range(1, of + 1)}
            time.sleep(self.rng.uniform(0, self.took))
            lost = {part: run for part, run in runs.items() if (of - part) % 2 == 0}
            met += any(run.poll() is None for run in lost.values())
            c.lose(c.hosts[1])
            for run in lost.values():
                run.communicate()
            for part in runs.keys() - lost.keys():
                self.ended(f"lost part, round {number}: part {part}/{of}", runs[part], (0,))
            owner = c.export / "out.partial" / "glu_ckpt.journal.owner"
            if owner.exists():
                owner.unlink()  # as the message says
            for part in lost:
                self.until_done(f"lost part, round {number}", c.hosts[number % 2], c.convert("--part", f"{part}/{of}"))
            self.is_whole(f"lost part, round {number}, of {of}: the bytes")
        print(f"     a host was lost {self.rounds} times, {met} times with parts at work", file=sys.stderr)

    def lost_rank(self):
        c = self.cluster
        if c.mpi_program == "-":
            return
        met = 0
        for number in range(self.rounds):
            c.clear()
            run = c.hosts[0].start(*c.mpi((2, 4)[number % 2]))
            time.sleep(self.rng.uniform(0.2, self.ranks_took))
            met += run.poll() is None
            c.lose(c.hosts[1])
            try:
                run.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                self.check(f"lost rank, round {number}: mpirun ends", False, "not within 60 s")
                c.lose(c.hosts[0])
                run.communicate()
            # Another number of ranks, on rank 0's host.
            self.until_done(f"lost rank, round {number}", c.hosts[0], c.convert("--resume"))
            self.is_whole(f"lost rank, round {number}: the bytes")
        print(f"     a host was lost {self.rounds} times, {met} times with ranks at work", file=sys.stderr)

    def restarted_server(self):
        c, met = self.cluster, 0
        for number in range(self.rounds):
            c.clear()
            run = c.hosts[0].start(*c.convert())
            time.sleep(self.rng.uniform(0, self.took))
            c.server.stop_sshd()
            time.sleep(self.rng.uniform(0, 1))
            c.server.start_sshd()
            err = self.ended(f"restart {number}: as it says", run, (0, 3, 4, 5))
            met += run.returncode != 0
            if run.returncode != 0:
                self.check(f"restart {number}: a sentence", "error: " in err, err)
            self.until_done(f"restart {number}: goes on", c.hosts[0], c.convert("--resume"))
            self.is_whole(f"restart {number}: the bytes")
        print(f"     the file server was restarted {self.rounds} times; {met} runs ended of it, and went on", file=sys.stderr)

    def moved_away(self):
        """What a run has open is no longer what has the name."""
        c = self.cluster
        c.clear()
        run = self.stopped_run(c.hosts[0])
        (c.export / "out.partial").rename(c.export / "out.elsewhere")
        (c.export / "out.partial").mkdir()
        (c.export / "out.partial" / "mine").write_text("somebody's")
        self.go_on(c.hosts[0], run)
        self.ended("moved away", run, (3, 4, 5))
        self.check("moved away: no output", not (c.export / "out").exists())
        self.check("moved away: what is there stays", files(c.export / "out.partial") == {"mine": b"somebody's"},
                   sorted(files(c.export / "out.partial")))

    # ---- no locks ---------------------------------------------------------------------------------

    def signal_all(self, host, name):
        host.run("sh", "-c", f"kill -{name} $(pgrep -f 'glu-ckpt convert' | grep -v $$)")

    def stopped_run(self, host):
        """A run that stands still in its middle."""
        run = host.start(*self.cluster.convert())
        partial = self.cluster.export / "out.partial"
        wait_for("a run at work", lambda: any(partial.glob("*.safetensors*")))
        self.signal_all(host, "STOP")
        # nsenter stops with what it runs, and a signal to go on that comes before is lost.
        state = pathlib.Path(f"/proc/{run.pid}/stat")
        wait_for("a run that stands still", lambda: run.poll() is not None or state.read_text().split(") ")[1][0] == "T")
        return run

    def go_on(self, host, run):
        run.send_signal(signal.SIGCONT)
        self.signal_all(host, "CONT")

    def no_locks(self):
        c = self.cluster
        first, second = c.hosts
        lock = c.shared / "out.lock"
        holder = first.start("flock", "-x", lock, "sleep", "1")
        time.sleep(0.3)
        seen = second.run("flock", "-n", "-x", lock, "true").returncode != 0
        holder.communicate()
        print(f"     a lock of one host {'keeps' if seen else 'does not keep'} the other one out", file=sys.stderr)
        for number in range(self.rounds):
            c.clear()
            run = self.stopped_run(first)
            if (c.export / "out").exists():
                self.go_on(first, run)
                run.communicate()
                continue
            beside = second.run(*c.convert("--resume"))
            self.check("beside a stopped run: refused", beside.returncode == 4 and "output-busy" in beside.stderr,
                       f"exit {beside.returncode}: {beside.stderr}")
            owner = c.export / "out.partial" / "glu_ckpt.journal.owner"
            self.check("beside a stopped run: says whose it is", f"host {first.name}" in beside.stderr, beside.stderr)
            # Somebody declares it dead, which it is not.
            owner.unlink()
            self.until_done("declared dead: goes on", second, c.convert("--resume"))
            self.is_whole("declared dead: the bytes")
            self.go_on(first, run)
            self.ended("declared dead: the first one is told", run, (3, 4, 5))
            self.is_whole("declared dead: the bytes after the first one woke up")

    def all(self):
        for test in (self.one_process, self.parts, self.ranks, self.lost_part, self.lost_rank, self.restarted_server,
                     self.moved_away, self.no_locks):
            start = time.monotonic()
            test()
            print(f"     {test.__name__}: {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)


    # ---- figures ----------------------------------------------------------------------------------

    def figures(self):
        """Prints the seconds of each way in turns, so that what else the machine does is the same for all."""
        c = self.cluster
        ways = {"one process": lambda: [c.hosts[0].start(*c.convert())]}
        for of in (2, 4):
            ways[f"{of} parts"] = lambda of=of: [c.hosts[part % 2].start(*c.convert("--part", f"{part + 1}/{of}"))
                                                 for part in range(of)]
        if c.mpi_program != "-":
            ways |= {f"{ranks} ranks": lambda ranks=ranks: [c.hosts[0].start(*c.mpi(ranks))] for ranks in (2, 4)}
        taken = {way: [] for way in ways}
        for _ in range(3):
            for way, begin in ways.items():
                c.clear()
                start = time.monotonic()
                for run in begin():
                    self.ended(way, run, (0,))
                taken[way].append(time.monotonic() - start)
                self.is_whole(way)
        one = sorted(taken["one process"])[1]
        print(f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores; seconds: median, of one process's, all")
        for way, seconds in taken.items():
            print(f"  {way:12} {sorted(seconds)[1]:6.2f} {sorted(seconds)[1] / one:5.2f}   "
                  f"{', '.join(f'{each:.2f}' for each in seconds)}")


def main():
    program, mpi_program = (word if word == "-" else os.path.abspath(word) for word in sys.argv[1:3])
    if figures := sys.argv[3:] == ["figures"]:
        del sys.argv[3:]
        consume_kills.EXPERTS = 96
    rounds = int(sys.argv[3] if len(sys.argv) > 3 else os.environ.get("HOST_ROUNDS", "3"))
    seed = int(sys.argv[4] if len(sys.argv) > 4 else "1")
    if why := why_not():
        print(f"two_hosts.py: skipped: {why}")
        return 77
    work = pathlib.Path(tempfile.mkdtemp(prefix="gck_hosts."))
    by_shards = ("--scope", "experts", "--naming", "megatron", "--glu", "interleaved:32", "--max-shard-size", "20MB", "-q")
    cluster = Cluster(work, program, mpi_program, *([by_shards] if figures else []))
    tests = Tests(cluster, rounds, seed)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        (tests.figures if figures else tests.all)()
    finally:
        cluster.end()
        shutil.rmtree(work)
    print(f"{tests.passed} passed, {tests.failed} failed")
    return 1 if tests.failed else 0


if __name__ == "__main__":
    sys.exit(main())
