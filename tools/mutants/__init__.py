"""Which faults the tests find: small changes of the code, each against the tests that reach it."""
