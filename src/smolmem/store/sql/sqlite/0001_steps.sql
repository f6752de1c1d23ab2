-- Every step of every run, as an append-only journal, and what is needed to find it quickly.
--
--   content   records, messages, images and long texts, each once, known by the hash of its bytes
--   prompt    what a model was sent: the first `keep` parts of an earlier prompt, then `suffix`; a part is the list
--             of messages that one step is shown as
--   session   one memory list, from one reset to the next
--   run       one agent.run(): whose, and how it ended; its counts are filled in when it ends
--   event     what happened to a session's list, in order; nothing here is ever changed
--   step      where each step stands now: the journal, folded
--   call      what a model answered and what tools did, written before and after it happened
--
-- `hash` covers the other columns of its row (but for `step.place`, which moves); `content.hash` covers the bytes.

CREATE TABLE content (
    id    INTEGER PRIMARY KEY,
    hash  BLOB NOT NULL UNIQUE,
    bytes BLOB NOT NULL
) STRICT;

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
) STRICT;

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
    text          TEXT NOT NULL,
    revision      INTEGER NOT NULL,
    record        INTEGER NOT NULL REFERENCES content (id),
    prompt        INTEGER REFERENCES prompt (id),
    hash          BLOB NOT NULL
) STRICT;

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
) STRICT;

CREATE INDEX call_by_run ON call (run, turn);
