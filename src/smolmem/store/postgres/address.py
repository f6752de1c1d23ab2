"""The address of a PostgreSQL store: what libpq is told, and what is shown of it.

`postgresql://user:password@host/database?schema=team&sslmode=verify-full`: all parameters are libpq's own (TLS, time
limits, several hosts), except `schema` and `scope`. The password is in no message and no `repr`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

from smolmem.core.arguments import check_scope
from smolmem.core.errors import NotAStore

SCHEMA = "smolmem"
_SECRET = ("password", "sslpassword", "oauth_client_secret")
_DEFAULTS = {
    "application_name": "smolmem",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}


@dataclass(frozen=True)
class Address:
    """Where a store is; `shown` has no secrets."""

    shown: str
    schema: str
    scope: str | None
    url: str = field(repr=False)
    conninfo: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    def clean(self, text: str) -> str:
        """A driver's message in one line, without secrets."""
        for secret in self.secrets:
            text = text.replace(secret, "…")
        return " ".join(text.split()).removeprefix("connection failed: ").rstrip(".")


def parse(url: str) -> Address:
    """The address that a URL names.

    Raises:
        NotAStore: the URL names no schema that PostgreSQL can have, or cannot be read.
    """
    try:
        parts = urlsplit(url)
        given = parse_qsl(parts.query, keep_blank_values=True)
        password = parts.password
    except ValueError as error:
        raise NotAStore("this is not a URL: give postgresql://user@host/database.") from error
    own = {name: value for name, value in given if name in ("schema", "scope")}
    kept = [(name, value) for name, value in given if name not in own]
    schema = own.get("schema", SCHEMA)
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema) or schema.startswith("pg_"):
        raise NotAStore(f"schema={schema!r} is not a name of a schema: use small letters, digits and _.")
    scope = check_scope(own["scope"]) if "scope" in own else None
    named = {name for name, _ in kept}
    told = kept + [(name, value) for name, value in _DEFAULTS.items() if name not in named]
    secrets = [value for name, value in kept if name in _SECRET and value]
    secrets += [form for form in (password, unquote(password or "")) if form]
    shown = [*((name, value) for name, value in kept if name not in _SECRET), *own.items()]
    netloc = parts.netloc.rpartition("@")[2]
    netloc = f"{parts.username}@{netloc}" if parts.username else netloc
    return Address(
        shown=urlunsplit(("postgresql", netloc, parts.path, _query(shown), "")),
        schema=schema,
        scope=scope,
        url=url,
        conninfo=urlunsplit(("postgresql", parts.netloc, parts.path, _query(told), "")),
        secrets=tuple(sorted(set(secrets), key=len, reverse=True)),
    )


def _query(items: list[tuple[str, str]]) -> str:
    return "&".join(f"{quote(name, safe='')}={quote(value, safe='/')}" for name, value in items)
