"""Checks of lesson 00: how a batch is shared, and who saw which example."""

from distlab.checks.lesson_00_start_here.brightness import BRIGHTNESS
from distlab.checks.lesson_00_start_here.sharing import FILE_SLICES, SLICES
from distlab.checks.lesson_00_start_here.who_saw import WHO_SAW

CHECKS = (SLICES, FILE_SLICES, BRIGHTNESS, WHO_SAW)
