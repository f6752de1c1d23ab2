"""Values as bytes and back: a codec that is total, and never runs what it reads."""
