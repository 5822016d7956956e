"""The same methods over a network: sites keep their data, Flower carries what may travel.

``letters`` is what crosses the wire, ``site`` answers on a site, ``rounds`` and ``routing`` ask on the
server; none of them knows Flower. ``flower``, ``resident``, ``node`` and ``link`` do. There is no
learning code here: a site calls :func:`feddrm.engine.train_client` and the client half of
:mod:`feddrm.router`, the server ``Method.aggregate`` and the router's server half.
"""
