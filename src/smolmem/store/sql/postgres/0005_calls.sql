-- What a step needs of its run is found without reading the whole run.

CREATE INDEX run_by_writer ON run (writer);

DROP INDEX call_by_run;
CREATE INDEX call_by_run ON call (run, began);
