-- What was erased: that something was, and how much; never what it said.
--
--   erased  one call of `erase`; `verify` knows from it which events are missing on purpose
--
-- `hash` covers the other columns of its row.

CREATE TABLE erased (
    id       INTEGER PRIMARY KEY,
    at       REAL NOT NULL,
    what     TEXT NOT NULL,              -- a JSON list of kinds: run, step, note, scope, before
    counts   TEXT NOT NULL,              -- a JSON object: rows removed, by table
    events   TEXT NOT NULL,              -- a JSON list of the first and last event of each range that was removed
    finished INTEGER NOT NULL,           -- 0 while free pages or the write-ahead log may still hold erased bytes
    hash     BLOB NOT NULL
) STRICT;
