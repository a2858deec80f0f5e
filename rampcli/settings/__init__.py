"""What can be set: a file per section, with the fields, their facts and the checks below them."""

import rampcli.settings.config  # noqa: F401  by_key looks the settings up in its class
