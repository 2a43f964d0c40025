"""A limit grows with the load of the machine, up to four times."""

import os

import pytest

from distlab.coursework.patience import patient


@pytest.mark.parametrize(
    ("load", "limit"), [(0.0, 10.0), (2.0, 10.0), (6.0, 30.0), (8.0, 40.0), (400.0, 40.0)]
)
def test_a_limit_grows_with_the_load_of_each_core(monkeypatch, load, limit):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert patient(10.0) == limit


def test_a_system_that_tells_no_load_keeps_the_limit(monkeypatch):
    monkeypatch.delattr(os, "getloadavg")
    assert patient(10.0) == 10.0
