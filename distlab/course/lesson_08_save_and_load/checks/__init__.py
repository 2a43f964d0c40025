"""Checks of lesson 08: a model moved, a part restored, an export, and which worker writes where.

What the checks save goes to temporary folders, which are gone when a check ends.
"""

from distlab.course.lesson_08_save_and_load.checks.exports import EXPORT
from distlab.course.lesson_08_save_and_load.checks.moves import MOVE
from distlab.course.lesson_08_save_and_load.checks.paths import PATHS
from distlab.course.lesson_08_save_and_load.checks.restores import RESTORE

CHECKS = (MOVE, RESTORE, EXPORT, PATHS)
