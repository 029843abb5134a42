"""Jars that are fetched from a registry, held against the hashes that stand in this project."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from opentab.core.errors import MachineError

# The Kafka source that is fetched by default, and the hashes of it and of all that it needs.
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
CONNECTOR_HASHES = Path(__file__).with_name("connector.sha256")


def check_published(jars: Iterable[Path], hashes: Path) -> None:
    """Raise unless each jar is in a list in the form of sha256sum, with its own hash.

    Spark's Ivy writes the organisation and an underscore before a jar's name.
    """
    lines = hashes.read_text(encoding="ascii").splitlines()
    known = {name: digest for digest, name in map(str.split, lines)}
    for jar in jars:
        wanted = known.get(jar.name) or known.get(jar.name.partition("_")[2])
        with jar.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != wanted:
            raise MachineError(
                f"{jar} was fetched, and is not what was published" if wanted else f"{jar} was fetched unasked",
                hint=f"remove {jar.parent} and try again; if it comes back, ask whoever runs the mirror it comes from",
            )
