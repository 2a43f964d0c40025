"""Checks of lesson 04: steps by hand on every replica, with and without an all-reduce."""

from distlab.checks.lesson_04_without_keras.adagrad import ADAGRAD
from distlab.checks.lesson_04_without_keras.local_sgd import LOCAL
from distlab.checks.lesson_04_without_keras.regression_step import REGRESSION

CHECKS = (REGRESSION, ADAGRAD, LOCAL)
