"""Tables are read whichever way a spreadsheet has saved them."""

import math

import pytest

from distlab import errors
from distlab.autograder.gradebook.csv_reader import number_in, read_sheet

PLAIN = "name,points,comment\nZoë,1.5,well done\n"


def sheet(path, data, needs=("name", "points")):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return read_sheet(path, needs=needs, begins="name,points,comment")


@pytest.mark.parametrize(
    "data",
    [
        PLAIN,
        PLAIN.encode("utf-8-sig"),
        PLAIN.encode("utf-16"),
        PLAIN.encode("cp1252"),
        PLAIN.replace(",", ";"),
        PLAIN.replace(",", "\t"),
        "sep=;\r\n" + PLAIN.replace(",", ";").replace("\n", "\r\n"),
        PLAIN.replace("\n", "\r\n"),
        '"name","points","comment"\n"Zoë","1.5","well done"\n',
        "Name, POINTS ,comment\nZoë,1.5,well done\n",
        "name,points,comment,,\n,,,,\nZoë,1.5,well done,,\n\n",
    ],
)
def test_all_that_spreadsheets_save_is_the_same_table(tmp_path, data):
    read = sheet(tmp_path / "a.csv", data)
    assert read.columns == ("name", "points", "comment")
    assert [row for _, row in read.rows] == [
        {"name": "Zoë", "points": "1.5", "comment": "well done"}
    ]


def test_rows_know_their_line_and_columns_may_stand_in_any_order(tmp_path):
    read = sheet(tmp_path / "a.csv", 'points;name\n1;"two\nlines"\n\n3;b\n')
    assert read.rows == (
        (3, {"points": "1", "name": "two\nlines"}),
        (5, {"points": "3", "name": "b"}),
    )
    assert read.delimiter == ";"


def test_what_stands_in_a_column_without_a_name_is_not_lost(tmp_path):
    read = sheet(tmp_path / "a.csv", "name,points,\na,1,mine\nb,2,,too\n")
    assert read.rows[0][1] == {"name": "a", "points": "1", "column 3": "mine", "column 4": ""}
    assert read.rows[1][1]["column 4"] == "too"


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ("", "no column 'name' among none"),
        ("name,mark\n", "no column 'points' among name, mark"),
        ("name,points,Name\n", "two columns 'name'"),
        (b"PK\x03\x04rest", "an Excel workbook"),
        (b"\x00\xff\x00\xff", "no column 'name' among "),
    ],
)
def test_what_is_no_such_table_is_told(tmp_path, data, found):
    with pytest.raises(errors.InvalidArgument) as caught:
        sheet(tmp_path / "a.csv", data)
    assert caught.value.asked == f"read {tmp_path / 'a.csv'}"
    assert caught.value.found.startswith(found)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(errors.InvalidArgument) as caught:
        read_sheet(tmp_path / "a.csv", needs=("name",), begins="name")
    assert caught.value.found == "nothing to read (No such file or directory)"


@pytest.mark.parametrize(
    ("cell", "number"),
    [("2", 2), (" 2.5 ", 2.5), ("2,5", 2.5), ("", None), ("  ", None), ("0", 0)],
)
def test_numbers_are_read_with_a_point_or_a_comma(cell, number):
    assert number_in(cell) == number


@pytest.mark.parametrize("cell", ["two", "nan", "inf", "1,000,000", "2 of 3"])
def test_what_is_no_number_is_none(cell):
    assert math.isnan(number_in(cell))
