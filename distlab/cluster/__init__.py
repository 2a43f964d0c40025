"""Worker processes, and the cluster that each of them knows."""
