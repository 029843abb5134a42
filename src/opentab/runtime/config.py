"""One deployment's settings: `opentab.toml` in its home, every key checked before anything starts."""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from opentab.core.errors import ConfigError
from opentab.core.events import UNBOUNDED_US, Rules
from opentab.core.periods import Calendar
from opentab.runtime import s3
from opentab.runtime.kafka import MECHANISMS, PROTOCOLS, TABLES, URI, KafkaSettings
from opentab.runtime.permissions import read_secret
from opentab.runtime.storage import Place

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


def _timeout(setting: Setting, value: Any) -> timedelta:
    duration = _duration(setting, value)
    if duration < timedelta(seconds=1):
        raise setting.wrong(value, "a duration of 1s at least")
    return duration


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


def _dedupe_us(setting: Setting, value: Any) -> int:
    """The window in microseconds; 0 where every event counts."""
    if value in ("off", "unbounded"):
        return 0 if value == "off" else UNBOUNDED_US
    window_us: int = _duration(setting, value) // MICROSECOND
    if window_us == 0:
        raise setting.wrong(value, 'a duration that is not 0, "unbounded" or "off"')
    return window_us


def _off_or_duration(setting: Setting, value: Any) -> timedelta | None:
    return None if value == "off" else _duration(setting, value)


def _flag(setting: Setting, value: Any) -> bool:
    if type(value) is not bool:
        raise setting.wrong(value, "true or false")
    return value


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


def _log_uri(setting: Setting, value: Any) -> str:
    uri = _text(setting, value)
    if uri.startswith("kafka:") and not URI.fullmatch(uri):
        raise ConfigError(
            f"{setting.name} = {uri!r} names no Kafka topic",
            hint="write kafka://broker:9092/topic, or kafka://one:9092,two:9092/topic",
        )
    return uri


def _url_or_nothing(setting: Setting, value: Any) -> str:
    want = 'an address such as "https://bills.example.com/invoices", without a query, or nothing'
    if value == "":
        return ""
    try:
        parts = urlsplit(_text(setting, value))
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment or not value.isprintable() or " " in value:
        raise setting.wrong(value, want)
    if "@" in parts.netloc:
        raise setting.wrong(parts.hostname, "without a name and password; they go to invoices.http_header_file")
    return str(value).rstrip("/")


def _some_time(setting: Setting, value: Any) -> timedelta:
    duration = _duration(setting, value)
    if not duration:
        raise setting.wrong(value, "longer than nothing")
    return duration


def _one_of(*choices: str) -> Callable[[Setting, Any], str]:
    def check(setting: Setting, value: Any) -> str:
        if value not in choices:
            raise setting.wrong(value, f"one of {', '.join(choices)}")
        return str(value)

    return check


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
        "billing", "dedupe_window", '"7d"', _dedupe_us,
        'how long after an event a repeat of its id is known for one, by arrival; a duration, "unbounded" or "off"',
    ),
    Setting(
        "billing", "event_bytes_max", "65536", _count,
        "a longer event is rejected without being read; bytes of its line, without the newline",
    ),
    Setting("log", "uri", '"log"', _log_uri, "a directory, relative to the home, or kafka://broker:9092/topic"),
    Setting(
        "log", "silence_max", '"30d"', _off_or_duration,
        "an append this long after the last one is refused: the clock may have jumped ahead; a duration or \"off\"",
    ),
    Setting("kafka", "partitions", "4", _count, "of a topic that opentab makes"),
    Setting("kafka", "replication", "0", _count_or_none, "copies of a topic that opentab makes; 0: as the brokers do"),
    Setting("kafka", "rejections_topic", '""', _text_or_nothing, "a topic that rejections are published to, too"),
    Setting("kafka", "security_protocol", '"PLAINTEXT"', _one_of(*PROTOCOLS), f"one of {', '.join(PROTOCOLS)}"),
    Setting("kafka", "sasl_mechanism", '"PLAIN"', _one_of(*MECHANISMS), f"one of {', '.join(MECHANISMS)}"),
    Setting("kafka", "sasl_username", '""', _text_or_nothing, ""),
    Setting(
        "kafka", "sasl_password_file", '""', _text_or_nothing,
        "relative to the home; or OPENTAB_KAFKA_PASSWORD in the environment",
    ),
    Setting("kafka", "tls_ca", '""', _text_or_nothing, "who signed the brokers' certificates (PEM)"),
    Setting("kafka", "tls_cert", '""', _text_or_nothing, "our certificate chain (PEM), where the brokers ask for one"),
    Setting("kafka", "tls_key", '""', _text_or_nothing, "its private key (PEM)"),
    Setting(
        "kafka", "connector", '"org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"', _text_or_nothing,
        'Spark\'s Kafka source, fetched when the pipeline starts on Kafka; "": it is among the jars',
    ),
    Setting(
        "pipeline", "batch_events_max", "2000000", _count,
        "a batch takes about so many events at most, and at least one segment: a backlog needs no more memory",
    ),
    Setting(
        "pipeline", "batch_pause", '"250ms"', _duration,
        "the least time from the start of a batch to the start of the next, while not --once",
    ),
    Setting(
        "pipeline", "batch_pause_min", '"0s"', _duration,
        "the least pause after a commit: for machines that do other work",
    ),
    Setting(
        "pipeline", "stall_timeout", '"2m"', _timeout,
        "a batch that takes longer is taken for hung, and its query is started again",
    ),
    Setting(
        "pipeline", "idle_after", '"10m"', _duration,
        "a log partition that is read to its end and silent for so long holds no other back",
    ),
    Setting(
        "pipeline", "silent_clock", '"off"', _off_or_duration,
        "after so long without events the time of day moves the watermark of a log that is read to its end",
    ),
    Setting("pipeline", "snapshot_batches", "500", _count, "write the balances every so many batches"),
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
    Setting(
        "invoices", "http_url", '""', _url_or_nothing,
        "where opentab deliver puts each revision of each invoice: http:// or https://",
    ),
    Setting(
        "invoices", "http_key_file", '""', _text_or_nothing,
        "what deliveries are signed with, relative to the home; or OPENTAB_INVOICES_KEY",
    ),
    Setting(
        "invoices", "http_header_file", '""', _text_or_nothing,
        'headers for each delivery, such as "Authorization: Bearer …", one a line; relative to the home',
    ),
    Setting("invoices", "http_timeout", '"10s"', _some_time, "a delivery without an answer by then is tried again"),
    Setting("invoices", "http_parallel", "8", _count, "deliveries at once"),
    Setting("server", "host", '"127.0.0.1"', _text, "where opentab serve listens"),
    Setting("server", "port", "8080", _port, ""),
    Setting("server", "workers", "1", _count, "HTTP processes"),
    Setting(
        "server", "hot_periods", '"all"', _all_or_count,
        "how many final months a replica keeps; older ones are answered from the ledger",
    ),
    Setting("server", "request_timeout", '"30s"', _some_time, "a request without an answer by then gets 503"),
    Setting(
        "server", "ready_staleness_max", '"off"', _off_or_duration,
        "/readyz answers 503 where answers are older than this; a duration or \"off\"",
    ),
    Setting(
        "server", "streams_max", "20", _count,
        "live streams that one token may have open at a time, on each worker",
    ),
    Setting(
        "server", "key_file", '""', _text_or_nothing,
        "what tokens are signed with, relative to the home; or OPENTAB_KEY; without a key only loopback is served",
    ),
    Setting(
        "server", "behind_https_proxy", "false", _flag,
        "a proxy in front of it speaks HTTPS with browsers: the page's cookie is Secure",
    ),
    Setting("server", "tls_cert", '""', _text_or_nothing, "a certificate chain (PEM), relative to the home"),
    Setting("server", "tls_key", '""', _text_or_nothing, "its private key (PEM), relative to the home"),
    Setting("logs", "format", '"text"', _one_of("text", "json"), "of the lines in logs/: text or json"),
    Setting("logs", "level", '"info"', _one_of("debug", "info", "warning", "error"), "what is less is not logged"),
]  # fmt: skip
# Settings of earlier versions, which mean nothing any more.
REMOVED = ("pipeline.local_bytes_max", "pipeline.closing_rows_max")
SECTIONS = ("billing", "log", "kafka", "pipeline", "ledger", "invoices", "server", "logs", "spark")
SPARK_MASTER_DEFAULT = "local[*,4]"


@dataclass(frozen=True)
class Home:
    """A deployment: its directory and its settings."""

    path: Path
    values: Mapping[str, Any] = field(default_factory=dict, repr=False)  # secrets among them
    spark: Mapping[str, str] = field(default_factory=dict)
    kafka_more: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by the names of TABLES

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def with_setting(self, name: str, value: Any) -> Home:
        """The same home with another value of a setting, checked like one in opentab.toml."""
        setting = next(setting for setting in SETTINGS if setting.name == name)
        return replace(self, values={**self.values, name: setting.check(setting, value)})

    @property
    def log_path(self) -> Path:
        return self._local("log.uri")

    @property
    def kafka(self) -> KafkaSettings | None:
        """The Kafka topic that is the log; None where the log is a directory."""
        match = URI.fullmatch(str(self["log.uri"]))
        if match is None:
            return None
        password = self._content("kafka.sasl_password_file", secret=True).strip() or os.environ.get(
            "OPENTAB_KAFKA_PASSWORD", ""
        )
        return KafkaSettings(
            brokers=match["brokers"],
            topic=match["topic"],
            partitions=self["kafka.partitions"],
            replication=self["kafka.replication"],
            protocol=self["kafka.security_protocol"],
            mechanism=self["kafka.sasl_mechanism"],
            username=self["kafka.sasl_username"],
            password=password,
            ca=self._content("kafka.tls_ca"),
            cert=self._content("kafka.tls_cert"),
            key=self._content("kafka.tls_key", secret=True),
            options=self.kafka_more.get("options", {}),
            client_more=self.kafka_more.get("client", {}),
            spark_more=self.kafka_more.get("spark", {}),
        )

    @property
    def tasks_are_here(self) -> bool:
        """Whether Spark's tasks run on this machine, and share its disks."""
        return self.spark["spark.master"].startswith("local")

    @property
    def ledger(self) -> Place:
        uri = str(self["ledger.uri"])
        return Place(uri, self["ledger.storage"]) if uri.startswith(s3.SCHEME) else Place.of(self._local("ledger.uri"))

    @property
    def invoices_path(self) -> Path:
        return self._local("invoices.uri")

    @property
    def sinks_path(self) -> Path:
        """What the sinks remember."""
        return self.path / "sinks"

    @property
    def replica_path(self) -> Path:
        return self.path / "replica"

    @property
    def revoked_path(self) -> Path:
        """The ids of revoked tokens, as earlier versions kept them; now they are with the ledger."""
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
            dedupe_us=self["billing.dedupe_window"],
            event_bytes_max=self["billing.event_bytes_max"],
        )

    @property
    def identity(self) -> dict[str, str]:
        """What is fixed when a home is made."""
        return {name: str(self[f"billing.{name}"]) for name in ("currency", "zone", "period")}

    def _content(self, name: str, *, secret: bool = False) -> str:
        """What is in a file that a setting names; nothing where it names none."""
        if not self[name]:
            return ""
        path: Path = self.path / self[name]
        try:
            return read_secret(path) if secret else path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{name}: {path} cannot be read: {error}", hint="mend the path or the file") from error

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
            if section == "kafka" and key in TABLES and isinstance(table[key], dict):
                continue
            if section != "spark" and f"{section}.{key}" not in known and f"{section}.{key}" not in REMOVED:
                names = [s.key for s in SETTINGS if s.section == section]
                raise ConfigError(f"{section}.{key} is no setting", hint=_nearest(key, names))
    values = {
        setting.name: setting.check(setting, document.get(setting.section, {}).get(setting.key, _default(setting)))
        for setting in SETTINGS
    }
    spark = {"spark.master": SPARK_MASTER_DEFAULT} | _spark(document.get("spark", {}))
    kafka_more = {name: _flatten(document.get("kafka", {}).get(name, {}), f"kafka.{name}") for name in TABLES}
    return Home(path=path.resolve(), values=values, spark=spark, kafka_more=kafka_more)


def template(chosen: Mapping[str, str] | None = None) -> str:
    """The text of a new opentab.toml: every setting, its default, and what it means; chosen ones with their value."""
    chosen = chosen or {}
    lines = ["# The settings of this opentab home. Every line that starts with # shows the default.", ""]
    for section in SECTIONS:
        lines.append(f"[{section}]")
        for setting in SETTINGS:
            if setting.section == section:
                comment = f"  # {setting.comment}" if setting.comment else ""
                default = f"# {setting.key} = {setting.default}"
                lines.append(
                    (f"{setting.key} = {chosen[setting.name]}" if setting.name in chosen else default) + comment
                )
        if section == "spark":
            lines.append(
                f'# master = "{SPARK_MASTER_DEFAULT}"  # all cores, a task is tried up to 4 times; '
                'any other Spark setting may follow, without its "spark."'
            )
            lines.append('# driver.memory = "2g"')
        lines.append("")
    return "\n".join(lines)


def home_path(option: str | None) -> Path:
    """The home to use: the option, else OPENTAB_HOME, else ./opentab-home."""
    return Path(option or os.environ.get("OPENTAB_HOME") or "opentab-home")


def is_loopback(host: str) -> bool:
    """Whether only this machine is meant."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _default(setting: Setting) -> Any:
    return tomllib.loads(f"value = {setting.default}")["value"]


def _nearest(name: str, names: list[str] | tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(names)}"


def _spark(table: Mapping[str, Any]) -> dict[str, str]:
    flat = _flatten(table, "spark")
    return {name if name.startswith("spark.") else f"spark.{name}": value for name, value in flat.items()}


def _flatten(table: Mapping[str, Any], where: str, prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in table.items():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(value, dict):
            flat |= _flatten(value, where, name)
        elif isinstance(value, list):
            raise ConfigError(f"{where}.{name} is a list", hint="give its own text for it, in quotes")
        else:
            flat[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return flat
