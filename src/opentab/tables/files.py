"""The ledger's Parquet files: how they are written, and the only way to read them.

A name carries the run that wrote it and is never used again; a file counts only once a commit names it.

Every page has a checksum, and so has the footer (`footer.py`). A reader says which columns and how many rows it
expects; whatever differs raises FileDamaged and names the file. Files of earlier versions have no checksums: of them
only columns and rows are checked. Newer files say in their names that they have checksums, and the names stand in
Delta's log: damage cannot turn a checked file into an unchecked one.

Page headers have no checksum. Two rules make up for it: a column of a row group is one page, and row groups are read
one by one. Then a page header that is wrong makes the number of values wrong. pyarrow notices that where it reads two
columns or more; so datasets always read two, and other reads compare the number of rows.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from opentab.core.errors import FileDamaged
from opentab.core.records import with_dictionaries
from opentab.runtime.storage import Place
from opentab.tables.footer import BLANK, KEY, MAGIC, TAIL_BYTES, FooterSink, checksum_agrees

ROW_GROUP_ROWS = 131_072
# Of these a single row is asked for, and it costs what its row group does.
ROW_GROUP_ROWS_OF = {"batch": 1_024, "rejection": 4_096}
# Neighbours differ little: smaller, and quicker to write than plain numbers.
DELTA_COLUMNS = {
    "batch", "amount_micros", "event_count", "first_at", "last_at", "revision", "position", "issued_at", "byte",
    "number",
}  # fmt: skip
DICTIONARY_COLUMNS = {"type", "day", "reason", "period", "kind", "line_period", "partition", "arrived_us"}
HASHES = {"key_high", "key_low", "payload"}
STATISTICS = ("batch", "day", "customer", "period", "position", "key_high", "arrived_us")
NOT_TOLD_OF = {"entry": {"customer"}}  # its files have customers of all names, so the first and the last tell nothing
PAGE_BYTES_MAX = 2**26  # larger than a row group's column, unless its texts are huge
PERIOD = "period"
# Two of them are in each kind, and never empty. A scan of a dataset always reads them: that no column is alone.
READ_ALWAYS = ("batch", "position", "revision", "event_count", "number", "reason")
CHECKED_SUFFIX = ".checked.parquet"
FOOTER_READ_BYTES = 65_536
LOCAL = LocalFileSystem()
PARQUET = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
)


class StagedFile(msgspec.Struct, frozen=True):
    """A file on the disk that a commit may take up."""

    kind: str  # the value of the table's partition column
    path: str  # below the table's root
    rows: int
    bytes: int
    batch_min: int
    batch_max: int
    column: str = "kind"


class StagedWriter:
    """Writes a file aside, table by table; `finish` says what was written."""

    def __init__(self, file: Any, schema: pa.Schema, staged: StagedFile, row_group_rows: int) -> None:
        self._sink = FooterSink(file)
        self._staged = staged
        self._row_group_rows = row_group_rows
        self._rows = 0
        differences = {f.name for f in schema if f.name in DELTA_COLUMNS and not pa.types.is_decimal(f.type)}
        dense = differences | HASHES  # nothing makes them smaller
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression={name: "none" if name in dense else "lz4" for name in schema.names},
            use_dictionary=[name for name in schema.names if name in DICTIONARY_COLUMNS],
            column_encoding=dict.fromkeys(differences, "DELTA_BINARY_PACKED"),
            write_statistics=[
                name for name in STATISTICS if name in schema.names and name not in NOT_TOLD_OF.get(staged.kind, ())
            ],
            store_schema=False,  # a dictionary is our way to write texts, and none of a reader's business
            write_page_checksum=True,
            data_page_size=PAGE_BYTES_MAX,
            max_rows_per_page=row_group_rows,
        )

    def write(self, table: pa.Table) -> None:
        """Add rows."""
        self._writer.write_table(table, row_group_size=self._row_group_rows)
        self._rows += table.num_rows

    def finish(self, facts: Mapping[str, str] | None = None) -> StagedFile:
        """The file as a commit may take it up; `facts` are kept in its footer."""
        self._writer.add_key_value_metadata({KEY: BLANK, **(facts or {})})
        self._sink.hold()
        self._writer.close()
        self._sink.release()
        return msgspec.structs.replace(self._staged, rows=self._rows, bytes=self._sink.tell())


@contextmanager
def staged_writer(
    root: Place, kind: str, schema: pa.Schema, *, run: str, batches: tuple[int, int], column: str = "kind",
    row_group_rows: int = ROW_GROUP_ROWS,
) -> Iterator[StagedWriter]:  # fmt: skip
    """Write a file aside for a later commit, table by table; in the end it is on the disk."""
    path = f"{column}={kind}/{batches[1]:09d}-{run}-{secrets.token_hex(4)}{CHECKED_SUFFIX}"
    with (root / path).create() as file:
        yield StagedWriter(file, schema, StagedFile(kind, path, 0, 0, *batches, column), row_group_rows)


def stage(
    root: Place, kind: str, table: pa.Table, *, run: str, batches: tuple[int, int], column: str = "kind",
    facts: Mapping[str, str] | None = None,
) -> StagedFile:  # fmt: skip
    """Write a table aside for a later commit; on return it is on the disk."""
    row_group_rows = ROW_GROUP_ROWS_OF.get(kind, ROW_GROUP_ROWS)
    with staged_writer(
        root, kind, table.schema, run=run, batches=batches, column=column, row_group_rows=row_group_rows
    ) as writer:
        writer.write(table)
        return writer.finish(facts)


class LedgerFile(NamedTuple):
    """A file that a commit names."""

    path: str  # below the table's root
    rows: int
    period: str | None = None  # where the directory says it for all rows


def dataset_of(
    root: Place, files: Sequence[LedgerFile], schema: pa.Schema, *, encoded: Sequence[str] = (), counts: bool = False
) -> ds.Dataset:
    """The rows of files whose columns are those of the schema; some columns as numbers and a dictionary.

    Where files are of a period, it is one more column. `counts` reads two columns to see that all rows are there: for
    kinds of which nobody compares sums.
    """
    fragments = []
    format_ = PARQUET
    if encoded:
        format_ = ds.ParquetFileFormat(
            dictionary_columns=set(encoded), default_fragment_scan_options=PARQUET.default_fragment_scan_options
        )
    for file in files:
        place = root / file.path
        own = schema if file.period is None else schema.remove(schema.get_field_index(PERIOD))
        check_footer(place, own, file.rows)
        of = None if file.period is None else ds.field(PERIOD) == file.period
        fragments.append(format_.make_fragment(place.inside, _filesystem(place), partition_expression=of))
    wanted = with_dictionaries(schema, encoded)
    if not fragments:
        return ds.dataset(wanted.empty_table())
    dataset = ds.FileSystemDataset(fragments, wanted, format_, _filesystem(root))
    first, second, *_ = (ds.field(name).is_valid() for name in READ_ALWAYS if name in schema.names)
    for file, fragment in zip(files, fragments, strict=True) if counts else ():
        with naming(root / file.path):
            found = fragment.scanner(schema=wanted, filter=first & second).count_rows()
        check_rows(root / file.path, found, file.rows)
    return dataset.filter(first & second)


def read_table(
    place: Place, schema: pa.Schema, rows: int, columns: Sequence[str] | None = None, *, use_threads: bool = True
) -> pa.Table:
    """A file as a table, or some of its columns."""
    check_footer(place, schema, rows)
    with naming(place):
        fragment = PARQUET.make_fragment(place.inside, _filesystem(place))
        table = fragment.to_table(schema, columns=columns and list(columns), use_threads=use_threads)
    check_rows(place, table.num_rows, rows)
    return table


def read_batches(
    place: Place, schema: pa.Schema, rows: int, columns: Sequence[str], *, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Some columns of a file, piece by piece. What came before an error must not be used."""
    check_footer(place, schema, rows)
    found = 0
    with naming(place):
        fragment = PARQUET.make_fragment(place.inside, _filesystem(place))
        for batch in fragment.to_batches(schema, columns=list(columns), batch_size=batch_rows, use_threads=False):
            found += batch.num_rows
            yield batch
    check_rows(place, found, rows)


class OpenFile:
    """A file that stays open, to read single row groups."""

    def __init__(self, place: Place, schema: pa.Schema, rows: int, *, encoded: Sequence[str] = ()) -> None:
        check_footer(place, schema, rows)
        self._place = place
        self._schema = with_dictionaries(schema, encoded)
        with naming(place):
            self._file = pq.ParquetFile(
                place.inside, filesystem=place.filesystem, memory_map=place.filesystem is None,
                read_dictionary=list(encoded), page_checksum_verification=True,
            )  # fmt: skip

    def ranges(self, column: str) -> list[tuple[int, int]]:
        """The least and the largest value of each row group."""
        at = self._schema.get_field_index(column)
        groups = map(self._file.metadata.row_group, range(self._file.metadata.num_row_groups))
        return [(group.column(at).statistics.min, group.column(at).statistics.max) for group in groups]

    def group(self, number: int, columns: Sequence[str] | None = None) -> pa.Table:
        """One row group, or some of its columns."""
        names = self._schema.names if columns is None else list(columns)
        with naming(self._place):
            table = self._file.read_row_group(number, names, use_threads=False).select(names)
            table = table.cast(pa.schema([self._schema.field(name) for name in names]))
        check_rows(self._place, table.num_rows, self._file.metadata.row_group(number).num_rows)
        return table

    def close(self) -> None:
        self._file.close()


def check_footer(place: Place, schema: pa.Schema, rows: int) -> None:
    """Raise FileDamaged unless the file has a footer that is whole, with these columns and so many rows."""
    footer = _footer_of(place)
    if footer.columns != _columns_of(schema):
        raise damaged(place, "its columns are not those of its kind")
    check_rows(place, footer.rows, rows)


def facts_of(place: Place) -> Mapping[str, str]:
    """What the file's writer kept in its footer."""
    return _footer_of(place).facts


def check_rows(place: Place, found: int, wanted: int) -> None:
    """Raise FileDamaged unless a file has as many rows as it should."""
    if found != wanted:
        raise damaged(place, f"it has {found} rows instead of {wanted}")


def is_checked(path: str) -> bool:
    """Whether a file was written with checksums."""
    return path.endswith(CHECKED_SUFFIX)


def damaged(place: Place, why: str) -> FileDamaged:
    """What to say of a file that is not as it was written."""
    return FileDamaged(f"{place} is damaged: {why}", hint=_hint(place))


@contextmanager
def naming(place: Place) -> Iterator[None]:
    """Let what pyarrow says of a file's content name the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileDamaged(f"{place} is missing", hint=_hint(place)) from error
    except (OSError, pa.ArrowException) as error:
        if not says_damage(error):
            raise
        raise damaged(place, first_line(error)) from error


def says_damage(error: BaseException) -> bool:
    """Whether pyarrow speaks of a file's content, not of the disk or the network: then the system gave no number."""
    if isinstance(error, OSError):
        return error.errno is None and not any(text in str(error) for text in ("AWS Error", "curlCode"))
    return isinstance(error, pa.ArrowException)


def first_line(error: BaseException) -> str:
    """The line of a message that says it."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def new_run() -> str:
    """A name for one run of a program, never used twice."""
    return secrets.token_hex(6)


class _Footer(NamedTuple):
    """What a file says of itself."""

    rows: int
    columns: list[tuple[str, pa.DataType]]
    facts: Mapping[str, str]


def _footer_of(place: Place) -> _Footer:
    """Read at every use: what was whole a minute ago may be damaged now."""
    with naming(place):
        return _read_footer(place)


def _read_footer(place: Place) -> _Footer:
    with _opened(place) as file:
        size = file.size()
        end = file.read_at(min(size, FOOTER_READ_BYTES), max(0, size - FOOTER_READ_BYTES))
        footer_bytes = int.from_bytes(end[-TAIL_BYTES : -len(MAGIC)], "little")
        if end[-len(MAGIC) :] != MAGIC or footer_bytes + TAIL_BYTES > size:
            raise damaged(place, "it does not end as a Parquet file does")
        if footer_bytes + TAIL_BYTES > len(end):
            end = file.read_at(footer_bytes + TAIL_BYTES, size - footer_bytes - TAIL_BYTES)
    end = end[-(footer_bytes + TAIL_BYTES) :]
    agrees = checksum_agrees(end[:footer_bytes])
    if agrees is False or (agrees is None and is_checked(place.uri)):
        raise damaged(place, "its footer does not match its checksum")
    metadata = pq.read_metadata(pa.BufferReader(MAGIC + end))
    facts = {key.decode(): value.decode(errors="replace") for key, value in (metadata.metadata or {}).items()}
    return _Footer(metadata.num_rows, _columns_of(metadata.schema.to_arrow_schema()), facts)


def _opened(place: Place) -> Any:
    return _filesystem(place).open_input_file(place.inside)


def _filesystem(place: Place) -> Any:
    return place.filesystem or LOCAL


def _columns_of(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    """Names and types. Whether a column may be empty, or is a dictionary, differs between versions."""
    return [(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in schema]


def _hint(place: Place) -> str:
    if "/balances/" in place.uri:
        root = place.uri.rpartition("/balances/")[0] + "/balances"
        return f"remove {root}: it is written again from the journal"
    return "restore this file from a backup; until then nothing is billed from it"
