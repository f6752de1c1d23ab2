"""Checks a user's SELECT before a PostgreSQL server gets it: which tables and functions it may name.

A SELECT can call every function that its user may call. `set_config('role', …)` makes it another user in the middle of
the statement, and `set_config('smolmem.scope', …)` changes the scope that row-level security reads; neither grants nor
a role prevent that. So functions are refused by name, unless they are listed here. Tables are bound by the search path:
it holds `pg_catalog` alone, so a name without a schema is one of the three views, a name of the statement's own, or a
catalog; and all catalogs begin with `pg_`.

The check reads tokens, not grammar, and takes only tokens that PostgreSQL reads in one way: plain strings and names, no
comments, no escapes, no dollar quotes, and nothing but ASCII outside of strings.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from smolmem.core.errors import InvalidArgument

LONGEST = 20_000
"""Characters of a statement."""
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    |(?P<refused>--|/\*)
    |(?P<string>'(?:[^'\\\x00]|'')*')
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*(?!['"&$\\]))
    |(?P<quoted>"[A-Za-z_][A-Za-z0-9_ ]*")
    |(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)
    |(?P<sign>::|[(),.;*+\-/%<>=!|])""",
    re.VERBOSE,
)
_FUNCTIONS = frozenset(
    """abs avg bool_and bool_or cast ceil char_length coalesce concat count cume_dist date_part date_trunc dense_rank
    extract first_value floor greatest lag last_value lead least left length lower ltrim max min mod now ntile nullif
    percent_rank percentile_cont percentile_disc position rank right round row_number rtrim sign split_part
    starts_with stddev strpos substr substring sum to_char to_timestamp trim upper variance""".split()  # noqa: SIM905
)
_LONG = frozenset({"replace", "string_agg"})
"""Functions whose results can be very long: not for agents."""
_BEFORE_PAREN = frozenset(
    """all and any as between by distinct else except exists filter from group having in inner intersect is join
    lateral like limit materialized not offset on or over select some then union using values when where
    with""".split()  # noqa: SIM905
)
"""Words of SQL that are followed by a parenthesis and are no functions."""
_WHO = frozenset("current_catalog current_role current_schema current_user session_user system_user user".split())  # noqa: SIM905
"""Functions that are called without a parenthesis."""


class Token(NamedTuple):
    """A word, string, number or sign of a statement."""

    kind: str
    text: str
    start: int

    @property
    def name(self) -> str:
        """The name that PostgreSQL looks up."""
        return self.text[1:-1] if self.kind == "quoted" else self.text.lower()


class CheckedSelect(NamedTuple):
    """A SELECT that a server may get.

    Attributes:
        text: the statement, without the word WITH that it may begin with.
        opening: `SELECT`, `WITH` or `WITH RECURSIVE`: how it begins.
        needs_texts: whether it may read the column `text`.
        labels: the names of its columns, where they are not those of the server.
    """

    text: str
    opening: str
    needs_texts: bool
    labels: list[str] | None


def check(statement: str, schemas: Collection[str], *, any_length: bool) -> CheckedSelect:
    """A SELECT as PostgreSQL takes it: LIKE ignores case, as in SQLite.

    Args:
        statement: what the user asked for.
        schemas: all schemas of the database.
        any_length: whether functions with very long results may be called.

    Raises:
        InvalidArgument: it is not one SELECT, or names something that it must not.
    """
    tokens = list(_tokens(statement))
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    words = [token.text.upper() for token in tokens[:2]]
    opening = "WITH RECURSIVE" if words == ["WITH", "RECURSIVE"] else words[0] if words else ""
    if opening not in ("SELECT", "WITH", "WITH RECURSIVE"):
        raise _refusal("it does not begin with SELECT or WITH")
    functions = _FUNCTIONS | _LONG if any_length else _FUNCTIONS
    if opening == "WITH RECURSIVE":
        del tokens[1]
    for before, token, after in _with_neighbours(tokens):
        if token.text == ";":
            raise _refusal("it has several statements")
        if token.kind in ("name", "quoted"):
            _check_name(before, token, after, schemas, functions)
    own = tokens if opening == "SELECT" else tokens[1:]
    return CheckedSelect(_without_case(own, statement), opening, _needs_texts(tokens), _labels(tokens, statement))


def _without_case(tokens: list[Token], statement: str) -> str:
    """The statement, from its first token, with LIKE as it is in SQLite."""
    text, done = "", tokens[0].start if tokens else 0
    for token in tokens:
        said = "ILIKE" if token.kind == "name" and token.name == "like" else token.text
        text, done = text + statement[done : token.start] + said, token.start + len(token.text)
    return text


def _with_neighbours(tokens: list[Token]) -> Iterator[tuple[Token | None, Token, Token | None]]:
    return zip([None, *tokens], tokens, [*tokens[1:], None], strict=False)


def _tokens(statement: str) -> Iterator[Token]:
    if len(statement) > LONGEST:
        raise _refusal(f"it is longer than {LONGEST:,} characters")
    place, depth = 0, 0
    while place < len(statement):
        found = _TOKEN.match(statement, place)
        if found is None or found.lastgroup == "refused":
            raise _refusal(f"{statement[place : place + 20]!r} is not taken: no comments, escapes or other signs")
        place = found.end()
        depth += (found[0] == "(") - (found[0] == ")")
        if depth < 0:
            raise _refusal("a parenthesis is closed that was not opened")
        if found.lastgroup != "space":
            yield Token(str(found.lastgroup), found[0], found.start())
    if depth:
        raise _refusal("a parenthesis is not closed")


def _check_name(
    before: Token | None, token: Token, after: Token | None, schemas: Collection[str], functions: Collection[str]
) -> None:
    name, is_part = token.name, before is not None and before.text == "."
    if name.lower().startswith("pg_") or name in _WHO:
        raise _refusal(f"{name} is not available")
    if after is not None and after.text == "." and name in schemas:
        raise _refusal(f"{name} is a schema: name the tables alone, and no alias like a schema")
    if after is None or after.text != "(":
        return
    is_new_name = before is not None and before.kind == "name" and before.name in ("as", "with")
    if is_part or token.kind == "quoted" or not (name in functions or name in _BEFORE_PAREN or is_new_name):
        raise _refusal(f"the function {name}() is not available")


def _needs_texts(tokens: list[Token]) -> bool:
    """Whether a SELECT may read the column `text`; `count(*)` and a product do not."""
    for before, token, after in _with_neighbours(tokens):
        if token.name in ("text", "natural"):
            return True
        if token.text == "*" and not (before and before.text == "(" and after and after.text == ")"):
            return True
    return False


def _labels(tokens: list[Token], statement: str) -> list[str] | None:
    """The names of columns, as SQLite gives them: an expression without a name is named by its text, else empty."""
    items: list[list[Token]] = []
    depth = 0
    for token in tokens:
        depth += (token.text == "(") - (token.text == ")")
        if not depth and items and token.name == "from":
            break
        if not depth and (token.text == "," if items else token.name == "select"):
            items.append([])
        elif items and (items[-1] or token.name != "distinct"):
            items[-1].append(token)
    if not all(items) or any(item[-1].text == "*" for item in items):
        return None
    return [_label(item, statement) for item in items]


def _label(item: list[Token], statement: str) -> str:
    last, before = item[-1], item[-2] if len(item) > 1 else None
    is_name = last.kind in ("name", "quoted") and last.name != "end"
    if is_name and (before is None or before.kind != "sign" or before.text in (".", ")")):
        return ""
    return statement[item[0].start : last.start + len(last.text)]


def _refusal(why: str) -> InvalidArgument:
    return InvalidArgument(
        f"this SELECT cannot be run ({why}): the tables are notes, runs, steps, to read only, in PostgreSQL's SQL."
    )
