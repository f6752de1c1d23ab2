-- Tools can say that they read the web, or that they do not.
--
--   call.web  1 or 0 if the tool said so, otherwise NULL: then its name decides; NULL is not part of the row's hash

ALTER TABLE call ADD COLUMN web INTEGER;
