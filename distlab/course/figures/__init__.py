"""Pictures of the lessons, one function each; nothing below imports them."""
