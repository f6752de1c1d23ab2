-- A content can be packed with the contents before it as a dictionary.
--
--   content.base  the content that was written before it for the same run; the dictionary is that content, with what
--                 that content was packed with before it

ALTER TABLE content ADD COLUMN base INTEGER REFERENCES content (id);

CREATE INDEX content_by_base ON content (base) WHERE base IS NOT NULL;
