"""Clients' devices: which fail, how much work each does, how long it takes. none.py defines the interface."""
