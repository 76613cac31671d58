"""Which client holds which examples: one file a family.

A partition is a function (dataset, clients, seed, ...) -> list of int64 example ids, one tensor a client.
"""
