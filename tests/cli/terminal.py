#!/usr/bin/env python3
"""Runs a conversion that stands still for a while in a terminal of its own, and prints what the terminal got.

usage: terminal.py COLUMNS HOLD COMMAND...   (HOLD: the folder of GLU_CKPT_TEST_HOLD)
"""

import fcntl
import os
import pathlib
import pty
import struct
import sys
import termios
import threading
import time


def let_go(hold):
    """Once the program stands still, it waits longer than the bar's interval, and then goes on."""
    for _ in range(6000):
        if any(path.name != "go" for path in hold.iterdir()):
            break
        time.sleep(0.01)
    time.sleep(0.3)
    (hold / "go").touch()


def main():
    columns, hold, command = int(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.execvp(command[0], command)
    threading.Thread(target=let_go, args=(hold,), daemon=True).start()
    shown = b""
    while True:
        try:
            block = os.read(terminal, 65536)
        except OSError:
            break
        if not block:
            break
        shown += block
    _, status = os.waitpid(child, 0)
    sys.stdout.buffer.write(shown)
    sys.stdout.flush()
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
