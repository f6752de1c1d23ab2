"""pgvector as the vector index: a table on a PostgreSQL server, for scopes that no process should hold in RAM.

A filter leaves too little of what an HNSW index finds: where it admitted one row in a hundred, 3 of 100 of the true
nearest were found. So no search filters one. Small scopes share a partition that is searched exactly, through an index
on the scope. A scope that has grown large gets a partition of its own, whose HNSW index holds that scope and nothing
else.

Vectors are stored as 16-bit numbers; `external_index.py` computes scores from the vectors of the store.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import psycopg
from psycopg import sql

from smolmem.core.errors import StoreError
from smolmem.store.postgres.address import Address
from smolmem.store.postgres.connection import Link

Array = Any  # a NumPy array

LARGE_SCOPE = 20_000
"""Vectors from which on a scope has a partition of its own."""
MAX_HNSW_NUMBERS = 4_000
"""Numbers of a vector that an HNSW index takes at most."""
MIN_CANDIDATES, MAX_CANDIDATES = 100, 1_000
"""Candidates that an HNSW index is asked for: more than are wanted, because it misses some; 1,000 is its limit."""

_EXTENSION = (
    "SELECT nspname FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace WHERE extname = 'vector'"
)
_TABLE = """CREATE TABLE IF NOT EXISTS {table}
(key bigint NOT NULL, scope text NOT NULL, numbers halfvec({size}) NOT NULL) PARTITION BY LIST (scope)"""
_SMALL = "CREATE TABLE IF NOT EXISTS {small} PARTITION OF {table} DEFAULT"
_BY_KEY = "CREATE INDEX IF NOT EXISTS {by_key} ON {table} (key)"
_BY_SCOPE = "CREATE INDEX IF NOT EXISTS {by_scope} ON {small} (scope)"
_ADD = """INSERT INTO {table} (key, scope, numbers)
SELECT key, scope, CAST(numbers AS halfvec({size}))
FROM unnest(CAST(%s AS bigint[]), CAST(%s AS text[]), CAST(%s AS text[])) AS given (key, scope, numbers)"""
_NEAREST = "SELECT key FROM {table} WHERE scope = %s ORDER BY numbers <#> CAST(%s AS halfvec({size})) LIMIT %s"
_EXACT = "SELECT key FROM {table} WHERE scope = %s ORDER BY (numbers <#> CAST(%s AS halfvec({size}))) + 0 LIMIT %s"
_LARGE = "SELECT scope FROM {small} GROUP BY scope HAVING count(*) >= %s"
_SPLIT = """LOCK TABLE {table};
CREATE TABLE {large} (LIKE {small});
INSERT INTO {large} SELECT * FROM {small} WHERE scope = {scope};
DELETE FROM {small} WHERE scope = {scope};
ALTER TABLE {table} ATTACH PARTITION {large} FOR VALUES IN ({scope})"""
_HNSW = "CREATE INDEX ON {large} USING hnsw (numbers halfvec_ip_ops)"


class PgvectorIndex:
    """One table, with a partition for each large scope."""

    def __init__(self, address: Address, name: str, size: int) -> None:
        self._size, self._name = size, name
        self._link = Link(address)
        self._connection = self._link.live()
        schema = sql.Identifier(address.schema)
        self._run(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
        self._run(sql.SQL("SET search_path = {}, {}, pg_catalog").format(schema, sql.Identifier(self._extension())))
        for statement in (_TABLE, _SMALL, _BY_KEY, _BY_SCOPE):
            self._run(self._sql(statement))

    def _extension(self) -> str:
        """The schema that pgvector is in; pgvector is added to the database, if the server has it."""
        found = self._connection.execute(_EXTENSION).fetchone()
        if found is None:
            try:
                self._connection.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
            except psycopg.Error as error:
                raise StoreError(
                    f"{self._link.address.shown} has no pgvector: install it on the server, and let a superuser run "
                    "CREATE EXTENSION vector in this database."
                ) from error
            return "public"
        return str(found[0])

    def _sql(self, text: str, **names: sql.Composable) -> sql.Composed:
        parts = {
            "table": sql.Identifier(self._name),
            "small": sql.Identifier(f"{self._name}-small"),
            "by_key": sql.Identifier(f"{self._name}-key"),
            "by_scope": sql.Identifier(f"{self._name}-scope"),
            "size": sql.Literal(self._size),
        }
        return sql.SQL(text).format(**parts, **names)

    def _run(self, statement: sql.Composed, values: Sequence[Any] | None = None) -> psycopg.Cursor[Any]:
        try:
            return self._connection.execute(statement, values)
        except psycopg.Error as error:
            raise StoreError(f"{self._link.address.shown}: {self._link.address.clean(str(error))}") from None

    def add(self, keys: Sequence[int], vectors: Array, scopes: Sequence[str]) -> None:
        """Adds rows, or replaces those of the same key."""
        with self._connection.transaction():
            self.drop(keys)
            self._run(self._sql(_ADD), [list(keys), list(scopes), [_text(vector) for vector in vectors]])

    def drop(self, keys: Collection[int]) -> None:
        """Removes rows."""
        self._run(self._sql("DELETE FROM {table} WHERE key = ANY(%s)"), [[int(key) for key in keys]])

    def nearest(self, vector: Array, limit: int, scope: str) -> list[int]:
        """The nearest rows of a scope; exact for a small scope, and for more candidates than HNSW can give."""
        wanted = max(2 * limit, MIN_CANDIDATES)
        with self._connection.transaction():
            if wanted <= MAX_CANDIDATES:
                self._run(sql.SQL("SET LOCAL hnsw.ef_search = {}").format(sql.Literal(wanted)))
            asked = _NEAREST if wanted <= MAX_CANDIDATES else _EXACT
            found = self._run(self._sql(asked), [scope, _text(vector), limit])
            return [int(row[0]) for row in found.fetchall()]

    def keys(self) -> set[int]:
        """The keys of all rows."""
        return {int(row[0]) for row in self._run(self._sql("SELECT key FROM {table}")).fetchall()}

    def count(self) -> int:
        """How many rows there are."""
        row = self._run(self._sql("SELECT count(*) FROM {table}")).fetchone()
        return int(row[0]) if row else 0

    def save(self, *, erased: bool = False) -> None:
        """Gives scopes that have grown large a partition of their own."""
        if self._size > MAX_HNSW_NUMBERS:
            return
        for (scope,) in self._run(self._sql(_LARGE), [LARGE_SCOPE]).fetchall():
            large = sql.Identifier(f"{self._name}-{scope}")
            with self._connection.transaction():
                self._run(self._sql(_SPLIT, large=large, scope=sql.Literal(scope)))
                self._run(self._sql(_HNSW, large=large))
                self._run(self._sql("ANALYZE {large}", large=large))

    def close(self) -> None:
        """Closes the connection."""
        self._link.close()


def _text(vector: Array) -> str:
    return f"[{','.join(f'{number:.6g}' for number in vector.tolist())}]"
