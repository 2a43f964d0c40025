"""Checks of lesson 02: a plan, a warm-up, the gradient noise scale, a comparison of batches."""

from distlab.checks.lesson_02_batch_scaling.noise_scale import NOISE
from distlab.checks.lesson_02_batch_scaling.plans import PLAN
from distlab.checks.lesson_02_batch_scaling.sweeps import COMPARE
from distlab.checks.lesson_02_batch_scaling.sweeps import REPORTS as REPORTS
from distlab.checks.lesson_02_batch_scaling.warm_up import WARM_UP

CHECKS = (PLAN, WARM_UP, NOISE, COMPARE)
