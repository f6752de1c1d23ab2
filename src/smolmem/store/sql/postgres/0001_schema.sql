-- The tables of a PostgreSQL store: what the migrations of SQLite lead to, in the part of the dialect that CockroachDB,
-- YugabyteDB and Citus share. What each table is for is described in `sql/sqlite`.
--
--   store           one row: the format, and the lock that every writing transaction takes first
--   document_words  full text over documents: the terms of each document, and how often it has them, weighed by where
--   words_size      how many rows and terms it has
--
-- Ids are handed out while the lock is held: their order is the order of the commits, with gaps. `rowid` is the order in
-- which runs and notes were written. Ids that are texts sort by their bytes. What refers to contents and prompts has no
-- foreign key: for each one that is erased, the server would read all rows that could refer to it. A content is known by
-- its hash, and `verify` finds those that are missing. Nor has a session that is a fork: it may be loaded before the
-- session that it is a fork of.

CREATE SEQUENCE ids;
CREATE SEQUENCE passage_ids;  -- keys of vector indexes hold 32 bits of them

CREATE TABLE content (
    id    bigint PRIMARY KEY DEFAULT nextval('ids'),
    hash  bytea NOT NULL UNIQUE,
    bytes bytea NOT NULL,
    base  bigint
);

CREATE INDEX content_by_base ON content (base) WHERE base IS NOT NULL;

CREATE TABLE prompt (
    id     bigint PRIMARY KEY DEFAULT nextval('ids'),
    parent bigint,
    keep   bigint NOT NULL,
    size   bigint NOT NULL,
    suffix text NOT NULL,
    hash   bytea NOT NULL
);

CREATE TABLE session (
    id      text COLLATE "C" PRIMARY KEY,
    scope   text COLLATE "C" NOT NULL,
    agent   text COLLATE "C" NOT NULL,
    began   double precision NOT NULL,
    fork_of text COLLATE "C",
    fork_at bigint,
    hash    bytea NOT NULL
);

CREATE TABLE run (
    id            text COLLATE "C" PRIMARY KEY,
    session       text COLLATE "C" NOT NULL REFERENCES session (id),
    scope         text COLLATE "C" NOT NULL,
    agent         text COLLATE "C" NOT NULL,
    agent_type    text COLLATE "C" NOT NULL,
    title         text COLLATE "C" NOT NULL,
    status        text COLLATE "C" NOT NULL
        CHECK (status IN ('running', 'finished', 'failed', 'interrupted', 'max_steps')),
    began         double precision NOT NULL,
    ended         double precision,
    parent        text COLLATE "C",
    parent_step   bigint,
    fork_of       text COLLATE "C",
    model         text COLLATE "C",
    smolagents    text COLLATE "C" NOT NULL,
    max_steps     bigint,
    steps         bigint NOT NULL,
    errors        bigint NOT NULL,
    input_tokens  bigint NOT NULL,
    output_tokens bigint NOT NULL,
    answer        bigint,
    failure       bigint,
    writer        text COLLATE "C" NOT NULL,
    hash          bytea NOT NULL,
    rowid         bigint NOT NULL UNIQUE DEFAULT nextval('ids')
);

CREATE INDEX run_by_time ON run (began);
CREATE INDEX run_by_session ON run (session);
CREATE INDEX run_by_parent ON run (parent) WHERE parent IS NOT NULL;
CREATE INDEX run_open ON run (writer) WHERE status = 'running';
CREATE INDEX run_by_agent ON run (scope, agent);

CREATE TABLE event (
    id      bigint PRIMARY KEY DEFAULT nextval('ids'),
    session text COLLATE "C" NOT NULL REFERENCES session (id),
    run     text COLLATE "C" NOT NULL,
    at      double precision NOT NULL,
    act     text COLLATE "C" NOT NULL CHECK (act IN ('insert', 'remove', 'revise')),
    step    bigint NOT NULL,
    place   bigint,
    record  bigint,
    shown   bigint,
    prompt  bigint,
    state   bigint,
    hash    bytea NOT NULL
);

CREATE INDEX event_by_session ON event (session, id);

CREATE TABLE step (
    id            bigint PRIMARY KEY DEFAULT nextval('ids'),
    run           text COLLATE "C" NOT NULL,
    session       text COLLATE "C" NOT NULL REFERENCES session (id),
    place         bigint,
    kind          text COLLATE "C" NOT NULL,
    number        bigint,
    at            double precision NOT NULL,
    seconds       double precision,
    error         text COLLATE "C",
    tools         text COLLATE "C" NOT NULL,
    input_tokens  bigint,
    output_tokens bigint,
    text          text COLLATE "C" NOT NULL,
    revision      bigint NOT NULL,
    record        bigint NOT NULL,
    prompt        bigint,
    hash          bytea NOT NULL
);

CREATE INDEX step_by_run ON step (run, id);
CREATE INDEX step_by_place ON step (session, place);
CREATE INDEX step_by_error ON step (error) WHERE error IS NOT NULL;

CREATE TABLE call (
    id        bigint PRIMARY KEY DEFAULT nextval('ids'),
    run       text COLLATE "C" NOT NULL REFERENCES run (id),
    turn      bigint NOT NULL,
    kind      text COLLATE "C" NOT NULL CHECK (kind IN ('model', 'tool')),
    name      text COLLATE "C" NOT NULL,
    arguments bigint NOT NULL,
    began     double precision NOT NULL,
    ended     double precision,
    failed    bigint NOT NULL,
    outcome   bigint,
    hash      bytea NOT NULL
);

CREATE INDEX call_by_run ON call (run, turn);

CREATE TABLE note (
    id         text COLLATE "C" PRIMARY KEY,
    scope      text COLLATE "C" NOT NULL,
    kind       text COLLATE "C" NOT NULL,
    text       text COLLATE "C" NOT NULL,
    tags       text COLLATE "C" NOT NULL,
    origin     text COLLATE "C" NOT NULL,
    run        text COLLATE "C" REFERENCES run (id),
    at         double precision NOT NULL,
    expires    double precision,
    supersedes text COLLATE "C" REFERENCES note (id),
    sources    text COLLATE "C" NOT NULL,
    hash       bytea NOT NULL,
    rowid      bigint NOT NULL UNIQUE DEFAULT nextval('ids')
);

CREATE INDEX note_by_scope ON note (scope, at);
CREATE INDEX note_by_end ON note (expires) WHERE expires IS NOT NULL;
CREATE INDEX note_by_past ON note (supersedes) WHERE supersedes IS NOT NULL;
CREATE INDEX note_by_run ON note (run) WHERE run IS NOT NULL;

CREATE TABLE forgotten (
    id     bigint PRIMARY KEY DEFAULT nextval('ids'),
    what   text COLLATE "C" NOT NULL CHECK (what IN ('note', 'step', 'run')),
    target text COLLATE "C" NOT NULL,
    at     double precision NOT NULL,
    hash   bytea NOT NULL
);

CREATE INDEX forgotten_by_target ON forgotten (what, target);

CREATE TABLE recalled (
    id    bigint PRIMARY KEY DEFAULT nextval('ids'),
    run   text COLLATE "C" NOT NULL REFERENCES run (id),
    step  bigint REFERENCES step (id),
    at    double precision NOT NULL,
    query text COLLATE "C" NOT NULL,
    block bigint,
    found text COLLATE "C" NOT NULL,
    hash  bytea NOT NULL
);

CREATE INDEX recalled_by_run ON recalled (run);
CREATE INDEX recalled_by_step ON recalled (step) WHERE step IS NOT NULL;

CREATE TABLE cut (
    id      bigint PRIMARY KEY DEFAULT nextval('ids'),
    session text COLLATE "C" NOT NULL REFERENCES session (id),
    view    text COLLATE "C" NOT NULL,
    last    bigint NOT NULL,
    parts   bigint NOT NULL,
    before  bigint NOT NULL,
    after   bigint NOT NULL,
    text    text COLLATE "C" NOT NULL,
    at      double precision NOT NULL,
    hash    bytea NOT NULL
);

CREATE INDEX cut_by_session ON cut (session);

CREATE TABLE alert (
    id     bigint PRIMARY KEY DEFAULT nextval('ids'),
    scope  text COLLATE "C" NOT NULL,
    agent  text COLLATE "C" NOT NULL,
    run    text COLLATE "C" REFERENCES run (id),
    number bigint,
    rule   text COLLATE "C" NOT NULL,
    reason text COLLATE "C" NOT NULL,
    at     double precision NOT NULL,
    acts   text COLLATE "C" NOT NULL,
    hash   bytea NOT NULL
);

CREATE INDEX alert_by_run ON alert (run);
CREATE INDEX alert_by_time ON alert (at);

CREATE TABLE erased (
    id       bigint PRIMARY KEY DEFAULT nextval('ids'),
    at       double precision NOT NULL,
    what     text COLLATE "C" NOT NULL,
    counts   text COLLATE "C" NOT NULL,
    events   text COLLATE "C" NOT NULL,
    finished bigint NOT NULL,
    hash     bytea NOT NULL
);

CREATE TABLE lease (
    name    text COLLATE "C" PRIMARY KEY,
    holder  text COLLATE "C" NOT NULL,
    renewed double precision NOT NULL,
    seconds double precision NOT NULL
);

CREATE TABLE passage (
    id       bigint PRIMARY KEY,
    document bigint NOT NULL,
    scope    text COLLATE "C" NOT NULL,
    session  text COLLATE "C" NOT NULL,
    step     bigint REFERENCES step (id),
    note     text COLLATE "C" REFERENCES note (id),
    run      text COLLATE "C" REFERENCES run (id),
    agent    text COLLATE "C",
    role     text COLLATE "C" NOT NULL,
    tool     text COLLATE "C",
    origin   text COLLATE "C" NOT NULL,
    trust    text COLLATE "C" NOT NULL,
    at       double precision NOT NULL,
    text     text COLLATE "C" NOT NULL,
    hash     bytea NOT NULL
);

CREATE INDEX passage_by_document ON passage (document);
CREATE INDEX passage_by_scope ON passage (scope);
CREATE INDEX passage_by_note ON passage (note) WHERE note IS NOT NULL;
CREATE INDEX passage_by_run ON passage (run) WHERE run IS NOT NULL;
CREATE INDEX passage_by_step ON passage (step) WHERE step IS NOT NULL;
CREATE INDEX document_by_session ON passage (session, step) WHERE id = document;

CREATE TABLE document_words (
    id     bigint PRIMARY KEY,
    size   bigint NOT NULL,              -- in terms
    terms  text[] COLLATE "C" NOT NULL,  -- each once
    counts real[] NOT NULL               -- of each term, weighed by the column that it stands in
);

CREATE INDEX document_words_by_term ON document_words USING gin (terms);

CREATE TABLE words_size (
    id    bigint PRIMARY KEY CHECK (id = 1),
    rows  bigint NOT NULL,
    terms bigint NOT NULL
);

INSERT INTO words_size (id, rows, terms) VALUES (1, 0, 0);

CREATE TABLE vector (
    id      bigint PRIMARY KEY DEFAULT nextval('ids'),
    passage bigint NOT NULL REFERENCES passage (id),
    scope   text COLLATE "C" NOT NULL,
    model   text COLLATE "C" NOT NULL,
    facts   bytea NOT NULL,
    numbers bytea NOT NULL,
    UNIQUE (passage, model)
);

CREATE INDEX vector_by_scope ON vector (scope, id);

CREATE TABLE pending (
    id   bigint PRIMARY KEY DEFAULT nextval('ids'),
    step bigint UNIQUE REFERENCES step (id),
    note text COLLATE "C" UNIQUE REFERENCES note (id)
);

CREATE TABLE exposure (
    id      bigint PRIMARY KEY DEFAULT nextval('ids'),
    session text COLLATE "C" NOT NULL UNIQUE REFERENCES session (id),
    step    bigint NOT NULL,
    at      double precision NOT NULL,
    hash    bytea NOT NULL
);

CREATE TABLE fingerprint_key (
    id  bigint PRIMARY KEY CHECK (id = 1),
    key bytea NOT NULL
);

INSERT INTO fingerprint_key (id, key) VALUES (1, decode(replace(gen_random_uuid()::text, '-', ''), 'hex'));

-- What SQLite has by these names, so that most statements are the same text for both.
CREATE FUNCTION json_each(given text) RETURNS TABLE (value text) LANGUAGE sql IMMUTABLE
    AS $$ SELECT json_array_elements_text(given::json) $$;
CREATE FUNCTION instr(whole text, part text) RETURNS integer LANGUAGE sql IMMUTABLE
    AS $$ SELECT strpos(whole, part) $$;

-- SQLite packs text; PostgreSQL does so by itself.
CREATE FUNCTION packed(given text) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT given $$;
CREATE FUNCTION plain(given text) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT given $$;
