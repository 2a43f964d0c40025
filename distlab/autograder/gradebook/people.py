"""Finds the learner that a row of a teacher's table means.

whom = People(found.submissions)
whom.find("jane", "", asked="row 3 of reports.csv")       # ("jane", "12345")
"""

from __future__ import annotations

from collections.abc import Iterable

from distlab.autograder.gradebook.csv_writer import safe
from distlab.autograder.intake.submissions import Submission
from distlab.errors import InvalidArgument, did_you_mean

Person = tuple[str, str]


class People:
    """The learners of a folder."""

    def __init__(self, submissions: Iterable[Submission]) -> None:
        self._users: dict[str, list[Person]] = {}
        for person in sorted({(one.learner, one.user) for one in submissions}):
            # A teacher writes a name as our tables show it.
            for name in dict.fromkeys((person[0], str(safe(person[0])))):
                self._users.setdefault(name, []).append(person)

    def find(self, learner: str, user: str, *, asked: str) -> Person:
        """Returns the learner of a row."""
        named = self._users.get(learner.strip(), [])
        exact = [person for person in named if person[1] == user.strip()]
        if len(exact) == 1 or len(named) == 1:
            return (exact or named)[0]
        if named:
            numbers = ", ".join(number for _, number in named)
            raise InvalidArgument(
                asked=asked,
                found=f"{len(named)} learners named {learner!r}",
                do=f"write one of their numbers in the column 'user': {numbers}",
            )
        raise InvalidArgument(
            asked=asked,
            found=f"no such learner: {learner!r}",
            do=did_you_mean(learner, sorted(self._users)),
        )
