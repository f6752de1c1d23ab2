-- What was remembered on purpose, and how anything is found again.
--
--   unit       a piece of a step or note that recall can find; made from them, and dropped when it is not to be found
--   words      full text over units: whose they are, the date written out, what came before, the text
--   vector     what an embedding model makes of a unit's text; a cache
--   unread     steps that were recorded or revised and have no units yet: they are read before the next recall
--   note       something remembered on purpose; never changed, only superseded or forgotten
--   forgotten  what recall leaves out: a note, a step, or all of a run
--   recalled   what was brought to an agent's mind, in which run
--
-- `hash` covers the other columns of its row.

CREATE TABLE unit (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given twice: indexes in memory know units by it
    scope   TEXT NOT NULL,
    session TEXT NOT NULL,               -- its neighbours are in the same one; '' for a note
    step    INTEGER REFERENCES step (id),
    note    TEXT REFERENCES note (id),
    run     TEXT REFERENCES run (id),
    agent   TEXT,
    role    TEXT NOT NULL,
    tool    TEXT,
    origin  TEXT NOT NULL,
    at      REAL NOT NULL,
    whose   TEXT NOT NULL,               -- a word for the scope and for each scope it lies in
    date    TEXT NOT NULL,
    before  TEXT NOT NULL,               -- how the two units before it ended; for an answer, the task
    text    TEXT NOT NULL,
    hash    BLOB NOT NULL
) STRICT;

CREATE INDEX unit_by_session ON unit (session, step);
CREATE INDEX unit_by_scope ON unit (scope);
CREATE INDEX unit_by_note ON unit (note) WHERE note IS NOT NULL;
CREATE INDEX unit_by_run ON unit (run) WHERE run IS NOT NULL;

CREATE VIRTUAL TABLE words USING fts5 (
    whose, date, before, text, content = 'unit', content_rowid = 'id', tokenize = 'porter unicode61'
);

CREATE TABLE vector (
    scope   TEXT NOT NULL,
    unit    INTEGER NOT NULL REFERENCES unit (id),
    model   TEXT NOT NULL,
    facts   BLOB NOT NULL,               -- what of the unit a search can ask for
    numbers BLOB NOT NULL,
    PRIMARY KEY (scope, unit)
) STRICT, WITHOUT ROWID;

CREATE TABLE unread (step INTEGER PRIMARY KEY REFERENCES step (id)) STRICT;

INSERT INTO unread SELECT id FROM step;

CREATE TABLE note (
    id         TEXT PRIMARY KEY,
    scope      TEXT NOT NULL,
    kind       TEXT NOT NULL,
    text       TEXT NOT NULL,
    tags       TEXT NOT NULL,            -- a JSON list of words
    origin     TEXT NOT NULL,
    run        TEXT REFERENCES run (id), -- the run it was written down in
    at         REAL NOT NULL,
    expires    REAL,
    supersedes TEXT REFERENCES note (id),
    sources    TEXT NOT NULL,            -- a JSON list of the steps (numbers) and notes (texts) it comes from
    hash       BLOB NOT NULL
) STRICT;

CREATE INDEX note_by_scope ON note (scope, at);
CREATE INDEX note_by_end ON note (expires) WHERE expires IS NOT NULL;
CREATE INDEX note_by_past ON note (supersedes) WHERE supersedes IS NOT NULL;
CREATE INDEX note_by_run ON note (run) WHERE run IS NOT NULL;

CREATE TABLE forgotten (
    id     INTEGER PRIMARY KEY,
    what   TEXT NOT NULL CHECK (what IN ('note', 'step', 'run')),
    target TEXT NOT NULL,
    at     REAL NOT NULL,
    hash   BLOB NOT NULL
) STRICT;

CREATE INDEX forgotten_by_target ON forgotten (what, target);

CREATE TABLE recalled (
    id      INTEGER PRIMARY KEY,
    run     TEXT NOT NULL REFERENCES run (id),
    step    INTEGER REFERENCES step (id),      -- the task it was shown with; NULL where the agent asked
    at      REAL NOT NULL,
    query   TEXT NOT NULL,
    block   INTEGER REFERENCES content (id),   -- the messages it was shown as
    found   TEXT NOT NULL,                     -- a JSON list: what each of it came from
    hash    BLOB NOT NULL
) STRICT;

CREATE INDEX recalled_by_run ON recalled (run);
CREATE INDEX recalled_by_step ON recalled (step) WHERE step IS NOT NULL;
