import errno
import os

import pytest

from rampcli.cli.pictures import writing_picture
from rampcli.errors import UsageError

FULL = os.strerror(errno.ENOSPC)


@pytest.mark.parametrize(
    ("error", "reason"), [(OSError(errno.ENOSPC, FULL), FULL), (OSError("no font"), "no font")]
)
def test_a_picture_that_cannot_be_written_is_refused_with_the_reason(error, reason, tmp_path):
    picture = tmp_path / "plan.svg"
    with pytest.raises(UsageError) as refused, writing_picture(picture):
        raise error
    assert refused.value.message == f"--plot {picture}: {reason}"
