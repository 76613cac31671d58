"""How the server steps along the mean update: parts that any algorithm combines with. sgd.py is the contract."""
