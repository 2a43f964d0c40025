"""`distlab bench`: how a learner's own model scales on the machine at hand."""
