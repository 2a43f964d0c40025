"""Checks of lesson 17: a layer that is split, Adam that is sharded, a pipeline, a mesh."""

from distlab.checks.lesson_17_beyond_data_parallelism.gated_layer import SPLIT
from distlab.checks.lesson_17_beyond_data_parallelism.mesh_axes import MESH
from distlab.checks.lesson_17_beyond_data_parallelism.sharded_state import SHARDED
from distlab.checks.lesson_17_beyond_data_parallelism.unequal_stages import IDLE

CHECKS = (SPLIT, SHARDED, IDLE, MESH)
