"""Deployment: the same methods over a network. Sites keep their data; Flower carries the messages.

``wire`` holds what crosses the network, ``site`` a site's side, ``server`` the server's side. None of them knows
Flower; only ``flower`` does. There is no learning code here: a site calls :func:`feddrm.engine.train_client` and
the client's part of :mod:`feddrm.router`, the server calls ``Method.aggregate`` and the server's part.
"""
