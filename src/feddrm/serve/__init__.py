"""Serving a router over HTTP: the gateway, one predictor per client, and a web console.

:mod:`feddrm.serve.app` builds the gateway's application, :mod:`feddrm.serve.predictor` a client's (both need the
extra ``serve``). :mod:`feddrm.serve.gateway_client` calls a gateway from Python. docs/serve.md describes the HTTP
interface.
"""
