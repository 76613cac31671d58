"""Which client holds which examples: one file for each family of partitions.

A partition is a function (dataset, clients, seed, ...) -> list of int64 example ids, one tensor for each client.
"""
