"""How a client encodes its update for upload: parts that any algorithm can use. none.py defines their interface."""
