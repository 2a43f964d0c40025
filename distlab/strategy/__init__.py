"""Strategies: made by name (`making`) and described in words (`describing`)."""
