-- The full text takes a quarter less space, two indexes have a row for each document instead of each passage, and what a
-- step needs of its run is found without reading the whole run.
--
--   document_words  the text comes first: full text marks each word of any other column with two more bytes
--
-- Full text keeps no texts, so it is made anew from the steps and notes, in the background. Their passages stay, with their
-- vectors.

DROP TABLE document_terms;
DROP TABLE document_words;

CREATE VIRTUAL TABLE document_words USING fts5 (
    text, before, date, scope, content = '', contentless_delete = 1, tokenize = 'porter unicode61'
);
CREATE VIRTUAL TABLE document_terms USING fts5vocab (document_words, row);

INSERT INTO pending (step)
SELECT step FROM passage WHERE id = document AND step IS NOT NULL ORDER BY step ON CONFLICT DO NOTHING;
INSERT INTO pending (note)
SELECT note FROM passage WHERE id = document AND note IS NOT NULL ORDER BY id ON CONFLICT DO NOTHING;

DROP INDEX passage_by_scope;
DROP INDEX passage_by_run;
CREATE INDEX document_by_scope ON passage (scope) WHERE id = document;
CREATE INDEX document_by_run ON passage (run) WHERE id = document AND run IS NOT NULL;

CREATE INDEX run_by_writer ON run (writer);

DROP INDEX call_by_run;
CREATE INDEX call_by_run ON call (run, began);
