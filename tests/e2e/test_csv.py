"""Whatever a customer is called, no CSV of ours runs in a spreadsheet, and no output disturbs a terminal."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ledgers import SETTINGS, bill, new_home
from opentab.api.answers import Invoices
from opentab.billing.delivery import deliver
from opentab.core.periods import Calendar
from opentab.runtime.config import Home
from opentab.runtime.csv_cells import NUMBER, guarded, guarded_sql, unguarded
from opentab.server.renderers import form_wanted
from opentab.simulator.generator import Plan, generate
from product import event, json_lines, opentab

NAMES = ["=1+1", "+49171", "-2+3", "@x", "'=y", "-5", "'z", "ann"]
BEHIND = ["'=1+1", "'+49171", "'-2+3", "'@x", "''=y", "-5", "'z", "ann"]


@pytest.fixture(scope="module")
def billed(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = new_home(tmp_path_factory.mktemp("csv") / "home", SETTINGS + 'types = ["CALL", "-x"]\n')
    lines = [event(name, "-1.005", "2026-01-10T00:00:00Z") for name in NAMES]
    # Control characters as they are, and what UTF-8 makes of one above 0x7f.
    bad = ["=cmd\x1b[2J\t|' /c calc'!A0", "\x9b1mé\u2028\u202e", "\tx\ry"]
    bill(home, *lines, event("ann", "1", "2026-01-10T00:00:00Z", "-x"), *bad)
    bill(home, event("zoe", "1.00", "2026-02-05T00:00:00Z"), revise=True)
    return home


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


@settings(max_examples=500)
@given(st.text(st.sampled_from("=+-@\t\r'.0a\n\ud7ff"), max_size=6))
@example("-1\n")
def test_a_guarded_text_is_no_formula_and_can_be_read_again(text: str) -> None:
    cell = guarded(text)
    assert cell[:1] not in ("=", "+", "-", "@", "\t", "\r") or re.fullmatch(NUMBER, cell)
    assert unguarded(cell) == text or re.fullmatch(NUMBER, text)
    (found,) = duckdb.execute(f"select {guarded_sql('t')} from (select ? as t)", [text]).fetchone() or ()
    assert found == cell


@pytest.mark.parametrize(
    "command", [("totals",), ("invoices",), ("sql", "select distinct customer from entries order by 1")]
)
def test_commands(billed: Home, command: tuple[str, ...]) -> None:
    rows = rows_of(opentab(*command, "--format", "csv", home=billed).stdout)
    assert {row["customer"] for row in rows} - {"zoe"} == set(BEHIND)
    if command == ("totals",):
        assert rows[0]["total"] == "-1.005000" and "'-x" in rows[0], "numbers stay, and names of columns are texts, too"


def test_the_server(billed: Home) -> None:
    fresh = {"position": 1, "invoices_position": 1, "watermark": None, "as_of": None, "staleness_ms": None}
    items = json_lines(opentab("invoices", "--format", "json", home=billed).stdout)
    body = msgspec.convert({"items": items, "source": "replica", **fresh}, Invoices)
    rows = rows_of(form_wanted("csv", None, Calendar("UTC")).write(body).decode())
    assert {row["customer"] for row in rows} - {"zoe"} == set(BEHIND)
    assert {row["type"] for row in rows} == {"CALL", "'-x"}
    assert rows[0]["amount"] == "-1.005000"


def test_invoice_files_of_earlier_versions_are_still_right(billed: Home) -> None:
    deliver(billed)
    for name, header in (("2026-01/invoices-000000002.csv", "customer"), ("2026-01/lines/lines-000000002.csv", "type")):
        file = billed.invoices_path / name
        assert {row["customer"] for row in rows_of(file.read_text())} == set(BEHIND)
        opentab("verify", "--no-expected", home=billed)
        now = file.read_bytes()
        earlier = re.sub(rb"'('*[=+@-])", rb"\1", now)
        assert earlier != now
        file.write_bytes(earlier)
        opentab("verify", "--no-expected", home=billed)
        file.write_bytes(now.replace(b"'=1", b"'=2"))
        assert opentab("verify", "--no-expected", home=billed, check=False).returncode == 1, header
        file.write_bytes(now)


def test_rejections_disturb_no_terminal(billed: Home) -> None:
    for format_ in ("csv", "json"):
        text = opentab("rejections", "--format", format_, home=billed).stdout
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]", text), format_
    raws = [row["raw"] for row in json_lines(text)]
    assert raws == ["=cmd\x1b[2J\t|' /c calc'!A0", "\x9b1mé\u2028\u202e", "\tx\ry"], "JSON says the same as before"
    cells = [row["raw"] for row in rows_of(opentab("rejections", "--format", "csv", home=billed).stdout)]
    assert cells == ["'=cmd\\x1b[2J\\t|' /c calc'!A0", "\\x9b1mé\\u2028\\u202e", "\\tx\\ry"]


def test_expected_bills_are_read_as_they_were_meant(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", '[billing]\ntypes = ["-x", "CALL"]\n')
    plan = Plan(months=1, events_per_customer=50)
    for _ in range(2):
        generate(plan, home)
    types = [row["type"] for row in rows_of((home.expected_path / "types.csv").read_text())]
    assert types == ["'-x", "CALL"]


def test_the_audit_reads_names_without_the_apostrophe(billed: Home) -> None:
    billed.expected_path.mkdir()
    bills = [["period", "customer", "total"], *(["2026-01", guarded(name), "-1.005000"] for name in NAMES[:-1])]
    bills += [["2026-01", "ann", "-0.005000"], ["2026-02", "zoe", "1.000000"]]
    with (billed.expected_path / "bills.csv").open("w", newline="") as file:
        csv.writer(file).writerows(bills)
    opentab("verify", home=billed)


def test_any_json_is_the_same_object(capsys: Any) -> None:
    from opentab.runtime.terminal import print_json

    said = {"a": "".join(map(chr, range(0x250))) + "\u2028\u2029\u202e", "b": [1, None, {"c": "'\\\""}]}
    print_json([said])
    text = capsys.readouterr().out
    assert json.loads(text) == said == msgspec.json.decode(text)
