"""What people write into models and steps, by kinds: each feature adds to the plan of a seed.

`plan` says what a plan is. Importing this package enters the features of all kinds into `FEATURES`.
"""

from tools.step_features import (
    callbacks,
    doors,
    draws,
    effects,
    functions,
    gradients,
    loops,
    python,
    replicas,
    steps,
)
from tools.step_features.plan import FEATURES

__all__ = [
    "FEATURES",
    "callbacks",
    "doors",
    "draws",
    "effects",
    "functions",
    "gradients",
    "loops",
    "python",
    "replicas",
    "steps",
]
