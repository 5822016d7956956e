"""What the gateway reports about itself: metrics, log lines and the audit log."""
