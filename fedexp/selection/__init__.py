"""Which clients take part in a round: parts that any algorithm combines with. uniform.py is the contract."""
