-- What was done around the steps.
--
--   cut    what a view left out of an agent's prompts, up to and with the step `last`; it holds until the view's next
--   alert  when a rule fired, and what it did about it
--
-- `hash` covers the other columns of its row.

CREATE TABLE cut (
    id      INTEGER PRIMARY KEY,
    session TEXT NOT NULL REFERENCES session (id),
    view    TEXT NOT NULL,
    last    INTEGER NOT NULL REFERENCES step (id),
    parts   INTEGER NOT NULL,
    before  INTEGER NOT NULL,            -- tokens of the prompt, about
    after   INTEGER NOT NULL,
    text    TEXT NOT NULL,               -- a summary that stands in their place
    at      REAL NOT NULL,
    hash    BLOB NOT NULL
) STRICT;

CREATE INDEX cut_by_session ON cut (session);

CREATE TABLE alert (
    id     INTEGER PRIMARY KEY,
    scope  TEXT NOT NULL,
    agent  TEXT NOT NULL,
    run    TEXT REFERENCES run (id),
    number INTEGER,
    rule   TEXT NOT NULL,
    reason TEXT NOT NULL,
    at     REAL NOT NULL,
    acts   TEXT NOT NULL,                -- a JSON list of words
    hash   BLOB NOT NULL
) STRICT;

CREATE INDEX alert_by_run ON alert (run);
CREATE INDEX alert_by_time ON alert (at);
