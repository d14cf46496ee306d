"""Deploy models: to web pages, Triton Inference Server and KServe."""
