"""What people look at: pictures of a federation, tables, and one self-contained page per run."""
