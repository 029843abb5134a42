"""Where the ledger lies, and what stands below it: a directory, or a prefix in a bucket.

What the two differ in is here. A disk has directories, a rename and an fsync; an object is whole and durable
once its put is answered.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from opentab.runtime import s3
from opentab.runtime.disk import make_directories, sync


class Place(msgspec.Struct, frozen=True):
    """A directory or a file of a storage, by its address; it goes along to Spark's tasks."""

    uri: str  # on a disk the absolute path
    options: dict[str, str] = {}  # how to reach it; secrets among them

    @classmethod
    def of(cls, path: Path) -> Place:
        """The place of a path on this machine's disks."""
        return cls(str(path.resolve()))

    def __truediv__(self, name: str) -> Place:
        return Place(f"{self.uri}/{name}", self.options)

    def __str__(self) -> str:
        return self.uri

    def __repr__(self) -> str:
        return f"Place({self.uri!r})"

    @property
    def parent(self) -> Place:
        return Place(self.uri.rpartition("/")[0], self.options)

    @property
    def is_local(self) -> bool:
        """Whether it lies on a disk of this machine."""
        return not self.uri.startswith(s3.SCHEME)

    @property
    def path(self) -> Path:
        """The same as a path; only a place on a disk has one."""
        assert self.is_local, self
        return Path(self.uri)

    @property
    def delta_options(self) -> dict[str, str] | None:
        """What Delta's library needs to reach it."""
        return None if self.is_local else s3.delta_options(self.options)

    @property
    def filesystem(self) -> Any:
        """What pyarrow reads with; None is the disk."""
        return None if self.is_local else s3.filesystem(self.options)

    @property
    def inside(self) -> str:
        """The name that pyarrow's file system knows it by."""
        return self.uri.removeprefix(s3.SCHEME)

    def exists(self) -> bool:
        """Whether there is a file."""
        if self.is_local:
            return self.path.exists()
        return bool(self.filesystem.get_file_info(self.inside).is_file)

    def make(self, *, parents: bool = True) -> None:
        """Make the directory, durably; a bucket has none."""
        if self.is_local:
            if parents:
                make_directories(self.path)
            else:
                self.path.mkdir(exist_ok=True)

    def names(self) -> list[str]:
        """The names of the files in a directory; none where it is not there."""
        if not self.is_local:
            return self._object_names()
        try:
            return [path.name for path in self.path.iterdir()]
        except FileNotFoundError:
            return []

    def read(self) -> bytes:
        """A small file as a whole."""
        if self.is_local:
            return self.path.read_bytes()
        with s3.filesystem(self.options, brisk=True).open_input_stream(self.inside) as file:
            return bytes(file.read())

    def replace(self, content: bytes, *, durable: bool = False) -> None:
        """Write a small file; a reader sees the old one or the new one. A durable one outlives a power cut."""
        if not self.is_local:
            with s3.filesystem(self.options, brisk=True).open_output_stream(self.inside) as file:
                file.write(content)
            return
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        aside.write_bytes(content)
        if durable:
            sync(aside)
        aside.replace(self.path)
        if durable:
            sync(self.path.parent)

    @contextmanager
    def create(self) -> Iterator[Any]:
        """A new file to write to; in the end it is durable. On a disk a file that is there is FileExistsError."""
        if not self.is_local:
            with self.filesystem.open_output_stream(self.inside) as file:
                yield file
            return
        path = self.path
        make_directories(path.parent)
        created = path.open("xb")  # outside of the try: a file that was there is not ours to remove
        try:
            with created as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        sync(path.parent)

    def without_secrets(self, text: str) -> str:
        """A text, an error of a library say, that may be shown."""
        return text if self.is_local else s3.without_secrets(text, self.options)

    def _object_names(self) -> list[str]:
        from pyarrow.fs import FileSelector

        below = s3.filesystem(self.options, brisk=True).get_file_info(FileSelector(self.inside, allow_not_found=True))
        return [info.base_name for info in below if info.is_file]
