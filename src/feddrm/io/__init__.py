"""Reading and writing files. A file is written whole or not at all."""
