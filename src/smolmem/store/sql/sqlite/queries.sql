-- One statement each, by name. Values only ever enter as parameters. CROSS JOIN says which table is read first: without
-- statistics, SQLite may choose to read all steps of a file for the few that are pending.

-- name: add_content
INSERT INTO content (hash, bytes, base) VALUES (:hash, :bytes, :base) ON CONFLICT (hash) DO NOTHING RETURNING id;

-- name: content_id
SELECT id FROM content WHERE hash = :hash;

-- name: content
SELECT id, hash, bytes, base FROM content WHERE id = :id;

-- name: content_chain
-- A content and the contents that it is packed with, up to the content :until.
WITH RECURSIVE chain (id, bytes, base, length) AS (
    SELECT id, bytes, base, 1 FROM content WHERE id = :id
    UNION ALL
    SELECT content.id, content.bytes, content.base, chain.length + 1
    FROM chain JOIN content ON content.id = chain.base
    WHERE content.id <> :until AND chain.length < :most
)
SELECT id, bytes, base FROM chain;

-- name: content_by_hash
SELECT id, hash, bytes, base FROM content WHERE hash = :hash;

-- name: add_prompt
INSERT INTO prompt (parent, keep, size, suffix, hash) VALUES (:parent, :keep, :size, :suffix, :hash) RETURNING id;

-- name: prompt
SELECT * FROM prompt WHERE id = :id;

-- name: prompt_chain
-- A prompt and the prompts that it begins with, up to the prompt :until.
WITH RECURSIVE chain (id, parent) AS (
    SELECT id, parent FROM prompt WHERE id = :id
    UNION ALL
    SELECT prompt.id, prompt.parent FROM chain JOIN prompt ON prompt.id = chain.parent
    WHERE prompt.id <> :until AND prompt.id < chain.id
)
SELECT prompt.* FROM chain JOIN prompt ON prompt.id = chain.id;

-- name: add_session
INSERT INTO session (id, scope, agent, began, fork_of, fork_at, hash)
VALUES (:id, :scope, :agent, :began, :fork_of, :fork_at, :hash)
ON CONFLICT (id) DO NOTHING;

-- name: put_run
INSERT INTO run
    (id, session, scope, agent, agent_type, title, status, began, ended, parent, parent_step, fork_of, model, smolagents,
     max_steps, steps, errors, input_tokens, output_tokens, answer, failure, writer, tags, hash)
VALUES
    (:id, :session, :scope, :agent, :agent_type, :title, :status, :began, :ended, :parent, :parent_step, :fork_of, :model,
     :smolagents, :max_steps, :steps, :errors, :input_tokens, :output_tokens, :answer, :failure, :writer, :tags, :hash)
ON CONFLICT (id) DO UPDATE SET
    status = :status, ended = :ended, steps = :steps, errors = :errors, input_tokens = :input_tokens,
    output_tokens = :output_tokens, answer = :answer, failure = :failure, writer = :writer, hash = :hash;

-- name: tags_of_run
SELECT tags FROM run WHERE id = :id;

-- name: set_tags
UPDATE run SET tags = :tags, hash = :hash WHERE id = :id;

-- name: unlink_run
UPDATE run SET parent = NULL, parent_step = NULL, hash = :hash WHERE id = :id;

-- name: put_run_facts
-- The columns that `put_run` leaves as they are.
UPDATE run SET
    session = :session, scope = :scope, agent = :agent, agent_type = :agent_type, title = :title, began = :began,
    parent = :parent, parent_step = :parent_step, fork_of = :fork_of, model = :model, smolagents = :smolagents,
    max_steps = :max_steps, tags = :tags, hash = :hash
WHERE id = :id;

-- name: add_event
INSERT INTO event (session, run, at, act, step, place, record, shown, prompt, state, hash)
VALUES (:session, :run, :at, :act, :step, :place, :record, :shown, :prompt, :state, :hash);

-- name: session_events
SELECT * FROM event WHERE session = :session ORDER BY id LIMIT 9223372036854775807 OFFSET :skip;

-- name: session_row
SELECT * FROM session WHERE id = :id;

-- name: numbered_step
SELECT max(id) AS step FROM step WHERE run = :run AND kind = 'action' AND number = :number AND place IS NOT NULL;

-- name: last_event
SELECT max(id) AS last FROM event WHERE session = :session AND (:until IS NULL OR id <= :until);

-- name: count_actions
SELECT count(*) FILTER (WHERE event.act = 'insert') - count(*) FILTER (WHERE event.act = 'remove')
FROM event JOIN step ON step.id = event.step
WHERE event.session = :session AND (:until IS NULL OR event.id <= :until) AND step.kind = 'action';

-- name: inserted_after
SELECT min(id) AS next FROM event
WHERE session = :session AND act = 'insert' AND place IS NOT NULL
  AND id > (SELECT min(id) FROM event WHERE session = :session AND step = :step);

-- name: add_step
INSERT INTO step
    (run, session, place, kind, number, at, seconds, error, tools, input_tokens, output_tokens, text, revision,
     record, prompt, hash)
VALUES
    (:run, :session, :place, :kind, :number, :at, :seconds, :error, :tools, :input_tokens, :output_tokens,
     packed(:text), :revision, :record, :prompt, :hash)
RETURNING id;

-- name: revise_step
-- Passages of the step that are stored as pieces of its text keep their text until the step is indexed again.
UPDATE passage SET text = packed(piece_text(text, (SELECT text FROM step WHERE id = :id)))
WHERE document = (SELECT id FROM passage WHERE id = document AND session = :session AND step = :id)
  AND typeof(text) = 'integer' AND packed(:text) IS NOT (SELECT text FROM step WHERE id = :id);
UPDATE step SET
    kind = :kind, number = :number, seconds = :seconds, error = :error, tools = :tools, input_tokens = :input_tokens,
    output_tokens = :output_tokens, text = packed(:text), revision = :revision, record = :record, prompt = :prompt,
    hash = :hash
WHERE id = :id;

-- name: shift_steps
UPDATE step SET place = place + :by WHERE session = :session AND place >= :place;

-- name: place_step
UPDATE step SET place = :place WHERE id = :id AND session = :session;

-- name: find_runs
SELECT * FROM run
WHERE (:scope IS NULL OR scope = :scope OR substr(scope, 1, length(:below)) = :below)
  AND (:agent IS NULL OR agent = :agent)
  AND (:model IS NULL OR model = :model)
  AND (:tag IS NULL OR EXISTS (SELECT 1 FROM json_each(run.tags) WHERE value = :tag))
  AND (:status IS NULL
       OR (status = :status AND NOT (status = 'running' AND writer IN (SELECT value FROM json_each(:gone))))
       OR (:status = 'interrupted' AND status = 'running' AND writer IN (SELECT value FROM json_each(:gone))))
  AND (:since IS NULL OR began >= :since)
  AND (:until IS NULL OR began < :until)
  AND (:parent IS NULL OR parent = :parent)
  AND (:roots IS NULL OR parent IS NULL)
  AND (:session IS NULL OR session = :session)
  AND (:tool IS NULL OR id IN (
      SELECT run FROM (SELECT run, kind, name FROM call ORDER BY id DESC LIMIT 50000) AS newest WHERE kind = 'tool' AND name = :tool
      UNION SELECT run FROM (SELECT run, tools FROM step ORDER BY id DESC LIMIT 50000) AS newest_steps
      WHERE EXISTS (SELECT 1 FROM json_each(newest_steps.tools) WHERE value = :tool)))
  AND (:text IS NULL OR instr(lower(title), lower(:text)) > 0)
ORDER BY began DESC, rowid DESC
LIMIT :limit;

-- name: latest_runs
SELECT * FROM run WHERE scope = :scope AND agent = :agent
ORDER BY coalesce((SELECT max(step.id) FROM step WHERE step.run = run.id), 0) DESC, rowid DESC LIMIT 100;

-- name: run_counts
-- A step that was interrupted is taken off the list when the run is resumed, and the step with the same number that
-- finishes it takes its place: both are one step. Other steps that were taken off the list count.
SELECT
    count(*) FILTER (WHERE kind = 'action' AND place IS NOT NULL) + count(DISTINCT coalesce(number, -id)) FILTER (
        WHERE kind = 'action' AND place IS NULL AND coalesce(number, -id) NOT IN (
            SELECT coalesce(number, -id) FROM step WHERE run = :run AND kind = 'action' AND place IS NOT NULL
        )
    ) AS steps,
    count(error) AS errors,
    CAST(coalesce(sum(input_tokens), 0) AS BIGINT) AS input_tokens,
    CAST(coalesce(sum(output_tokens), 0) AS BIGINT) AS output_tokens
FROM step WHERE run = :run;

-- name: run_links
SELECT
    (SELECT count(*) FROM run NOT INDEXED) AS runs,
    (SELECT count(began) FROM run INDEXED BY run_by_time) AS by_time,        -- count(*) would take any index
    (SELECT count(id) FROM run INDEXED BY sqlite_autoindex_run_1) AS by_id;

-- name: note_links
SELECT
    (SELECT count(*) FROM note NOT INDEXED) AS notes,
    (SELECT count(id) FROM note INDEXED BY sqlite_autoindex_note_1) AS notes_by_id,
    (SELECT count(supersedes) FROM note NOT INDEXED) AS superseding,
    (SELECT count(supersedes) FROM note INDEXED BY note_by_past WHERE supersedes IS NOT NULL) AS superseding_by_past,
    (SELECT count(*) FROM forgotten NOT INDEXED) AS forgotten,
    (SELECT count(target) FROM forgotten INDEXED BY forgotten_by_target) AS forgotten_by_target;

-- name: step_links
SELECT
    (SELECT count(*) FROM step INDEXED BY step_by_run WHERE run = :run) AS steps,
    (SELECT count(*) FROM step INDEXED BY step_by_run WHERE run = :run AND kind = 'action') AS actions,
    (SELECT count(*) FROM event INDEXED BY event_by_session
     WHERE session IN (SELECT :session UNION SELECT session FROM step INDEXED BY step_by_run WHERE run = :run)
       AND run = :run AND act = 'insert' AND record IS NOT NULL) AS inserted,
    coalesce((SELECT steps FROM run WHERE id = :run AND status <> 'running'), 0) AS counted;

-- name: was_repaired
SELECT EXISTS (SELECT 1 FROM alert WHERE run = :run AND rule = 'repair');

-- name: session_links
WITH
    event_of (act, step, place, record) AS (SELECT act, step, place, record FROM event WHERE session = :session),
    own (act, step, place, record) AS (
        SELECT * FROM event_of WHERE step IN (SELECT step FROM event_of WHERE act = 'insert' AND record IS NOT NULL)
    )
SELECT
    count(*) FILTER (WHERE act = 'insert' AND record IS NOT NULL) AS inserted,
    count(*) FILTER (WHERE act = 'revise') AS revised,
    count(*) FILTER (WHERE act = 'insert' AND place IS NOT NULL) - count(*) FILTER (WHERE act = 'remove') AS listed,
    (SELECT count(*) FROM step INDEXED BY step_by_place WHERE session = :session) AS steps,
    (SELECT CAST(coalesce(sum(revision), 0) AS BIGINT) FROM step INDEXED BY step_by_place WHERE session = :session) AS revisions,
    (SELECT count(place) FROM step INDEXED BY step_by_place WHERE session = :session) AS places
FROM own;

-- name: call_counts
SELECT run, count(*) AS calls FROM call NOT INDEXED
WHERE run IN (SELECT value FROM json_each(:runs)) GROUP BY run;

-- name: session_writers
SELECT DISTINCT writer FROM run WHERE session = :session;

-- name: session_is_used
SELECT 1 FROM run NOT INDEXED WHERE session = :id LIMIT 1;

-- name: runs_by_prefix
SELECT * FROM run WHERE id >= :prefix AND id < :prefix || 'g'
  AND (:scope IS NULL OR scope = :scope OR substr(scope, 1, length(:below)) = :below)
ORDER BY id LIMIT 9;

-- name: open_writers
SELECT DISTINCT writer FROM run WHERE status = 'running';

-- name: other_writer
SELECT id, writer FROM run WHERE id IN (SELECT value FROM json_each(:ids)) AND writer <> :writer LIMIT 1;

-- name: running_below
WITH RECURSIVE below (id) AS (SELECT id FROM run WHERE id = :run UNION SELECT run.id FROM run JOIN below ON run.parent = below.id)
SELECT run.* FROM below JOIN run ON run.id = below.id WHERE run.status = 'running' AND run.id <> :run;

-- name: take_lease
INSERT INTO lease (name, holder, renewed, seconds) VALUES (:name, :holder, :now, :seconds)
ON CONFLICT (name) DO UPDATE SET holder = :holder, renewed = :now, seconds = :seconds
WHERE lease.holder = :holder OR abs(:now - lease.renewed) >= lease.seconds
RETURNING name;

-- name: drop_lease
DELETE FROM lease WHERE name = :name AND holder = :holder;

-- name: drop_ended_leases
DELETE FROM lease WHERE name <> :name AND abs(:now - renewed) >= seconds;

-- name: held_lease
SELECT holder, seconds - abs(:now - renewed) AS seconds_left FROM lease WHERE name = :name AND abs(:now - renewed) < seconds;

-- name: find_steps
SELECT step.*, run.scope, run.agent FROM step LEFT JOIN run ON run.id = step.run
WHERE (:scope IS NULL OR run.scope = :scope OR substr(run.scope, 1, length(:below)) = :below OR run.id IS NULL)
  AND (:agent IS NULL OR run.agent = :agent OR run.id IS NULL)
  AND (:run IS NULL OR step.run = :run)
  AND (:kind IS NULL OR step.kind = :kind)
  AND (:status IS NULL OR run.id IS NULL
       OR (run.status = :status AND NOT (run.status = 'running' AND writer IN (SELECT value FROM json_each(:gone))))
       OR (:status = 'interrupted' AND run.status = 'running' AND writer IN (SELECT value FROM json_each(:gone))))
  AND (:since IS NULL OR step.at >= :since)
  AND (:until IS NULL OR step.at < :until)
  AND (:failed IS NULL OR CASE WHEN step.error IS NULL THEN 0 ELSE 1 END = :failed)
  AND (:error IS NULL OR step.error = :error)
  AND (:tool IS NULL OR EXISTS (SELECT 1 FROM json_each(step.tools) WHERE value = :tool))
  AND (:text IS NULL OR instr(lower(plain(step.text)), lower(:text)) > 0)
ORDER BY step.id DESC
LIMIT :limit;

-- name: rule_steps
SELECT step.id, step.run, run.scope, run.agent, step.kind, step.number, step.at, step.seconds, step.error,
    step.input_tokens, step.output_tokens, step.record, step.prompt
FROM step LEFT JOIN run ON run.id = step.run
WHERE (:scope IS NULL OR run.scope = :scope OR substr(run.scope, 1, length(:below)) = :below OR run.id IS NULL)
  AND (:agent IS NULL OR run.agent = :agent OR run.id IS NULL)
  AND (:run IS NULL OR step.run = :run)
  AND (:since IS NULL OR step.at >= :since)
  AND (:until IS NULL OR step.at < :until)
ORDER BY step.id DESC
LIMIT :limit;

-- name: run_steps
SELECT step.*, run.scope, run.agent FROM step LEFT JOIN run ON run.id = step.run
WHERE step.run = :run AND (step.kind <> 'system_prompt' OR step.place IS NOT NULL) ORDER BY place IS NULL, place, step.id;

-- name: step
SELECT step.*, run.scope, run.agent FROM step LEFT JOIN run ON run.id = step.run WHERE step.id = :id;

-- name: add_call
INSERT INTO call (run, turn, kind, name, arguments, began, ended, failed, outcome, web, hash)
VALUES (:run, :turn, :kind, :name, :arguments, :began, :ended, :failed, :outcome, :web, :hash)
RETURNING id;

-- name: end_call
UPDATE call
SET turn = :turn, began = :began, ended = :ended, failed = :failed, outcome = :outcome, web = :web, hash = :hash
WHERE id = :id;

-- name: calls
SELECT * FROM call WHERE run = :run ORDER BY id;

-- name: calls_after
SELECT * FROM call WHERE id > :id ORDER BY id LIMIT 500;

-- name: run_row
SELECT * FROM run WHERE id = :id;

-- name: counts
SELECT
    (SELECT count(*) FROM run) AS runs,
    (SELECT count(*) FROM session) AS sessions,
    (SELECT count(*) FROM step) AS steps,
    (SELECT count(*) FROM event) AS events,
    (SELECT count(*) FROM prompt) AS prompts,
    (SELECT count(*) FROM call) AS calls,
    (SELECT count(*) FROM note) AS notes,
    (SELECT count(*) FROM passage) AS passages,
    (SELECT count(*) FROM vector) AS vectors,
    (SELECT count(*) FROM pending) AS pending,
    (SELECT count(*) FROM content) AS contents,
    (SELECT CAST(coalesce(sum(length(bytes)), 0) AS BIGINT) FROM content) AS content_bytes,
    (SELECT CAST(coalesce(sum(input_tokens), 0) AS BIGINT) FROM run) AS input_tokens,
    (SELECT CAST(coalesce(sum(output_tokens), 0) AS BIGINT) FROM run) AS output_tokens;

-- name: statuses
SELECT status, count(*) AS runs FROM run GROUP BY status;

-- name: contents_after
SELECT id, hash, bytes, base FROM content WHERE id > :id ORDER BY id LIMIT 500;

-- name: prompts_after
SELECT * FROM prompt WHERE id > :id ORDER BY id LIMIT 500;

-- name: missing_parts
SELECT prompt.id AS prompt, CAST(part.value AS BIGINT) AS content FROM prompt, json_each(prompt.suffix) AS part
WHERE NOT EXISTS (SELECT 1 FROM content WHERE content.id = CAST(part.value AS BIGINT)) LIMIT 20;

-- name: events_after
SELECT * FROM event WHERE id > :id ORDER BY id LIMIT 500;

-- name: steps_after
SELECT * FROM step WHERE id > :id ORDER BY id LIMIT 500;

-- name: sessions
SELECT * FROM session ORDER BY id;

-- name: runs
SELECT * FROM run ORDER BY id;

-- name: step_texts
SELECT id, text FROM step WHERE id IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids));

-- name: step_text
SELECT text FROM step WHERE id = :step;

-- name: next_passage
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'passage'), 0) + 1;

-- name: add_passage
INSERT INTO passage (id, document, scope, session, step, note, run, agent, role, tool, origin, trust, at, text, hash)
VALUES (:id, :document, :scope, :session, :step, :note, :run, :agent, :role, :tool, :origin, :trust, :at, :text, :hash);

-- name: add_document_words
INSERT INTO document_words (rowid, text, before, date, scope) VALUES (:id, :text, :before, :date, :scope);

-- name: put_passage_text
UPDATE passage SET text = :text WHERE id = :id;

-- name: drop_document_words
DELETE FROM document_words WHERE rowid = :id;

-- name: drop_vector
DELETE FROM vector WHERE passage = :id;

-- name: drop_passage
DELETE FROM passage WHERE id = :id;

-- name: step_passages
SELECT * FROM passage
WHERE document = (SELECT id FROM passage WHERE id = document AND session = :session AND step = :step) ORDER BY id;

-- name: passages_before
SELECT passage.* FROM (
    SELECT id FROM passage WHERE id = document AND session = :session AND step < :step ORDER BY step DESC LIMIT 2
) AS earlier JOIN passage ON passage.document = earlier.id ORDER BY passage.step, passage.id;

-- name: task_before
SELECT step, text FROM passage
WHERE id = document AND session = :session AND step < :step AND role = 'task' ORDER BY step DESC LIMIT 1;

-- name: run_passages
SELECT passage.* FROM passage AS document CROSS JOIN passage
WHERE document.id = document.document AND document.run = :run AND passage.document = document.id;

-- name: note_passages
SELECT * FROM passage WHERE note = :note ORDER BY id;

-- name: passages
SELECT passage.* FROM json_each(:ids) AS wanted JOIN passage ON passage.id = CAST(wanted.value AS BIGINT);

-- name: passage_after
SELECT * FROM passage WHERE id > :id ORDER BY id LIMIT 500;

-- name: beside
SELECT own.id, own.session, own.role,
    EXISTS (SELECT 1 FROM passage WHERE id = own.id + 1 AND document = own.document) AS has_more,
    (SELECT id FROM passage WHERE id = document AND session = own.session AND step < own.step
     ORDER BY step DESC LIMIT 1) AS before,
    (SELECT id FROM passage WHERE id = document AND session = own.session AND step < own.step
     ORDER BY step DESC LIMIT 1 OFFSET 1) AS long_before,
    (SELECT id FROM passage WHERE id = document AND session = own.session AND step > own.step
     ORDER BY step LIMIT 1) AS after,
    (SELECT id FROM passage WHERE id = document AND session = own.session AND step > own.step
     ORDER BY step LIMIT 1 OFFSET 1) AS long_after
FROM json_each(:ids) AS wanted JOIN passage AS own ON own.id = CAST(wanted.value AS BIGINT) WHERE own.session <> '';

-- name: before
SELECT other.id FROM passage AS own JOIN passage AS other
    ON other.id = other.document AND other.session = own.session AND other.step < own.step
WHERE own.id = :id AND own.session <> '' ORDER BY other.step DESC LIMIT :limit;

-- name: after
SELECT other.id FROM passage AS own JOIN passage AS other
    ON other.id = other.document AND other.session = own.session AND other.step > own.step
WHERE own.id = :id AND own.session <> '' ORDER BY other.step LIMIT :limit;

-- name: count_documents
SELECT count(*) FROM document_words WHERE document_words MATCH :match;

-- name: last_passage
SELECT coalesce(max(id), 0) FROM passage;

-- name: size_of_documents
SELECT count(*) FROM document_words_docsize;

-- name: find_documents
SELECT rowid AS id, -bm25(document_words, 1, 0.2, 1, 0) AS score FROM document_words
WHERE document_words MATCH :match ORDER BY score DESC, rowid DESC LIMIT :limit;

-- name: newest_documents
SELECT rowid AS id, 0.0 AS score FROM document_words WHERE document_words MATCH :match ORDER BY rowid DESC LIMIT :limit;

-- name: find_documents_where
SELECT document.id, -bm25(document_words, 1, 0.2, 1, 0) AS score
FROM document_words JOIN passage AS document ON document.id = document_words.rowid
WHERE document_words MATCH :match
  AND (:since IS NULL OR document.at >= :since)
  AND (:until IS NULL OR document.at < :until)
  AND (:runs IS NULL OR document.run IN (SELECT value FROM json_each(:runs)))
  AND (:agents IS NULL OR document.agent IN (SELECT value FROM json_each(:agents)))
  AND (:apart IS NULL OR document.session <> :apart)
  AND EXISTS (
      SELECT 1 FROM passage WHERE passage.document = document.document
        AND (:roles IS NULL OR passage.role IN (SELECT value FROM json_each(:roles)))
        AND (:trusts IS NULL OR passage.trust IN (SELECT value FROM json_each(:trusts)))
        AND passage.role NOT IN (SELECT value FROM json_each(:but))
  )
ORDER BY score DESC, document.id DESC LIMIT :limit;

-- name: terms_from
SELECT term FROM document_terms WHERE term >= :first AND term < :last LIMIT :limit;

-- name: scopes
SELECT DISTINCT scope FROM passage
WHERE id = document AND (:scope IS NULL OR scope = :scope OR substr(scope, 1, length(:below)) = :below);

-- name: unembedded
SELECT passage.* FROM passage LEFT JOIN vector ON vector.passage = passage.id AND vector.model = :model
WHERE vector.passage IS NULL AND passage.id > :above AND passage.id <= :last ORDER BY passage.id DESC LIMIT :limit;

-- name: vectors
SELECT id, passage, facts, numbers FROM vector WHERE scope = :scope AND id > :id AND model = :model ORDER BY id;

-- name: vectors_after
SELECT id, passage, scope, numbers FROM vector WHERE id > :id AND model = :model ORDER BY id LIMIT :limit;

-- name: vectors_of
SELECT vector.passage, vector.scope, vector.facts, vector.numbers FROM json_each(:ids) AS wanted
JOIN vector ON vector.passage = CAST(wanted.value AS BIGINT) AND vector.model = :model;

-- name: newest_vector
SELECT coalesce(max(id), 0) FROM vector;

-- name: vector_models
SELECT DISTINCT model FROM vector;

-- name: put_vector
INSERT OR REPLACE INTO vector (passage, scope, model, facts, numbers)
SELECT id, scope, :model, :facts, :numbers FROM passage WHERE id = :passage;

-- name: add_recalled
INSERT INTO recalled (run, step, at, query, block, found, hash) VALUES (:run, :step, :at, :query, :block, :found, :hash);

-- name: task_recalled
SELECT * FROM recalled WHERE step = :step ORDER BY id LIMIT 1;

-- name: family_recalled
WITH RECURSIVE
    above (id) AS (SELECT id FROM run WHERE id = :run UNION SELECT run.parent FROM run JOIN above ON run.id = above.id WHERE run.parent IS NOT NULL),
    family (id) AS (SELECT id FROM above UNION SELECT run.id FROM run JOIN family ON run.parent = family.id)
SELECT recalled.* FROM family CROSS JOIN recalled WHERE recalled.run = family.id AND block IS NOT NULL ORDER BY recalled.id;

-- name: recalled_after
SELECT * FROM recalled WHERE id > :id ORDER BY id LIMIT 500;

-- name: there
SELECT passage.id, passage.document FROM json_each(:ids) AS wanted JOIN passage ON passage.id = CAST(wanted.value AS BIGINT);

-- name: section_hashes
SELECT own.id AS section, part.hash
FROM json_each(:ids) AS wanted JOIN passage AS own ON own.id = CAST(wanted.value AS BIGINT)
    JOIN passage AS part ON part.document = own.document AND part.id >= own.id AND part.id < own.id + :most
ORDER BY part.id;

-- name: section_passages
SELECT own.id AS section, own.document, part.step, part.text, part.hash
FROM json_each(:ids) AS wanted JOIN passage AS own ON own.id = CAST(wanted.value AS BIGINT)
    JOIN passage AS part ON part.document = own.document AND part.id >= own.id AND part.id < own.id + :most
ORDER BY part.id;

-- name: any_unembedded
SELECT EXISTS (
    SELECT 1 FROM json_each(:ids) AS wanted JOIN passage ON passage.document = CAST(wanted.value AS BIGINT)
        LEFT JOIN vector ON vector.passage = passage.id AND vector.model = :model
    WHERE vector.passage IS NULL
);

-- name: count_unembedded
SELECT count(*) FROM passage LEFT JOIN vector ON vector.passage = passage.id AND vector.model = :model
WHERE vector.passage IS NULL AND passage.id > :above AND passage.id <= :last;

-- name: add_pending
INSERT INTO pending (step) SELECT id FROM step WHERE id = :step AND session = :session ON CONFLICT DO NOTHING;

-- name: index_again_after
INSERT INTO pending (step)
SELECT step FROM (
    SELECT step FROM passage WHERE id = document AND session = :session AND step > :step ORDER BY step LIMIT 2
) AS following
UNION
SELECT document.step FROM passage AS document
WHERE document.id = document.document AND document.session = :session AND document.step > :step
  AND EXISTS (SELECT 1 FROM passage WHERE passage.document = document.id AND passage.role = 'answer')
ON CONFLICT DO NOTHING;

-- name: pending_steps
SELECT step.*, run.scope, run.agent, run.parent, run.writer, run.began, (
    SELECT count(*) FROM forgotten
    WHERE (what = 'step' AND target = CAST(step.id AS TEXT)) OR (what = 'run' AND target = step.run)
) AS forgotten
FROM (
    SELECT id FROM (
        SELECT step.id FROM pending CROSS JOIN step CROSS JOIN run
        WHERE step.id = pending.step AND run.id = step.run AND NOT :newest
          AND (:only IS NULL OR step.id IN (SELECT CAST(value AS BIGINT) FROM json_each(:only)))
        ORDER BY pending.step LIMIT :limit
    ) AS oldest
    UNION ALL
    SELECT id FROM (
        SELECT step.id FROM pending CROSS JOIN step CROSS JOIN run
        WHERE step.id = pending.step AND run.id = step.run AND :newest
        ORDER BY pending.step DESC LIMIT :limit
    ) AS newest
) AS wanted CROSS JOIN step CROSS JOIN run
WHERE step.id = wanted.id AND run.id = step.run
ORDER BY CASE WHEN :newest THEN -step.id ELSE step.id END;

-- name: pending_with
SELECT step, words FROM (
    SELECT pending.step AS step,
        (SELECT count(*) FROM json_each(:words) AS word WHERE instr(lower(plain(step.text)), word.value) > 0) AS words
    FROM pending CROSS JOIN step WHERE step.id = pending.step
) AS counted
WHERE words > 0 ORDER BY words DESC, step DESC LIMIT :limit;

-- name: pending_before
WITH RECURSIVE
    above (id) AS (
        SELECT id FROM run WHERE id IN (SELECT value FROM json_each(:runs))
        UNION
        SELECT run.parent FROM run JOIN above ON run.id = above.id WHERE run.parent IS NOT NULL
    ),
    family (id) AS (SELECT id FROM above UNION SELECT run.id FROM run JOIN family ON run.parent = family.id),
    own (id) AS (SELECT run.session FROM family CROSS JOIN run WHERE run.id = family.id),
    all_of (id) AS (
        SELECT id FROM own
        UNION
        SELECT session.fork_of FROM session JOIN all_of ON session.id = all_of.id WHERE session.fork_of IS NOT NULL
    )
SELECT step.*, run.scope, run.agent, run.parent, run.writer, run.began
FROM pending CROSS JOIN step CROSS JOIN run
WHERE step.id = pending.step AND run.id = step.run AND pending.step < :last AND step.session IN (SELECT id FROM all_of)
ORDER BY pending.step;

-- name: pending_after
SELECT step.*, run.scope, run.agent, run.parent, run.writer, run.began
FROM pending JOIN step ON step.id = pending.step JOIN run ON run.id = step.run
WHERE pending.step > :id ORDER BY pending.step LIMIT 200;

-- name: steps_in_scope
SELECT step.*, run.scope, run.agent, run.parent, run.writer, run.began FROM step JOIN run ON run.id = step.run
WHERE step.id > :id AND step.kind NOT IN ('system_prompt', 'injected')
  AND (:scope IS NULL OR run.scope = :scope OR substr(run.scope, 1, length(:below)) = :below)
ORDER BY step.id LIMIT 200;

-- name: calls_in_step
SELECT arguments FROM call
WHERE run = :run AND kind = 'tool' AND began <= :at
  AND began > coalesce((SELECT at FROM step WHERE run = :run AND id < :id ORDER BY id DESC LIMIT 1), 0);

-- name: made_in_session
SELECT step.* FROM step JOIN run ON run.id = step.run
WHERE step.session = :session AND step.id > :step AND step.at >= :since AND step.kind <> 'system_prompt'
  AND (step.kind <> 'task' OR run.parent IS NOT NULL OR run.writer = '')
ORDER BY step.id;

-- name: forked_after
SELECT session.id FROM session WHERE fork_of = :session AND EXISTS (
    SELECT 1 FROM event WHERE event.session = :session AND event.step = :step AND event.id <= session.fork_at
);

-- name: calling_steps
SELECT step.* FROM run JOIN step ON step.run = run.parent AND step.number = run.parent_step
WHERE run.id = :run AND step.kind = 'action';

-- name: called_in_step
SELECT step.* FROM run JOIN step ON step.run = run.id
WHERE run.parent = :run AND run.parent_step = :number AND step.kind <> 'system_prompt' ORDER BY step.id;

-- name: later_exposures
SELECT step.*, run.scope, run.agent, run.parent, run.writer, run.began
FROM run JOIN exposure ON exposure.session = run.session JOIN step ON step.id = exposure.step
WHERE step.run = run.id AND run.session <> :session AND exposure.at >= :at
  AND EXISTS (
      SELECT 1 FROM run AS own
      WHERE own.id = :run AND own.scope = run.scope AND own.agent = run.agent AND own.writer = run.writer
  );

-- name: snapshots_since
SELECT event.id FROM run AS own
JOIN run ON run.scope = own.scope AND run.agent = own.agent AND run.writer = own.writer
JOIN event ON event.session = run.session AND event.run = run.id
WHERE own.id = :run AND event.at >= :at AND event.state IS NOT NULL;

-- name: later_snapshots
SELECT event.* FROM run AS own
JOIN run ON run.scope = own.scope AND run.agent = own.agent AND run.writer = own.writer
JOIN event ON event.session = run.session AND event.run = run.id
JOIN session ON session.id = event.session
WHERE own.id = :run AND event.at >= :at AND event.state IS NOT NULL
  AND (session.fork_of IS NULL OR session.id = own.session)
ORDER BY event.id;

-- name: snapshot_before
SELECT event.* FROM run AS own
JOIN run ON run.scope = own.scope AND run.agent = own.agent AND run.writer = own.writer
JOIN event ON event.session = run.session AND event.run = run.id
WHERE own.id = :run AND event.at < :at AND event.state IS NOT NULL
ORDER BY event.id DESC LIMIT 1;

-- name: events_by_ids
SELECT * FROM event WHERE id IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids)) ORDER BY id;

-- name: notes_in_scope
SELECT * FROM note WHERE (:scope IS NULL OR scope = :scope OR substr(scope, 1, length(:below)) = :below) ORDER BY rowid;

-- name: recalls_of
SELECT recalled.*, run.session FROM recalled JOIN run ON run.id = recalled.run, json_each(recalled.found) AS source
WHERE CAST(source.value AS TEXT) = CAST(:source AS TEXT) OR (source.value = '*' AND run.scope = :scope AND recalled.at >= :since);

-- name: exposure_of
WITH RECURSIVE lineage (session, until) AS (
    SELECT id, CAST(NULL AS BIGINT) FROM session WHERE id = :session
    UNION ALL
    SELECT session.fork_of, CASE WHEN lineage.until < session.fork_at THEN lineage.until ELSE session.fork_at END
    FROM lineage JOIN session ON session.id = lineage.session WHERE session.fork_of IS NOT NULL
)
SELECT exposure.* FROM lineage JOIN exposure ON exposure.session = lineage.session
WHERE lineage.until IS NULL OR EXISTS (
    SELECT 1 FROM event
    WHERE event.session = exposure.session AND event.step = exposure.step AND event.id <= lineage.until
)
ORDER BY exposure.step LIMIT 1;

-- name: exposure_in_scope
SELECT EXISTS (
    SELECT 1 FROM exposure JOIN session ON session.id = exposure.session WHERE session.scope = :scope AND exposure.at <= :at
);

-- name: exposed_before
SELECT EXISTS (
    SELECT 1 FROM run JOIN exposure ON exposure.session = run.session
    WHERE run.scope = :scope AND run.agent = :agent AND run.writer = :writer AND run.session <> :session
      AND exposure.at <= :at
);

-- name: exposed_children
SELECT min(exposure.at) AS at FROM run JOIN exposure ON exposure.session = run.session
WHERE run.parent = :run AND run.began <= :until AND exposure.at <= coalesce(run.ended, :until);

-- name: put_exposure
INSERT INTO exposure (session, step, at, hash) VALUES (:session, :step, :at, :hash)
ON CONFLICT (session) DO UPDATE SET step = excluded.step, at = excluded.at, hash = excluded.hash;

-- name: index_exposed_steps
INSERT INTO pending (step)
SELECT step FROM passage WHERE id = document AND session = :session AND step >= :step
UNION
SELECT DISTINCT passage.step FROM run AS own JOIN run ON run.parent = own.id
    JOIN passage AS document ON document.id = document.document AND document.run = run.id
    JOIN passage ON passage.document = document.id
WHERE own.session = :session AND run.began >= :at AND passage.step IS NOT NULL AND passage.trust <> 'low'
ON CONFLICT DO NOTHING;

-- name: index_exposed_notes
INSERT INTO pending (note)
SELECT note.id FROM run JOIN note ON note.run = run.id
WHERE run.session = :session AND note.at >= :at AND note.origin <> 'user'
ON CONFLICT DO NOTHING;

-- name: exposure_after
SELECT * FROM exposure WHERE id > :id ORDER BY id LIMIT 500;

-- name: tool_calls
SELECT name, web, min(began) AS began FROM call WHERE run = :run AND kind = 'tool' AND began <= :until
GROUP BY name, web ORDER BY 3;

-- name: tools_called_in_step
SELECT DISTINCT name, web FROM call
WHERE run = :run AND kind = 'tool' AND began <= :at
  AND began > coalesce((SELECT at FROM step WHERE run = :run AND id < :id ORDER BY id DESC LIMIT 1), 0);

-- name: recalled_in
SELECT * FROM recalled WHERE run = :run AND at <= :until ORDER BY id;

-- name: low_passages
SELECT passage.id FROM passage AS document JOIN passage ON passage.document = document.id
WHERE document.id = document.document AND document.session = :session AND document.step >= :first AND document.step < :step
  AND passage.trust = 'low' ORDER BY document.step DESC LIMIT :limit;

-- name: any_unindexed
SELECT EXISTS (
    SELECT 1 FROM step
    WHERE session = :session AND id >= :first AND id < :step AND kind NOT IN ('system_prompt', 'injected')
      AND NOT EXISTS (SELECT 1 FROM passage WHERE id = document AND passage.session = step.session AND passage.step = step.id)
);

-- name: code_steps_before
SELECT * FROM step WHERE session = :session AND id < :step AND kind = 'action' ORDER BY id;

-- name: children_of_step
SELECT EXISTS (SELECT 1 FROM run WHERE parent = :run AND parent_step = :number);

-- name: add_pending_note
INSERT INTO pending (note) VALUES (:note) ON CONFLICT DO NOTHING;

-- name: pending_notes
SELECT note.*, (NOT EXISTS (SELECT 1 FROM note AS later WHERE later.supersedes = note.id)
  AND NOT EXISTS (SELECT 1 FROM forgotten WHERE what = 'note' AND target = note.id)) AS current
FROM pending CROSS JOIN note
WHERE note.id = pending.note AND EXISTS (SELECT 1 FROM pending AS other WHERE other.note > '')
ORDER BY pending.id LIMIT :limit;

-- name: last_pending
SELECT coalesce(max(id), 0) FROM pending;

-- name: drop_pending_after
DELETE FROM pending WHERE id > :id;

-- name: index_missing_steps
INSERT INTO pending (step)
SELECT id FROM step
WHERE kind NOT IN ('system_prompt', 'injected') AND NOT EXISTS (SELECT 1 FROM passage WHERE passage.step = step.id)
ORDER BY id ON CONFLICT DO NOTHING;

-- name: index_missing_notes
INSERT INTO pending (note)
SELECT id FROM note WHERE NOT EXISTS (SELECT 1 FROM passage WHERE passage.note = note.id)
ORDER BY rowid ON CONFLICT DO NOTHING;

-- name: any_pending
SELECT EXISTS (SELECT 1 FROM pending);

-- name: count_pending
SELECT count(*) FROM pending;

-- name: helpers
SELECT DISTINCT agent FROM run WHERE parent = :run;

-- name: step_indexed
DELETE FROM pending WHERE step = :step;

-- name: note_indexed
DELETE FROM pending WHERE note = :note;

-- name: add_note
INSERT INTO note (id, scope, kind, text, tags, origin, run, at, expires, supersedes, sources, hash)
VALUES (:id, :scope, :kind, :text, :tags, :origin, :run, :at, :expires, :supersedes, :sources, :hash);

-- name: notes_by_prefix
SELECT * FROM note WHERE id >= :prefix AND id < :prefix || 'g'
  AND (:scope IS NULL OR scope = :scope OR substr(scope, 1, length(:below)) = :below)
ORDER BY id LIMIT 9;

-- name: find_notes
SELECT * FROM note
WHERE (:scope IS NULL OR scope = :scope OR substr(scope, 1, length(:below)) = :below)
  AND (:kind IS NULL OR kind = :kind)
  AND (:run IS NULL OR run = :run)
  AND (:tag IS NULL OR EXISTS (SELECT 1 FROM json_each(note.tags) WHERE value = :tag))
  AND (:past OR ((expires IS NULL OR expires > :now)
                 AND NOT EXISTS (SELECT 1 FROM note AS later WHERE later.supersedes = note.id)
                 AND NOT EXISTS (SELECT 1 FROM forgotten WHERE what = 'note' AND target = note.id)))
ORDER BY at DESC, rowid DESC LIMIT :limit;

-- name: note_kinds
SELECT DISTINCT kind FROM note ORDER BY kind LIMIT 200;

-- name: same_note
SELECT id FROM note WHERE scope = :scope AND kind = :kind AND text = :text
  AND NOT EXISTS (SELECT 1 FROM note AS later WHERE later.supersedes = note.id)
  AND NOT EXISTS (SELECT 1 FROM forgotten WHERE what = 'note' AND target = note.id) LIMIT 1;

-- name: superseding
SELECT * FROM note WHERE supersedes = :id ORDER BY at LIMIT 1;

-- name: made_from
SELECT DISTINCT note.id, note.scope FROM note, json_each(note.sources) AS source
WHERE CAST(source.value AS TEXT) = CAST(:source AS TEXT) AND note.origin <> 'user';

-- name: made_in
SELECT id, scope FROM note WHERE run = :run AND origin <> 'user' AND at >= :since;

-- name: runs_told
SELECT DISTINCT recalled.run FROM recalled JOIN run ON run.id = recalled.run, json_each(recalled.found) AS source
WHERE CAST(source.value AS TEXT) = CAST(:source AS TEXT) OR (source.value = '*' AND run.scope = :scope AND recalled.at >= :since);

-- name: run_children
SELECT id FROM run WHERE parent = :run;

-- name: notes_with_sources
SELECT id FROM note WHERE id IN (SELECT value FROM json_each(:notes)) AND sources <> '[]';

-- name: stale
WITH RECURSIVE source (id) AS (
    SELECT given.value FROM note, json_each(note.sources) AS given WHERE note.id = :id
    UNION
    SELECT given.value FROM source JOIN note ON note.id = source.id, json_each(note.sources) AS given
)
SELECT EXISTS (
    SELECT 1 FROM source LEFT JOIN note ON note.id = source.id LEFT JOIN step ON step.id = source.id
    WHERE (typeof(source.id) = 'text' AND (
              note.expires <= :now
              OR EXISTS (SELECT 1 FROM note AS later WHERE later.supersedes = note.id)
              OR EXISTS (SELECT 1 FROM forgotten WHERE what = 'note' AND target = note.id)))
       OR (typeof(source.id) = 'integer' AND (
              EXISTS (SELECT 1 FROM forgotten WHERE what = 'step' AND target = CAST(step.id AS TEXT))
              OR EXISTS (SELECT 1 FROM forgotten WHERE what = 'run' AND target = step.run)))
);

-- name: forgotten_steps
SELECT step.id FROM json_each(:ids) AS wanted JOIN step ON step.id = CAST(wanted.value AS BIGINT)
WHERE EXISTS (SELECT 1 FROM forgotten WHERE what = 'step' AND target = CAST(step.id AS TEXT))
   OR EXISTS (SELECT 1 FROM forgotten WHERE what = 'run' AND target = step.run);

-- name: expired
SELECT passage.* FROM note JOIN passage ON passage.note = note.id WHERE note.expires <= :now;

-- name: add_forgotten
INSERT INTO forgotten (what, target, at, hash) VALUES (:what, :target, :at, :hash);

-- name: forgotten
SELECT * FROM forgotten WHERE what = :what AND target = :target ORDER BY id LIMIT 1;

-- name: notes
SELECT * FROM note ORDER BY id;

-- name: lost_passages
SELECT passage.id FROM passage
WHERE (step IS NOT NULL AND NOT EXISTS (SELECT 1 FROM step WHERE step.id = passage.step))
   OR (note IS NOT NULL AND NOT EXISTS (SELECT 1 FROM note WHERE note.id = passage.note)) LIMIT 20;

-- name: unindexed_passages
-- Steps and notes that are pending are indexed again.
SELECT id FROM passage
WHERE id = document AND NOT EXISTS (SELECT 1 FROM document_words_docsize AS words WHERE words.id = passage.id)
  AND NOT EXISTS (SELECT 1 FROM pending WHERE pending.step = passage.step)
  AND NOT EXISTS (SELECT 1 FROM pending WHERE pending.note = passage.note) LIMIT 20;

-- name: check_document_words
INSERT INTO document_words (document_words) VALUES ('integrity-check');

-- name: forgotten_after
SELECT * FROM forgotten WHERE id > :id ORDER BY id LIMIT 500;

-- name: add_cut
INSERT INTO cut (session, view, last, parts, before, after, text, at, hash)
VALUES (:session, :view, :last, :parts, :before, :after, :text, :at, :hash);

-- name: session_cuts
SELECT * FROM cut WHERE session = :session ORDER BY id;

-- name: cut_after
SELECT * FROM cut WHERE id > :id ORDER BY id LIMIT 500;

-- name: add_alert
INSERT INTO alert (scope, agent, run, number, rule, reason, at, acts, hash)
VALUES (:scope, :agent, :run, :number, :rule, :reason, :at, :acts, :hash);

-- name: find_alerts
SELECT * FROM alert
WHERE (:scope IS NULL OR scope = :scope OR substr(scope, 1, length(:below)) = :below)
  AND (:run IS NULL OR run = :run)
  AND (:rule IS NULL OR rule = :rule)
ORDER BY id DESC LIMIT :limit;

-- name: alert_counts
SELECT run, sum(CASE WHEN rule = 'takeover' THEN 1 ELSE 0 END) AS resumed,
    sum(CASE WHEN rule = 'takeover' THEN 0 ELSE 1 END) AS alerts
FROM alert WHERE run IN (SELECT value FROM json_each(:runs)) GROUP BY run;

-- name: alert_after
SELECT * FROM alert WHERE id > :id ORDER BY id LIMIT 500;

-- name: begin_reading
BEGIN;

-- name: export_sizes
SELECT
    (SELECT coalesce(max(id), 0) FROM content) AS contents,
    (SELECT coalesce(max(id), 0) FROM event) AS events,
    (SELECT coalesce(max(rowid), 0) FROM run) AS runs,
    (SELECT coalesce(max(id), 0) FROM step) AS steps,
    (SELECT coalesce(max(id), 0) FROM call) AS calls,
    (SELECT coalesce(max(rowid), 0) FROM note) AS notes;

-- name: export_sessions
SELECT * FROM session WHERE id > :id AND (:scope IS NULL OR scope = :scope OR substr(scope, 1, length(:below)) = :below)
ORDER BY id LIMIT 500;

-- name: export_events
SELECT event.* FROM event JOIN session ON session.id = event.session
WHERE event.id > :id
  AND (:scope IS NULL OR session.scope = :scope OR substr(session.scope, 1, length(:below)) = :below)
ORDER BY event.id LIMIT 500;

-- name: export_steps
SELECT step.id, step.run, session, kind, number, place, step.at, seconds, error, tools, step.input_tokens,
    step.output_tokens, revision, substr(plain(text), 1, 20000) AS text
FROM step JOIN session ON session.id = step.session
WHERE step.id > :id
  AND (:scope IS NULL OR session.scope = :scope OR substr(session.scope, 1, length(:below)) = :below)
ORDER BY step.id LIMIT 500;

-- name: export_runs
SELECT run.rowid AS number, run.* FROM run JOIN session ON session.id = run.session
WHERE run.rowid > :id
  AND (:scope IS NULL OR session.scope = :scope OR substr(session.scope, 1, length(:below)) = :below)
ORDER BY run.rowid LIMIT 500;

-- name: export_calls
SELECT call.* FROM call JOIN run ON run.id = call.run JOIN session ON session.id = run.session
WHERE call.id > :id
  AND (:scope IS NULL OR session.scope = :scope OR substr(session.scope, 1, length(:below)) = :below)
ORDER BY call.id LIMIT 500;

-- name: export_recalled
SELECT recalled.* FROM recalled JOIN run ON run.id = recalled.run JOIN session ON session.id = run.session
WHERE recalled.id > :id
  AND (:scope IS NULL OR session.scope = :scope OR substr(session.scope, 1, length(:below)) = :below)
ORDER BY recalled.id LIMIT 500;

-- name: export_cuts
SELECT cut.* FROM cut JOIN session ON session.id = cut.session
WHERE cut.id > :id
  AND (:scope IS NULL OR session.scope = :scope OR substr(session.scope, 1, length(:below)) = :below)
ORDER BY cut.id LIMIT 500;

-- name: export_alerts
SELECT * FROM alert WHERE id > :id AND (:scope IS NULL OR scope = :scope OR substr(scope, 1, length(:below)) = :below)
ORDER BY id LIMIT 500;

-- name: export_notes
SELECT rowid AS number, * FROM note
WHERE rowid > :id AND (:scope IS NULL OR scope = :scope OR substr(scope, 1, length(:below)) = :below)
ORDER BY rowid LIMIT 500;

-- name: prompts_before
SELECT * FROM prompt WHERE id < :id ORDER BY id DESC LIMIT 500;

-- name: content_ids_after
SELECT id FROM content WHERE id > :id ORDER BY id LIMIT 2000;

-- name: content_hashes_after
SELECT id, hash FROM content WHERE id > :id ORDER BY id LIMIT :limit;

-- name: content_hash
SELECT hash FROM content WHERE id = :id;

-- name: content_link
SELECT hash, base FROM content WHERE id = :id;

-- name: scope_of_run
SELECT session.scope FROM run JOIN session ON session.id = run.session WHERE run.id = :id;

-- name: step_row
SELECT * FROM step WHERE id = :id;

-- name: note_row
SELECT * FROM note WHERE id = :id;

-- name: same_alert
SELECT count(*) FROM alert
WHERE at = :at AND scope = :scope AND agent = :agent AND rule = :rule AND reason = :reason AND run IS NULL;

-- name: integrity_check
PRAGMA integrity_check (5);

-- name: page_count
PRAGMA page_count;

-- name: free_pages
PRAGMA freelist_count;

-- name: page_size
PRAGMA page_size;

-- name: table_bytes
SELECT pgsize AS bytes FROM dbstat WHERE name = :name AND aggregate = TRUE;

-- name: newest_unfinished
SELECT id, agent, title, status, began, writer FROM run
WHERE status IN ('interrupted', 'failed') AND parent IS NULL AND began >= :since
    AND (fork_of IS NULL OR began < ended) -- a fork that was not resumed waits, and did not fail to finish
ORDER BY began DESC LIMIT :limit;

-- name: open_runs
SELECT id, agent, title, status, began, writer FROM run WHERE status = 'running' ORDER BY began DESC LIMIT :limit;

-- name: newest_failures
SELECT id, agent, title, failure FROM run WHERE status = 'failed' AND failure IS NOT NULL ORDER BY began DESC LIMIT :limit;

-- name: long_prompts
SELECT run, max(input_tokens) AS tokens FROM step
WHERE id IN (SELECT id FROM step ORDER BY id DESC LIMIT :newest) AND kind = 'action' AND input_tokens > :tokens
GROUP BY run ORDER BY tokens DESC LIMIT :limit;

-- name: long_texts
SELECT id, run, number, octet_length(plain(text)) AS bytes FROM step
WHERE id IN (SELECT id FROM step ORDER BY id DESC LIMIT :newest) AND octet_length(plain(text)) > :bytes
ORDER BY bytes DESC LIMIT :limit;

-- name: expired_notes
SELECT count(DISTINCT note.id) FROM note JOIN passage ON passage.note = note.id WHERE note.expires <= :now;

-- name: current_notes
SELECT id, text FROM note
WHERE (expires IS NULL OR expires > :now) AND sources <> '[]' AND NOT EXISTS (SELECT 1 FROM note AS later WHERE later.supersedes = note.id)
  AND NOT EXISTS (SELECT 1 FROM forgotten WHERE what = 'note' AND target = note.id)
ORDER BY rowid DESC LIMIT :limit;

-- name: pulse
SELECT (SELECT coalesce(max(id), 0) FROM event) AS events, (SELECT count(*) FROM run WHERE status = 'running') AS running,
    (SELECT coalesce(max(rowid), 0) FROM run) AS runs, (SELECT coalesce(max(ended), 0) FROM run) AS ended,
    (SELECT coalesce(max(id), 0) FROM alert) AS alerts, (SELECT count(*) FROM note) AS notes,
    (SELECT coalesce(max(id), 0) FROM forgotten) AS forgotten, (SELECT coalesce(max(id), 0) FROM recalled) AS recalled,
    (SELECT coalesce(max(id), 0) FROM erased) AS erased;

-- name: agents
SELECT DISTINCT agent FROM run ORDER BY agent LIMIT 200;

-- name: run_scopes
SELECT scope FROM run UNION SELECT scope FROM note ORDER BY scope LIMIT 200;

-- name: ranked_runs
SELECT * FROM run
WHERE (:scope IS NULL OR scope = :scope OR substr(scope, 1, length(:below)) = :below)
  AND (:agent IS NULL OR agent = :agent)
  AND (:model IS NULL OR model = :model)
  AND (:tag IS NULL OR EXISTS (SELECT 1 FROM json_each(run.tags) WHERE value = :tag))
  AND (:status IS NULL
       OR (status = :status AND NOT (status = 'running' AND writer IN (SELECT value FROM json_each(:gone))))
       OR (:status = 'interrupted' AND status = 'running' AND writer IN (SELECT value FROM json_each(:gone))))
  AND (:since IS NULL OR began >= :since)
  AND (:until IS NULL OR began < :until)
  AND (:roots IS NULL OR parent IS NULL)
  AND (:session IS NULL OR session = :session)
  AND (:tool IS NULL OR id IN (
      SELECT run FROM (SELECT run, kind, name FROM call ORDER BY id DESC LIMIT 50000) AS newest WHERE kind = 'tool' AND name = :tool
      UNION SELECT run FROM (SELECT run, tools FROM step ORDER BY id DESC LIMIT 50000) AS newest_steps
      WHERE EXISTS (SELECT 1 FROM json_each(newest_steps.tools) WHERE value = :tool)))
  AND (:text IS NULL OR instr(lower(title), lower(:text)) > 0)
ORDER BY CASE :order
    WHEN 'duration' THEN coalesce(ended - began, 0)
    WHEN 'tokens' THEN input_tokens + output_tokens
    WHEN 'steps' THEN steps
    WHEN 'errors' THEN errors
    WHEN 'oldest' THEN -began
  END DESC, began DESC, rowid DESC
LIMIT :limit OFFSET :skip;

-- name: run_tags
SELECT DISTINCT value AS tag FROM (SELECT tags FROM run WHERE tags <> '[]' ORDER BY began DESC LIMIT 5000) AS newest, json_each(newest.tags)
ORDER BY tag LIMIT 200;

-- name: models
SELECT DISTINCT model FROM run WHERE model IS NOT NULL ORDER BY model LIMIT 200;

-- name: tools
SELECT name FROM (SELECT kind, name FROM call ORDER BY id DESC LIMIT 5000) AS newest WHERE kind = 'tool'
GROUP BY name ORDER BY count(*) DESC LIMIT 200;

-- name: runs_over_time
SELECT CAST((began - :since) / :width AS INTEGER) AS bucket, agent, coalesce(model, '') AS model,
    count(*) AS runs,
    count(*) FILTER (WHERE status = 'failed') AS failed,
    count(*) FILTER (WHERE status = 'interrupted'
        OR (status = 'running' AND writer IN (SELECT value FROM json_each(:gone)))) AS interrupted,
    count(*) FILTER (WHERE status = 'max_steps') AS max_steps,
    sum(steps) AS steps, sum(errors) AS errors, sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens,
    coalesce(sum(max(ended - began, 0)) FILTER (WHERE ended IS NOT NULL), 0) AS seconds,
    coalesce(max(ended - began), 0) AS slowest
FROM run
WHERE began >= :since AND began < :until
  AND (:scope IS NULL OR scope = :scope OR substr(scope, 1, length(:below)) = :below)
GROUP BY bucket, agent, model LIMIT 20000;

-- name: tools_used
SELECT name, count(*) AS calls, CAST(sum(failed) AS BIGINT) AS failed, coalesce(sum(ended - began), 0) AS seconds,
    coalesce(max(ended - began), 0) AS slowest
FROM (SELECT * FROM call ORDER BY id DESC LIMIT 20000) AS recent
WHERE kind = 'tool' AND began >= :since
  AND (:scope IS NULL OR EXISTS (
      SELECT 1 FROM run WHERE run.id = recent.run
        AND (run.scope = :scope OR substr(run.scope, 1, length(:below)) = :below)))
GROUP BY name ORDER BY calls DESC, name LIMIT 12;

-- name: recent_failures
SELECT step.id, step.run, step.error, substr(plain(step.text), -300) AS text FROM step
WHERE step.error IS NOT NULL
  AND step.id >= coalesce((
      SELECT min(first.id) FROM (SELECT id FROM run WHERE began >= :since ORDER BY began LIMIT 20) AS early
      JOIN step AS first ON first.run = early.id), 9223372036854775807)
  AND (:scope IS NULL OR EXISTS (
      SELECT 1 FROM run WHERE run.id = step.run
        AND (run.scope = :scope OR substr(run.scope, 1, length(:below)) = :below)))
ORDER BY step.id DESC LIMIT 1000;

-- name: first_run
SELECT min(began) AS began FROM run;

-- name: sparks
SELECT step.run, max(step.seconds) AS seconds, max(CASE WHEN step.error IS NULL THEN 0 ELSE 1 END) AS failed
FROM step JOIN run ON run.id = step.run
WHERE step.run IN (SELECT value FROM json_each(:runs)) AND step.kind = 'action'
GROUP BY step.run, (step.number - 1) * :bars / CASE WHEN run.steps > :bars THEN run.steps ELSE :bars END
ORDER BY step.run, min(step.id);

-- name: children
SELECT * FROM run WHERE parent IN (SELECT value FROM json_each(:runs)) ORDER BY began;

-- name: forks
SELECT * FROM run WHERE fork_of = :run ORDER BY began;

-- name: outline
SELECT run, id, kind, number, place, at, seconds, error, tools, input_tokens, output_tokens, revision,
    substr(plain(text), 1, 200) AS text
FROM step WHERE run IN (SELECT value FROM json_each(:runs)) AND kind <> 'system_prompt'
ORDER BY run, place IS NULL, place, id LIMIT 20000;

-- name: call_times
SELECT run, kind, name, began, ended, failed FROM call
WHERE run IN (SELECT value FROM json_each(:runs)) ORDER BY id LIMIT 20000;

-- name: fork_points
SELECT run.id, event.at FROM run JOIN session ON session.id = run.session JOIN event ON event.id = session.fork_at
WHERE run.fork_of = :run ORDER BY run.began LIMIT 100;

-- name: step_changes
SELECT step, act, at FROM event
WHERE session = :session AND run = :run AND act <> 'insert' ORDER BY id DESC LIMIT 1000;

-- name: shown_before
SELECT event.step, event.shown, step.number, step.kind FROM event JOIN step ON step.id = event.step
WHERE event.session = :session AND event.shown IS NOT NULL AND step.place < :place ORDER BY step.place, event.id;

-- name: run_recalled
SELECT * FROM recalled WHERE run = :run ORDER BY id LIMIT 200;

-- name: influenced
SELECT recalled.run, recalled.at, recalled.query, run.agent, run.title FROM recalled JOIN run ON run.id = recalled.run
WHERE EXISTS (SELECT 1 FROM json_each(recalled.found) WHERE CAST(value AS TEXT) = CAST(:what AS TEXT)) ORDER BY recalled.id DESC LIMIT 100;

-- name: step_runs
SELECT step.id, step.run FROM json_each(:ids) AS wanted JOIN step ON step.id = CAST(wanted.value AS BIGINT);

-- name: erased
SELECT * FROM erased ORDER BY id;

-- name: add_erased
INSERT INTO erased (at, what, counts, events, finished, hash) VALUES (:at, :what, :counts, :events, :finished, :hash)
RETURNING id;

-- name: finish_erased
UPDATE erased SET finished = 1, hash = :hash WHERE id = :id;

-- name: secure_delete
PRAGMA secure_delete = ON;

-- name: compact
VACUUM;

-- name: empty_log
PRAGMA wal_checkpoint (TRUNCATE);

-- name: compact_document_words
INSERT INTO document_words (document_words) VALUES ('optimize');

-- name: erasable_runs
SELECT * FROM run
WHERE (:scope IS NULL OR scope = :scope OR substr(scope, 1, length(:below)) = :below)
  AND (:before IS NULL
       OR coalesce(ended, (SELECT max(at) FROM event WHERE event.session = run.session AND event.run = run.id), began) < :before)
ORDER BY rowid;

-- name: erasable_notes
SELECT * FROM note WHERE :scope IS NULL OR scope = :scope OR substr(scope, 1, length(:below)) = :below ORDER BY rowid;

-- name: erasable_alerts
SELECT id FROM alert
WHERE run IS NULL AND (:scope IS NULL OR scope = :scope OR substr(scope, 1, length(:below)) = :below);

-- name: runs_by_ids
SELECT * FROM run WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY rowid;

-- name: running_in_sessions
SELECT * FROM run WHERE status = 'running' AND session IN (SELECT value FROM json_each(:sessions)) ORDER BY rowid;

-- name: steps_by_runs
SELECT * FROM step WHERE run IN (SELECT value FROM json_each(:ids)) ORDER BY id;

-- name: steps_by_ids
SELECT * FROM step WHERE id IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids)) ORDER BY id;

-- name: steps_by_records
SELECT * FROM step WHERE record IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids)) ORDER BY id;

-- name: events_by_sessions
SELECT * FROM event WHERE session IN (SELECT value FROM json_each(:ids)) ORDER BY id;

-- name: calls_by_runs
SELECT * FROM call WHERE run IN (SELECT value FROM json_each(:ids)) ORDER BY id;

-- name: recalled_by_runs
SELECT * FROM recalled WHERE run IN (SELECT value FROM json_each(:ids)) ORDER BY id;

-- name: recalled_by_steps
SELECT * FROM recalled WHERE step IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids)) ORDER BY id;

-- name: recalled_from
SELECT DISTINCT recalled.*, run.session FROM recalled JOIN run ON run.id = recalled.run, json_each(recalled.found) AS source
WHERE source.value IN (SELECT value FROM json_each(:sources))
   OR (source.value = '*' AND run.scope IN (SELECT value FROM json_each(:scopes)))
ORDER BY recalled.id;

-- name: notes_from
SELECT DISTINCT note.* FROM note, json_each(note.sources) AS source
WHERE source.value IN (SELECT value FROM json_each(:sources)) ORDER BY note.rowid;

-- name: notes_by_runs
SELECT * FROM note WHERE run IN (SELECT value FROM json_each(:ids)) ORDER BY rowid;

-- name: notes_by_ids
SELECT * FROM note WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY rowid;

-- name: notes_superseding
SELECT * FROM note WHERE supersedes IN (SELECT value FROM json_each(:ids)) ORDER BY rowid;

-- name: prompts_by_ids
SELECT * FROM prompt WHERE id IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids)) ORDER BY id;

-- name: prompts_in_use
SELECT DISTINCT prompt FROM event WHERE prompt IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids));

-- name: prompts_beginning_with
SELECT id, parent FROM prompt WHERE parent IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids));

-- name: contents_in_use
SELECT record AS id FROM event WHERE record IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids))
UNION SELECT shown FROM event WHERE shown IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids))
UNION SELECT state FROM event WHERE state IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids))
UNION SELECT answer FROM run WHERE answer IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids))
UNION SELECT failure FROM run WHERE failure IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids))
UNION SELECT arguments FROM call WHERE arguments IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids))
UNION SELECT outcome FROM call WHERE outcome IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids))
UNION SELECT block FROM recalled WHERE block IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids));

-- name: contents_in_prompts
SELECT CAST(part.value AS BIGINT) AS id, prompt.id AS prompt FROM prompt, json_each(prompt.suffix) AS part
WHERE CAST(part.value AS BIGINT) IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids));

-- name: last_content
SELECT max(id) FROM content;

-- name: last_prompt
SELECT max(id) FROM prompt;

-- name: put_content
UPDATE content SET hash = :hash, bytes = :bytes, base = NULL WHERE id = :id;

-- name: contents_packed_with
WITH RECURSIVE later (id) AS (
    SELECT id FROM content WHERE base IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids))
    UNION
    SELECT content.id FROM content JOIN later ON content.base = later.id
)
SELECT id FROM later ORDER BY id;

-- name: put_prompt
UPDATE prompt SET parent = :parent, keep = :keep, size = :size, suffix = :suffix, hash = :hash WHERE id = :id;

-- name: put_session
UPDATE session SET fork_of = :fork_of, fork_at = :fork_at, hash = :hash WHERE id = :id;

-- name: put_run_lineage
UPDATE run SET title = :title, fork_of = :fork_of, answer = :answer, failure = :failure, steps = :steps, errors = :errors,
    input_tokens = :input_tokens, output_tokens = :output_tokens, hash = :hash
WHERE id = :id;

-- name: put_event
UPDATE event SET session = :session, run = :run, place = :place, state = :state, hash = :hash WHERE id = :id;

-- name: put_step
UPDATE step SET
    run = :run, session = :session, place = :place, kind = :kind, number = :number, seconds = :seconds, error = :error,
    tools = :tools, input_tokens = :input_tokens, output_tokens = :output_tokens, text = packed(:text), revision = :revision,
    record = :record, prompt = :prompt, hash = :hash
WHERE id = :id;

-- name: put_call
UPDATE call SET run = :run, turn = :turn, arguments = :arguments, hash = :hash WHERE id = :id;

-- name: put_recalled
UPDATE recalled SET run = :run, found = :found, hash = :hash WHERE id = :id;

-- name: put_note
UPDATE note SET run = :run, supersedes = :supersedes, sources = :sources, hash = :hash WHERE id = :id;

-- name: erasable_passages
SELECT id, document, scope, step, note FROM passage
WHERE session IN (SELECT value FROM json_each(:sessions)) OR note IN (SELECT value FROM json_each(:notes));

-- name: index_sessions
INSERT INTO pending (step) SELECT id FROM step WHERE session IN (SELECT value FROM json_each(:sessions)) ON CONFLICT DO NOTHING;

-- name: erase_pending
DELETE FROM pending
WHERE step IN (SELECT CAST(value AS BIGINT) FROM json_each(:steps)) OR note IN (SELECT value FROM json_each(:notes)) RETURNING id;

-- name: erase_events
DELETE FROM event WHERE id IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids)) RETURNING id;

-- name: erase_steps
DELETE FROM step WHERE id IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids)) RETURNING id;

-- name: erase_runs
DELETE FROM run WHERE id IN (SELECT value FROM json_each(:ids)) RETURNING id;

-- name: erase_sessions
DELETE FROM session WHERE id IN (SELECT value FROM json_each(:ids)) RETURNING id;

-- name: erase_calls
DELETE FROM call WHERE id IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids)) RETURNING id;

-- name: erase_prompts
DELETE FROM prompt WHERE id IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids)) RETURNING id;

-- name: erase_contents
DELETE FROM content WHERE id IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids)) RETURNING id;

-- name: erase_recalled
DELETE FROM recalled WHERE id IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids)) RETURNING id;

-- name: erase_notes
DELETE FROM note WHERE id IN (SELECT value FROM json_each(:ids)) RETURNING id;

-- name: erase_exposure
DELETE FROM exposure
WHERE session IN (SELECT value FROM json_each(:sessions))
   OR NOT EXISTS (SELECT 1 FROM step WHERE step.session = exposure.session AND step.id >= exposure.step);

-- name: erase_forgotten
DELETE FROM forgotten
WHERE (what = 'run' AND target IN (SELECT value FROM json_each(:runs)))
   OR (what = 'note' AND target IN (SELECT value FROM json_each(:notes)))
   OR (what = 'step' AND target IN (SELECT CAST(value AS TEXT) FROM json_each(:steps)))
RETURNING id;

-- name: erase_trims
DELETE FROM cut WHERE session IN (SELECT value FROM json_each(:sessions)) RETURNING id;

-- name: alerts_of
SELECT alert.id FROM alert
WHERE run IN (SELECT value FROM json_each(:runs))
   OR EXISTS (SELECT 1 FROM json_each(:steps) AS given JOIN step ON step.id = CAST(given.value AS BIGINT)
              WHERE step.run = alert.run AND step.number = alert.number);

-- name: erase_alerts
DELETE FROM alert WHERE id IN (SELECT CAST(value AS BIGINT) FROM json_each(:ids)) RETURNING id;

-- name: fitting_passages
SELECT passage.* FROM json_each(:ids) AS wanted JOIN passage ON passage.document = CAST(wanted.value AS BIGINT)
WHERE passage.id < passage.document + :most
   OR passage.id IN (SELECT CAST(value AS BIGINT) FROM json_each(:known))
   OR passage.role IN (SELECT value FROM json_each(:roles))
   OR passage.trust IN (SELECT value FROM json_each(:trusts))
ORDER BY passage.id;

-- name: fingerprint_key
SELECT key FROM fingerprint_key WHERE id = 1;
