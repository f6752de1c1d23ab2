-- Roles for a store on PostgreSQL, and row-level security as a second lock. Run by the owner of the schema, or by a
-- superuser, once; running it again changes nothing. `smolmem_agent` may record and recall, and nothing else: give it to
-- the users that agents log in as (GRANT smolmem_agent TO alice). `smolmem_reader` may read what a user's own SELECT can
-- see (views.sql), and nothing else: such a statement runs as this role.
--
-- Once this script ran, a connection sees the rows of one scope, and of the scopes in it: the one that it names with
-- `?scope=acme/alice` in its URL. A connection that names none sees no rows, the owner included; superusers see all.
-- Contents and prompts have no scope: equal contents of all scopes are stored once, and a connection that names any scope
-- finds them by id. Tenants who must not be able to read each other's contents get a schema each.

SET LOCAL search_path = {schema}, pg_catalog;

GRANT USAGE ON SCHEMA {schema} TO smolmem_agent;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO smolmem_agent;
GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {schema} TO smolmem_agent;
REVOKE INSERT, UPDATE, DELETE ON fingerprint_key FROM smolmem_agent;

GRANT USAGE ON SCHEMA {schema} TO smolmem_reader;
GRANT SELECT (id, scope, agent, agent_type, title, status, began, ended, parent, fork_of, model, steps, errors,
    input_tokens, output_tokens, tags) ON run TO smolmem_reader;
GRANT SELECT (id, run, session, kind, number, at, seconds, error, tools, input_tokens, output_tokens, text)
    ON step TO smolmem_reader;
GRANT SELECT (id, scope, kind, text, tags, origin, run, at, expires, supersedes) ON note TO smolmem_reader;
GRANT SELECT (what, target) ON forgotten TO smolmem_reader;
GRANT SELECT (id, scope) ON session TO smolmem_reader;  -- row-level security of steps reads it
GRANT smolmem_reader TO smolmem_agent;

CREATE OR REPLACE FUNCTION is_visible(scope text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT scope = current_setting('smolmem.scope', true)
        OR starts_with(scope, current_setting('smolmem.scope', true) || '/')
$$;

CREATE OR REPLACE FUNCTION names_a_scope() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce(current_setting('smolmem.scope', true), '') <> ''
$$;

DROP POLICY IF EXISTS any_scope ON content;
DROP POLICY IF EXISTS any_scope ON prompt;
DROP POLICY IF EXISTS any_scope ON forgotten;
DROP POLICY IF EXISTS any_scope ON erased;
DROP POLICY IF EXISTS scope_of_pending ON pending;
DROP POLICY IF EXISTS scope_of_session ON session;
DROP POLICY IF EXISTS scope_of_run ON run;
DROP POLICY IF EXISTS scope_of_note ON note;
DROP POLICY IF EXISTS scope_of_alert ON alert;
DROP POLICY IF EXISTS scope_of_passage ON passage;
DROP POLICY IF EXISTS scope_of_vector ON vector;
DROP POLICY IF EXISTS scope_of_step ON step;
DROP POLICY IF EXISTS scope_of_event ON event;
DROP POLICY IF EXISTS scope_of_cut ON cut;
DROP POLICY IF EXISTS scope_of_exposure ON exposure;
DROP POLICY IF EXISTS scope_of_call ON call;
DROP POLICY IF EXISTS scope_of_recalled ON recalled;
DROP POLICY IF EXISTS scope_of_words ON document_words;

CREATE POLICY any_scope ON content USING (names_a_scope());
CREATE POLICY any_scope ON prompt USING (names_a_scope());
CREATE POLICY any_scope ON forgotten USING (names_a_scope());
CREATE POLICY any_scope ON erased USING (names_a_scope());
CREATE POLICY scope_of_pending ON pending
    USING (EXISTS (SELECT 1 FROM step WHERE step.id = pending.step)
        OR EXISTS (SELECT 1 FROM note WHERE note.id = pending.note));
CREATE POLICY scope_of_session ON session USING (is_visible(scope));
CREATE POLICY scope_of_run ON run USING (is_visible(scope));
CREATE POLICY scope_of_note ON note USING (is_visible(scope));
CREATE POLICY scope_of_alert ON alert USING (is_visible(scope));
CREATE POLICY scope_of_passage ON passage USING (is_visible(scope));
CREATE POLICY scope_of_vector ON vector USING (is_visible(scope));
CREATE POLICY scope_of_step ON step USING (EXISTS (SELECT 1 FROM session WHERE session.id = step.session));
CREATE POLICY scope_of_event ON event USING (EXISTS (SELECT 1 FROM session WHERE session.id = event.session));
CREATE POLICY scope_of_cut ON cut USING (EXISTS (SELECT 1 FROM session WHERE session.id = cut.session));
CREATE POLICY scope_of_exposure ON exposure
    USING (EXISTS (SELECT 1 FROM session WHERE session.id = exposure.session));
CREATE POLICY scope_of_call ON call USING (EXISTS (SELECT 1 FROM run WHERE run.id = call.run));
CREATE POLICY scope_of_recalled ON recalled USING (EXISTS (SELECT 1 FROM run WHERE run.id = recalled.run));
CREATE POLICY scope_of_words ON document_words
    USING (EXISTS (SELECT 1 FROM passage WHERE passage.id = document_words.id));

ALTER TABLE content ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE prompt ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE forgotten ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE erased ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE pending ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE session ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE run ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE note ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE alert ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE passage ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE vector ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE step ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE event ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE cut ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE exposure ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE call ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE recalled ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE document_words ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
