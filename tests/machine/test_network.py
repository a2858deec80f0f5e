import socket

import pytest

from rampcli.machine.network import address_towards, interface_of, is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.1", "::1", "localhost"])
def test_this_machine_reaches_itself_over_loopback(host):
    address = address_towards(host)
    assert (is_loopback(address), interface_of(address)) == (True, "lo")


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1"])
def test_another_host_is_reached_over_an_interface_of_this_machine(host):
    try:
        address = address_towards(host)
    except OSError:
        pytest.skip("this machine has no network")
    assert not is_loopback(address)
    assert interface_of(address) in {name for _, name in socket.if_nameindex()} - {"lo"}


def test_an_address_of_another_host_has_no_interface_here():
    assert [interface_of(address) for address in ("203.0.113.7", "2001:db8::7")] == [None, None]


def test_an_unknown_name_is_an_error():
    with pytest.raises(socket.gaierror):
        address_towards("name.invalid")
