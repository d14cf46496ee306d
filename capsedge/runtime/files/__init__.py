"""Reading untrusted files within limits, and writing files completely or not at all."""
