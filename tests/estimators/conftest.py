"""Quick compiles everywhere: these programs are tiny, and compiling them is what takes the time."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _quick(quick_compiles):
    yield
