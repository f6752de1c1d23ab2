-- What a reader's own SELECT can see: the runs, steps and notes of some scopes, and nothing else. `hidden` becomes a word that
-- the reader cannot know: only what is read through those views may touch a table.

CREATE TEMP TABLE mine (scope TEXT NOT NULL);

CREATE TEMP VIEW hidden_runs AS
SELECT id, scope, agent, agent_type,
    CASE WHEN EXISTS (
        SELECT 1 FROM main.forgotten WHERE (what = 'run' AND target = run.fork_of) OR (what = 'step' AND target IN (
            SELECT CAST(step.id AS TEXT) FROM main.step
            WHERE step.run IN (run.id, run.fork_of) AND step.kind = 'task'))
    ) THEN '' ELSE title END AS title, status,
    datetime(began, 'unixepoch') AS began, datetime(ended, 'unixepoch') AS ended,
    parent, fork_of, model, steps, errors, input_tokens, output_tokens, tags
FROM main.run WHERE scope IN (SELECT scope FROM temp.mine)
  AND NOT EXISTS (SELECT 1 FROM main.forgotten WHERE what = 'run' AND target = run.id);

CREATE TEMP VIEW hidden_steps AS
SELECT step.id, step.run, run.scope, run.agent, step.kind, step.number, datetime(step.at, 'unixepoch') AS at, step.seconds,
    step.error, step.tools, step.input_tokens, step.output_tokens, plain(step.text, 20000) AS text
FROM main.step JOIN main.run ON run.id = step.run WHERE run.scope IN (SELECT scope FROM temp.mine)
  AND NOT EXISTS (SELECT 1 FROM main.forgotten WHERE what = 'step' AND target = CAST(step.id AS TEXT))
  AND NOT EXISTS (SELECT 1 FROM main.forgotten WHERE what = 'run' AND target = step.run);

CREATE TEMP VIEW hidden_notes AS
SELECT id, scope, kind, substr(text, 1, 20000) AS text, tags, origin, run, datetime(at, 'unixepoch') AS at,
    datetime(expires, 'unixepoch') AS expires
FROM main.note WHERE scope IN (SELECT scope FROM temp.mine)
  AND (expires IS NULL OR expires > unixepoch('now', 'subsec'))
  AND NOT EXISTS (SELECT 1 FROM main.note AS later WHERE later.supersedes = note.id)
  AND NOT EXISTS (SELECT 1 FROM main.forgotten WHERE what = 'note' AND target = note.id);

CREATE TEMP VIEW runs AS SELECT * FROM hidden_runs;
CREATE TEMP VIEW steps AS SELECT * FROM hidden_steps;
CREATE TEMP VIEW notes AS SELECT * FROM hidden_notes;
