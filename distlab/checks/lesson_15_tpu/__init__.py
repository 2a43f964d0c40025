"""Checks of lesson 15: a loss that XLA compiles, a padded evaluation, and three verdicts."""

from distlab.checks.lesson_15_tpu.compiled_loss import COMPILED_LOSS
from distlab.checks.lesson_15_tpu.padded_evaluation import EVALUATION
from distlab.checks.lesson_15_tpu.tpu_verdicts import VERDICTS

CHECKS = (COMPILED_LOSS, EVALUATION, VERDICTS)
