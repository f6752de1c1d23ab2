"""Other libraries: smolmem inside them, and their parts inside smolmem. One file and one extra each."""
