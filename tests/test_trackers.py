from rampcli.extras import EXTRAS
from rampcli.tracking.tracker import TRACKERS


def test_the_package_of_each_tracker_is_an_extra():
    assert {kind.package for kind in TRACKERS.values()} <= EXTRAS.keys()
