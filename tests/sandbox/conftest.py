from pathlib import Path

import pytest

from longstep.sandbox.bubblewrap import Bubblewrap


@pytest.fixture(scope="session")
def sandbox() -> Bubblewrap:
    return Bubblewrap()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder
