import pytest

from rampcli.errors import ErrorReport, UsageError
from rampcli.launch.slurm.settings import check_words
from rampcli.settings.config import Config


def check(*words: str, key: str = "sbatch_args") -> None:
    config = Config(name="mine")
    setattr(config.launch.slurm, key, list(words) if key == "sbatch_args" else words[0])
    ErrorReport(check_words(config)).close()


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("-d", "dependency"),
        ("-d afterok:1", "dependency"),
        ("-dafterok:1", "dependency"),
        ("--dep=afterok:1", "dependency"),
        ("--dependency=afterok:1", "dependency"),
        ("-J name", "job-name"),
        ("-Jname", "job-name"),
        ("--job=x", "job-name"),
        ("--job-name=x", "job-name"),
        ("-a1-4", "array"),
        ("--arr=1-4", "array"),
        ("-D /tmp", "chdir"),
        ("--chd=/tmp", "chdir"),
        ("-H", "hold"),
        ("--ho", "hold"),
        ("-W", "wait"),
        ("--wait", "wait"),
        ("-QvH", "hold"),
        ("-sOWH", "wait"),
        ("-M c", "clusters"),
        ("--cluster=c", "clusters"),
        ("--wra=x", "wrap"),
        ("--pars", "parsable"),
        ("--no-req", "no-requeue"),
        ("--test", "test-only"),
        ("-N2", "nodes"),
        ("-vn2", "ntasks"),
        ("--ntasks=2", "ntasks"),
        ("--ntasks-per-n=2", "ntasks-per-node"),
        ("--sig=KILL@5", "signal"),
        ("--open=truncate", "open-mode"),
        ("--uid=root", "uid"),
    ],
)
def test_an_option_that_breaks_a_chain_is_refused_in_every_spelling(word, name):
    with pytest.raises(UsageError) as refused:
        check("--exclusive", word)
    assert f"--{name}" in str(refused.value)
    assert refused.value.keys == ("launch.slurm.sbatch_args",)


ALLOWED = (
    *(
        "--exclusive",
        "--constraint=a&b",
        "-C h100",
        "-Ch100",
        "-xnode[1-4]",
        "-wHOLD",
        "-AdJ",
        "-pdebug",
        "-Qp dH",
        "-c4",
        "-t1:00",
        "-kd",
    ),
    *(
        "--export=NONE",
        "-o logs/%j",
        "--output=x",
        "--error=x",
        "-ex",
        "--requeue",
        "--comment=--hold # -d",
        "--no-kill",
        "--hint=x",
    ),
    *(
        "--wait-all-nodes=1",
        "--nodelist=a",
        "--nodefile=a",
        "--ntasks-per-core=1",
        "--ntasks-per-gpu=1",
        "--wckey=a",
        "--mem=8G",
    ),
    "--signals-of-a-plugin",
)


@pytest.mark.parametrize("word", ALLOWED)
def test_any_other_option_is_left_to_sbatch(word):
    check(word)


@pytest.mark.parametrize(
    "word",
    [
        "",
        "x",
        "-",
        "--",
        "---x",
        "--=x",
        "--dependency afterok:1",
        "--x\ny",
        "--x\r",
        "--x\u2028",
        "--x\x1b[2J",
        " -H",
        "- H",
    ],
)
def test_a_word_that_is_not_an_option_is_refused(word):
    with pytest.raises(UsageError) as refused:
        check(word)
    assert refused.value.keys == ("launch.slurm.sbatch_args",)
    assert str(refused.value).replace("\n", "").isprintable()


@pytest.mark.parametrize("path", ["-c", "--", "-"])
def test_an_interpreter_that_bash_would_take_for_an_option_is_refused(path):
    with pytest.raises(UsageError) as refused:
        check(path, key="python")
    assert refused.value.keys == ("launch.slurm.python",)
