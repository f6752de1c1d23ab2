-- Runs are written before what refers to them, and the server checks that. `NOT VALID`: new rows are checked from now on;
-- rows that are there already are checked afterwards (`server_schema.py`), and stay even if what they refer to is missing.

CREATE INDEX event_by_run ON event (run);
CREATE INDEX run_by_fork ON run (fork_of) WHERE fork_of IS NOT NULL;
CREATE INDEX cut_by_last ON cut (last);

ALTER TABLE event ADD CONSTRAINT event_run FOREIGN KEY (run) REFERENCES run (id) NOT VALID;
ALTER TABLE step ADD CONSTRAINT step_run FOREIGN KEY (run) REFERENCES run (id) NOT VALID;
ALTER TABLE run ADD CONSTRAINT run_parent FOREIGN KEY (parent) REFERENCES run (id) NOT VALID;
ALTER TABLE run ADD CONSTRAINT run_fork_of FOREIGN KEY (fork_of) REFERENCES run (id) NOT VALID;
ALTER TABLE cut ADD CONSTRAINT cut_last FOREIGN KEY (last) REFERENCES step (id) NOT VALID;
