"""Several workers that train one model: what they tell each other, agree on, and end together."""
