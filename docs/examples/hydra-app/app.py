"""An application of Hydra that plans a run of rampcli."""

import hydra
from omegaconf import DictConfig

import rampcli


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    """Prints the plan of the run that Hydra has composed."""
    rampcli.print_plan(rampcli.plan(rampcli.from_hydra(cfg)))


if __name__ == "__main__":
    main()
