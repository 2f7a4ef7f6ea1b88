"""Keep much in memory, and look at a little of it now and then."""

import time

if __name__ == "__main__":
    store = [b"v" * (1 << 20) + bytes([number % 256]) for number in range(1500)]
    place = 0
    while True:
        place = (place + 17) % len(store)
        hash(store[place][:4096])
        time.sleep(0.02)
