"""A run whose every text is hostile, and its report."""

import pytest
from report_samples import hostile_run

from workbench.reports import build_report


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    return hostile_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def hostile_page(hostile) -> str:
    return build_report(hostile).read_text(encoding="utf-8")
