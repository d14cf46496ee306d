"""Sessions on models and what they answer."""
