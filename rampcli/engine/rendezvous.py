"""Where elastic agents meet: `python -m rampcli.engine.rendezvous PORT`. None of them is the host, so any of them may end."""

import signal
import sys

from torch.distributed import TCPStore  # type: ignore[attr-defined]


def main() -> None:
    """Host the store of the agents of this machine, until somebody ends this process."""
    if len(sys.argv) != 2 or not sys.argv[1].isdecimal():
        sys.exit("usage: python -m rampcli.engine.rendezvous PORT, which is free on 127.0.0.1")
    store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
    while store is not None:
        signal.pause()


if __name__ == "__main__":
    main()
