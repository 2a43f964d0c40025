"""Checks of lesson 04: steps by hand on every replica, with and without an all-reduce."""

from distlab.course.lesson_04_without_keras.checks.adagrad import ADAGRAD
from distlab.course.lesson_04_without_keras.checks.local_sgd import LOCAL
from distlab.course.lesson_04_without_keras.checks.regression_step import REGRESSION

CHECKS = (REGRESSION, ADAGRAD, LOCAL)
