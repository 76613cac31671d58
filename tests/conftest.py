"""Tests import their small worlds from worlds.py beside this file."""
