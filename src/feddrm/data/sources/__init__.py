"""Sources: a user's own samples from arrays, folders of images or CSV tables.

All sources follow the same rules:

- Test samples are given, or split off: the seeded generator shuffles each client's samples in turn,
  and the first ``1 - test_fraction`` of them (rounded down) are for training.
- Labels are whole numbers or text, one kind throughout. The classes are the sorted labels of the
  training samples (of all samples where the test samples are split off).
- Images become uint8, and a view scales them to [-1, 1]. The columns of a table reach the network as
  given. Scale them beforehand, by constants that all clients share: the origin of a query is unknown
  before it is routed.
- An input that cannot be used raises an error of one line, which names the place and the remedy.
"""
