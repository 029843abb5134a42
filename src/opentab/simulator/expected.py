"""The bills that the simulator knows to be right, beside the home they belong to.

    expected/bills.csv        period,customer,total
    expected/types.csv        period,type,total,events
    expected/rejections.csv   reason,count
    expected/plan.json        the options of every run, in order

They come from the plan alone and are written before the first event is. A later run adds to them:
other periods come along, the same period sums up.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl

from opentab.core.errors import DiskFull, InputError, LogError, means_disk_full
from opentab.core.events import Reason
from opentab.core.periods import Period
from opentab.runtime.disk import sync
from opentab.simulator.telecom import BAD_REASONS, MonthTally, Telecom, bills_micros, customer_names

BILLS = "bills.csv"
TYPES = "types.csv"
REJECTIONS = "rejections.csv"
PLAN = "plan.json"


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
    frame = _read(file, ["period", "customer", "total"])
    keys = zip(frame["period"], frame["customer"], strict=True)
    return dict(zip(keys, frame["total"].to_list(), strict=True))


def read_rejections(path: Path) -> dict[Reason, int]:
    """How many inputs are expected to be rejected, by reason."""
    file = path / REJECTIONS if path.is_dir() else path
    frame = _read(file, ["reason", "count"])
    return {Reason(reason): count for reason, count in frame.iter_rows()}


def _add_locked(path: Path, telecom: Telecom, months: Sequence[MonthTally]) -> int:
    runs = _runs(path / PLAN)
    run = asdict(telecom.plan) | {"run": len(runs), "periods": list(telecom.periods)}
    plan = json.dumps({"runs": [*runs, run]}, indent=2, default=_json) + "\n"
    _replace(path / BILLS, _sum(path / BILLS, _bills(telecom, months), ["period", "customer"]).write_csv)
    _replace(path / TYPES, _sum(path / TYPES, _types(telecom, months), ["period", "type"]).write_csv)
    _replace(path / REJECTIONS, _sum(path / REJECTIONS, _rejections(months), ["reason"]).write_csv)
    _replace(path / PLAN, lambda aside: aside.write_text(plan, encoding="utf-8"))
    return len(runs)


def _bills(telecom: Telecom, months: Sequence[MonthTally]) -> pl.DataFrame:
    """Everyone's bill in each of the plan's months; behind them, a bill of nothing for whoever ticks."""
    count = telecom.plan.customers
    customers = pl.Series("customer", customer_names(count).tolist(), dtype=pl.Binary).cast(pl.String)
    bills = pl.DataFrame([customers, pl.Series("total", bills_micros(count))])
    ticking = bills[telecom.tick_customers().tolist()].with_columns(total=pl.lit(0, pl.Int64))
    trickle = [month.period for month in months if month.is_trickle]
    return pl.concat([_in_each(telecom.periods, bills), _in_each(trickle, ticking)])


def _in_each(periods: Sequence[Period], bills: pl.DataFrame) -> pl.DataFrame:
    frame = pl.DataFrame({"period": list(periods)}, schema={"period": pl.String})
    return frame.join(bills.sort("customer"), how="cross")


def _types(telecom: Telecom, months: Sequence[MonthTally]) -> pl.DataFrame:
    rows = [
        (month.period, kind, micros, events)
        for month in months
        for kind, micros, events in zip(telecom.rules.types, month.type_micros, month.type_events, strict=True)
        if events or not month.is_trickle
    ]
    names = {"period": pl.String, "type": pl.String, "total": pl.Int64, "events": pl.Int64}
    return pl.DataFrame(rows, schema=names, orient="row")


def _rejections(months: Sequence[MonthTally]) -> pl.DataFrame:
    """The bad rows' reasons take turns over all months, so their counts follow from how many there are."""
    rounds, rest = divmod(sum(month.bad_count for month in months), len(BAD_REASONS))
    rows = [(str(reason), rounds + (index < rest)) for index, reason in enumerate(BAD_REASONS)]
    conflicts = sum(month.conflict_count for month in months)
    if conflicts:
        rows.append((str(Reason.CONFLICTING_DUPLICATE), conflicts))
    return pl.DataFrame(rows, schema={"reason": pl.String, "count": pl.Int64}, orient="row")


def _sum(file: Path, added: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """What the file holds and what is added, as the text of a new file."""
    frame = added
    if file.exists():
        frame = pl.concat([_read(file, added.columns), added]).group_by(keys, maintain_order=True).sum()
    if "period" in keys:
        # Periods in order; within one, customers and types stay in theirs.
        frame = frame.sort("period", maintain_order=True)
    if "total" not in frame.columns:
        return frame
    units, rest = pl.col("total") // 1_000_000, pl.col("total") % 1_000_000
    text = pl.concat_str(units.cast(pl.String), pl.lit("."), rest.cast(pl.String).str.zfill(6))
    return frame.with_columns(text.alias("total"))


def _read(file: Path, columns: list[str]) -> pl.DataFrame:
    texts = {"period", "customer", "type", "reason", "total"}
    schema = {name: pl.String if name in texts else pl.Int64 for name in columns}
    try:
        frame = pl.read_csv(file, schema=schema)
        if "total" not in columns:
            return frame
        if not frame["total"].str.contains(r"^\d+\.\d{6}$").all():
            raise InputError(f"{file} has a total without six decimals", hint="remove the file")
        micros = pl.col("total").str.replace(".", "", literal=True).cast(pl.Int64)
        return frame.with_columns(micros)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{file} is not what the simulator wrote: {error}", hint="remove the file") from error


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
