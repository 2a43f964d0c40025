"""ARCHITECTURE.md names rooms and files that exist, on the floors that are held."""

import re

from tests.support.repository import ROOT
from tests.test_architecture import FLOORS

PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_the_table_has_every_room_on_its_floor():
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", PAGE, flags=re.MULTILINE)
    told = {
        room.replace("/", "."): int(floor)
        for floor, rooms in rows
        for room in re.findall(r"`(.*?)`", rooms)
    }
    assert told == FLOORS


def test_every_file_that_it_names_exists():
    named = re.findall(r"`((?:distlab|lessons|tests|tools|notebooks|autograder)/[\w./]*)`", PAGE)
    places = [ROOT, ROOT / "distlab"]
    missing = [
        name
        for name in named
        if "NN_slug" not in name and not any((place / name).exists() for place in places)
    ]
    assert len(named) > 20 and missing == []


def test_it_is_one_page():
    assert len(PAGE.splitlines()) < 100
