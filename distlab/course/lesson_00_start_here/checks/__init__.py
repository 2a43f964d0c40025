"""Checks of lesson 00: how a batch is shared, and who saw which example."""

from distlab.course.lesson_00_start_here.checks.brightness import BRIGHTNESS
from distlab.course.lesson_00_start_here.checks.sharing import FILE_SLICES, SLICES
from distlab.course.lesson_00_start_here.checks.who_saw import WHO_SAW

CHECKS = (SLICES, FILE_SLICES, BRIGHTNESS, WHO_SAW)
