"""`make mutants` takes hours, so that a file that has moved is noticed here."""

from __future__ import annotations

from tests.conftest import ROOT
from tools.mutants.subjects import SUBJECTS


def test_subjects_name_what_is_there() -> None:
    named = [path for subject in SUBJECTS.values() for path in (*subject.files, *subject.tests)]
    assert not [path for path in named if not (ROOT / path).exists()]
