"""Texts that the model continues while it trains (`generate.prompts`)."""

import time

import torch
from tokenizers import Tokenizer

from rampcli.batch.training_plan import TrainingPlan
from rampcli.checkpoint.load import empty_model
from rampcli.checkpoint.state import TrainingState
from rampcli.data.prompts import encode_text_prompts, no_tokenizer
from rampcli.data.special_tokens import SpecialTokens
from rampcli.data.tokenizer import continuation, vocab_size_of
from rampcli.errors import RampcliError, reason_of
from rampcli.models.decoder import Decoder
from rampcli.models.sampler import Sampling, generate_tokens
from rampcli.parallel.ranks import broadcast_from_rank_0, is_out_of_memory
from rampcli.runs.directory import RunDirectory
from rampcli.settings.config import Config
from rampcli.settings.data import DataConfig
from rampcli.train.loop import is_due
from rampcli.train.observers.observer import LoopObserver, record_event
from rampcli.train.passes import Passes
from rampcli.train.step import TakenStep
from rampcli.train.stopping import StopRequest
from rampcli.train.whole_model import copy_to_rank_0, is_split, plain_model

LONGEST_SAMPLE_TEXT = 4_000
"""Longest prompt or text in an event, in characters. JSON needs up to 12 bytes for each."""


class TextSamples(LoopObserver):
    """Continues the prompts with the present weights, and writes the event `samples`.

    A run with a chat template answers them.

    Rank 0 generates, and the others wait. Its texts are those of `rampcli generate` with the
    checkpoint of the step and the run's seed. A model that is split is copied to rank 0 for that
    time, in fp32. Every rank has one of these, because all take part in the copy.

    Args:
        tokenizer: contents of tokenizer.json; other ranks than 0 need not know them.
        special_tokens: special tokens of the data. A text stops at one of its ends.
        stop: a stop request on rank 0 ends the generation.

    Raises:
        UsageError: there is no tokenizer, or a prompt cannot be continued.
    """

    def __init__(
        self,
        run: RunDirectory,
        plan: TrainingPlan,
        config: Config,
        passes: Passes,
        *,
        tokenizer: str | None,
        special_tokens: SpecialTokens,
        stop: StopRequest,
    ) -> None:
        self.run = run
        self.plan = plan
        self.config = config
        self.passes = passes
        self.special_tokens = special_tokens
        self.stop = stop
        self.is_split = is_split(passes.parts)
        self.prompts: list[list[int]] = []
        self.is_rank_0 = torch.distributed.get_rank() == 0
        if self.is_rank_0:
            if tokenizer is None:
                raise no_tokenizer()
            self.tokenizer = Tokenizer.from_str(tokenizer)
            template = special_tokens.template(place=DataConfig.tokenizer)
            self.answers = template is not None
            self.prompts = encode_text_prompts(config, self.tokenizer, template)

    def needs(self, step: int) -> bool:
        """Returns whether the prompts are continued after this step."""
        return is_due(step, self.config.generate.every_steps)

    def at_start(self, state: TrainingState) -> None:
        """Continues the prompts if there are no texts of the checkpoint's step.

        A stop may have interrupted them. If memory was short, this tries again.
        """
        if state.step == 0 or not self._is_due(state):
            return
        has_texts = self.is_rank_0 and bool(self.run.events_at(state.step, "samples"))
        if not broadcast_from_rank_0(has_texts):
            self.sample(state)

    def after_step(self, state: TrainingState, _step: TakenStep) -> None:
        """Continues the prompts every `generate.every_steps` steps and after the last step."""
        if self._is_due(state):
            self.sample(state)

    def _is_due(self, state: TrainingState) -> bool:
        return self.needs(state.step) or self.plan.is_complete(state.consumed_samples)

    def sample(self, state: TrainingState) -> None:
        """Continues the prompts. Every rank calls this.

        Too little memory, or weights that have diverged, do not end the run. They give the event
        `fault`. A run that is asked to stop leaves all texts out.
        """
        began = time.perf_counter()
        model = self._model(state)
        texts: list[dict[str, str]] = []
        for number, prompt in enumerate(self.config.generate.prompts):
            goes_on = False
            if self.stop.asked:
                texts = []  # the run continues all prompts when it resumes
            elif model is not None:
                text = self._continue(model, self.prompts[number], state)
                if text is not None:
                    texts.append({"prompt": prompt[:LONGEST_SAMPLE_TEXT], "text": text})
                    goes_on = True
            # A single wait for all prompts could exceed the timeout of a collective.
            if not broadcast_from_rank_0(goes_on):
                break
        if texts:
            samples_s = round(time.perf_counter() - began, 3)
            record_event(self.run, "samples", state, texts=texts, samples_s=samples_s)

    def _model(self, state: TrainingState) -> Decoder | None:
        """Returns the whole model on rank 0, if there is memory for it, and None on other ranks."""
        if not self.is_split:
            return plain_model(self.passes.parts[0], self.config) if self.is_rank_0 else None
        copy = None
        if self.is_rank_0:
            try:
                copy = empty_model(self.config, self.passes.device, torch.float32)
            except Exception as error:
                self._record_fault(state, error)
        if not broadcast_from_rank_0(copy is not None):
            return None
        copy_to_rank_0(self.passes.parts, self.passes.meshes, self.config, copy)
        return copy

    def _continue(self, model: Decoder, prompt: list[int], state: TrainingState) -> str | None:
        """Returns the text that follows a prompt, or None if it cannot be generated."""
        generate = self.config.generate
        sampling = Sampling(
            temperature=generate.temperature,
            max_tokens=generate.max_tokens,
            stops=self.special_tokens.ends,
            vocab_size=vocab_size_of(self.tokenizer),
        )
        try:
            tokens = list(generate_tokens(model, prompt, sampling=sampling, seed=self.config.seed))
            inside = self.special_tokens.before_end(tokens)
            text = continuation(inside, self.tokenizer, after=[] if self.answers else prompt)
            return text[:LONGEST_SAMPLE_TEXT]
        except Exception as error:
            self._record_fault(state, error)
            return None

    def _record_fault(self, state: TrainingState, error: Exception) -> None:
        """Writes the event `fault` for an error that does not end the run, and raises others."""
        if not (isinstance(error, RampcliError) or is_out_of_memory(error)):
            raise error
        reason = error.message if isinstance(error, RampcliError) else reason_of(error)
        self.run.append_event("fault", reason=f"no text samples at step {state.step}: {reason}")
