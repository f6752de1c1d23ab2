"""Recall on PostgreSQL passes the suite of recall, and finds what SQLite finds."""

from __future__ import annotations

import pytest
from recalling import Recalling


class TestRecallOnPostgres(Recalling):
    @pytest.fixture
    def url(self, pg_url: str) -> str:
        return pg_url
