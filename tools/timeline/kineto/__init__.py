"""Reader of PyTorch Kineto traces."""
