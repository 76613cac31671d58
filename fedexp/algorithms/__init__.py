"""Algorithms: fedavg.py is the base class; every other file says only what differs from it."""
