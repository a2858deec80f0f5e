"""Makes rampcli's groups and `rampcli/schema` known to every application that uses Hydra.

Hydra imports this module whenever it starts, so it imports nothing of rampcli.
"""

from typing import Any, cast

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.plugins.search_path_plugin import SearchPathPlugin

CONF_PACKAGE = "pkg://rampcli.conf"
GROUP, SCHEMA_NAME = "rampcli", "schema"


class RampcliGroups(SearchPathPlugin):
    """Adds the groups of conf/ below those of the application."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Appends conf/."""
        search_path.append(provider="rampcli", path=CONF_PACKAGE)


class SchemaNode(ConfigNode):
    """The schema in the ConfigStore. It is made when a defaults list names it."""

    _node: Any = None

    @property
    def node(self) -> Any:
        """The schema, as OmegaConf has it."""
        if self._node is None:
            from rampcli.config.hydra_apps import schema

            self._node = schema()
        return self._node

    @node.setter
    def node(self, node: Any) -> None:
        self._node = node


ConfigStore.instance().repo.setdefault(GROUP, {})[f"{SCHEMA_NAME}.yaml"] = SchemaNode(
    name=f"{SCHEMA_NAME}.yaml",
    node=cast(Any, None),
    group=GROUP,
    package="_global_",
    provider="rampcli",
)
