"""The commands as a user or a script meets them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import pyarrow as pa
import pytest

from ledgers import bill, new_home
from opentab.billing.run import Pipeline
from opentab.cli import base, commands
from opentab.core.errors import InputError
from opentab.runtime import config, terminal
from opentab.runtime.config import Home
from product import OPENTAB, event, json_lines, opentab


@pytest.fixture(scope="module")
def billed(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> Home:
    """A home with a few events, rejections and two log partitions."""
    home = config.load(tmp_path_factory.mktemp("billed"))
    good = [
        event("emma", "1.25"),
        event('c/3 "x" 😀', "-0.5", type="DATA"),
        event("emma", "2", time="2026-02-03T00:00:00+01:00"),
    ]
    opentab("ingest", home=home, stdin="\n".join(good))
    bad = home.path / "bad.jsonl"
    bad.write_bytes(b"nonsense\r\n\xff\xfe\n" + event("", "1").encode() + b"\n" + b'{"half":')
    opentab("ingest", bad, "--partition", "files", home=home)
    Pipeline(home, once=True, spark=spark).run()
    return home


def test_totals_as_json(billed: Home) -> None:
    rows = json_lines(opentab("totals", "--format", "json", home=billed).stdout)
    assert [(r["period"], r["customer"], r["total"]) for r in rows] == [
        ("2026-01", 'c/3 "x" 😀', "-0.500000"),
        ("2026-01", "emma", "1.250000"),
        ("2026-02", "emma", "2.000000"),
    ]
    assert rows[1] == {
        "period": "2026-01", "customer": "emma", "status": "closed", "total": "1.250000",
        "types": {"CALL": "1.250000"}, "adjustments": [], "events": 1, "position": 1,
        "watermark": "2026-02-02T11:00:00.000Z",
    }  # fmt: skip
    narrowed = json_lines(
        opentab("totals", "--format", "json", "--period", "2026-02", "--customer", "emma", home=billed).stdout
    )
    assert narrowed == rows[2:]
    by_type = json_lines(
        opentab("totals", "--by", "type", "--period", "2026-01", "--format", "json", home=billed).stdout
    )
    assert [(r["type"], r["total"], r["events"]) for r in by_type] == [
        ("CALL", "1.250000", 1),
        ("DATA", "-0.500000", 1),
    ]


def test_totals_as_table_and_csv(billed: Home) -> None:
    table = opentab("totals", home=billed).stdout
    assert "\x1b" not in table, "colours are for terminals"
    assert "EUR, position 1, watermark 2026-02-02T11:00:00.000Z" in table
    rows = list(csv.DictReader(io.StringIO(opentab("totals", "--format", "csv", home=billed).stdout)))
    assert rows[0]["customer"] == 'c/3 "x" 😀'
    assert rows[1]["CALL"] == "1.250000"


def test_rejections(billed: Home, tmp_path: Path) -> None:
    rows = json_lines(opentab("rejections", "--format", "json", home=billed).stdout)
    assert [(r["reason"], r["raw"]) for r in rows] == [
        ("not_json", "nonsense\r"), ("not_json", "\\xff\\xfe"), ("bad_customer", event("", "1")), ("not_json", '{"half":'),
    ]  # fmt: skip
    assert rows[1]["raw_base64"] == "//4="
    assert set(rows[0]) == {"batch", "reason", "place", "raw", "detail"}
    only = json_lines(opentab("rejections", "--reason", "bad_customer", "--format", "json", home=billed).stdout)
    assert only == rows[2:3]
    opentab("rejections", "--export", tmp_path / "mend.jsonl", home=billed)
    assert (tmp_path / "mend.jsonl").read_bytes().startswith(b"nonsense\r\n\xff\xfe\n")
    assert "bad_customer 1" in opentab("rejections", home=billed).stdout
    assert opentab("rejections", "--reason", "ugly", home=billed, check=False).returncode == 2


def test_sql(billed: Home) -> None:
    (row,) = json_lines(
        opentab("sql", "select sum(amount_micros)::bigint s from entries", "--format", "json", home=billed).stdout
    )
    assert row == {"s": 2_750_000}
    assert "batch" in opentab("sql", "select batch, event_count from batches", home=billed).stdout
    for query in (
        "select * from read_csv('/etc/passwd')",
        "selec",
        "",
        "select * from nowhere",
        "copy entries to 'x.csv'",
    ):
        wrong = opentab("sql", query, home=billed, check=False)
        assert wrong.returncode == 2, query
        assert "views are" in wrong.stderr or "empty" in wrong.stderr


def test_tail(billed: Home) -> None:
    lines = opentab("tail", "--no-follow", "-n", "100", home=billed).stdout.splitlines()
    assert len(lines) == 7
    assert any("emma" in line and "1.250000" in line for line in lines)
    assert any(line.startswith("not_json") for line in lines)
    assert opentab("tail", "--no-follow", "--raw", "-n", "1", home=billed).stdout == '{"half":\n'


def test_tail_follows(tmp_path: Path) -> None:
    home = tmp_path / "home"
    opentab("ingest", home=home, stdin=event("before"))
    process = subprocess.Popen([*OPENTAB, "tail", "--home", str(home)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "before" in process.stdout.readline()
    opentab("ingest", home=home, stdin=event("after"))
    assert "after" in process.stdout.readline()
    process.terminate()
    process.communicate()


def test_trace_leads_to_the_raw_bytes(billed: Home) -> None:
    (line,) = json_lines(
        opentab("trace", "--period", "2026-01", "--customer", "emma", "--format", "json", home=billed).stdout
    )
    assert (line["amount"], line["events"], line["segments"]) == ("1.250000", 1, "default/1 files/1")
    (found,) = json_lines(
        opentab(
            "trace", "--period", "2026-01", "--customer", "emma", "--events", "--format", "json", home=billed
        ).stdout
    )
    partition, _, rest = str(found["place"]).partition("/")
    number, _, at = rest.partition("@")
    (path,) = billed.log_path.rglob(f"*{partition}*{int(number):09d}.seg")
    assert json.loads(path.read_bytes()[int(at) :].splitlines()[0])["customer"] == "emma"
    assert opentab("trace", "--period", "2026-01", "--customer", "nobody", home=billed, check=False).returncode == 1


def test_verify_agrees_and_says_so(billed: Home) -> None:
    assert "The ledger agrees with the log: 3 events, 4 rejections" in opentab("verify", home=billed).stdout


def test_verify_finds_a_changed_ledger(billed: Home, tmp_path: Path) -> None:
    import shutil

    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from opentab.core.records import ENTRY
    from opentab.runtime.storage import Place
    from opentab.tables.files import stage

    shutil.copytree(billed.path, tmp_path / "home")
    for file in (tmp_path / "home/ledger/journal/kind=entry").glob("*.parquet"):
        table = pq.read_table(file, partitioning=None)
        at = table.schema.get_field_index("amount_micros")
        table = table.set_column(at, "amount_micros", pc.add(table["amount_micros"], 1)).cast(ENTRY)
        # Whole, with checksums that agree: the audit has to find it by itself.
        other = stage(Place.of(tmp_path), "entry", table, run="other", batches=(1, 1))
        (tmp_path / other.path).replace(file)
    wrong = opentab("verify", home=tmp_path / "home", check=False)
    assert wrong.returncode == 1
    assert "DIFFERS" in wrong.stdout
    assert "emma" in wrong.stdout


def test_an_empty_home_answers(tmp_path: Path) -> None:
    assert opentab("totals", "--format", "json", home=tmp_path).stdout == ""
    assert opentab("rejections", "--format", "json", home=tmp_path).stdout == ""
    assert "position 0" in opentab("totals", home=tmp_path).stdout
    assert json_lines(opentab("sql", "select count(*) n from entries", "--format", "json", home=tmp_path).stdout) == [
        {"n": 0}
    ]
    assert "nothing new in the log; position 0" in opentab("run", "--once", home=tmp_path).stderr


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("totals", "--period", "January"), 2, "'January' is not a period"),
        (("totals", "--home", "/nowhere/at/all"), 2, "there is no home at /nowhere/at/all"),
        (("ingest", "/nowhere.jsonl"), 2, "/nowhere.jsonl cannot be read"),
        (("ingest", "--partition", "a/b"), 2, "cannot name a log partition"),
        (("generate", "--lag", "soon"), 2, "--lag 'soon' is no duration"),
        (("generate", "--late", "2"), 2, "late"),
        (("verify",), 2, "nothing was billed yet"),
        (("init", "--home", "/dev/null/x"), 1, "/dev/null"),
        (("frobnicate",), 2, "No such command"),
    ],
)
def test_trouble_is_one_sentence(tmp_path: Path, args: tuple[str, ...], code: int, says: str) -> None:
    wrong = opentab(*args, home=None if "--home" in args else tmp_path, check=False)
    assert wrong.returncode == code, wrong
    assert says in wrong.stderr


def test_a_wrong_setting_is_named_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "opentab.toml").write_text('[billing]\nzone = "Mars"\n')
    for command in (("run", "--once"), ("totals",), ("ingest",)):
        wrong = opentab(*command, home=tmp_path, check=False)
        assert wrong.returncode == 2
        assert "billing.zone 'Mars' is not a time zone" in wrong.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["opentab.toml"]


def test_no_java_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from opentab.runtime import java

    monkeypatch.setattr(java, "_candidates", list)
    with pytest.raises(java.MachineError, match="Spark needs Java 17 or 21"):
        java.find_java()


def test_init_writes_every_setting(tmp_path: Path) -> None:
    opentab("init", home=tmp_path / "home")
    text = (tmp_path / "home" / "opentab.toml").read_text()
    assert all(f"# {setting.key} = {setting.default}" in text for setting in config.SETTINGS)
    assert opentab("init", home=tmp_path / "home", check=False).returncode == 2


def test_init_takes_the_currency_and_the_types(tmp_path: Path) -> None:
    path = tmp_path / "home"
    opentab("init", "--currency", "USD", "--type", "request", "--type", "token", home=path)
    home = config.load(path)
    assert (home["billing.currency"], home["billing.types"]) == ("USD", ("request", "token"))
    wrong = opentab("init", "--currency", "dollars", home=tmp_path / "other", check=False)
    assert (wrong.returncode, (tmp_path / "other").exists()) == (2, False)
    assert "billing.currency = 'dollars' is wrong" in wrong.stderr


def test_doctor(tmp_path: Path) -> None:
    assert "Java" in opentab("doctor", home=tmp_path).stdout


def test_ingest_returns_when_durable_and_streams_what_comes_slowly(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*OPENTAB, "ingest", "--home", str(tmp_path)], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write((event() + "\n" + '{"half').encode())
    process.stdin.flush()
    deadline = time.monotonic() + 30
    while not list((tmp_path / "log" / "incoming").glob("*.seg")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    _, stderr = process.communicate()
    assert b"2 lines are in the log" in stderr
    assert len(list((tmp_path / "log" / "incoming").glob("*.seg"))) == 2


def test_ingest_of_empty_files(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert "0 lines" in opentab("ingest", tmp_path / "empty", home=tmp_path / "home").stderr


def test_a_reader_that_goes_away_is_no_trouble(billed: Home) -> None:
    command = " ".join(
        [*OPENTAB, "sql", "'select * from range(1000000)'", "--format", "csv", "--home", str(billed.path), "| head -1"]
    )
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True, env={**os.environ})
    assert done.stderr == ""


def test_generate_writes_lines_and_expected_bills(tmp_path: Path) -> None:
    out = tmp_path / "events.jsonl"
    opentab("generate", "--months", "1", "--events", "50", "--out", out, home=tmp_path / "home")
    assert len(out.read_text().splitlines()) > 400
    assert (tmp_path / "events.jsonl.expected" / "bills.csv").read_text().startswith("period,customer,total")


def test_generate_until_final_goes_on_behind_the_last_month(tmp_path: Path) -> None:
    out = tmp_path / "events.jsonl"
    opentab("generate", "--months", "1", "--events", "50", "--until-final", "--out", out, home=tmp_path / "home")
    assert '"amount":"0.000000"' in out.read_text().splitlines()[-1]


def test_totals_of_a_range_of_days(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    bill(
        home,
        event("ann", "1.00", "2026-01-10T12:00:00Z", "CALL"),
        event("ann", "2.00", "2026-01-11T12:00:00Z", "DATA"),
        event("bob", "4.00", "2026-02-01T12:00:00Z", "DATA"),
    )
    rows = json_lines(
        opentab("totals", "--from", "2026-01-11", "--to", "2026-02-01", "--format", "json", home=home).stdout
    )
    assert [(r["from"], r["to"], r["customer"], r["total"], r["types"]) for r in rows] == [
        ("2026-01-11", "2026-02-01", "ann", "2.000000", {"DATA": "2.000000"}),
        ("2026-01-11", "2026-02-01", "bob", "4.000000", {"DATA": "4.000000"}),
    ]
    by_type = json_lines(opentab("totals", "--to", "2026-01-31", "--by", "type", "--format", "json", home=home).stdout)
    assert [(r["type"], r["total"], r["events"]) for r in by_type] == [("CALL", "1.000000", 1), ("DATA", "2.000000", 1)]
    assert (
        opentab("totals", "--from", "2026-01-11", "--format", "csv", home=home)
        .stdout.splitlines()[1]
        .startswith("ann,2.0")
    )
    wrong = opentab("totals", "--from", "2026-02-30", home=home, check=False)
    assert (wrong.returncode, "'2026-02-30' is not a day" in wrong.stderr) == (2, True)


def test_invoices_and_periods_on_a_terminal(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", '[billing]\nout_of_orderness = "0s"\n')
    empty = opentab("invoices", home=home)
    assert empty.stdout.splitlines()[1] == "EUR, 0 invoices, issued up to position 0"
    assert opentab("periods", "--format", "json", home=home).stdout == ""
    bill(home, event("ann", "5.005", "2026-01-10T00:00:00Z"))
    bill(home, event("bob", "1.00", "2026-02-01T00:00:00Z"))
    bill(home, event("ann", "2.00", "2026-01-11T00:00:00Z"))
    preview = json_lines(opentab("invoices", "--preview", "--period", "2026-01", "--format", "json", home=home).stdout)
    assert [(p["revision"], p["total"], p["issued_at"], p["changes"]) for p in preview] == [
        (2, "7.00", None, [{"kind": "usage", "type": "CALL", "amount": "2.000000", "events": 1}])
    ]
    assert (preview[0]["status"], preview[0]["missing"]["for"]) == ("closed", "final")  # type: ignore[index]
    assert "9999-12 is open" in opentab("invoices", "--preview", "--period", "9999-12", home=home).stdout
    shown = opentab("invoices", "--preview", "--period", "2026-01", home=home).stdout
    assert "2026-01 is closed: 1 invoice would be revised" in shown
    assert "it is final with an event of 2026-02-04 00:00Z or later: default is at 2026-02-01 00:00Z" in shown
    bill(home, event("ann", "0.50", "2026-01-11T00:00:00Z"), revise=True)
    latest = json_lines(opentab("invoices", "--period", "2026-01", "--format", "json", home=home).stdout)
    assert [(i["revision"], i["total"], i["previous_total"], i["delta"]) for i in latest] == [
        (2, "7.50", "5.00", "2.50")
    ]
    assert list(latest[0]) == [
        *("period", "customer", "revision", "currency", "total", "previous_total", "delta"),
        *("lines", "position", "issued_at"),
    ]
    every = opentab(
        "invoices", "--all-revisions", "--customer", "ann", "--format", "csv", home=home
    ).stdout.splitlines()
    assert [row.split(",")[:4] for row in every[1:]] == [
        ["2026-01", "ann", "1", "5.00"],
        ["2026-01", "ann", "2", "7.50"],
    ]
    paper = opentab("invoices", "--customer", "ann", "--format", "text", home=home).stdout
    assert "Customer   ann" in paper
    assert "Revision 1 was" in paper
    standings = json_lines(opentab("periods", "--format", "json", home=home).stdout)
    assert [(p["period"], p["status"], p["invoiced"], p["revisions"]) for p in standings] == [
        ("2026-01", "closed", "7.50", 1),
        ("2026-02", "open", "0.00", 0),
    ]
    for wrong in (["--preview"], ["--export", "--customer", "ann"], ["--period", "January"]):
        assert opentab("invoices", *wrong, home=home, check=False).returncode == 2


@pytest.mark.parametrize("name", ["bench", "chaos"])
def test_tools_that_are_not_in_the_wheel_say_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(module: str) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name="opentab_tools")

    monkeypatch.setattr(base, "import_module", not_installed)
    with pytest.raises(InputError, match=f"{name} comes with the source") as caught:
        commands([name, "--anything"], standalone_mode=False)
    assert caught.value.hint == f"clone it and run make {name}"


def test_help_lists_every_command_on_a_line_of_its_own(tmp_path: Path) -> None:
    from opentab.cli.base import TASKS, commands

    shown = opentab("--help").stdout
    named = [name for lines in TASKS.values() for name in lines]
    assert sorted(named) == commands.list_commands(click.Context(commands))
    assert all(f"  {name} " in shown for name in named)
    assert max(map(len, shown.splitlines())) <= 80


def test_completion_and_no_colour(tmp_path: Path) -> None:
    assert "_OPENTAB_COMPLETE" in opentab("completion", "bash").stdout
    with patch("sys.stdout.isatty", lambda: True), patch.dict(os.environ, {"NO_COLOR": ""}):
        assert terminal.paint("x", terminal.RED) != "x"
        os.environ["NO_COLOR"] = "1"
        assert terminal.paint("x", terminal.RED) == "x"


@pytest.mark.parametrize("packed", [gzip.compress, lambda data: pa.compress(data, "zstd", asbytes=True)])
@pytest.mark.parametrize("way", ["file", "stdin"])
def test_compressed_files_and_streams_are_taken_as_such(
    tmp_path: Path, packed: Callable[[bytes], bytes], way: str
) -> None:
    data = packed("".join(event() + "\n" for _ in range(3)).encode())
    (tmp_path / "events").write_bytes(data)
    files = ["--", str(tmp_path / "events")] if way == "file" else []
    done = subprocess.run(
        [*OPENTAB, "ingest", "--home", str(tmp_path / "home"), *files[1:]], input=data, capture_output=True, check=True
    )
    assert b"3 lines are in the log" in done.stderr
    (segment,) = (tmp_path / "home" / "log" / "incoming").glob("*.seg")
    assert segment.read_bytes().count(event().encode()) == 3


@pytest.mark.parametrize("packed", [gzip.compress, lambda data: pa.compress(data, "zstd", asbytes=True)])
def test_a_damaged_archive_is_a_sentence(tmp_path: Path, packed: Callable[[bytes], bytes]) -> None:
    whole = packed(event().encode() * 1000)
    for damaged in (whole[:-9], whole[: len(whole) // 2] + b"\xff" * 9):
        (tmp_path / "events.packed").write_bytes(damaged)
        wrong = opentab("ingest", tmp_path / "events.packed", home=tmp_path / "home", check=False)
        assert wrong.returncode == 2
        assert "events.packed is damaged" in wrong.stderr


def test_a_named_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["sh", "-c", f"exec cat > {tmp_path / 'pipe'}"], stdin=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        writer.stdin.write(f"{event()}\n{event()}\n".encode())
        writer.stdin.close()
        done = opentab("ingest", tmp_path / "pipe", home=tmp_path / "home")
    assert "2 lines are in the log" in done.stderr


def test_ingest_says_at_once_what_will_be_rejected(tmp_path: Path) -> None:
    lines = [event(), event(amount="1e3"), "no json", event(amount="0.5x"), event(type="SMOKE")]
    (tmp_path / "events").write_text("\n".join(lines))
    said = opentab("ingest", tmp_path / "events", home=tmp_path / "home").stderr
    assert "2 lines will be rejected: bad_amount. The first is line 2" in said
    assert "1 line will be rejected: not_json. The first is line 3" in said
    assert "1 line will be rejected: unknown_type. The first is line 5" in said
    assert "5 lines are in the log" in said
    assert "reject" not in opentab("ingest", tmp_path / "none", home=tmp_path / "home", check=False).stderr


def test_what_is_asked_wrongly_is_said(billed: Home) -> None:
    for options, says in (
        (("--customer", "nobody"), "nothing was billed to a customer 'nobody'"),
        (("--customer", "nobody", "--format", "json"), "nothing was billed to a customer 'nobody'"),
        (("--from", "2026-02-01", "--to", "2026-01-01"), "--from 2026-02-01 is after --to 2026-01-01"),
    ):
        wrong = opentab("totals", *options, home=billed, check=False)
        assert wrong.returncode == 2 and says in wrong.stderr, options
