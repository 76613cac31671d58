"""How a client encodes its update for the way up: parts that any algorithm combines with. none.py is the contract."""
