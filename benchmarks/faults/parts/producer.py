"""Put a new file into a directory now and then."""

import os
import sys
import time

if __name__ == "__main__":
    number = 0
    while True:
        number += 1
        time.sleep(0.3)
        with open(os.path.join(sys.argv[1], f"part-{number % 100:02}.bin"), "wb") as file:
            file.write(bytes(100))
