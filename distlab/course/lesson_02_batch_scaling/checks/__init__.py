"""Checks of lesson 02: a plan, a warm-up, the gradient noise scale, a comparison of batches."""

from distlab.course.lesson_02_batch_scaling.checks.noise_scale import NOISE
from distlab.course.lesson_02_batch_scaling.checks.plans import PLAN
from distlab.course.lesson_02_batch_scaling.checks.sweeps import COMPARE
from distlab.course.lesson_02_batch_scaling.checks.sweeps import REPORTS as REPORTS
from distlab.course.lesson_02_batch_scaling.checks.warm_up import WARM_UP

CHECKS = (PLAN, WARM_UP, NOISE, COMPARE)
