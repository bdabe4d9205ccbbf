#!/usr/bin/env python3
"""Runs a command as on Linux 4.18: system calls that came later answer ENOSYS, as they do there.

usage: old_kernel.py COMMAND [ARGUMENT...]

In 4.18 the last number was that of rseq: 334 on x86_64, 293 elsewhere. copy_file_range says EXDEV besides, as it did up
to 5.3 for two file systems.
"""
import ctypes
import errno
import os
import platform
import struct
import sys

LAST_CALL, COPY_FILE_RANGE = {"x86_64": (334, 326), "aarch64": (293, 285)}[platform.machine()]
LOAD, EQUAL, GREATER, RETURN = 0x20, 0x15, 0x25, 0x06
ALLOW, ERROR = 0x7FFF0000, 0x00050000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2

program = b"".join(struct.pack("HBBI", *row) for row in [
    (LOAD, 0, 0, 0),  # the call's number
    (GREATER, 2, 0, LAST_CALL),
    (EQUAL, 2, 0, COPY_FILE_RANGE),
    (RETURN, 0, 0, ALLOW),
    (RETURN, 0, 0, ERROR | errno.ENOSYS),
    (RETURN, 0, 0, ERROR | errno.EXDEV),
])
code = ctypes.create_string_buffer(program)
filter_program = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, FILTER, filter_program, 0, 0)):
    if libc.prctl(*arguments) != 0:
        sys.exit(f"prctl({arguments[0]}): {os.strerror(ctypes.get_errno())}")
os.execvp(sys.argv[1], sys.argv[1:])
