"""Accept connections of jobs and close them; stop accepting on SIGHUP."""

import os
import signal
import socket
import sys

if __name__ == "__main__":
    pausing = []
    signal.signal(signal.SIGHUP, lambda *_: pausing.append(True))
    with socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=1) as server:
        os.write(1, b".")
        while not pausing:
            try:
                server.settimeout(0.2)
                server.accept()[0].close()
            except TimeoutError:
                continue
        while True:
            signal.pause()
