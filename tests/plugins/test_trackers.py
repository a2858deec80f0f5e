from rampcli.plugins.extras import EXTRAS
from rampcli.plugins.trackers import TRACKERS


def test_the_package_of_each_tracker_is_an_extra():
    assert {each.package for each in TRACKERS.values()} - {None} <= EXTRAS.keys()
