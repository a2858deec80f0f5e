"""Renders a chat template in Jinja's sandbox: `python -m rampcli.data.render_chat`.

Runs within the limits of `rampcli.machine.limited_process`. The variables, functions and filters
are those of transformers, except that the result depends on nothing but the request: there is no
randomness, and the clock stands still.
"""

import json
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rampcli.errors import reason_of
from rampcli.machine.limited_process import MEMORY_GIB, answer

MOST_CHAT_CHARACTERS = 1 << 20
TODAY = datetime(2024, 7, 26)
"""The date that Llama 3's own template falls back to."""


def main() -> None:
    """Answers a request: `template`, and `variables` of each text."""
    answer(_respond)


def _respond(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"texts": render_conversations(request["template"], request["variables"])}
    except MemoryError:
        return {"reason": f"it uses more than {MEMORY_GIB} GiB of memory"}
    except Exception as error:  # an expression in the template may raise anything
        return {"reason": reason_of(error)}


def render_conversations(template: str, variables: list[dict[str, Any]]) -> list[str]:
    """Returns the text of a template for each mapping of names to values.

    Raises:
        Exception: the template is invalid, an expression fails, or a text has more than
            `MOST_CHAT_CHARACTERS`.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    del environment.globals["lipsum"], environment.filters["random"]
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": TODAY.strftime}
    compiled, texts = environment.from_string(template), list[str]()
    for names in variables:
        pieces, left = list[str](), MOST_CHAT_CHARACTERS
        for piece in compiled.generate(names):
            left -= len(piece)
            if left < 0:
                raise TemplateError(f"it prints more than {MOST_CHAT_CHARACTERS:,} characters")
            pieces.append(piece)
        texts.append("".join(pieces))
    return texts


class _Generation(Extension):
    """Accepts `{% generation %}`, which marks what an assistant has said."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Returns the content between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


if __name__ == "__main__":
    main()
