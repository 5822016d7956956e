"""``python -m feddrm``."""

from feddrm.cli import main

if __name__ == "__main__":
    main()
