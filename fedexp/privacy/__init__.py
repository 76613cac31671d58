"""What an update may tell of a client: parts that any algorithm combines with. none.py is the contract."""
