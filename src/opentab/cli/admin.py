"""Commands for operators: init, doctor, the log, access tokens."""

from __future__ import annotations

import json
import sys
import tomllib

import click
from click.shell_completion import get_completion_class

from opentab.cli.base import DIFFERENT, FORMATS, OK, at_home, at_log, commands, duration_option
from opentab.core.errors import InputError
from opentab.runtime import config, terminal
from opentab.runtime.config import Home
from opentab.runtime.disk import write_new
from opentab.runtime.permissions import make_private


@commands.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what completes opentab's commands: eval "$(opentab completion bash)"."""
    found = get_completion_class(shell)
    assert found is not None
    terminal.write(found(commands, {}, "opentab", "_OPENTAB_COMPLETE").source())


@commands.command()
@click.option("--currency", help='three capital letters ["EUR"]')
@click.option(
    "--type", "types", multiple=True, help="a type of event that is billed; again for more [the telecom's five]"
)
@at_home
def init(home: Home, currency: str | None, types: tuple[str, ...]) -> None:
    """Write opentab.toml with every setting, its default and a comment."""
    file = home.path / config.FILE_NAME
    if file.exists():
        raise InputError(f"{file} is there already", hint="edit it, or remove it first")
    chosen = {"billing.currency": currency, "billing.types": list(types)}
    text = config.template({name: json.dumps(value) for name, value in chosen.items() if value})
    config.parse(home.path, tomllib.loads(text))  # says what is wrong before anything is written
    make_private(home.path)
    write_new(file, text.encode())
    terminal.write(f"wrote {file}")


@commands.command()
@click.option("--repair", is_flag=True, help="first make the ledger whole again, as far as its files allow")
@at_home
def doctor(home: Home, repair: bool) -> int:
    """Say what is missing on this machine, and how to get it; and why batches are slow or late."""
    from opentab.cli.doctor import examine, repair_ledger

    for sentence in repair_ledger(home) if repair else ():
        terminal.write(f"{terminal.paint('repaired', terminal.GREEN)} {sentence}")
    findings = examine(home)
    for finding in findings:
        mark = terminal.paint("ok     ", terminal.GREEN) if finding.ok else terminal.paint("MISSING", terminal.RED)
        mark = terminal.paint("SLOW   ", terminal.YELLOW) if finding.is_slow else mark
        terminal.write(f"{mark}  {finding.name:<8}  {finding.fact}")
        if finding.fix:
            terminal.write(f"                   {finding.fix}")
    return OK if all(finding.ok for finding in findings) else 3


@commands.group()
def log() -> None:
    """The log that the ledger is billed from."""


@log.command("adopt")
@click.argument("uri")
@click.option("--same-offsets", is_flag=True, help="it holds the same events at the same offsets: go on where we are")
@click.option("--leave-unread", is_flag=True, help="what the old log still holds unread is never billed")
@at_home
def log_adopt(home: Home, uri: str, same_offsets: bool, leave_unread: bool) -> None:
    """Bill the ledger from the log at URI from now on. URI is written as log.uri is."""
    from opentab.billing.adopt import adopt_log

    adopted = adopt_log(home, uri, same_offsets=same_offsets, leave_unread=leave_unread)
    if adopted.batch is None:
        terminal.write(f"the ledger is billed from this log already: {adopted.log_id}; nothing was changed")
    else:
        terminal.write(f"old log: {adopted.before_id or 'without an id'}")
        terminal.write(f"new log: {adopted.log_id}")
        terminal.write(f"batch {adopted.batch:,} records the move")
        if same_offsets:
            terminal.write("the new log is read on from the journal's offsets")
        else:
            terminal.write("the new log is read from its beginning: what was billed before counts again,")
            terminal.write("except for events whose ids are still remembered")
    if home["log.uri"] != uri:
        terminal.write(f'now set uri = "{uri}" under [log] in {home.path / config.FILE_NAME}, here and on all servers')


@log.command("clock")
@click.option("--restart", is_flag=True, help="let arrival run anew from now, after a clock was wrong")
@click.option("--format", "format_", type=FORMATS, default="table", show_default=True)
@at_home
@at_log
def log_clock(home: Home, restart: bool, format_: str) -> int:
    """Where arrival stands in each partition, beside this machine's clock. Ends with 1 if it contradicts that."""
    from opentab.billing.clock import restart_clock
    from opentab.cli.tables.clock import print_clocks
    from opentab.core.periods import format_us

    if restart:
        done = restart_clock(home)
        sys.stderr.write(f"arrival runs anew from {format_us(done.at_us)}: batch {done.batch:,}\n")
    return OK if print_clocks(home, format_) else DIFFERENT


@commands.group()
def token() -> None:
    """Access tokens for opentab serve: make a key, issue, revoke."""


@token.command("key")
@at_home
def token_key(home: Home) -> None:
    """Write a new key to the home's server.key_file, or to key beside opentab.toml."""
    from opentab.server.tokens import new_key

    path = home.path / (home["server.key_file"] or "key")
    make_private(home.path)
    try:
        write_new(path, f"{new_key()}\n".encode(), mode=0o600)
    except FileExistsError:
        raise InputError(f"{path} is there already", hint="all tokens are signed with it; remove it first") from None
    terminal.write(f"wrote {path}")
    if not home["server.key_file"]:
        terminal.write(f'set key_file = "{path.name}" under [server] in {home.path / config.FILE_NAME}')


@token.command("issue")
@click.option("--role", type=click.Choice(["customer", "reader", "ingest", "admin"]), required=True)
@click.option("--customer", metavar="NAME", help="for the role customer: whose")
@click.option("--expires", default="30d", show_default=True, help="how long it is good")
@at_home
def token_issue(home: Home, role: str, customer: str | None, expires: str) -> None:
    """Print a new token; its id, for revoking it, goes to standard error."""
    from opentab.server.tokens import Role, issue, token_id

    text = issue(_key(home), Role(role), customer=customer, lifetime=duration_option("--expires", expires))
    terminal.write(text)
    terminal.write(f"id {token_id(text)}", sys.stderr)


@token.command("revoke")
@click.argument("token_or_id")
@at_home
def token_revoke(home: Home, token_or_id: str) -> None:
    """Let a token, given by itself or by its id, be refused from now on."""
    from opentab.server.revocations import revoke, take_over
    from opentab.server.tokens import token_id

    wanted = token_id(token_or_id)
    revoke(home.ledger, wanted)
    take_over(home.ledger, home.revoked_path)
    terminal.write(f"{wanted} is refused from now on")


def _key(home: Home) -> bytes:
    from opentab.server.tokens import read_key

    key = read_key(home)
    if key is None:
        raise InputError("there is no key to sign tokens with", hint="make one with opentab token key")
    return key
