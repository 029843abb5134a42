"""Least privilege: whose homes, secrets and scratch files are, whatever the umask says."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgers import new_home
from opentab.cli import _bug_report
from opentab.core.errors import ConfigError
from opentab.ledger.engine import connect
from opentab.runtime import permissions
from opentab.runtime.config import Home
from opentab.runtime.permissions import read_secret, scratch_directory
from opentab.server.serve import Tls, check_tls
from opentab.server.tokens import read_key
from opentab.sinks.http import receiver_of
from product import OPENTAB, event

OTHER_USER = 54_321


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """What most machines have."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def run(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    command = [*OPENTAB, *words, "--home", str(home)]
    return subprocess.run(command, input=event(), capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    "words",
    [("init",), ("ingest",), ("token", "key"), ("generate", "--events", "10"), ("serve", "--host", "0.0.0.0")],
)
def test_a_new_home_is_its_owners_alone(tmp_path: Path, words: tuple[str, ...]) -> None:
    home = tmp_path / "above" / "home"
    run(*words, home=home)
    assert mode_of(home) == 0o700
    if words[0] == "token":
        assert mode_of(home / "key") == 0o600


def test_a_home_that_others_may_look_into_is_told_of_and_not_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    said = run("serve", "--host", "0.0.0.0", home=home).stderr
    assert f"other users may look into the home {home}: chmod 700 {home}" in said
    assert "server.host '0.0.0.0' can be reached" in said, "it went on"
    assert f"other users may look into it: chmod 700 {home}" in run("doctor", home=home).stdout
    home.chmod(0o700)
    assert "other users" not in run("serve", "--host", "0.0.0.0", home=home).stderr


SECRETS: dict[str, tuple[str, Callable[[Home], Any]]] = {
    "tokens": ('[server]\nkey_file = "secret"', read_key),
    "invoices": ('[invoices]\nhttp_url = "http://localhost:1/"\nhttp_key_file = "secret"', receiver_of),
    "headers": ('[invoices]\nhttp_url = "http://localhost:1/"\nhttp_header_file = "secret"', receiver_of),
    "password": ('[log]\nuri = "kafka://k:1/t"\n[kafka]\nsasl_password_file = "secret"', lambda home: home.kafka),
    "kafka's key": ('[log]\nuri = "kafka://k:1/t"\n[kafka]\ntls_key = "secret"', lambda home: home.kafka),
    "tls": ("", lambda home: check_tls(Tls(home.path / "secret", home.path / "secret"))),
}


@pytest.mark.parametrize("kind", SECRETS)
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_secret_that_others_may_read_is_refused_with_the_fix(tmp_path: Path, kind: str, mode: int) -> None:
    settings, use = SECRETS[kind]
    home = new_home(tmp_path / "home", settings)
    secret = home.path / "secret"
    secret.write_text("x-secret:of-more-than-thirty-two-characters\n")
    secret.chmod(mode)
    with pytest.raises(ConfigError) as refused:
        use(home)
    assert str(refused.value.fact) == f"{secret} holds a secret, and other users may read it"
    assert refused.value.hint == f"chmod 600 {secret}"
    for private in (0o600, 0o400):
        secret.chmod(private)
        if kind != "tls":
            use(home)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files of root's")
def test_roots_secrets_may_be_lent_to_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("lent")
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)
    secret.chmod(0o440)
    assert read_secret(secret) == "lent"
    for mode in (0o444, 0o460):
        secret.chmod(mode)
        with pytest.raises(ConfigError):
            read_secret(secret)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    permissions._directory_of_this_process.cache_clear()


def test_scratch_files_lie_in_a_directory_of_ours(temporary: Path) -> None:
    ours = temporary / f"opentab-{os.geteuid()}"
    assert scratch_directory() == ours == scratch_directory()
    assert mode_of(ours) == 0o700
    with connect() as connection:
        (place,) = connection.execute("select current_setting('temp_directory')").fetchone() or ()
    assert Path(place).parent == ours


@pytest.mark.parametrize("trap", ["of another user", "open to others", "a link", "a file"])
def test_a_directory_of_the_right_name_that_is_not_ours_is_not_used(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    if trap == "of another user":
        monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)  # whoever made it is not the one that we now are
    theirs = temporary / f"opentab-{os.geteuid()}"
    if trap == "a link":
        (temporary / "elsewhere").mkdir(mode=0o700)
        theirs.symlink_to(temporary / "elsewhere")
    elif trap == "a file":
        theirs.touch()
    else:
        theirs.mkdir(mode=0o700)
        theirs.chmod(0o777 if trap == "open to others" else 0o700)
    found = scratch_directory()
    assert found not in (theirs, theirs.resolve()) and found == scratch_directory()
    assert (found.parent, mode_of(found)) == (temporary, 0o700)


def test_a_report_of_a_bug_is_written_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = _bug_report(ValueError("secret"))
    (report,) = tmp_path.glob("opentab-bug-*.txt")
    assert mode_of(report) == 0o600
    assert report.name in said and report.stem != f"opentab-bug-{os.getpid()}"
