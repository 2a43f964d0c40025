"""Checks of lesson 17: a layer that is split, Adam that is sharded, a pipeline, a mesh."""

from distlab.course.lesson_17_beyond_data_parallelism.checks.gated_layer import SPLIT
from distlab.course.lesson_17_beyond_data_parallelism.checks.mesh_axes import MESH
from distlab.course.lesson_17_beyond_data_parallelism.checks.sharded_state import SHARDED
from distlab.course.lesson_17_beyond_data_parallelism.checks.unequal_stages import IDLE

CHECKS = (SPLIT, SHARDED, IDLE, MESH)
