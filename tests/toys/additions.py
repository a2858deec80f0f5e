"""An addition of each kind in CONTRIBUTING.md, as edits of the places that its row names."""

from dataclasses import dataclass, field
from pathlib import Path

TOYS = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Addition:
    """What is planted in a copy of the package.

    Attributes:
        edits: by file, texts that stand there once and what replaces them.
        files: new files, and their content or a file that has it.
    """

    edits: dict[str, dict[str, str]] = field(default_factory=dict)
    files: dict[str, str | Path] = field(default_factory=dict)


ADDITIONS = {
    "an activation function": Addition(
        {
            "rampcli/settings/model_parts.py": {
                "ACTIVATIONS = {\n": """ACTIVATIONS = {
    "geglu": Activation(
        function="torch.nn.functional:gelu", is_gated=True, kept=4, hidden_act="gelu"
    ),
    "relu": Activation(function="torch.nn.functional:relu", is_gated=False, kept=1),
"""
            }
        }
    ),
    "a check of settings": Addition(
        {
            "rampcli/settings/checks.py": {
                "    model.check_heads,\n": "    model.check_heads,\n    model.check_luck,\n"
            },
            "rampcli/settings/model.py": {
                "def check_heads(": """def check_luck(config: "Config") -> Iterator[UsageError]:
    if config.model.num_layers == 13:
        yield UsageError("13 layers bring bad luck", keys=(ModelConfig.num_layers,))


def check_heads("""
            },
        }
    ),
    "a column of `rampcli status`": Addition(
        {
            "rampcli/cli/status_table.py": {
                '    "run": lambda _: "",\n': '    "run": lambda _: "",\n'
                '    "skipped": lambda status: f"{status.facts.toy} skipped",\n'
            },
            "rampcli/runs/facts.py": {
                "    @property\n    def recorded(": "    @property\n    def toy(self) -> int:\n"
                "        return sum(1 for row in self.rows if row['loss'] is None)\n\n"
                "    @property\n    def recorded("
            },
        }
    ),
    "a command": Addition(
        {
            "rampcli/cli/main.py": {
                "from rampcli.cli.tune import tune\n": "from rampcli.cli.toy import toy\n"
                "from rampcli.cli.tune import tune\n",
                '    "tune": tune,\n': '    "tune": tune,\n    "toy": toy,\n',
            },
        },
        {
            "rampcli/cli/toy.py": '''import typer


def toy(words: list[str]) -> None:
    """Count words."""
    typer.echo(len(words))
'''
        },
    ),
    "a data source": Addition(
        {
            "rampcli/data/sources.py": {
                "def open_mock(": """def open_zeros(config: Config) -> Corpora:
    training, validation = ([np.zeros(2**size, np.uint8)] for size in (14, 12))
    return _blended(config, Documents(training=training, validation=validation))


def open_mock("""
            },
            "rampcli/settings/data.py": {
                "SOURCES = {\n": """SOURCES = {
    "zeros": DataSource(opens="rampcli.data.sources:open_zeros", about="zeros"),
"""
            },
        }
    ),
    "a decay style of the learning rate": Addition(
        {
            "rampcli/schedule/learning_rate.py": {
                "DECAY_STYLES: dict[str, DecayStyle] = {\n": """\
DECAY_STYLES: dict[str, DecayStyle] = {
    "parabola": DecayStyle("a parabola", _until_the_end(lambda share: 1 - share**2)),
"""
            }
        }
    ),
    "a launcher": Addition(
        {
            "rampcli/plugins/launchers.py": {
                "LAUNCHERS = {": 'LAUNCHERS = {"toy": "rampcli.launch.toy", '
            },
        },
        {
            "conf/launch/toy.yaml": TOYS / "launcher.yaml",
            **{f"rampcli/launch/toy/{file.name}": file for file in TOYS.glob("launcher/*.py")},
        },
    ),
    "a metric": Addition(
        {
            "rampcli/runs/metrics.py": {
                "STEP_METRICS = (\n": """STEP_METRICS = (
    Metric("toys", "toys of this step", chart=Chart("toys", "Toys in a step"), summary="max"),
    Metric("wins", "", chart=LOSS, summary="last", tile="won", column="won", is_goal=True),
"""
            },
            "rampcli/train/observers/journal.py": {
                '            "lr": step.lr,\n': '            "lr": step.lr,\n'
                '            "toys": 7 + state.step, "wins": state.step,\n'
            },
        }
    ),
    "a model family of transformers": Addition(
        {
            "rampcli/settings/architectures.py": {
                "ARCHITECTURES = {\n": """ARCHITECTURES = {
    "starcoder2": Architecture(
        name="Starcoder2ForCausalLM",
        family="StarCoder2",
        normalization="layernorm",
        is_gated=False,
        bias=(True,),
    ),
"""
            },
            "rampcli/models/huggingface_tensors.py": {
                "WEIGHT_NAMES = {": """STARCODER = WeightNames(
    layers="model.layers",
    modules={
        ours: theirs
        for ours, theirs in LLAMA.modules.items()
        if not ours.endswith(("gate", "query_norm", "key_norm"))
    }
    | {"ffn.up": "mlp.c_fc", "ffn.output": "mlp.c_proj"},
)
WEIGHT_NAMES = {"starcoder2": STARCODER, """
            },
            "rampcli/models/huggingface_config.py": {
                "KEYS: dict[str, dict[str, Key]] = {\n": """KEYS: dict[str, dict[str, Key]] = {
    "starcoder2": {name: key for name, key in _LLAMA.items() if key.ours != "norm_epsilon"}
    | {
        "norm_epsilon": Key(RATE, 1e-5, "norm_epsilon"),
        "use_bias": Key(bool, True, "bias"),
    },
"""
            },
        }
    ),
    "a node policy": Addition(
        {
            "rampcli/batch/node_policies.py": {
                "NODE_POLICIES: dict": """class OnePolicy(NodePolicy):
    name = "one"
    largest_uses_all_nodes = False

    def choose(self, workload):
        return workload.keep_if_divisible([1] * len(workload.works))


NODE_POLICIES: dict""",
                "BestPolicy(), ": "BestPolicy(), OnePolicy(), ",
            },
        }
    ),
    "a normalisation": Addition(
        {
            "rampcli/settings/model_parts.py": {
                "NORMS = {\n": """NORMS = {
    "exact": Norm(
        module="rampcli.models.norm:ExactNorm", vectors=1, statistics=1, is_kept_in_fp32=True
    ),
"""
            },
            "rampcli/models/norm.py": {
                "class FusedRMSNorm(": """class ExactNorm(RMSNorm):
    def __init__(self, size: int, *, eps: float) -> None:
        super().__init__(size, eps=eps / 10)


class FusedRMSNorm("""
            },
        }
    ),
    "an observer of the training loop": Addition(
        {
            "rampcli/worker/assemble.py": {
                "    measurers = build_model_observers(config)\n": """
    from rampcli.train.observers.toy import Toy

    observers.append(Toy(run))
    measurers = build_model_observers(config)
"""
            },
        },
        {
            "rampcli/train/observers/toy.py": """
from rampcli.train.observers.observer import LoopObserver


class Toy(LoopObserver):
    def __init__(self, run):
        self.path = run.path / "seen.txt"

    def after_step(self, state, step):
        with self.path.open("a") as file:
            file.write(f"{state.step}\\n")
"""
        },
    ),
    "an optimiser": Addition(
        {
            "rampcli/settings/optimizers.py": {
                "OPTIMIZERS = {\n": """OPTIMIZERS = {
    "sgd": Optimizer(
        builder="rampcli.train.optimizers:build_sgd",
        settings=("sgd_momentum",),
        states=1,
        matrix_states=1,
    ),
"""
            },
            "rampcli/train/optimizers.py": {
                "import AdamW\n": "import SGD, AdamW\n",
                "def _adamw(": """def build_sgd(parts, optim):
    weights = [weight for part in parts for weight in part.parameters()]
    return [SGD(weights, lr=optim.lr, momentum=optim.sgd_momentum)]


def _adamw(""",
            },
            "rampcli/settings/optim.py": {
                "    muon_momentum: Keyed[float] =": """
    sgd_momentum: Keyed[float] = setting(0.9, "Momentum of SGD.", any_phase(UPDATES))
    muon_momentum: Keyed[float] ="""
            },
        }
    ),
    "a part of the model's layers": Addition(
        {
            "rampcli/models/parts.py": {
                '        "ffn": FeedForwardPart(model),\n': """
        "ffn": FeedForwardPart(model),
        **({"out_norm": norm_part(model)} if model.has_out_norm else {}),
"""
            },
            "rampcli/models/decoder.py": {
                '"ffn_norm": "sequence"}': '"ffn_norm": "sequence", "out_norm": "sequence"}',
                "        self.ffn = FeedForward(model)\n": """\
        self.ffn = FeedForward(model)
        self.out_norm = build_norm(model) if model.has_out_norm else nn.Identity()
""",
                "hidden + self.ffn(self.ffn_norm(hidden))": (
                    "hidden + self.out_norm(self.ffn(self.ffn_norm(hidden)))"
                ),
            },
            "rampcli/settings/model.py": {
                "    tie_embeddings: Keyed[bool] =": """
    has_out_norm: Keyed[bool] = setting(False, "Normalise outputs.", whole_run(TENSORS))
    tie_embeddings: Keyed[bool] ="""
            },
        }
    ),
    "a published ramp": Addition(
        {
            "conf/ramps.yaml": {
                "gpt3_megatron:\n": """toy_ramp:
  model: Toy
  schedule: 0:16 1000:32
  sequence_length: 128
  optimizer: AdamW
  source: nowhere
  certainty: secondary
gpt3_megatron:
"""
            }
        }
    ),
    "ramp semantics": Addition(
        {
            "rampcli/batch/ramp.py": {
                "SEMANTICS: dict[str, RampSemantics] = {\n": """\
SEMANTICS: dict[str, RampSemantics] = {
    "jump": RampSemantics(
        thresholds=lambda start, _, samples, target: [
            Threshold(0, start), Threshold(samples, target)
        ]
    ),
"""
            }
        }
    ),
    "a recipe": Addition(
        files={
            "conf/model/toy.yaml": "defaults:\n- llama3_tiny\n- _self_\nnum_layers: 3\n",
            "recipes/toy.py": '''"""A toy."""

from rampcli.config.compose import compose
from rampcli.settings.config import Config


def toy_recipe(num_nodes: int = 1, num_gpus_per_node: int = 1) -> Config:
    """Pretrains a toy.

    Source: nowhere
    """
    return compose(
        *("name=toy_recipe", "model=toy", "data=stdlib", "hardware=any", "batch=llama3_tiny"),
        "optim=llama3_tiny",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
''',
        },
    ),
    "a resolver of references": Addition(
        {
            "rampcli/config/references.py": {
                '    "add": ': '    "negate": _of_numbers(lambda a: -a),\n    "add": '
            }
        }
    ),
    "a setting": Addition(
        {
            "rampcli/settings/average.py": {
                "    merge: Keyed[str | None] =": """
    toys: Keyed[int] = setting(3, "How many toys.", any_phase(NOTHING), unit="toys")
    merge: Keyed[str | None] =""",
                "import COST, whole_run": "import COST, NOTHING, any_phase, whole_run",
            }
        }
    ),
    "a task with verifiable answers": Addition(
        {
            "rampcli/data/examples.py": {
                '    "add": (2, _sum),\n': '    "add": (2, _sum),\n    "least": (2, min),\n'
            },
            "rampcli/settings/data.py": {'Literal["sort", ': 'Literal["least", "sort", '},
        }
    ),
    "a tracker": Addition(
        {
            "rampcli/plugins/trackers.py": {
                "TRACKERS = {\n": """TRACKERS = {
    "toy": TrackerClass(name="rampcli.tracking.toy:Toy"),
"""
            },
        },
        {"rampcli/tracking/toy.py": TOYS / "tracker.py"},
    ),
}
