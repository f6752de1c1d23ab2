-- Text takes less space: it is packed, and its words are indexed once, by document.
--
--   content.base  the content that was written before it for the same run; the dictionary is that content, with what
--                 that content was packed with before it
--   document_words  a long document has a row for each section, known by the id of its first passage
--   step.text, passage.text
--                 text, or bytes that `plain()` turns into text and `packed()` made of it

ALTER TABLE content ADD COLUMN base INTEGER REFERENCES content (id);

CREATE INDEX content_by_base ON content (base) WHERE base IS NOT NULL;

DROP TABLE passage_words;

ALTER TABLE step ADD COLUMN less ANY;
UPDATE step SET less = packed(text);
ALTER TABLE step DROP COLUMN text;
ALTER TABLE step RENAME COLUMN less TO text;

ALTER TABLE passage ADD COLUMN less ANY;
UPDATE passage SET less = packed(text);
ALTER TABLE passage DROP COLUMN text;
ALTER TABLE passage RENAME COLUMN less TO text;
