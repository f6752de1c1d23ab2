-- Recall ranks whole steps and notes ("documents"), and shows their best passages.
--
--   passage         a part of a step or note that recall can return; `document` is the id of the first passage of that
--                   step or note; what must not be found has no passage
--   document_words  full text over documents: the scope, the date in words, the end of what came before, the text
--   passage_words   full text over passages; an answer is also found by its task
--   document_terms  the terms of `document_words`, to find the word that a typing error meant
--   vector          what an embedding model makes of a passage; empty where the model refused the text, and for the
--                   middle of very long texts
--   pending         steps and notes that were recorded or revised and have no passages yet
--   exposure        since when a session has text of low trust in it; kept when the text is forgotten
--
-- All of it is made from steps and notes. The full text keeps no copy of the text. `hash` covers the other columns.

DROP TABLE words;
DROP TABLE vector;
DROP TABLE unit;
DROP TABLE unread;

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
    text     TEXT NOT NULL,
    hash     BLOB NOT NULL
) STRICT;

CREATE INDEX passage_by_document ON passage (document);
CREATE INDEX passage_by_scope ON passage (scope);
CREATE INDEX passage_by_note ON passage (note) WHERE note IS NOT NULL;
CREATE INDEX passage_by_run ON passage (run) WHERE run IS NOT NULL;
CREATE INDEX document_by_session ON passage (session, step) WHERE id = document;

CREATE VIRTUAL TABLE document_words USING fts5 (
    scope, date, before, text, content = '', contentless_delete = 1, tokenize = 'porter unicode61'
);
CREATE VIRTUAL TABLE passage_words USING fts5 (
    scope, before, text, content = '', contentless_delete = 1, tokenize = 'porter unicode61'
);
CREATE VIRTUAL TABLE document_terms USING fts5vocab (document_words, row);

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

INSERT INTO pending (step) SELECT id FROM step ORDER BY id;
INSERT INTO pending (note) SELECT id FROM note ORDER BY rowid;
