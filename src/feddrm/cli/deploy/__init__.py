"""``feddrm deploy``: training over a network, and its members."""

from feddrm.cli.deploy.cluster import app

__all__ = ["app"]
