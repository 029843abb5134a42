"""What S3 and stores like it need to be a safe place for the ledger, in the words of the two libraries that use them.

Delta's library commits with a conditional put (`If-None-Match: *`): of two writers of one version the second is
refused by the store itself. What would switch that off is refused here.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from opentab.core.errors import ConfigError

SCHEME = "s3://"
URI_PATTERN = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_.-]+)*")
# An option that only one of the libraries knew would be no option: half of the ledger's files would go elsewhere.
OPTIONS = (
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "aws_region",
    "aws_endpoint_url",
    "aws_allow_http",
    "aws_virtual_hosted_style_request",
)
SECRETS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
UNSAFE_VARIABLES = ("AWS_S3_ALLOW_UNSAFE_RENAME", "AWS_S3_LOCKING_PROVIDER")
REGION_DEFAULT = "us-east-1"  # stores with an address of their own want one, and take any

# A store that is gone is waited for, half a minute or so; then whoever needs it stops with a sentence.
REQUEST_SECONDS = 20
CONNECT_SECONDS = 5
RETRY_SECONDS = 30
ATTEMPTS = 6
# Signs of life are written again in a second: nobody waits long for them.
BRISK_SECONDS = 5
BRISK_ATTEMPTS = 2


def check_uri(uri: str) -> None:
    """Stop at an address that the ledger cannot have."""
    if not uri.startswith(SCHEME):
        raise ConfigError(
            f"ledger.uri = {uri!r} is not supported: commits are known to be safe on a local disk and on S3",
            hint='use a directory, or "s3://bucket/prefix"',
        )
    if not URI_PATTERN.fullmatch(uri) or {".", ".."} & set(uri.split("/")):
        raise ConfigError(
            f"ledger.uri = {uri!r} is no address of a bucket",
            hint='write "s3://bucket/prefix", of letters, digits and _ . -',
        )
    for name in UNSAFE_VARIABLES:
        if name in os.environ:
            raise ConfigError(f"{name} is set: two pipelines could commit the same batch", hint=f"unset {name}")


def check_options(options: Mapping[str, object]) -> dict[str, str]:
    """The options as text; stops at one that is unknown or unsafe, without saying its value."""
    checked = {}
    for name, value in options.items():
        if name.upper() in UNSAFE_VARIABLES or "conditional_put" in name or "copy_if_not_exists" in name:
            raise ConfigError(
                f"ledger.storage.{name} is not to be set: only commits by conditional put are safe",
                hint="take it out",
            )
        if name not in OPTIONS:
            close = difflib.get_close_matches(name, OPTIONS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(OPTIONS)}"
            raise ConfigError(f"ledger.storage.{name} is no option", hint=hint)
        if isinstance(value, bool):
            value = str(value).lower()
        if not isinstance(value, str) or not value:
            raise ConfigError(f"ledger.storage.{name} is wrong", hint="write a text in quotes, or true or false")
        checked[name] = value
    _check_endpoint(checked)
    return checked


def delta_options(options: Mapping[str, str]) -> dict[str, str]:
    """For Delta's library."""
    return {
        "timeout": f"{REQUEST_SECONDS}s",
        "connect_timeout": f"{CONNECT_SECONDS}s",
        "retry_timeout": f"{RETRY_SECONDS}s",
        "max_retries": str(2 * RETRY_SECONDS),
        "backoff_config.init_backoff": "500ms",
        **options,
        "aws_conditional_put": "etag",
    }


def filesystem(options: Mapping[str, str], *, brisk: bool = False) -> Any:
    """For pyarrow; `brisk` for what is not worth waiting for."""
    return _filesystem(tuple(sorted(options.items())), brisk)


def without_secrets(text: str, options: Mapping[str, str]) -> str:
    """A text that may be shown."""
    for name in SECRETS:
        if value := options.get(name) or os.environ.get(name.upper()):
            text = text.replace(value, "…")
    return text


@cache
def _filesystem(items: tuple[tuple[str, str], ...], brisk: bool) -> Any:
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    options = dict(items)
    endpoint = urlsplit(options.get("aws_endpoint_url") or os.environ.get("AWS_ENDPOINT_URL") or "")
    region = options.get("aws_region") or (REGION_DEFAULT if endpoint.netloc and not _has_region() else None)
    return S3FileSystem(
        access_key=options.get("aws_access_key_id"),
        secret_key=options.get("aws_secret_access_key"),
        session_token=options.get("aws_session_token"),
        region=region,
        endpoint_override=endpoint.netloc or None,
        scheme=endpoint.scheme or None,
        force_virtual_addressing=options.get("aws_virtual_hosted_style_request") == "true",
        allow_delayed_open=True,  # a small file is one request
        request_timeout=BRISK_SECONDS if brisk else REQUEST_SECONDS,
        connect_timeout=CONNECT_SECONDS,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=BRISK_ATTEMPTS if brisk else ATTEMPTS),
    )


def _has_region() -> bool:
    return "AWS_REGION" in os.environ or "AWS_DEFAULT_REGION" in os.environ


def _check_endpoint(options: Mapping[str, str]) -> None:
    endpoint = options.get("aws_endpoint_url")
    if endpoint is None:
        return
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/") or "@" in parts.netloc:
        raise ConfigError(
            "ledger.storage.aws_endpoint_url is no address of a server", hint='for example "https://s3.example.com"'
        )
    if parts.scheme == "http" and options.get("aws_allow_http") != "true":
        raise ConfigError(
            f"ledger.storage.aws_endpoint_url = {endpoint!r} is not encrypted",
            hint='use https, or set aws_allow_http = "true"',
        )
