"""What verbs do with places that are no plain file, and where they are ended or hindered."""
