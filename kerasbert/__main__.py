"""Run the command `kerasbert` with `python -m kerasbert` or `torchrun -m kerasbert`."""

if __name__ == "__main__":
    from kerasbert.cli import main

    main()
