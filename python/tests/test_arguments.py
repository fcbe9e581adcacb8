"""A wrong argument is named, and nothing is begun."""

from __future__ import annotations

import pytest

import weft

BIG = 2**64


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda a, here, there: a.submit_single_write(there, there), TypeError, "source must be a MemoryRegion"),
        (lambda a, here, there: a.submit_single_write(here, here), TypeError, "destination must be the descriptor"),
        (lambda a, here, there: a.submit_single_write(here, "no"), ValueError, "destination is wrong: this is no region"),
        (lambda a, here, there: a.submit_single_write((here, -1), there), ValueError, "the offset of source is -1"),
        (lambda a, here, there: a.submit_single_write((here, "1"), there), TypeError, "the offset of source must be an int"),
        (lambda a, here, there: a.submit_single_write((here, 11), there), ValueError, "the offset of source is 11: the region has 10"),
        (lambda a, here, there: a.submit_single_write((here, 5), there, 6), ValueError, "source: 6 bytes at offset 5"),
        (lambda a, here, there: a.submit_single_write(here, (there, 1)), ValueError, "destination: 10 bytes at offset 1"),
        (lambda a, here, there: a.submit_single_write(here, there, 0), ValueError, "bytes is 0"),
        (lambda a, here, there: a.submit_single_write(here, there, 1.5), TypeError, "bytes must be an int, not float"),
        (lambda a, here, there: a.submit_single_write(here, there, BIG), ValueError, f"bytes is {BIG}"),
        (lambda a, here, there: a.submit_single_write(here, there, immediate=2**32), ValueError, "immediate is 4294967296"),
        (lambda a, here, there: a.submit_single_write(here, there, immediate=-1), ValueError, "immediate is -1"),
        (lambda a, here, there: a.submit_single_write(here, there, immediate="1"), TypeError, "immediate must be an int"),
        (lambda a, here, there: a.submit_single_write(here, there, deadline=-1), ValueError, "deadline is -1"),
        (lambda a, here, there: a.submit_single_write(here, there, deadline=float("nan")), ValueError, "deadline is nan"),
        (lambda a, here, there: a.submit_single_write(here, there, deadline="1"), TypeError, "deadline must be a number"),
        (lambda a, here, there: a.submit_single_write(here, there, on_done=1), TypeError, "on_done must be callable"),
        (lambda a, here, there: a.submit_single_write(here, there, dead_line=1), TypeError, "dead_line"),
        (lambda a, here, there: a.submit_read(there, here), ValueError, "Access.NONE and needs Access.WRITE"),
        (lambda a, here, there: a.submit_read(here.descriptor, a.alloc(1)), ValueError, "Access.NONE and needs Access.READ"),
        (lambda a, here, there: a.submit_scatter([]), ValueError, "writes is 0"),
        (lambda a, here, there: a.submit_scatter(3), TypeError, "writes must be a list of weft.SingleWrite, not int"),
        (lambda a, here, there: a.submit_scatter([here]), TypeError, "each of writes must be a weft.SingleWrite"),
        (lambda a, here, there: a.submit_paged_writes(here, there, 1), TypeError, "source must be a pair"),
        (
            lambda a, here, there: a.submit_paged_writes((here, weft.Pages([0, -1], 1)), (there, weft.Pages([0, 1], 1)), 1),
            ValueError,
            "indices of source is -1",
        ),
        (
            lambda a, here, there: a.submit_paged_writes((here, weft.Pages([0], 1)), (there, weft.Pages([0, 1], 1)), 1),
            ValueError,
            "destination has another number of pages than source",
        ),
        (
            lambda a, here, there: a.submit_paged_writes((here, weft.Pages([2], 8)), (there, weft.Pages([0], 1)), 1),
            ValueError,
            "source: 1 bytes at offset 16 do not lie in a region of 10 bytes",
        ),
        (
            lambda a, here, there: a.submit_paged_writes((here, weft.Pages([0], "8")), (there, weft.Pages([0], 1)), 1),
            TypeError,
            "stride of source must be an int",
        ),
        (lambda a, here, there: a.submit_send("nobody", b""), ValueError, "peer is wrong: this is no engine address"),
        (lambda a, here, there: a.submit_send(a.main_address, "text"), TypeError, "message must be like bytes, not str"),
        (lambda a, here, there: a.submit_recvs(0, 1, print), ValueError, "bytes is 0"),
        (lambda a, here, there: a.submit_recvs(1, 1, None), TypeError, "handler must be callable"),
        (lambda a, here, there: a.add_peer_group([]), ValueError, "peers is 0"),
        (lambda a, here, there: a.add_peer_group(a.main_address), TypeError, "peers must be a list of addresses, not str"),
        (lambda a, here, there: a.add_peer_group([7]), TypeError, "peers must be the main_address"),
        (lambda a, here, there: a.submit_barrier(None, 1), TypeError, "PeerGroup"),
        (lambda a, here, there: a.expect_imm_count(1, -1), ValueError, "count is -1"),
        (lambda a, here, there: a.imm_count(BIG), ValueError, "immediate is"),
        (lambda a, here, there: a.free_imm(None), TypeError, "immediate must be an int"),
        (lambda a, here, there: a.alloc(0), ValueError, "bytes is 0"),
        (lambda a, here, there: a.alloc(-5), ValueError, "bytes is -5"),
        (lambda a, here, there: a.alloc(2**63), OSError, "ftruncate"),
        (lambda a, here, there: a.alloc_watcher(None), TypeError, "handler must be callable"),
        (lambda a, here, there: a.reg_mr(bytearray(1), 8), ValueError, "access is 8"),
        (lambda a, here, there: a.reg_mr(bytearray(1), "rw"), TypeError, "access must be an int"),
        (lambda a, here, there: a.remove_peer(there), ValueError, "peer is wrong"),
    ],
)
def test_a_wrong_argument_is_named(pair, call, kind, says):
    a, b = pair
    here, there = a.reg_mr(bytearray(10)), b.alloc(10)
    with pytest.raises(kind, match=says):
        call(a, here, there.descriptor)
    assert (a.counts().operations, a.counts().peers) == (0, 0)


def test_a_region_of_another_engine_is_refused(pair):
    a, b = pair
    with pytest.raises(ValueError, match="source is not registered with this engine"):
        a.submit_single_write(b.alloc(1), b.alloc(1).descriptor)


@pytest.mark.parametrize(
    ("settings", "kind", "says"),
    [
        ({"nics": []}, ValueError, "0 NICs: give a link 1 to 16"),
        ({"nics": "127.0.0.1"}, TypeError, "nics must be a list of addresses"),
        ({"nics": ["localhost"]}, ValueError, 'nics has "localhost", which is no IP address'),
        ({"nics": [5]}, TypeError, "nics must be a list of addresses"),
        ({"nics": ["127.0.0.1", "::1"]}, ValueError, "of two IP versions"),
        ({"nics": ["192.0.2.1"]}, OSError, "192.0.2.1:20000"),
        ({"mtu": 10}, ValueError, "mtu is 10: it must be 1280 to 65535"),
        ({"mtu": 70_000}, ValueError, "mtu is 70000"),
        ({"ports": 20_000}, ValueError, "ports is 20000: it must be"),
        ({"ports": (20_000, 70_000)}, ValueError, "the last of ports is 70000"),
        ({"link": "rdma"}, ValueError, 'link is rdma: it must be "auto", "network", "udp", "tcp", "shm" or "xdp"'),
        ({"cpus": 1}, TypeError, "cpus must be a list of int"),
        ({"cpus": [1000]}, OSError, "cpus has 1000"),
        ({"link": 7}, ValueError, "link is 7: it must be"),
        ({"encryption": "on"}, ValueError, "encryption is on"),
        ({"workers": 3}, ValueError, "workers is 3: it must divide port_count, which is 16"),
        ({"workers": 0}, ValueError, "workers is 0"),
        ({"port_count": 0}, ValueError, "ports"),
        ({"stall_timeout": "long"}, TypeError, "stall_timeout must be a number of seconds"),
        ({"watch_interval": -1}, ValueError, "watch_interval is -1"),
        ({"watch_interval": 0}, ValueError, "watch_interval is 0"),
        ({"no_such": 1}, TypeError, "no_such"),
    ],
)
def test_a_wrong_setting_is_named(settings, kind, says):
    with pytest.raises(kind, match=says):
        weft.Engine(**settings)
