#!/usr/bin/env python3
"""Runs the console blocks of a page, one after the other, in an empty folder that has testdata in it.

usage: run_page.py PAGE PROGRAM TESTDATA FOLDER [--fill]

A line that begins with "$ " is a command for bash, and those behind it up to the next one are what it prints to stdout
and stderr. There, "..." stands for any text within a line, and alone in a line for any number of lines. A command that
ends in "# status N" must end with that status, any other with 0. The last line is "N commands ran, M failed".
With --fill, the line "@@" is replaced by what was printed, and the page is written anew.
"""

import difflib
import os
import pathlib
import re
import subprocess
import sys

BLOCK = re.compile(r"(?<=^```console\n)(.*?)(?=^```$)", re.DOTALL | re.MULTILINE)
STATUS = re.compile(r"\s+# status (\d)$")


def commands_of(block):
    """(command, expected lines) of a block."""
    commands = []
    for line in block.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        else:
            commands[-1][1].append(line)
    return commands


def fits(expected, printed):
    """Whether the lines are those that are expected."""
    pattern = ""
    for line in expected:
        if line == "...":
            pattern += r"(?:.*\n)*"
        else:
            pattern += ".*".join(map(re.escape, line.split("..."))) + r"\n"
    return re.fullmatch(pattern, "".join(line + "\n" for line in printed)) is not None


def main():
    page, program, testdata, folder = map(pathlib.Path, sys.argv[1:5])
    fill = "--fill" in sys.argv
    os.makedirs(folder / ".bin")
    (folder / ".bin" / "glu-ckpt").symlink_to(program.resolve())
    (folder / "testdata").symlink_to(testdata.resolve())
    environment = dict(os.environ, PATH=f"{folder.resolve()}/.bin:{os.environ['PATH']}")
    text = page.read_text(encoding="utf-8")
    ran = failed = 0
    for block in BLOCK.findall(text):
        for command, expected in commands_of(block):
            wanted = int(found.group(1)) if (found := STATUS.search(command)) else 0
            done = subprocess.run(
                ["bash", "-c", STATUS.sub("", command)], cwd=folder, env=environment, text=True, check=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            ran += 1
            printed = done.stdout.splitlines()
            if fill and expected == ["@@"]:
                filled = f"$ {command}\n" + "".join(line + "\n" for line in printed)
                text = text.replace(f"$ {command}\n@@\n", filled, 1)
                expected = printed
            if done.returncode == wanted and fits(expected, printed):
                continue
            failed += 1
            print(f"{page.name}: {command}: status {done.returncode}, {wanted} expected")
            print("\n".join(difflib.unified_diff(expected, printed, "page", "printed", lineterm="")))
    if fill:
        page.write_text(text, encoding="utf-8")
    print(f"{ran} commands ran, {failed} failed")
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
