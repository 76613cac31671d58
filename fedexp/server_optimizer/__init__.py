"""How the server steps along the mean update: parts that any algorithm can use. sgd.py defines their interface."""
