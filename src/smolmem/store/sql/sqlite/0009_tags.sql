-- Runs have tags, which users set at any time.
--
--   run.tags  a JSON list of words, perhaps set while another process writes the run; an empty list is not part of the
--             row's hash

ALTER TABLE run ADD COLUMN tags TEXT NOT NULL DEFAULT '[]';
