"""Strategies: made by name (`factory`), described in words (`description`); how workers meet."""
