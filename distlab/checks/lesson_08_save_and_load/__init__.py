"""Checks of lesson 08: a model moved, a part restored, an export, and which worker writes where.

What the checks save goes to temporary folders, which are gone when a check ends.
"""

from distlab.checks.lesson_08_save_and_load.exports import EXPORT
from distlab.checks.lesson_08_save_and_load.moves import MOVE
from distlab.checks.lesson_08_save_and_load.paths import PATHS
from distlab.checks.lesson_08_save_and_load.restores import RESTORE

CHECKS = (MOVE, RESTORE, EXPORT, PATHS)
