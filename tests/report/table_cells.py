"""Reads tables of the report, for tests."""


def cells(table) -> dict[str, list[str]]:
    """Returns the cells of each column, by its header."""
    return {str(column.header): [str(cell) for cell in column.cells] for column in table.columns}
