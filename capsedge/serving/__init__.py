"""Models behind the Open Inference Protocol, on MLServer: requests, answers and the server's setup."""
