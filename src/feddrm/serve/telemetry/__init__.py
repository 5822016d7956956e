"""Metrics, logs and the audit trail of a service."""
