"""Worker processes and what they are told of one another."""
