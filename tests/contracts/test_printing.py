"""What a command prints passes the function that writes control characters out."""

import ast
from pathlib import Path

import rampcli

CLI = Path(rampcli.__file__).parent / "cli"
HARMLESS = {"completion.py": "the scripts of this package", "main.py": "cleaned where it is built"}


def is_clean(argument: ast.expr) -> bool:
    """Returns whether the text is constant, JSON, or passes `visible`."""
    match argument:
        case ast.Constant():
            return True
        case ast.BinOp(left=left, right=right):
            return is_clean(left) and is_clean(right)
        case ast.Call(func=ast.Name(id="visible") | ast.Attribute(attr="dumps")):
            return True
    # names that this package has: of functions and of recipes
    return isinstance(argument, ast.JoinedStr) and all(
        isinstance(value, ast.Constant) or ast.unparse(value.value) in ("file", "recipe")
        for value in argument.values
    )


def test_no_command_prints_what_a_user_or_a_file_has_written_as_it_is():
    found = []
    for path in sorted(CLI.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "typer.echo":
                # standard error is cleaned as a whole
                is_error = any(keyword.arg == "err" for keyword in node.keywords)
                if path.name not in HARMLESS and not is_error and not is_clean(node.args[0]):
                    found.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert found == []
