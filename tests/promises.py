"""What smolmem promises. Each has at least one test that names it; a test fails where one lacks the other."""

PROMISES = {
    "D1": "A step whose write returned is there after kill -9.",
    "D3": "A torn or garbled write-ahead log gives a clean prefix.",
    "D4": "A damaged or foreign file gives one clear error, never wrong content, and stays as it was.",
    "D5": "Disk full, I/O error, read-only, locked: clear, nothing earlier lost, the agent's run goes on.",
    "D6": "Many writers, one file: nothing lost, nothing doubled, no lock shown.",
    "D7": "Recording never changes what the agent does.",
    "D8": "What comes back is what went in, or a mark that says what it was.",
    "D10": "Old files open; a failed upgrade does nothing; a newer file is refused.",
    "D11": "What a model was sent can be rebuilt, message by message.",
    "D12": "A crash at any point resumes, and every finished tool call happened exactly once.",
    "D13": "A backup made while others write opens, verifies, and is a moment of the whole.",
    "S1": "Loading a memory file runs no code.",
    "S2": "No SQL injection by value, key, sort, limit or table.",
    "S3": "Any search text is safe and quick.",
    "S6": "Nothing is written outside the store, whatever an archive says.",
    "S8": "Recalled text enters as data from a known source, and goes when its source goes.",
    "S9": "A recalled memory does not reproduce.",
    "S10": "Scopes do not leak.",
    "S13": "A foreign database is only data: unknown triggers and views are refused.",
    "S15": "Terminal output is inert.",
}
