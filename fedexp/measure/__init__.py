"""Measures: pure functions of tensors."""
