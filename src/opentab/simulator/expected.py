"""The bills that the simulator knows to be right, beside the home they belong to.

    expected/bills.csv        period,customer,total
    expected/types.csv        period,type,total,events
    expected/rejections.csv   reason,count
    expected/plan.json        the options of every run, in order

They come from the plan alone and are written before the first event is. A later run adds to them:
other periods come along, the same period sums up.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from opentab.core.errors import DiskFull, InputError, LogError, means_disk_full
from opentab.core.events import Reason
from opentab.core.money import format_micros
from opentab.core.periods import Period
from opentab.runtime.csv_cells import guarded, unguarded
from opentab.runtime.disk import sync
from opentab.simulator.telecom import BAD_REASONS, MonthTally, Telecom, bills_micros, customer_names

BILLS = "bills.csv"
TYPES = "types.csv"
REJECTIONS = "rejections.csv"
PLAN = "plan.json"

TOTAL = re.compile(r"([0-9]+)\.([0-9]{6})")
Keys = tuple[str, ...]  # period and customer, say
Numbers = tuple[int, ...]  # a total in micros, or a count


def add_expected(path: Path, telecom: Telecom, months: Sequence[MonthTally]) -> int:
    """Add what the telecom will write to the files in `path`; returns how many runs went before.

    Each file is replaced at once or not at all.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with (path / ".lock").open("wb") as lock:
            # Two runs at once would each miss the other's sums.
            fcntl.flock(lock, fcntl.LOCK_EX)
            return _add_locked(path, telecom, months)
    except OSError as error:
        if means_disk_full(error):
            raise DiskFull(str(path)) from error
        raise LogError(f"the expected bills in {path} cannot be written: {error.strerror}") from error


def read_bills(path: Path) -> dict[tuple[Period, str], int]:
    """The expected total in micros by period and customer; `path` is the file or its directory."""
    file = path / BILLS if path.is_dir() else path
    if not file.exists():
        raise InputError(f"there are no expected bills at {file}", hint="opentab generate writes them")
    return {(period, customer): total for (period, customer), (total,) in _read(file, ["period", "customer", "total"])}


def read_rejections(path: Path) -> dict[Reason, int]:
    """How many inputs are expected to be rejected, by reason."""
    file = path / REJECTIONS if path.is_dir() else path
    return {Reason(reason): count for (reason,), (count,) in _read(file, ["reason", "count"])}


def _add_locked(path: Path, telecom: Telecom, months: Sequence[MonthTally]) -> int:
    runs = _runs(path / PLAN)
    run = asdict(telecom.plan) | {"run": len(runs), "periods": list(telecom.periods)}
    plan = json.dumps({"runs": [*runs, run]}, indent=2, default=_json) + "\n"
    _add(path / BILLS, ["period", "customer", "total"], _bills(telecom, months))
    _add(path / TYPES, ["period", "type", "total", "events"], _types(telecom, months))
    _add(path / REJECTIONS, ["reason", "count"], _rejections(months))
    _replace(path / PLAN, lambda aside: aside.write_text(plan, encoding="utf-8"))
    return len(runs)


def _bills(telecom: Telecom, months: Sequence[MonthTally]) -> Iterator[tuple[Keys, Numbers]]:
    """Everyone's bill in each of the plan's months; behind them, a bill of nothing for whoever ticks."""
    count = telecom.plan.customers
    customers = [name.decode() for name in customer_names(count).tolist()]
    bills = sorted(zip(customers, bills_micros(count).tolist(), strict=True))
    ticking = sorted(customers[index] for index in telecom.tick_customers())
    for period in telecom.periods:
        yield from (((period, customer), (total,)) for customer, total in bills)
    for month in months:
        if month.is_trickle:
            yield from (((month.period, customer), (0,)) for customer in ticking)


def _types(telecom: Telecom, months: Sequence[MonthTally]) -> Iterator[tuple[Keys, Numbers]]:
    for month in months:
        for kind, micros, events in zip(telecom.rules.types, month.type_micros, month.type_events, strict=True):
            if events or not month.is_trickle:
                yield (month.period, kind), (micros, events)


def _rejections(months: Sequence[MonthTally]) -> Iterator[tuple[Keys, Numbers]]:
    """The bad rows' reasons take turns over all months, so their counts follow from how many there are."""
    rounds, rest = divmod(sum(month.bad_count for month in months), len(BAD_REASONS))
    for index, reason in enumerate(BAD_REASONS):
        yield (str(reason),), (rounds + (index < rest),)
    conflicts = sum(month.conflict_count for month in months)
    if conflicts:
        yield (str(Reason.CONFLICTING_DUPLICATE),), (conflicts,)


def _add(file: Path, columns: list[str], added: Iterator[tuple[Keys, Numbers]]) -> None:
    """Replace a file by one that has its rows and what is added, summed up."""
    sums = dict(_read(file, columns)) if file.exists() else {}
    for keys, numbers in added:
        known = sums.get(keys)
        sums[keys] = tuple(map(sum, zip(known, numbers, strict=True))) if known else numbers
    rows = list(sums.items())
    if "period" in columns:
        rows.sort(key=lambda row: row[0][0])  # within a period, customers and types stay in their order

    def write(aside: Path) -> None:
        with aside.open("w", encoding="utf-8", newline="") as out:
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows((*map(guarded, keys), *_texts(columns, numbers)) for keys, numbers in rows)

    _replace(file, write)


def _texts(columns: list[str], numbers: Numbers) -> Iterator[str]:
    names = columns[-len(numbers) :]
    for name, number in zip(names, numbers, strict=True):
        yield format_micros(number) if name == "total" else str(number)


def _read(file: Path, columns: list[str]) -> Iterator[tuple[Keys, Numbers]]:
    """The rows of a file; its first columns are keys, and the others numbers."""
    key_count = len([name for name in columns if name in {"period", "customer", "type", "reason"}])
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            rows = csv.reader(lines, strict=True)
            if next(rows, None) != columns:
                raise ValueError(f"its columns are not {', '.join(columns)}")
            for row in rows:
                texts = zip(columns[key_count:], row[key_count:], strict=True)
                yield tuple(map(unguarded, row[:key_count])), tuple(_number(name, text) for name, text in texts)
    except (ValueError, csv.Error) as error:
        raise InputError(f"{file} is not what the simulator wrote: {error}", hint="remove the file") from error


def _number(name: str, text: str) -> int:
    if name != "total":
        return int(text)
    total = TOTAL.fullmatch(text)
    if total is None:
        raise ValueError(f"{text!r} is not a total with six decimals")
    return int(total[1] + total[2])


def _runs(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    try:
        return list(json.loads(file.read_bytes())["runs"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is not what the simulator wrote", hint="remove the file") from error


def _replace(file: Path, write: Callable[[Path], Any]) -> None:
    aside = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        write(aside)
        with aside.open("rb") as written:
            os.fsync(written.fileno())
        aside.rename(file)
    finally:
        aside.unlink(missing_ok=True)
    sync(file.parent)


def _json(value: object) -> str:
    if isinstance(value, timedelta):
        return f"{value // timedelta(milliseconds=1)}ms"
    raise TypeError(f"{type(value).__name__} has no JSON form")
