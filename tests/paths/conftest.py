from tests.tensorrt.fixtures import cudart  # noqa: F401
