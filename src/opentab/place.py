"""Where the ledger lies, and what stands below it. All that depends on the kind of storage is here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from opentab.disk import sync


class Place(msgspec.Struct, frozen=True):
    """A directory or a file of a storage, by its address; it goes along to Spark's tasks."""

    uri: str  # on a disk the absolute path

    @classmethod
    def of(cls, path: Path) -> Place:
        """The place of a path on this machine's disks."""
        return cls(str(path.resolve()))

    def __truediv__(self, name: str) -> Place:
        return Place(f"{self.uri}/{name}")

    def __str__(self) -> str:
        return self.uri

    @property
    def parent(self) -> Place:
        return Place(self.uri.rpartition("/")[0])

    @property
    def path(self) -> Path:
        """The same as a path of this machine."""
        return Path(self.uri)

    @property
    def filesystem(self) -> Any:
        """What pyarrow reads with; None is the disk."""
        return None

    @property
    def inside(self) -> str:
        """The name that the file system knows it by."""
        return self.uri

    def exists(self) -> bool:
        """Whether there is a file."""
        return self.path.exists()

    def make(self, *, parents: bool = True) -> None:
        """Make the directory, where the storage has directories."""
        self.path.mkdir(parents=parents, exist_ok=True)

    def names(self) -> list[str]:
        """The names of the files in a directory; none where it is not there."""
        try:
            return [path.name for path in self.path.iterdir()]
        except FileNotFoundError:
            return []

    def read(self) -> bytes:
        """A small file as a whole."""
        return self.path.read_bytes()

    def replace(self, content: bytes) -> None:
        """Write a small file; a reader sees the old one or the new one."""
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        aside.write_bytes(content)
        aside.replace(self.path)

    @contextmanager
    def create(self) -> Iterator[Any]:
        """A new file to write to; in the end it is durable, or gone if anything went wrong."""
        path = self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        sync(path.parent)
