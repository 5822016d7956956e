"""Parts of the report's page: its conclusion, and what it says about every run."""
