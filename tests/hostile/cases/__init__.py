"""Hostile cases, a table for each kind of file."""

from hostile.cases import (
    builds,
    configs,
    corpora,
    folders,
    models,
    neighbours,
    run_files,
    shards,
    words,
)

TABLES = {
    module.__name__.rpartition(".")[2]: module.CASES
    for module in (run_files, configs, shards, corpora, builds, models, folders, neighbours, words)
}
CASES = [row for table in TABLES.values() for row in table]
