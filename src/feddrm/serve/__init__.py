"""The router as a service: a gateway that guides queries, a predictor beside each client's private part, a console.

``gateway`` and ``predictor`` are web applications (extra ``serve``); ``client`` asks a gateway from
Python. Everything between them is plain HTTP: docs/serve.md.
"""
