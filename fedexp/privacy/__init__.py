"""Differential privacy: parts that any algorithm can use. none.py defines their interface."""
