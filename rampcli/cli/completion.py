"""What a shell offers after <TAB>: commands, options, recipes, settings, groups and their options, values. Imports no hydra.

The shells' scripts run `rampcli __complete WORD...` with the words after `rampcli` up to the cursor, the last one unfinished.
"""

from collections.abc import Callable, Sequence
from typing import Any

SCRIPTS = {
    "bash": r"""_rampcli_complete() {
    # bash splits words at =, : and more; what stands without a blank between is one word and is put together again.
    local words=() rest=$COMP_LINE piece blank i
    for ((i = 0; i <= COMP_CWORD; i++)); do
        piece=${COMP_WORDS[i]}
        blank=${rest%%[![:space:]]*}
        rest=${rest#"$blank"}
        rest=${rest#"$piece"}
        if [[ $i -eq 0 || -n $blank || (-z $piece && ${COMP_WORDS[i - 1]} != [=:]*) ]]; then
            words+=("$piece")
        else
            words[-1]+=$piece
        fi
    done
    local word=${words[-1]} shown=${COMP_WORDS[COMP_CWORD]}
    if [[ $shown == [=:]* ]]; then shown=; fi
    local prefix=${word%"$shown"} reply
    COMPREPLY=()
    while IFS= read -r reply; do
        COMPREPLY+=("${reply#"$prefix"}")
        if [[ $reply == *[=.] ]]; then compopt -o nospace; fi
    done < <(rampcli __complete "${words[@]:1}" 2>/dev/null)
}
complete -o default -F _rampcli_complete rampcli
""",
    "zsh": r"""#compdef rampcli
_rampcli_complete() {
    local -a open closed
    local reply
    for reply in "${(@f)$(rampcli __complete "${(@)words[2,$CURRENT]}" 2>/dev/null)}"; do
        if [[ -z $reply ]]; then
            continue
        elif [[ $reply == *[=.] ]]; then
            open+=("$reply")
        else
            closed+=("$reply")
        fi
    done
    if (( $#open + $#closed )); then
        compadd -S '' -- "${open[@]}"
        compadd -- "${closed[@]}"
    else
        _files
    fi
}
compdef _rampcli_complete rampcli
""",
    "fish": r"""function __rampcli_complete
    set -l words (commandline -opc) (commandline -ct)
    rampcli __complete $words[2..-1] 2>/dev/null
end
complete -c rampcli -f -a '(__rampcli_complete)'
complete -c rampcli -n 'contains -- (commandline -opc)[-1] --config-dir --plot --measured' -F
""",
}
"""By shell: what to `eval`, or to `source` in fish."""


def candidates(words: Sequence[str], command: Any) -> list[str]:
    """What the last of `words` may become.

    Args:
        words: those after `rampcli`; the last one is unfinished, and may be empty.
        command: the program as a click command.
    """
    *before, incomplete = words or [""]
    while before and before[0] in getattr(command, "commands", {}):
        command = command.commands[before.pop(0)]
    options = {
        name: option for option in command.params for name in option.opts if name.startswith("-")
    }
    waiting = options.get(before[-1]) if before else None
    if waiting is not None and not waiting.is_flag:
        return COMPLETERS.get(waiting.name, _nothing)(incomplete)
    if incomplete.startswith("-"):
        return [name for name in (*options, "--help") if name.startswith(incomplete)]
    if hasattr(command, "commands"):
        return [name for name in command.commands if name.startswith(incomplete)]
    arguments = [
        parameter.name
        for parameter in command.params
        if parameter.name not in {option.name for option in options.values()}
    ]
    return COMPLETERS.get(arguments[0], _nothing)(incomplete) if arguments else []


def recipes(incomplete: str) -> list[str]:
    """Names of recipes."""
    from rampcli.llm import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


def words(incomplete: str) -> list[str]:
    """`KEY=VALUE` and `GROUP=OPTION`: keys up to the next dot, and after `=` the values that there are."""
    from rampcli.config.groups import group_names, option_names
    from rampcli.config.settings import FOREIGN, settings

    key, equals, _ = incomplete.partition("=")
    if equals:
        values = (
            settings()[key].choices
            if key in settings()
            else option_names(key)
            if key in group_names()
            else []
        )
        return [word for value in values if (word := f"{key}={value}").startswith(incomplete)]
    names = [*sorted(group_names()), *(key for key in settings() if key not in FOREIGN)]
    return _up_to_next_dot([f"{name}=" for name in names], incomplete)


def keys(incomplete: str) -> list[str]:
    """Keys of settings; after `=`, words."""
    from rampcli.config.settings import settings

    return words(incomplete) if "=" in incomplete else _up_to_next_dot(list(settings()), incomplete)


def shells(incomplete: str) -> list[str]:
    """Names of shells."""
    return [name for name in SCRIPTS if name.startswith(incomplete)]


def _nothing(_: str) -> list[str]:
    """Nothing of ours: the shell offers files."""
    return []


COMPLETERS: dict[str, Callable[[str], list[str]]] = {
    "factory": recipes,
    "overrides": words,
    "recipe": recipes,
    "keys": keys,
    "what_if": words,
    "shell": shells,
}
"""By the name of an option or argument."""


def _up_to_next_dot(names: Sequence[str], incomplete: str) -> list[str]:
    """Names that begin so, cut after the next dot, each once: sections come before what is in them."""
    fitting = [name for name in names if name.startswith(incomplete)]
    cut = [
        name[: name.index(".", len(incomplete)) + 1] if "." in name[len(incomplete) :] else name
        for name in fitting
    ]
    return list(dict.fromkeys(cut)) if len(set(cut)) > 1 else fitting
