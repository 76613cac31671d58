"""Which client holds which examples: one file for each family of partitions.

A partition is a function (dataset, clients, seed, ...) -> list of int64 example ids, one tensor for each client. It
raises ConfigError for values that the data set does not allow, such as more clients than examples.
"""
