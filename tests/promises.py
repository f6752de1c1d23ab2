"""What smolmem promises. Each has at least one test that names it; a test fails where one lacks the other."""

PROMISES = {
    "D1": "A step whose write returned is there after kill -9.",
    "D2": "… and after a power cut.",
    "D3": "A torn or garbled write-ahead log gives a clean prefix.",
    "D4": "A damaged or foreign file gives one clear error, never wrong content, and stays as it was.",
    "D5": "Disk full, I/O error, read-only, locked: clear, nothing earlier lost, the agent's run continues.",
    "D6": "Many writers, one file: nothing lost, nothing doubled, no lock shown.",
    "D7": "Recording never changes what the agent does.",
    "D8": "What comes back is what went in, or a placeholder that says what it was.",
    "D10": "Old files open; a failed upgrade does nothing; a newer file is refused.",
    "D11": "What a model was sent can be rebuilt, message by message.",
    "D12": "A crash at any point resumes, and every finished tool call happened exactly once.",
    "D13": "A backup made while others write opens, verifies, and is a moment of the whole.",
    "S1": "Loading a memory file runs no code.",
    "S2": "No SQL injection by value, key, sort, limit or table.",
    "S3": "Any search text is safe and quick.",
    "S4": "Hostile observations do nothing in the inspector.",
    "S5": "Only the user's own browser reaches the inspector.",
    "S6": "Nothing is written outside the store, whatever an archive says.",
    "S7": "Hostile images, archives and values cost little.",
    "S8": "Recalled text enters as data from a known source, and goes when its source goes.",
    "S9": "A recalled memory does not reproduce.",
    "S10": "Scopes do not leak.",
    "S12": "Erased means gone: from the file, its log, the index, the vectors, and every later copy.",
    "S13": "A foreign database is only data: unknown triggers and views are refused.",
    "S16": "Imports are not believed.",
    "S15": "Terminal output is inert.",
    "S18": "Encrypted means encrypted: no word on disk; a wrong or missing key is one sentence; never silently plain.",
}

UNTESTED = {
    "D9": "Backends behave alike.",
    "D14": "One writer per run, across hosts and containers.",
    "D15": "A store that vanishes is noticed.",
    "D16": "Recording never costs the user an answer.",
    "S11": "Secrets are not stored.",
    "S14": "MCP server: least power.",
    "S17": "No telemetry, also none of dependencies.",
}
"""Promises that no test is marked with yet; the torture report names them."""
