"""The devices that clients are: which fail, how much work each does, how long it takes. none.py is the contract."""
