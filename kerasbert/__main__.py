"""`python -m kerasbert`, and `torchrun -m kerasbert`: the command `kerasbert`."""

if __name__ == "__main__":
    from kerasbert.cli import main

    main()
