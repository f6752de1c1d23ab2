-- The schema of a new file: what the numbered scripts leave in an empty one, which take four times as long.
-- Made by tests/schema_script.py. The numbered scripts explain the tables.

CREATE TABLE content (
    id    INTEGER PRIMARY KEY,
    hash  BLOB NOT NULL UNIQUE,
    bytes BLOB NOT NULL
, base INTEGER REFERENCES content (id)) STRICT;

CREATE TABLE prompt (
    id     INTEGER PRIMARY KEY,
    parent INTEGER REFERENCES prompt (id),
    keep   INTEGER NOT NULL,
    size   INTEGER NOT NULL,            -- in messages
    suffix TEXT NOT NULL,               -- a JSON list of content ids
    hash   BLOB NOT NULL
) STRICT;

CREATE TABLE session (
    id    TEXT PRIMARY KEY,
    scope TEXT NOT NULL,
    agent TEXT NOT NULL,
    began REAL NOT NULL,
    fork_of TEXT REFERENCES session (id), -- it begins as this session was,
    fork_at INTEGER,                      -- after this event
    hash  BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE run (
    id            TEXT PRIMARY KEY,
    session       TEXT NOT NULL REFERENCES session (id),
    scope         TEXT NOT NULL,
    agent         TEXT NOT NULL,
    agent_type    TEXT NOT NULL,
    title         TEXT NOT NULL,        -- the beginning of the task; the task itself is its first step
    status        TEXT NOT NULL CHECK (status IN ('running', 'finished', 'failed', 'interrupted', 'max_steps')),
    began         REAL NOT NULL,
    ended         REAL,
    parent        TEXT REFERENCES run (id),
    parent_step   INTEGER,
    fork_of       TEXT REFERENCES run (id),
    model         TEXT,
    smolagents    TEXT NOT NULL,
    max_steps     INTEGER,
    steps         INTEGER NOT NULL,
    errors        INTEGER NOT NULL,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    answer        INTEGER REFERENCES content (id),
    failure       INTEGER REFERENCES content (id),
    writer        TEXT NOT NULL,        -- host, process and its start: whether a running run still runs
    hash          BLOB NOT NULL
, tags TEXT NOT NULL DEFAULT '[]') STRICT;

CREATE INDEX run_by_time ON run (began);

CREATE INDEX run_by_session ON run (session);

CREATE INDEX run_by_parent ON run (parent) WHERE parent IS NOT NULL;

CREATE INDEX run_open ON run (writer) WHERE status = 'running';

CREATE TABLE event (
    id      INTEGER PRIMARY KEY,
    session TEXT NOT NULL REFERENCES session (id),
    run     TEXT NOT NULL REFERENCES run (id),
    at      REAL NOT NULL,
    act     TEXT NOT NULL CHECK (act IN ('insert', 'remove', 'revise')),
    step    INTEGER NOT NULL,
    place   INTEGER,                    -- in the session's list; NULL for a system prompt
    record  INTEGER REFERENCES content (id),
    shown   INTEGER REFERENCES content (id),  -- the messages a model is shown the step as
    prompt  INTEGER REFERENCES prompt (id),
    state   INTEGER REFERENCES content (id),  -- the agent's variables once the step was done
    hash    BLOB NOT NULL
) STRICT;

CREATE INDEX event_by_session ON event (session, id);

CREATE TABLE step (
    id            INTEGER PRIMARY KEY,
    run           TEXT NOT NULL REFERENCES run (id),
    session       TEXT NOT NULL REFERENCES session (id),
    place         INTEGER,              -- in the session's list now; NULL if taken off it, or a system prompt
    kind          TEXT NOT NULL,
    number        INTEGER,
    at            REAL NOT NULL,
    seconds       REAL,
    error         TEXT,
    tools         TEXT NOT NULL,        -- a JSON list of names
    input_tokens  INTEGER,
    output_tokens INTEGER,
    revision      INTEGER NOT NULL,
    record        INTEGER NOT NULL REFERENCES content (id),
    prompt        INTEGER REFERENCES prompt (id),
    hash          BLOB NOT NULL
, text ANY) STRICT;

CREATE INDEX step_by_run ON step (run, id);

CREATE INDEX step_by_place ON step (session, place);

CREATE INDEX step_by_error ON step (error) WHERE error IS NOT NULL;

CREATE TABLE call (
    id        INTEGER PRIMARY KEY,
    run       TEXT NOT NULL REFERENCES run (id),
    turn      INTEGER NOT NULL,           -- how many steps the run had when the call was made
    kind      TEXT NOT NULL CHECK (kind IN ('model', 'tool')),
    name      TEXT NOT NULL,
    arguments INTEGER NOT NULL REFERENCES content (id),
    began     REAL NOT NULL,
    ended     REAL,                       -- NULL: nobody knows whether it happened
    failed    INTEGER NOT NULL,
    outcome   INTEGER REFERENCES content (id),
    hash      BLOB NOT NULL
, web INTEGER) STRICT;

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

CREATE TABLE erased (
    id       INTEGER PRIMARY KEY,
    at       REAL NOT NULL,
    what     TEXT NOT NULL,              -- a JSON list of kinds: run, step, note, scope, before
    counts   TEXT NOT NULL,              -- a JSON object: rows removed, by table
    events   TEXT NOT NULL,              -- a JSON list of the first and last event of each range that was removed
    finished INTEGER NOT NULL,           -- 0 while free pages or the write-ahead log may still hold erased bytes
    hash     BLOB NOT NULL
) STRICT;

CREATE TABLE lease (
    name    TEXT NOT NULL PRIMARY KEY,
    holder  TEXT NOT NULL,
    renewed REAL NOT NULL,               -- seconds since 1970
    seconds REAL NOT NULL
) STRICT;

CREATE TABLE continued (
    file TEXT NOT NULL,                  -- device and inode
    at   REAL NOT NULL
) STRICT;

CREATE TABLE passage (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given twice: indexes in memory know passages by their ids
    document INTEGER NOT NULL,
    scope    TEXT NOT NULL,
    session  TEXT NOT NULL,               -- its neighbours are in the same session; '' for a note
    step     INTEGER REFERENCES step (id),
    note     TEXT REFERENCES note (id),
    run      TEXT REFERENCES run (id),
    agent    TEXT,
    role     TEXT NOT NULL,
    tool     TEXT,
    origin   TEXT NOT NULL,               -- who said it
    trust    TEXT NOT NULL,               -- in who said it, and in what it was made from: the lower of both
    at       REAL NOT NULL,
    hash     BLOB NOT NULL
, text ANY) STRICT;

CREATE INDEX passage_by_document ON passage (document);

CREATE INDEX passage_by_note ON passage (note) WHERE note IS NOT NULL;

CREATE INDEX document_by_session ON passage (session, step) WHERE id = document;

CREATE TABLE vector (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,  -- in the order of writing: indexes in memory read on from the last one
    passage INTEGER NOT NULL REFERENCES passage (id),
    scope   TEXT NOT NULL,
    model   TEXT NOT NULL,
    facts   BLOB NOT NULL,               -- what of the passage a search can ask for
    numbers BLOB NOT NULL,
    UNIQUE (passage, model)
) STRICT;

CREATE INDEX vector_by_scope ON vector (scope, id);

CREATE TABLE pending (
    id   INTEGER PRIMARY KEY,
    step INTEGER UNIQUE REFERENCES step (id),
    note TEXT UNIQUE REFERENCES note (id)
) STRICT;

CREATE TABLE exposure (
    id      INTEGER PRIMARY KEY,
    session TEXT NOT NULL UNIQUE REFERENCES session (id),
    step    INTEGER NOT NULL,            -- the first step that has such text; perhaps erased since
    at      REAL NOT NULL,               -- when the text came
    hash    BLOB NOT NULL
) STRICT;

CREATE TABLE fingerprint_key (
    id  INTEGER PRIMARY KEY CHECK (id = 1),
    key BLOB NOT NULL
) STRICT;

CREATE INDEX content_by_base ON content (base) WHERE base IS NOT NULL;

CREATE VIRTUAL TABLE document_words USING fts5 (
    text, before, date, scope, content = '', contentless_delete = 1, tokenize = 'porter unicode61'
);

CREATE VIRTUAL TABLE document_terms USING fts5vocab (document_words, row);

CREATE INDEX document_by_scope ON passage (scope) WHERE id = document;

CREATE INDEX document_by_run ON passage (run) WHERE id = document AND run IS NOT NULL;

CREATE INDEX run_by_writer ON run (writer);

CREATE INDEX call_by_run ON call (run, began);

INSERT INTO fingerprint_key (id, key) VALUES (1, randomblob(16));
