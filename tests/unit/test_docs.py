"""The documents held against the code: what exists is documented, and what is linked exists."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

import performance_page
from opentab import cli
from opentab.cli import base
from opentab.core import errors
from opentab.core.errors import OpentabError
from opentab.core.events import CUSTOMER_BYTES_MAX, NESTING_MAX, Reason
from opentab.core.periods import to_us
from opentab.ledger.diagnosis import Name
from opentab.runtime import crash
from opentab.runtime.config import SETTINGS, Home, Setting
from opentab.server.feed import STREAMS_MAX
from opentab.server.intake import BODY_BYTES_MAX, EVENTS_MAX
from opentab.server.ledger_turns import HOLDER_MAX, RUNNING_MAX, WAITING_MAX
from opentab.server.limits import (
    HEADER_BYTES_MAX,
    PATH_BYTES_MAX,
    UNDER_WAY_BYTES_MAX,
    UNDER_WAY_HOLDER_BYTES_MAX,
)
from opentab.wire.reference import Refusal, judge
from opentab_tools.bench.compare import read_figures

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """What stands below a heading, down to the next one of the same or a higher level."""
    level = len(heading) - len(heading.lstrip("#"))
    found = re.search(rf"^{re.escape(heading)}$(.*?)(?=^#{{1,{level}}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"there is no heading {heading!r}"
    return found[1]


def rows(text: str) -> list[list[str]]:
    """The rows of all tables, as their cells."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def walk(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Every command below a group, by the words a user types."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            inner = command.get_command(context, word)
            assert inner is not None, word
            yield f"{name} {word}", inner
            yield from walk(inner, f"{name} {word}")


def options_of(command: click.Command) -> list[str]:
    return [
        name
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in (*parameter.opts, *parameter.secondary_opts)
    ]


def subclasses(kind: type[OpentabError]) -> Iterator[type[OpentabError]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from subclasses(inner)


COMMANDS = list(walk(cli.commands, "opentab"))


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_stands_in_the_reference_with_its_default(setting: Setting) -> None:
    table = rows(section(text_of("docs/reference.md"), "## Settings"))
    defaults = [row[1] for row in table if row[0] == f"`{setting.name}`"]
    assert defaults == [f"`{setting.default}`"]


def test_no_setting_is_documented_that_does_not_exist() -> None:
    table = rows(section(text_of("docs/reference.md"), "## Settings"))
    named = {row[0].strip("`") for row in table if row[0].startswith("`")}
    assert named == {setting.name for setting in SETTINGS}


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_every_command_and_option_stands_in_the_reference(name: str, command: click.Command) -> None:
    text = section(text_of("docs/reference.md"), f"### {name}")
    # The first cell of an option's row begins with the option, and may name more than one.
    documented = {word for row in rows(text) for word in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", row[0])}
    assert set(options_of(command)) <= documented


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_the_reference_shows_the_defaults_of_options(name: str, command: click.Command) -> None:
    table = rows(section(text_of("docs/reference.md"), f"### {name}"))
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.show_default and not parameter.is_flag:
            row = next(row for row in table if parameter.opts[-1] in re.findall(r"--?[a-z][a-z-]*", row[0]))
            assert f"`{parameter.default}`" in row[1:], (name, parameter.name)


def test_reasons_stand_in_the_wire_in_order_of_precedence() -> None:
    table = rows(section(text_of("docs/wire.md"), "## Rejection reasons"))
    assert [row[0].strip("`") for row in table if row[0].startswith("`")] == [str(reason) for reason in Reason]


def test_the_wires_examples_are_rejected_for_the_reason_they_show(home: Home) -> None:
    table = rows(section(text_of("docs/wire.md"), "## Rejection reasons"))
    shown = {row[0].strip("`"): row[2].strip("`") for row in table if row[2].startswith("`")}
    without_example = {"too_large", "conflicting_duplicate", "reversal_unknown", "reversal_twice", "reversal_mismatch"}
    assert set(shown) == {str(reason) for reason in Reason} - without_example
    arrived_us = to_us(datetime(2026, 2, 1, tzinfo=UTC))
    for reason, line in shown.items():
        verdict = judge(line.encode(), arrived_us=arrived_us, rules=home.rules, calendar=home.calendar)
        assert isinstance(verdict, Refusal)
        assert verdict.reason == reason


def test_the_systemd_unit_is_right_and_sandboxed(tmp_path: Path) -> None:
    text = text_of("docs/opentab.service")
    for setting in (
        "ProtectSystem=strict",
        "ReadWritePaths=",
        "NoNewPrivileges=yes",
        "PrivateTmp=yes",
        "ProtectHome=yes",
    ):
        assert f"\n{setting}" in text
    if shutil.which("systemd-analyze") is None:
        return
    unit = tmp_path / "opentab.service"
    unit.write_text(re.sub("ExecStart=[^ ]+", f"ExecStart={sys.executable}", text))
    for question in (["verify"], ["security", "--offline=true", "--threshold=20"]):
        done = subprocess.run(
            ["systemd-analyze", *question, str(unit)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_threat_model_names_the_limits_that_are_set(home: Home) -> None:
    limits = {row[0]: row[1] for row in rows(section(text_of("docs/threat-model.md"), "## Limits"))}
    assert f"{home['billing.event_bytes_max'] >> 10} KiB" in limits["an event"]
    assert f"nested {NESTING_MAX} deep" in limits["an event"]
    assert limits["a customer's name"].startswith(f"{CUSTOMER_BYTES_MAX} bytes")
    assert limits["a request's headers, path"] == f"{HEADER_BYTES_MAX >> 10} KiB, {PATH_BYTES_MAX >> 10} KiB"
    assert limits["the body of `POST /v1/events`"] == f"{BODY_BYTES_MAX >> 20} MiB, {EVENTS_MAX:,} events"
    assert f"{home['server.request_timeout'].seconds} s" in limits["a request's time"]
    assert f"`server.streams_max`, {home['server.streams_max']} a token" in limits["streams"]
    assert f"{STREAMS_MAX:,} a worker" in limits["streams"]
    under_way = UNDER_WAY_BYTES_MAX >> 20, UNDER_WAY_HOLDER_BYTES_MAX >> 20
    assert limits["bodies under way"] == "{} MiB a worker, {} MiB a token".format(*under_way)
    turns = RUNNING_MAX, WAITING_MAX, HOLDER_MAX
    assert limits["reads of the ledger"] == "{} at a time and {} waiting a worker, {} a token".format(*turns)


def test_every_exit_code_stands_in_operating() -> None:
    table = rows(section(text_of("docs/operating.md"), "## Exit codes"))
    raised = {row[0]: row[2] for row in table}
    for error in subclasses(OpentabError):
        assert f"`{error.__name__}`" in raised[str(error.exit_code)], error.__name__
    for code in (base.OK, base.DIFFERENT, cli.OUR_BUG, cli.INTERRUPTED):
        assert str(code) in raised


def test_no_error_is_documented_that_does_not_exist() -> None:
    table = rows(section(text_of("docs/operating.md"), "## Exit codes"))
    named = {name for row in table for name in re.findall(r"`([A-Z]\w+)`", row[2])}
    assert all(hasattr(errors, name) for name in named), named


def test_every_cause_of_slow_or_late_batches_stands_in_operating_with_what_helps() -> None:
    table = rows(section(text_of("docs/operating.md"), "## Why batches are slow or late"))
    causes = [row for row in table if row[0] not in {"cause", "---"}]
    assert sorted(row[0] for row in causes) == sorted(Name)
    settings = {name for row in causes for name in re.findall(r"`([a-z]+\.[a-z_.]+)`", row[2])}
    assert {name for name in settings if not name.startswith("spark.")} <= {setting.name for setting in SETTINGS}


def test_every_crash_moment_is_named() -> None:
    text = section(text_of("CONTRIBUTING.md"), "## Crash moments")
    assert {name for name in crash.MOMENTS if f"`{name}`" not in text} == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    for target in LINK.findall(document.read_text(encoding="utf-8")):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, target


def test_every_package_and_module_is_named_in_the_architecture() -> None:
    text = text_of("ARCHITECTURE.md")
    source = ROOT / "src" / "opentab"
    packages = [f"{path.parent.name}/" for path in source.glob("*/__init__.py")]
    modules = [path.name for path in source.glob("*.py") if path.stem != "__init__"]
    inner = [path.name for path in source.glob("billing/*.py") if path.stem != "__init__"]
    assert [name for name in (*packages, *modules, *inner) if name not in text] == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_every_verb_of_make_exists(name: str) -> None:
    verbs = set(re.findall(r"^([a-z]+):", text_of("Makefile"), re.MULTILINE))
    code = re.findall(r"`make ([a-z]+)`|^    (?:\$ )?make ([a-z]+)", text_of(name), re.MULTILINE)
    assert code
    assert {word for pair in code for word in pair if word} <= verbs


def test_every_command_that_the_readme_shows_exists() -> None:
    shown = set(re.findall(r"\.venv/bin/opentab ([a-z]+)", text_of("README.md")))
    assert shown
    assert shown <= set(cli.commands.list_commands(click.Context(cli.commands)))


# docs/performance.md is made of its text and of what the bench measured.
TEXT = performance_page.TEXT.read_text(encoding="utf-8")
DOCUMENT = read_figures(performance_page.BENCH)
FIGURES = DOCUMENT.figures
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
GOAL = re.compile(r"[≥≤] [\d,.]+")


def test_the_performance_page_is_made_of_the_bench() -> None:
    assert text_of("docs/performance.md") == performance_page.page(TEXT, DOCUMENT), "make performance was not run"


def test_no_measured_number_in_its_tables_is_written_by_hand() -> None:
    lines = TEXT.splitlines()
    heads = {number - 1 for number, line in enumerate(lines) if line.startswith("|---")}
    table = [line for number, line in enumerate(lines) if line.startswith("|") and number not in heads]
    assert sum(len(performance_page.ASKED.findall(line)) for line in table) > 200
    for line in table:
        # The first cell says what was measured; a goal is not a measurement.
        cells = re.split(r"(?<!\\)\|", performance_page.ASKED.sub("", line))[2:-1]
        assert NUMBER.findall(GOAL.sub("", " | ".join(cells))) == [], line


def test_a_goal_that_was_missed_is_called_missed() -> None:
    told = {name for name, what in performance_page.ASKED.findall(section(TEXT, "## All of it")) if what == " ?"}
    assert {figure.name for figure in FIGURES if figure.met is False} <= told


@pytest.mark.parametrize(
    "peer",
    ["Flink SQL, heap state", "Flink SQL, RocksDB state", "Spark's aggregation, RocksDB state", "Spark to Redis"],
)
def test_the_readme_says_what_the_bench_measured(peer: str) -> None:
    ratios = []
    for customers in ("100", "1,000,000"):
        (value,) = [
            f.value for f in FIGURES if f.name == f"peers: opentab, end to end to {peer}, {customers} customers"
        ]
        ratios.append(f"{value:.0f}x" if value >= 10 else f"{value:.1f}x")
    assert f"| {peer} | {' | '.join(ratios)} |" in text_of("README.md")
