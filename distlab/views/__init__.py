"""Pictures that a reader moves: a slider for each value, and the figure follows."""
