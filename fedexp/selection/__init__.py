"""Which clients take part in a round: parts that any algorithm can use. uniform.py defines their interface."""
