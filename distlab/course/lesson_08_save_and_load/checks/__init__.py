"""Checks of lesson 08: a model moved, a part restored, an export, and which worker writes where.

What the checks save goes to temporary folders, which are gone when a check ends.
"""

from distlab.course.lesson_08_save_and_load.checks.restores import MOVE, RESTORE
from distlab.course.lesson_08_save_and_load.checks.saves import EXPORT, PATHS

CHECKS = (MOVE, RESTORE, EXPORT, PATHS)
