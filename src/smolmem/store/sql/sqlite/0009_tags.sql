-- Runs have tags, which users set at any time.
--
--   run.tags  a JSON list of words; not part of the row's hash, since another process may be writing the run

ALTER TABLE run ADD COLUMN tags TEXT NOT NULL DEFAULT '[]';
