"""Algorithms: fedavg.py has the base class; every other file contains only what differs from it."""
