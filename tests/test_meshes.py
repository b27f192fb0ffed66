"""A term on a mesh of devices gives what it gives on one, and its batch stays where it is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("meshes.py")


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """Each case of the program with what went wrong."""
    run = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)


def test_on_eight_devices(outcomes: dict[str, str]):
    assert len(outcomes) == 24
    assert {name: text for name, text in outcomes.items() if text} == {}
