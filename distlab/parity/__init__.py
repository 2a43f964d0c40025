"""Parity: does a model under a strategy take the steps of one device, and if not, why."""
