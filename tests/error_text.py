"""The errors of commands that print them as JSON, as the text that other commands print."""

import json

START = '{"errors": '


def as_text(stderr: str) -> str:
    """Returns what was printed on standard error, with errors in JSON as text."""
    lines = []
    for line in stderr.splitlines():
        if not line.startswith(START):
            lines.append(line)
            continue
        for error in json.loads(line)["errors"]:
            lines.append(f"error: {error['message']}")
            if error["set_by"]:
                lines.append(f"       set by: {', '.join(error['set_by'])}")
            if error["remedy"]:
                lines.append(f"       try:    {error['remedy']}")
    return "".join(f"{line}\n" for line in lines)
