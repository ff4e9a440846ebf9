"""Dynamic models: what is computed differs from instance to instance."""
