"""`rampcli cancel`: asks a run to save and exit."""

from rampcli.cli.options import RunDir


def cancel(run_dir: RunDir) -> None:
    """Ask a run to save and exit.

    Stops the jobs of the run, or the command that trains it on this machine.
    """
    from rampcli.cli.console import build_console, say
    from rampcli.cli.jobs import jobs_table
    from rampcli.launch.cancel import cancel
    from rampcli.launch.run_lock import Holder
    from rampcli.runs.directory import find_run

    asked = cancel(find_run(str(run_dir)))
    if isinstance(asked, Holder):
        say(build_console(), f"asked {asked} to save and exit")
    else:
        say(build_console(), jobs_table(asked), "a running job saves before it ends")
