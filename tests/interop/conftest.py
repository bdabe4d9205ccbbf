"""Runs glu-ckpt against the software whose checkpoints it reads and writes. See run_interop.sh."""

import os

import pytest
import torch

import glu_program


def pytest_configure(config):
    print(f"\ninterop: {glu_program.versions()}")
    # Thousands of tiny tensors on few cores: threads only get in each other's way.
    torch.set_num_threads(1)


@pytest.fixture
def glu(tmp_path):
    return glu_program.Program(os.environ["GLU_CKPT"], tmp_path)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """One last line that scripts/test.sh counts, after the names of what was skipped."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    count = {name: len(reports) for name, reports in reporter.stats.items()}
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        print(f"interop: skipped {report.nodeid}: {reason}")
    if count.get("skipped"):
        print(f"{count['skipped']} skipped")
    print(f"{count.get('passed', 0)} passed, {count.get('failed', 0) + count.get('error', 0)} failed")
