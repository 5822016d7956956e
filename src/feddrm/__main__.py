"""``python -m feddrm``: the same as the ``feddrm`` command."""

from feddrm.cli import main

if __name__ == "__main__":
    main()
