"""A disk whose power can be cut: ext4 in a file, mounted through a loop device. Needs root.

A cut is the kernel's own `EXT4_IOC_SHUTDOWN` without a flush of the journal: from that instant nothing more reaches
the device, so what programs wrote and did not sync is lost, as when the power goes.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from opentab.core.errors import MachineError

SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32), from linux/ext4.h
WITHOUT_FLUSH = struct.pack("I", 2)
FSCK_FIXED_MAX = 1  # the exit codes up to here say that the file system is in order now
UNMOUNT_SECONDS_MAX = 30.0


class LoopDisk:
    """An ext4 file system in an image file, mounted at a directory."""

    def __init__(self, image: Path, mount: Path, *, megabytes: int) -> None:
        self.image = image
        self.mount = mount
        mount.mkdir(parents=True, exist_ok=True)
        with image.open("wb") as file:
            file.truncate(megabytes * 2**20)
        _run("mkfs.ext4", "-q", "-m", "0", str(image))
        self._attach()

    def cut(self) -> None:
        """Cut the power. Whoever still has files open there must be killed next, then `restore` brings it back."""
        handle = os.open(self.mount, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, SHUTDOWN, WITHOUT_FLUSH)
        finally:
            os.close(handle)

    def restore(self) -> None:
        """Bring the disk back as a machine does when it starts: recover the file system's journal, check, mount."""
        self._detach()
        checked = subprocess.run(["e2fsck", "-fy", str(self.image)], capture_output=True, text=True, check=False)
        if checked.returncode > FSCK_FIXED_MAX:
            raise MachineError(f"e2fsck could not repair {self.image}: {checked.stdout}")
        self._attach()

    def close(self) -> None:
        """Unmount it, and delete the image."""
        with suppress(MachineError):
            self._detach()
        self.image.unlink(missing_ok=True)

    def _attach(self) -> None:
        _run("mount", "-o", "loop", str(self.image), str(self.mount))

    def _detach(self) -> None:
        deadline = time.monotonic() + UNMOUNT_SECONDS_MAX
        while True:  # a process that was killed a moment ago may still hold it
            try:
                return _run("umount", str(self.mount))
            except MachineError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise MachineError(f"{command[0]} is missing", hint="apt-get install e2fsprogs mount") from error
    if done.returncode:
        raise MachineError(
            f"{command[0]} failed: {(done.stderr or done.stdout).strip()}", hint="loop devices need root"
        )
