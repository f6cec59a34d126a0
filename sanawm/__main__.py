"""`python -m sanawm` is the `sanawm` command."""

from sanawm.cli.app import main

if __name__ == "__main__":
    main()
