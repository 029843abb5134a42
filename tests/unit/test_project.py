"""What a project has around its code: the verbs, the hooks, the templates."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from pkgutil import walk_packages

import yaml

import opentab

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
VERBS = re.findall(r"^([a-z-]+):(?!=)", MAKEFILE, re.MULTILINE)


def test_every_verb_is_explained_in_a_group() -> None:
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^  make ([a-z-]+) +\S", said, re.MULTILINE) == VERBS
    assert re.findall(r"^[A-Z].*", said, re.MULTILINE) == ["Use it", "Test", "Measure", "Release"]
    rows = re.findall(r"^\| `make ([a-z-]+)[^`]*` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(VERBS)


def test_hooks_run_the_project_s_own_tools() -> None:
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [one["repo"] for one in repositories] == ["local"], "a commit fetches nothing"
    (check,) = re.findall(r"^check:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    tools = set(re.findall(r"\$\(BIN\)/(\w[\w-]*(?: format| check)?)", check))
    hooks = {hook["entry"] for hook in repositories[0]["hooks"]}
    ours = {entry.removeprefix(".venv/bin/").removesuffix(" --force-exclude") for entry in hooks}
    assert ours - {"make test-unit"} == tools, "the hooks are `make check`"
    assert all(hook["language"] == "system" for hook in repositories[0]["hooks"])


def test_templates_ask_for_what_exists() -> None:
    for template in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md"):
        _, front, body = template.read_text().split("---\n", 2)
        assert yaml.safe_load(front).keys() == {"name", "about", "labels"}
        assert body.strip()


def test_files_that_contributing_names_are_there() -> None:
    named = re.findall(r"`((?:\w+/)+\w+\.(?:py|lock|toml|yaml))`", (ROOT / "CONTRIBUTING.md").read_text())
    new = {"tests/unit/test_doctor.py"}  # the one that the first change writes
    places = (ROOT, ROOT / "src" / "opentab")
    assert len(named) > 10
    assert [name for name in named if name not in new and not any((place / name).exists() for place in places)] == []


def test_every_module_can_be_imported() -> None:
    """With the lowest versions, too: `make test-lowest` runs this."""
    names = [
        module.name for module in walk_packages(opentab.__path__, "opentab.") if module.name != "opentab.cli.__main__"
    ]
    assert len(names) > 150
    program = f"import importlib\nfor name in {names}: importlib.import_module(name)"
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, stdin=subprocess.DEVNULL)
