-- Who may do what only one process may do at a time.
--
--   lease  its holder has it for some seconds after each renewal; the name of a run's writer is the name of its lease
--
-- A lease has no hash: it is worth nothing a minute later.

CREATE TABLE lease (
    name    TEXT NOT NULL PRIMARY KEY,
    holder  TEXT NOT NULL,
    renewed REAL NOT NULL,               -- seconds since 1970
    seconds REAL NOT NULL
) STRICT;

-- Earlier releases had no leases: their processes on other machines are taken for alive for one more hour.
INSERT INTO lease (name, holder, renewed, seconds)
SELECT DISTINCT writer, writer, CAST(strftime('%s', 'now') AS REAL), 3600.0 FROM run WHERE status = 'running';

-- Which files this file continues: they were deleted, or replaced, while processes had them open.
CREATE TABLE continued (
    file TEXT NOT NULL,                  -- device and inode
    at   REAL NOT NULL
) STRICT;
