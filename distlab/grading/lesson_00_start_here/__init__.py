"""Checks of lesson 00: how a batch is shared, and who saw which example."""

from distlab.grading.lesson_00_start_here.sharing import BRIGHTNESS, SLICES
from distlab.grading.lesson_00_start_here.who_saw import WHO_SAW

CHECKS = (SLICES, BRIGHTNESS, WHO_SAW)
