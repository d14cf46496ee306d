"""Moving pictures: videos, cameras and folders that fill up, and what is written of them."""
