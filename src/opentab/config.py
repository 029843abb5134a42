"""One deployment's settings: `opentab.toml` in its home, every key checked before anything starts."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from opentab import s3
from opentab.errors import ConfigError
from opentab.events import Rules
from opentab.periods import Calendar
from opentab.place import Place

FILE_NAME = "opentab.toml"
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of opentab.toml: where it stands, its default as TOML, its check, what it means."""

    section: str
    key: str
    default: str
    check: Callable[[Setting, Any], Any]
    comment: str

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}"

    def wrong(self, value: object, want: str) -> ConfigError:
        return ConfigError(
            f"{self.name} = {value!r} is wrong: it must be {want}",
            hint=f"for example {self.key} = {self.default}",
        )


DURATION_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
DURATION_MAX = timedelta(days=36_500)
DURATION_PATTERN = re.compile(r"(\d{1,9})(ms|s|m|h|d)")


def parse_duration(text: str) -> timedelta:
    """Read "12h", "1d12h" or "250ms"; raises ValueError on anything else."""
    parts = DURATION_PATTERN.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(text)
    duration = sum((int(number) * DURATION_UNITS[unit] for number, unit in parts), timedelta())
    if duration > DURATION_MAX:
        raise ValueError(text)
    return duration


def _duration(setting: Setting, value: Any) -> timedelta:
    try:
        return parse_duration(value)
    except (TypeError, ValueError, OverflowError):
        raise setting.wrong(value, "a duration in ms, s, m, h or d, in quotes, of 100 years at most") from None


def _text(setting: Setting, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise setting.wrong(value, "a text in quotes")
    return value


def _text_or_nothing(setting: Setting, value: Any) -> str:
    if not isinstance(value, str):
        raise setting.wrong(value, "a text in quotes")
    return value


def _currency(setting: Setting, value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Z]{3}", value):
        raise setting.wrong(value, "a currency code of three capital letters")
    return value


def _zone(setting: Setting, value: Any) -> str:
    return Calendar(_text(setting, value)).zone


def _period(setting: Setting, value: Any) -> str:
    if value != "month":
        raise setting.wrong(value, '"month", the only period there is')
    return "month"


def _types(setting: Setting, value: Any) -> tuple[str, ...]:
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(t, str) and re.fullmatch(r"[A-Za-z0-9_.:-]{1,64}", t) for t in value)
        or len(set(value)) != len(value)
    ):
        raise setting.wrong(value, "a list of different names made of letters, digits and _ . : -")
    return tuple(value)


def _dedupe_window(setting: Setting, value: Any) -> str:
    if value not in ("off", "unbounded"):
        _duration(setting, value)
    return str(value)


def _off_or_duration(setting: Setting, value: Any) -> timedelta | None:
    return None if value == "off" else _duration(setting, value)


def _count(setting: Setting, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= 2**31:
        raise setting.wrong(value, "a whole number of at least 1")
    return value


def _count_or_none(setting: Setting, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= 2**31:
        raise setting.wrong(value, "a whole number from 0 on")
    return value


def _all_or_count(setting: Setting, value: Any) -> int | None:
    if value == "all":
        return None
    if type(value) is not int or not 0 <= value <= 120_000:
        raise setting.wrong(value, 'a whole number from 0 on, or "all"')
    return value


def _port(setting: Setting, value: Any) -> int:
    if type(value) is not int or not 0 <= value < 65536:
        raise setting.wrong(value, "a port number from 0 to 65535")
    return value


def _ledger_uri(setting: Setting, value: Any) -> str:
    uri = _text(setting, value)
    if "://" in uri and not uri.startswith("file://"):
        uri = uri.rstrip("/")
        s3.check_uri(uri)
    return uri


def _storage(setting: Setting, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ConfigError(f"{setting.name} must be a section", hint=f"write [{setting.name}] on its own line")
    return s3.check_options(value)


SETTINGS = [
    Setting("billing", "currency", '"EUR"', _currency, "fixed once the home is in use"),
    Setting("billing", "zone", '"UTC"', _zone, "IANA time zone of days and months; fixed, too"),
    Setting("billing", "period", '"month"', _period, "a calendar month"),
    Setting(
        "billing", "types", '["MESSAGE", "DATA", "CALL", "PACK", "MISC"]', _types,
        "an event of any other type is rejected",
    ),
    Setting(
        "billing", "out_of_orderness", '"12h"', _duration,
        "how far events of one log partition may arrive out of order",
    ),
    Setting(
        "billing", "allowed_lateness", '"3d"', _duration,
        "how long after its end a month is still revised; later events become adjustments",
    ),
    Setting(
        "billing", "revision_step", '"1d"', _duration,
        "closed months are revised whenever the watermark has moved on by this much",
    ),
    Setting(
        "billing", "future_skew", '"1d"', _duration,
        "an event further ahead of its arrival than this is rejected",
    ),
    Setting(
        "billing", "dedupe_window", '"7d"', _dedupe_window,
        'a duration, "unbounded" or "off"; not applied yet: every event counts',
    ),
    Setting("log", "uri", '"log"', _text, "a directory, relative to the home"),
    Setting(
        "pipeline", "batch_events_max", "2000000", _count,
        "a batch takes about so many events at most, and at least one segment: a backlog needs no more memory",
    ),
    Setting(
        "pipeline", "local_bytes_max", "1048576", _count_or_none,
        "a batch of so many bytes at most is billed by the driver itself: a job of Spark's takes longer; 0 for never",
    ),
    Setting("pipeline", "batch_pause", '"250ms"', _duration, "the least time from batch to batch, while not --once"),
    Setting(
        "pipeline", "idle_after", '"10m"', _duration,
        "a log partition that is read to its end and silent for so long holds no other back",
    ),
    Setting(
        "pipeline", "silent_clock", '"off"', _off_or_duration,
        "after so long without events the time of day moves the watermark of a log that is read to its end",
    ),
    Setting("pipeline", "snapshot_batches", "500", _count, "write the balances every so many batches"),
    Setting(
        "pipeline", "closing_rows_max", "20000000", _count,
        "a closing over more rows is computed by Spark's tasks, a smaller one beside the stream by one process",
    ),
    Setting("pipeline", "compact_files", "64", _count, "merge small ledger files from so many on"),
    Setting("ledger", "uri", '"ledger"', _ledger_uri, "a directory, relative to the home, or s3://bucket/prefix"),
    Setting(
        "ledger", "storage", "{}", _storage,
        "how to reach that bucket, beside the AWS variables of the environment; as a section [ledger.storage]",
    ),
    Setting(
        "invoices", "uri", '"invoices"', _text,
        "a directory for the invoice files, relative to the home",
    ),
    Setting("server", "host", '"127.0.0.1"', _text, "where opentab serve listens"),
    Setting("server", "port", "8080", _port, ""),
    Setting("server", "workers", "1", _count, "HTTP processes"),
    Setting(
        "server", "hot_periods", '"all"', _all_or_count,
        "how many final months a replica keeps; older ones are answered from the ledger",
    ),
    Setting(
        "server", "streams_max", "20", _count,
        "live streams that one token may have open at a time, on each worker",
    ),
    Setting(
        "server", "key_file", '""', _text_or_nothing,
        "what tokens are signed with, relative to the home; or OPENTAB_KEY; without a key only loopback is served",
    ),
    Setting("server", "tls_cert", '""', _text_or_nothing, "a certificate chain (PEM), relative to the home"),
    Setting("server", "tls_key", '""', _text_or_nothing, "its private key (PEM), relative to the home"),
]  # fmt: skip
SECTIONS = ("billing", "log", "pipeline", "ledger", "invoices", "server", "spark")
SPARK_MASTER_DEFAULT = "local[*,4]"


@dataclass(frozen=True)
class Home:
    """A deployment: its directory and its settings."""

    path: Path
    values: Mapping[str, Any] = field(default_factory=dict, repr=False)  # secrets among them
    spark: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def log_path(self) -> Path:
        return self._local("log.uri")

    @property
    def ledger(self) -> Place:
        uri = str(self["ledger.uri"])
        return Place(uri, self["ledger.storage"]) if uri.startswith(s3.SCHEME) else Place.of(self._local("ledger.uri"))

    @property
    def invoices_path(self) -> Path:
        return self._local("invoices.uri")

    @property
    def replica_path(self) -> Path:
        return self.path / "replica"

    @property
    def revoked_path(self) -> Path:
        """The ids of tokens that are no good any more."""
        return self.path / "tokens" / "revoked"

    @property
    def checkpoint_path(self) -> Path:
        return self.path / "checkpoint"

    @property
    def logs_path(self) -> Path:
        return self.path / "logs"

    @property
    def expected_path(self) -> Path:
        """Where the simulator writes the bills that it knows to be right."""
        return self.path / "expected"

    @property
    def calendar(self) -> Calendar:
        return Calendar(self["billing.zone"])

    @property
    def rules(self) -> Rules:
        return Rules(
            currency=self["billing.currency"],
            zone=self["billing.zone"],
            types=self["billing.types"],
            future_skew_us=self["billing.future_skew"] // MICROSECOND,
            out_of_orderness_us=self["billing.out_of_orderness"] // MICROSECOND,
            allowed_lateness_us=self["billing.allowed_lateness"] // MICROSECOND,
            idle_after_us=self["pipeline.idle_after"] // MICROSECOND,
            revision_step_us=self["billing.revision_step"] // MICROSECOND,
        )

    @property
    def identity(self) -> dict[str, str]:
        """What is fixed when a home is made."""
        return {name: str(self[f"billing.{name}"]) for name in ("currency", "zone", "period")}

    def _local(self, name: str) -> Path:
        uri = str(self[name])
        if "://" in uri and not uri.startswith("file://"):
            raise ConfigError(f"{name} = {uri!r} is not supported", hint="use a directory on this machine")
        return (self.path / uri.removeprefix("file://")).resolve()


def load(path: Path) -> Home:
    """Read a home's settings; a directory without opentab.toml is a home with all defaults."""
    file = path / FILE_NAME
    try:
        text = file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        if path.exists() and not path.is_dir():
            raise ConfigError(f"the home {path} is not a directory", hint="give another --home") from None
        return parse(path, {})
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", hint="mend the file") from error
    try:
        return parse(path, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not TOML: {error}", hint="mend that line") from error


def parse(path: Path, document: Mapping[str, Any]) -> Home:
    """Check every key of a document against the settings there are."""
    known = {setting.name: setting for setting in SETTINGS}
    for section, table in document.items():
        if section not in SECTIONS:
            raise ConfigError(f"[{section}] is no section of {FILE_NAME}", hint=_nearest(section, SECTIONS))
        if not isinstance(table, dict):
            raise ConfigError(f"{section} must be a section", hint=f"write [{section}] on its own line")
        for key in table:
            if section != "spark" and f"{section}.{key}" not in known:
                names = [s.key for s in SETTINGS if s.section == section]
                raise ConfigError(f"{section}.{key} is no setting", hint=_nearest(key, names))
    values = {
        setting.name: setting.check(setting, document.get(setting.section, {}).get(setting.key, _default(setting)))
        for setting in SETTINGS
    }
    spark = {"spark.master": SPARK_MASTER_DEFAULT} | _flatten(document.get("spark", {}))
    return Home(path=path.resolve(), values=values, spark=spark)


def template() -> str:
    """The text of a new opentab.toml: every setting, its default, and what it means."""
    lines = ["# The settings of this opentab home. Every line that starts with # shows the default.", ""]
    for section in SECTIONS:
        lines.append(f"[{section}]")
        for setting in SETTINGS:
            if setting.section == section:
                comment = f"  # {setting.comment}" if setting.comment else ""
                lines.append(f"# {setting.key} = {setting.default}{comment}")
        if section == "spark":
            lines.append(
                f'# master = "{SPARK_MASTER_DEFAULT}"  # all cores, a task is tried up to 4 times; '
                'any other Spark setting may follow, without its "spark."'
            )
            lines.append('# driver.memory = "1g"')
        lines.append("")
    return "\n".join(lines)


def home_path(option: str | None) -> Path:
    """The home to use: the option, else OPENTAB_HOME, else ./opentab-home."""
    return Path(option or os.environ.get("OPENTAB_HOME") or "opentab-home")


def _default(setting: Setting) -> Any:
    return tomllib.loads(f"value = {setting.default}")["value"]


def _nearest(name: str, names: list[str] | tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(names)}"


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in table.items():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(value, dict):
            flat |= _flatten(value, name)
        elif isinstance(value, list):
            raise ConfigError(f"spark.{name} is a list", hint="give Spark's own text for it, in quotes")
        else:
            full = name if name.startswith("spark.") else f"spark.{name}"
            flat[full] = str(value).lower() if isinstance(value, bool) else str(value)
    return flat
