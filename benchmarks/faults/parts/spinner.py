"""Compute for ever."""

import hashlib

if __name__ == "__main__":
    data = bytes(1 << 20)
    while True:
        hashlib.sha256(data).digest()
