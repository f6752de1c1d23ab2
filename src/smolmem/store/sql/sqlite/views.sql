-- What a reader's own SELECT can see: one scope's runs, steps and notes, and nothing else.

CREATE TEMP TABLE mine (scope TEXT NOT NULL);

CREATE TEMP VIEW runs AS
SELECT id, agent, agent_type, title, status, datetime(began, 'unixepoch') AS began, datetime(ended, 'unixepoch') AS ended,
    parent, fork_of, model, steps, errors, input_tokens, output_tokens
FROM main.run WHERE scope = (SELECT scope FROM temp.mine);

CREATE TEMP VIEW steps AS
SELECT step.id, step.run, run.agent, step.kind, step.number, datetime(step.at, 'unixepoch') AS at, step.seconds,
    step.error, step.tools, step.input_tokens, step.output_tokens, step.text
FROM main.step JOIN main.run ON run.id = step.run WHERE run.scope = (SELECT scope FROM temp.mine);

CREATE TEMP VIEW notes AS
SELECT id, kind, text, tags, origin, run, datetime(at, 'unixepoch') AS at, datetime(expires, 'unixepoch') AS expires
FROM main.note WHERE scope = (SELECT scope FROM temp.mine)
  AND EXISTS (SELECT 1 FROM main.unit WHERE unit.note = note.id);
