"""Makes dates of attempts comparable, whichever language and order a platform writes them in.

sortable_date("May 10, 2026 105 PM")     # "2026-05-10T13:05"
sortable_date("1. Mai 2026 10.30")       # "2026-05-01T10:30"
sortable_date("12")                      # "0000000012": an attempt that is only counted
"""

from __future__ import annotations

import re
import unicodedata

# How names of months begin without accents: English, German, French, Spanish, Portuguese, Italian,
# Dutch and Scandinavian.
_MONTHS = {
    month: number
    for number, months in enumerate(
        (
            *("jan ene gen", "feb fev", "mar mrt maa mrz", "apr avr abr", "may mai mei mag maj"),
            *("jun juin giu", "jul juil lug", "aug aou ago", "sep set", "oct okt out ott"),
            *("nov", "dec dez dic des"),
        ),
        start=1,
    )
    for month in months.split()
}
_CLOCK = re.compile(r"\b(\d{1,2})[.:h]?(\d\d)(?:[.:]\d\d)?\s*(?:([ap])\.?\s?m\.?|[a-z]+)?$")
_YEAR = r"(?:19|20)\d\d"


def sortable_date(text: str) -> str:
    """Returns a text that sorts as the date does; the text itself if it is no date."""
    if text.isdecimal():
        return text.zfill(10)
    plain = "".join(
        letter
        for letter in unicodedata.normalize("NFD", text).lower()
        if not unicodedata.combining(letter)
    )
    if clock := _CLOCK.search(plain):
        day = _day(plain[: clock.start()], month_first=bool(clock[3]))
        hour = int(clock[1])
        if clock[3]:
            hour = hour % 12 + 12 * (clock[3] == "p")
        if day:
            return f"{day}T{hour:02}:{clock[2]}"
    return _day(plain, month_first=False) or text


def _day(text: str, *, month_first: bool) -> str:
    """Returns a day as 2026-05-01; "" if there is none.

    In 5-1-2026, the number that is above 12 is the day. Where none is, the month is first if the
    clock has 12 hours.
    """
    numbers = re.findall(r"\d+", text)
    year = next((number for number in numbers if re.fullmatch(_YEAR, number)), "")
    words = re.findall(r"[^\W\d_]+", text)
    named = next((m for word in words if (m := _MONTHS.get(word[:4]) or _MONTHS.get(word[:3]))), 0)
    others = [int(number) for number in numbers if number != year]
    if not year or len(others) < (1 if named else 2):
        return ""
    if named:
        month, day = named, others[0]
    else:
        first, second = others[:2]
        is_month_first = numbers[0] == year or second > 12 or (month_first and first <= 12)
        month, day = (first, second) if is_month_first else (second, first)
    return f"{year}-{month:02}-{day:02}" if 1 <= month <= 12 and 1 <= day <= 31 else ""
