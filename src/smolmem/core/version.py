"""The version of smolmem."""

__version__ = "0.1.0"
