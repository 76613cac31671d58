"""`python -m fedexp`."""

from fedexp.main import main

if __name__ == "__main__":
    main()
