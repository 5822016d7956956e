"""The characters that tests make text of: all that UTF-8 can hold."""

from __future__ import annotations

from hypothesis import strategies as st

# The default of st.text is the same set. To find it, it encodes all 1.1 million characters in every fresh clone.
LETTERS = st.characters(exclude_categories=["Cs"])
