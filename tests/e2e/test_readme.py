"""The README's own example: its commands do what stands below them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$", re.MULTILINE)


def test_your_own_events(tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8").split("## Your own events")[1].split("\n## ")[0]
    shown = "\n".join(line.removeprefix("    ") for line in text.splitlines() if line.startswith("    "))
    steps = [step.partition("\n") for step in re.split(r"^\$ ", shown, flags=re.MULTILINE) if step]
    for command, _, rest in steps:
        if command.endswith("<<END"):
            script, expected = f"{command}\n{rest}", ""
        else:
            script, expected = command, rest.rstrip("\n")
        script = script.replace(".venv/bin/opentab", f"{shlex.quote(sys.executable)} -m opentab.cli")
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, (script, done.stderr)
        if expected:  # the README leaves out what says nothing
            assert STAMP.sub("…", done.stdout).rstrip() == STAMP.sub("…", expected), script
