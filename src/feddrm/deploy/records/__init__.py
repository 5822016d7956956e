"""What a deployment writes down about itself: events and the audit trail."""
