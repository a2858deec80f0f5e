"""Settings of the loss that is differentiated."""

from rampcli.settings.attributes import Section
from rampcli.settings.facts import COST, LEARNING, any_phase
from rampcli.settings.fields import Keyed, keyed, setting, settings_class


@keyed("loss.")
@settings_class(kw_only=True)
class LossConfig(Section):
    """The loss of pretraining, which is the cross entropy, and what is added to it."""

    z_weight: Keyed[float | None] = setting(
        None,
        "Weight of the z-loss, which is added to the cross entropy and keeps the logits from"
        " growing. It is the mean of log(Z)^2 over tokens, where Z is the sum of the exponentials"
        " of a token's logits. PaLM uses 1e-4, OLMo 3 uses 1e-5. `null`: no z-loss.",
        any_phase(LEARNING | COST).unread_by_rl(", whose loss has no z-loss"),
        above=0,
        example=1e-5,
    )
