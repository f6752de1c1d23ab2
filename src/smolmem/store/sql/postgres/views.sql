-- What a reader's own SELECT can see: the runs, steps and notes of some scopes, with the columns that they have on SQLite.
-- They are part of the reader's statement, and MATERIALIZED: PostgreSQL then evaluates nothing of the reader's on rows
-- that are not the reader's, so that no error message can hold their text.

WITH
    runs AS MATERIALIZED (
        SELECT id, scope, agent, agent_type,
            CASE WHEN EXISTS (
                SELECT 1 FROM {schema}.forgotten WHERE (what = 'run' AND target = run.fork_of) OR (what = 'step' AND target IN (
                    SELECT CAST(step.id AS TEXT) FROM {schema}.step
                    WHERE step.run IN (run.id, run.fork_of) AND step.kind = 'task'))
            ) THEN '' ELSE title END AS title, status,
            to_char(to_timestamp(began) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') COLLATE "C" AS began,
            to_char(to_timestamp(ended) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') COLLATE "C" AS ended,
            parent, fork_of, model, steps, errors, input_tokens, output_tokens, tags
        FROM {schema}.run
        WHERE (:scope IS NULL OR scope = :scope OR substr(scope, 1, length(:below)) = :below)
          AND NOT EXISTS (SELECT 1 FROM {schema}.forgotten WHERE what = 'run' AND target = run.id)
    ),
    steps AS MATERIALIZED (
        SELECT step.id, step.run, run.scope, run.agent, step.kind, step.number,
            to_char(to_timestamp(step.at) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') COLLATE "C" AS at,
            step.seconds, step.error, step.tools, step.input_tokens, step.output_tokens,
            CASE WHEN :texts THEN substr(step.text, 1, 20000) END AS text
        FROM {schema}.step JOIN {schema}.run ON run.id = step.run
        WHERE (:scope IS NULL OR run.scope = :scope OR substr(run.scope, 1, length(:below)) = :below)
          AND NOT EXISTS (
              SELECT 1 FROM {schema}.forgotten WHERE what = 'step' AND target = CAST(step.id AS TEXT)
          )
          AND NOT EXISTS (SELECT 1 FROM {schema}.forgotten WHERE what = 'run' AND target = step.run)
    ),
    notes AS MATERIALIZED (
        SELECT id, scope, kind, CASE WHEN :texts THEN substr(text, 1, 20000) END AS text, tags, origin, run,
            to_char(to_timestamp(at) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') COLLATE "C" AS at,
            to_char(to_timestamp(expires) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') COLLATE "C" AS expires
        FROM {schema}.note
        WHERE (:scope IS NULL OR scope = :scope OR substr(scope, 1, length(:below)) = :below)
          AND (expires IS NULL OR expires > extract(epoch FROM clock_timestamp()))
          AND NOT EXISTS (SELECT 1 FROM {schema}.note AS later WHERE later.supersedes = note.id)
          AND NOT EXISTS (SELECT 1 FROM {schema}.forgotten WHERE what = 'note' AND target = note.id)
    )
