-- Runs have tags, which users set at any time: a JSON list of words. An empty list is not part of the row's hash.

ALTER TABLE run ADD COLUMN tags text COLLATE "C" NOT NULL DEFAULT '[]';
