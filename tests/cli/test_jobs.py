def test_a_dry_run_prints_the_scripts_and_submits_and_writes_nothing(
    tmp_path, monkeypatch, succeed
):
    monkeypatch.setenv("PATH", "")
    words = ("launch=slurm", "launch.slurm.partition=gpu", "--dry-run")
    printed = succeed("pretrain", "--factory", "gpt3_5b", *words)
    assert printed.count("#!/bin/bash") == printed.count("#SBATCH --partition=gpu") == 8
    printed = succeed("pretrain", "--factory", "gpt3_5b", *words, "--one-stage")
    assert printed.count("#!/bin/bash") == printed.count("# ---- ") == 1
    assert list(tmp_path.iterdir()) == []


def test_without_slurm_a_chain_is_refused_and_the_remedy_is_named(monkeypatch, rampcli):
    monkeypatch.setenv("PATH", "")
    done = rampcli("pretrain", "--factory", "llama3_tiny", "launch=slurm")
    assert (
        done.exit_code,
        "sbatch is not on PATH" in done.stderr,
        "launch=local" in done.stderr,
    ) == (1, True, True)


def test_a_line_of_a_run_directory_is_not_printed_as_a_line_of_its_script(monkeypatch, succeed):
    monkeypatch.setenv("PATH", "")
    words = ("launch=slurm", "run_dir='a\n#SBATCH --uid=0'", "--dry-run")
    printed = succeed("pretrain", "--factory", "llama3_tiny", *words)
    assert "# ---- a\\n#SBATCH --uid=0/slurm/" in printed
    assert not [line for line in printed.splitlines() if line.startswith("#SBATCH --uid")]
