"""Ad-hoc SQL over the ledger, by DuckDB; it can read the views and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow.dataset as ds

from opentab.core.errors import InputError
from opentab.core.records import KINDS
from opentab.ledger import balances
from opentab.ledger.engine import connect
from opentab.ledger.invoice_lines import INVOICE_OF_PERIOD
from opentab.ledger.invoices import Invoices
from opentab.ledger.journal import Journal
from opentab.runtime.config import Home
from opentab.tables.damage import damage_behind

VIEWS = ("entries", "rejections", "batches", "balances", "invoices")


def run_query(home: Home, journal: Journal | None, query: str) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
    """The columns and rows that a query yields."""
    connection = connect()
    for name, dataset in _datasets(home, journal).items():
        connection.register(name, dataset)
    # The query is a user's; it gets the views and no file, network or setting.
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")
    if not query.strip(" \t\r\n;"):
        raise InputError("the query is empty", hint='for example "select * from batches"')
    try:
        result = connection.execute(query)
        columns = [column[0] for column in result.description or []]
        return columns, _rows(result)
    except duckdb.Error as error:
        if (damage := damage_behind(home.ledger, error)) is not None:
            raise damage from error
        raise InputError(str(error).strip().splitlines()[0], hint=f"the views are: {', '.join(VIEWS)}") from error


def _datasets(home: Home, journal: Journal | None) -> dict[str, ds.Dataset]:
    if journal is None:
        empty = {name: ds.dataset(KINDS[kind].empty_table()) for name, kind in _KIND_OF.items()}
        return empty | {"balances": balances.empty().rows, "invoices": ds.dataset(INVOICE_OF_PERIOD.empty_table())}
    invoices = Invoices.open(home.ledger)
    return {
        "entries": journal.entries(),
        "rejections": journal.rejections(),
        "batches": journal.batch_rows(),
        "balances": balances.latest(home.ledger).rows,
        "invoices": invoices.rows() if invoices else ds.dataset(INVOICE_OF_PERIOD.empty_table()),
    }


def _rows(result: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    while rows := result.fetchmany(10_000):
        yield from rows


_KIND_OF = {"entries": "entry", "rejections": "rejection", "batches": "batch"}
