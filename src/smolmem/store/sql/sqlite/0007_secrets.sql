-- Secrets are not stored: a placeholder with a fingerprint stands in their place.
--
--   fingerprint_key  the random key of the fingerprints of this file

CREATE TABLE fingerprint_key (
    id  INTEGER PRIMARY KEY CHECK (id = 1),
    key BLOB NOT NULL
) STRICT;

INSERT INTO fingerprint_key (id, key) VALUES (1, randomblob(16));
