-- What PostgreSQL says differently from `sql/sqlite/queries.sql`, by name; all other statements are the same text.
-- `:new_id` is an id that the store got with the lock: such a statement is sent with the next one that has a result.

-- name: add_content
WITH added AS (
    INSERT INTO content (hash, bytes, base) VALUES (:hash, :bytes, :base) ON CONFLICT (hash) DO NOTHING RETURNING id
)
SELECT id FROM added UNION ALL SELECT id FROM content WHERE hash = :hash LIMIT 1;

-- name: add_contents
WITH
    given AS (
        SELECT decode(hash, 'hex') AS hash, decode(bytes, 'hex') AS bytes
        FROM unnest(CAST(:hashes AS TEXT[]), CAST(:contents AS TEXT[])) AS given (hash, bytes)
    ),
    added AS (
        INSERT INTO content (hash, bytes) SELECT hash, bytes FROM given ON CONFLICT (hash) DO NOTHING RETURNING hash, id
    )
SELECT hash, id FROM added
UNION ALL
SELECT content.hash, content.id FROM given JOIN content ON content.hash = given.hash;

-- name: add_new_contents
INSERT INTO content (id, hash, bytes)
SELECT id, decode(hash, 'hex'), decode(bytes, 'hex')
FROM unnest(CAST(:ids AS BIGINT[]), CAST(:hashes AS TEXT[]), CAST(:contents AS TEXT[])) AS given (id, hash, bytes);

-- name: assume_contents
SELECT 1 / (CASE WHEN count(*) = :count THEN 1 ELSE 0 END)
FROM unnest(CAST(:ids AS BIGINT[]), CAST(:hashes AS TEXT[])) AS given (id, hash)
    JOIN content ON content.id = given.id AND content.hash = decode(given.hash, 'hex');

-- name: assume_no_other_writer
SELECT 1 / (CASE WHEN count(*) = 0 THEN 1 ELSE 0 END)
FROM run WHERE id = ANY (CAST(:runs AS TEXT[])) AND writer <> :writer;

-- name: is_stored
SELECT 1 FROM step WHERE id = :id AND hash = :hash
UNION ALL SELECT 1 FROM call WHERE id = :id AND hash = :hash
UNION ALL SELECT 1 FROM prompt WHERE id = :id AND hash = :hash;

-- name: add_prompt
INSERT INTO prompt (id, parent, keep, size, suffix, hash) VALUES (:new_id, :parent, :keep, :size, :suffix, :hash);

-- name: add_step
INSERT INTO step
    (id, run, session, place, kind, number, at, seconds, error, tools, input_tokens, output_tokens, text, revision,
     record, prompt, hash)
VALUES
    (:new_id, :run, :session, :place, :kind, :number, :at, :seconds, :error, :tools, :input_tokens, :output_tokens,
     :text, :revision, :record, :prompt, :hash);

-- name: add_call
INSERT INTO call (id, run, turn, kind, name, arguments, began, ended, failed, outcome, web, hash)
VALUES (:new_id, :run, :turn, :kind, :name, :arguments, :began, :ended, :failed, :outcome, :web, :hash);

-- name: run_links
SELECT count(*) AS runs, count(*) AS by_time, count(*) AS by_id FROM run;

-- name: note_links
SELECT
    notes.count AS notes, notes.count AS notes_by_id, notes.past AS superseding, notes.past AS superseding_by_past,
    gone.count AS forgotten, gone.count AS forgotten_by_target
FROM (SELECT count(*) AS count, count(supersedes) AS past FROM note) AS notes,
    (SELECT count(*) AS count FROM forgotten) AS gone;

-- name: step_links
SELECT
    (SELECT count(*) FROM step WHERE run = :run) AS steps,
    (SELECT count(*) FROM step WHERE run = :run AND kind = 'action') AS actions,
    (SELECT count(*) FROM event
     WHERE session IN (SELECT CAST(:session AS TEXT) UNION SELECT session FROM step WHERE run = :run)
       AND run = :run AND act = 'insert' AND record IS NOT NULL) AS inserted,
    coalesce((SELECT steps FROM run WHERE id = :run AND status <> 'running'), 0) AS counted;

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
    (SELECT count(*) FROM step WHERE session = :session) AS steps,
    (SELECT CAST(coalesce(sum(revision), 0) AS BIGINT) FROM step WHERE session = :session) AS revisions,
    (SELECT count(place) FROM step WHERE session = :session) AS places
FROM own;

-- name: call_counts
SELECT run, count(*) AS calls FROM call WHERE run IN (SELECT value FROM json_each(:runs)) GROUP BY run;

-- name: session_is_used
SELECT 1 FROM run WHERE session = :id LIMIT 1;

-- name: take_lease
INSERT INTO lease (name, holder, renewed, seconds)
VALUES (:name, :holder, extract(epoch FROM clock_timestamp()), :seconds)
ON CONFLICT (name) DO UPDATE SET holder = :holder, renewed = extract(epoch FROM clock_timestamp()), seconds = :seconds
WHERE lease.holder = :holder OR abs(extract(epoch FROM clock_timestamp()) - lease.renewed) >= lease.seconds
RETURNING name;

-- name: drop_ended_leases
DELETE FROM lease WHERE name <> :name AND abs(extract(epoch FROM clock_timestamp()) - renewed) >= seconds;

-- name: held_lease
SELECT holder, seconds - abs(CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION) - renewed) AS seconds_left
FROM lease WHERE name = :name AND abs(extract(epoch FROM clock_timestamp()) - renewed) < seconds;

-- name: next_passage
SELECT nextval('passage_ids') FROM generate_series(1, :count) ORDER BY 1 LIMIT 1;

-- name: revise_step
UPDATE step SET
    kind = :kind, number = :number, seconds = :seconds, error = :error, tools = :tools, input_tokens = :input_tokens,
    output_tokens = :output_tokens, text = :text, revision = :revision, record = :record, prompt = :prompt, hash = :hash
WHERE id = :id;

-- name: add_document_words
WITH counted AS (UPDATE words_size SET rows = rows + 1, terms = terms + :size)
INSERT INTO document_words (id, size, terms, counts)
VALUES (:id, :size, CAST(:terms AS TEXT[]), CAST(:counts AS REAL[]));

-- name: drop_document_words
WITH dropped AS (DELETE FROM document_words WHERE id = :id RETURNING size)
UPDATE words_size SET rows = rows - 1, terms = terms - dropped.size FROM dropped;

-- name: count_documents
SELECT count(*) FROM document_words
WHERE terms @> CAST(:all AS TEXT[]) AND (CAST(:any AS TEXT[]) IS NULL OR terms && CAST(:any AS TEXT[]));

-- name: size_of_documents
SELECT rows FROM words_size;

-- name: find_documents_where
WITH
    asked AS (
        SELECT word, count(*) AS times, (SELECT count(*) FROM document_words WHERE terms @> ARRAY[word]) AS seen
        FROM unnest(CAST(:scored AS TEXT[])) AS word GROUP BY word
    ),
    rare AS MATERIALIZED (
        SELECT word, times * CAST(CASE WHEN 2 * seen < total.rows
            THEN ln((total.rows - seen + 0.5) / (seen + 0.5)) ELSE 1e-6 END AS DOUBLE PRECISION) AS weight
        FROM asked, words_size AS total
    ),
    found AS MATERIALIZED (
        SELECT words.id, words.terms, words.counts,
            CAST(0.3 + 0.9 * words.size * total.rows / total.terms AS DOUBLE PRECISION) AS norm
        FROM document_words AS words JOIN passage AS document ON document.id = words.id, words_size AS total
        WHERE words.terms @> CAST(:all AS TEXT[]) AND words.terms && CAST(:any AS TEXT[])
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
    )
SELECT found.id, sum(rare.weight * 2.2 * counts[place] / (counts[place] + norm)) AS score
FROM found CROSS JOIN rare CROSS JOIN LATERAL array_position(found.terms, rare.word) AS place
WHERE place IS NOT NULL GROUP BY found.id ORDER BY score DESC, found.id DESC LIMIT :limit;

-- name: newest_documents
SELECT id, CAST(0 AS DOUBLE PRECISION) AS score FROM document_words
WHERE terms @> CAST(:all AS TEXT[]) AND (CAST(:any AS TEXT[]) IS NULL OR terms && CAST(:any AS TEXT[]))
ORDER BY id DESC LIMIT :limit;

-- name: terms_from
SELECT DISTINCT term FROM document_words, unnest(terms) AS term WHERE term >= :first AND term < :last LIMIT :limit;

-- name: unindexed_passages
SELECT id FROM passage
WHERE id = document AND NOT EXISTS (SELECT 1 FROM document_words AS words WHERE words.id = passage.id) LIMIT 20;

-- name: check_document_words
SELECT count(*) FROM document_words;

-- name: put_vector
INSERT INTO vector (passage, scope, model, facts, numbers)
SELECT id, scope, :model, :facts, :numbers FROM passage WHERE id = :passage
ON CONFLICT (passage, model) DO UPDATE SET
    id = excluded.id, scope = excluded.scope, facts = excluded.facts, numbers = excluded.numbers;

-- name: stale
WITH RECURSIVE source (id) AS (
    SELECT given.value FROM note, json_each(note.sources) AS given WHERE note.id = :id
    UNION
    SELECT given.value FROM source JOIN note ON note.id = source.id, json_each(note.sources) AS given
)
SELECT EXISTS (
    SELECT 1 FROM source LEFT JOIN note ON note.id = source.id
        LEFT JOIN step ON step.id = CASE WHEN source.id ~ '^[0-9]{1,15}$' THEN CAST(source.id AS BIGINT) END
    WHERE note.expires <= :now
       OR EXISTS (SELECT 1 FROM note AS later WHERE later.supersedes = note.id)
       OR EXISTS (SELECT 1 FROM forgotten WHERE what = 'note' AND target = note.id)
       OR EXISTS (SELECT 1 FROM forgotten WHERE what = 'step' AND target = CAST(step.id AS TEXT))
       OR EXISTS (SELECT 1 FROM forgotten WHERE what = 'run' AND target = step.run)
);

-- name: begin_reading
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;

-- name: dangling
-- Rows that refer to something that is missing, where no foreign key says so, or rows are older than it.
SELECT * FROM (
    SELECT 'event' AS name, CAST(id AS TEXT) AS id, 'run' AS missing FROM event
    WHERE NOT EXISTS (SELECT 1 FROM run WHERE run.id = event.run)
    UNION ALL SELECT 'event', CAST(id AS TEXT), 'step' FROM event
    WHERE NOT EXISTS (SELECT 1 FROM step WHERE step.id = event.step)
    UNION ALL SELECT 'step', CAST(id AS TEXT), 'run' FROM step
    WHERE NOT EXISTS (SELECT 1 FROM run WHERE run.id = step.run)
    UNION ALL SELECT 'run', id, 'run' FROM run
    WHERE parent IS NOT NULL AND NOT EXISTS (SELECT 1 FROM run AS other WHERE other.id = run.parent)
    UNION ALL SELECT 'run', id, 'run' FROM run
    WHERE fork_of IS NOT NULL AND NOT EXISTS (SELECT 1 FROM run AS other WHERE other.id = run.fork_of)
    UNION ALL SELECT 'session', id, 'session' FROM session
    WHERE fork_of IS NOT NULL AND NOT EXISTS (SELECT 1 FROM session AS other WHERE other.id = session.fork_of)
    UNION ALL SELECT 'cut', CAST(id AS TEXT), 'step' FROM cut
    WHERE NOT EXISTS (SELECT 1 FROM step WHERE step.id = cut.last)
    UNION ALL SELECT 'prompt', CAST(id AS TEXT), 'prompt' FROM prompt
    WHERE parent IS NOT NULL AND NOT EXISTS (SELECT 1 FROM prompt AS other WHERE other.id = prompt.parent)
    UNION ALL SELECT given.name, given.id, 'prompt' FROM (
        SELECT 'event' AS name, CAST(id AS TEXT) AS id, prompt FROM event WHERE prompt IS NOT NULL
        UNION ALL SELECT 'step', CAST(id AS TEXT), prompt FROM step WHERE prompt IS NOT NULL
    ) AS given WHERE NOT EXISTS (SELECT 1 FROM prompt WHERE prompt.id = given.prompt)
    UNION ALL SELECT given.name, given.id, 'content' FROM (
        SELECT 'content' AS name, CAST(id AS TEXT) AS id, base AS content FROM content WHERE base IS NOT NULL
        UNION ALL SELECT 'event', CAST(id AS TEXT), record FROM event WHERE record IS NOT NULL
        UNION ALL SELECT 'event', CAST(id AS TEXT), shown FROM event WHERE shown IS NOT NULL
        UNION ALL SELECT 'event', CAST(id AS TEXT), state FROM event WHERE state IS NOT NULL
        UNION ALL SELECT 'step', CAST(id AS TEXT), record FROM step
        UNION ALL SELECT 'call', CAST(id AS TEXT), arguments FROM call
        UNION ALL SELECT 'call', CAST(id AS TEXT), outcome FROM call WHERE outcome IS NOT NULL
        UNION ALL SELECT 'run', id, answer FROM run WHERE answer IS NOT NULL
        UNION ALL SELECT 'run', id, failure FROM run WHERE failure IS NOT NULL
        UNION ALL SELECT 'recalled', CAST(id AS TEXT), block FROM recalled WHERE block IS NOT NULL
    ) AS given WHERE NOT EXISTS (SELECT 1 FROM content WHERE content.id = given.content)
) AS found LIMIT 20;

-- name: integrity_check
SELECT 'ok' AS integrity_check;

-- name: page_count
SELECT 0;

-- name: free_pages
SELECT 0;

-- name: page_size
SELECT 0;

-- name: table_bytes
SELECT coalesce(pg_total_relation_size(to_regclass(:name)), 0) AS bytes;

-- name: secure_delete
SELECT 1;

-- name: compact
SELECT 1;

-- name: empty_log
SELECT 0;

-- name: compact_document_words
SELECT 1;

-- name: store_bytes
SELECT CAST(coalesce(sum(pg_total_relation_size(pg_class.oid)), 0) AS BIGINT)
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE nspname = :schema AND relkind = 'r';

-- name: runs_over_time
SELECT CAST(floor((began - :since) / :width) AS BIGINT) AS bucket, agent, coalesce(model, '') AS model,
    count(*) AS runs,
    count(*) FILTER (WHERE status = 'failed') AS failed,
    count(*) FILTER (WHERE status = 'interrupted'
        OR (status = 'running' AND writer IN (SELECT value FROM json_each(:gone)))) AS interrupted,
    count(*) FILTER (WHERE status = 'max_steps') AS max_steps,
    CAST(sum(steps) AS BIGINT) AS steps, CAST(sum(errors) AS BIGINT) AS errors,
    CAST(sum(input_tokens) AS BIGINT) AS input_tokens, CAST(sum(output_tokens) AS BIGINT) AS output_tokens,
    coalesce(sum(greatest(ended - began, 0)) FILTER (WHERE ended IS NOT NULL), 0) AS seconds,
    coalesce(max(ended - began), 0) AS slowest
FROM run
WHERE began >= :since AND began < :until
  AND (:scope IS NULL OR scope = :scope OR substr(scope, 1, length(:below)) = :below)
GROUP BY 1, 2, 3 LIMIT 20000;

-- name: recent_failures
SELECT step.id, step.run, step.error, right(step.text, 300) AS text FROM step
WHERE step.error IS NOT NULL
  AND step.id >= coalesce((
      SELECT min(first.id) FROM (SELECT id FROM run WHERE began >= :since ORDER BY began LIMIT 20) AS early
      JOIN step AS first ON first.run = early.id), 9223372036854775807)
  AND (:scope IS NULL OR EXISTS (
      SELECT 1 FROM run WHERE run.id = step.run
        AND (run.scope = :scope OR substr(run.scope, 1, length(:below)) = :below)))
ORDER BY step.id DESC LIMIT 1000;
