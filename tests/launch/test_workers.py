import socket

import pytest

from rampcli.launch.workers import reserve_port


def test_a_reserved_port_is_given_to_nobody_else_and_who_knows_it_listens_there():
    reserved = [reserve_port() for _ in range(200)]
    ports = [each.getsockname()[1] for each in reserved]
    assert len(set(ports)) == 200
    with socket.create_server(("127.0.0.1", ports[0])), socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", ports[1]))
    for each in reserved:
        each.close()
