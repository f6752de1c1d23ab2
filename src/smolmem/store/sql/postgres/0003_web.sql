-- Tools can say that they read the web (1), or that they do not (0). NULL is not part of the row's hash.

ALTER TABLE call ADD COLUMN web bigint;
