"""Hosts in namespaces of this machine: each has its network, name, mounts and processes, and a sshd.

One of them serves a directory, which the others mount with sshfs at the same path: a file system in user space without
locks between hosts, whose handles end with the connection. Needs root, /dev/fuse, iproute2, util-linux, sshd and sshfs.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import time

TOOLS = ("ip", "unshare", "nsenter", "sshfs", "ssh", "ssh-keygen", "fusermount3", "/usr/sbin/sshd")


def why_not():
    """What this machine lacks; nothing where hosts can be made."""
    if os.geteuid() != 0:
        return "namespaces with a network need root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (apt-get install openssh-server sshfs iproute2)"
    if not os.path.exists("/dev/fuse"):
        return "/dev/fuse is missing"
    tried = subprocess.run(["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "ip", "link", "set",
                            "lo", "up"], capture_output=True, text=True)
    return f"no namespaces: {tried.stderr.strip()}" if tried.returncode != 0 else ""


def wait_for(what, ready, seconds=20.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if ready():
            return
        time.sleep(0.005)
    raise RuntimeError(f"{what}: not within {seconds} s")


class Host:
    """A host that ends, with all its processes, when it is lost()."""

    def __init__(self, name, work):
        self.name, self.work = name, work
        self.keeper = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
             f"hostname {name}; ip link set lo up; exec sleep infinity"])
        children = pathlib.Path(f"/proc/{self.keeper.pid}/task/{self.keeper.pid}/children")
        wait_for("a first process", lambda: children.read_text().strip())
        self.pid = children.read_text().split()[0]
        wait_for("a name", lambda: self.run("hostname").stdout.strip() == name)
        self.server = None

    def inside(self, command):
        return ["nsenter", "-t", self.pid, "-n", "-u", "-m", "-p", "--", *map(str, command)]

    def run(self, *command, check=False):
        return subprocess.run(self.inside(command), capture_output=True, text=True, check=check, stdin=subprocess.DEVNULL)

    def start(self, *command, **more):
        return subprocess.Popen(self.inside(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                stdin=subprocess.DEVNULL, **more)

    def connect(self, other, number):
        """A cable to the other host, which forwards to all its others."""
        mine, theirs = f"gck{number}a", f"gck{number}b"
        subprocess.run(["ip", "link", "add", mine, "netns", self.pid, "type", "veth", "peer", "name", theirs, "netns",
                        other.pid], check=True)
        self.address, gateway = f"10.77.{number}.2", f"10.77.{number}.1"
        self.run("ip", "addr", "add", f"{self.address}/24", "dev", mine, check=True)
        other.run("ip", "addr", "add", f"{gateway}/24", "dev", theirs, check=True)
        self.run("ip", "link", "set", mine, "up", check=True)
        other.run("ip", "link", "set", theirs, "up", check=True)
        self.run("ip", "route", "add", "default", "via", gateway, check=True)
        other.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward", check=True)
        self.gateway = gateway

    def start_sshd(self):
        """Its shells read no file of whoever runs the tests: one waited a minute for a lock of pyenv."""
        os.makedirs("/run/sshd", exist_ok=True)
        conf = self.work / f"sshd_{self.name}"
        conf.write_text(f"Port 22\nHostKey {self.work}/host_key\nAuthorizedKeysFile {self.work}/key.pub\nStrictModes no\n"
                        "UsePAM no\nPermitRootLogin yes\nPidFile none\nSubsystem sftp internal-sftp\nUseDNS no\n"
                        f"MaxStartups 100\nSetEnv HOME={self.work}\n")
        self.server = self.start("/usr/sbin/sshd", "-D", "-e", "-f", conf)
        wait_for("sshd", lambda: self.run("sh", "-c",
                                          "ss -ltn | grep -q ':22 '").returncode == 0)

    def stop_sshd(self):
        """Ends the server and every connection that it has."""
        self.run("sh", "-c", "for p in /proc/[0-9]*; do case $(cat $p/comm 2>/dev/null) in sshd*|sftp-server) "
                 "kill -9 ${p#/proc/};; esac; done")
        self.server.wait()

    def mount(self, directory, at):
        os.makedirs(at, exist_ok=True)
        options = (f"IdentityFile={self.work}/key,StrictHostKeyChecking=no,UserKnownHostsFile=/dev/null,LogLevel=ERROR,"
                   "reconnect,ServerAliveInterval=1,ServerAliveCountMax=3,dir_cache=no,entry_timeout=0,"
                   "attr_timeout=0,negative_timeout=0")
        self.run("sshfs", "-o", options, f"root@{self.gateway}:{directory}", at, check=True)

    def lose(self):
        """The power goes."""
        self.keeper.send_signal(signal.SIGKILL)
        self.keeper.wait()
        with contextlib.suppress(RuntimeError):
            wait_for("its end", lambda: not os.path.exists(f"/proc/{self.pid}"), 10)


def make_keys(work):
    for name in ("key", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", work / name], check=True)
