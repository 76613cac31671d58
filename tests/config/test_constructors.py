"""What groups name in _target_, and that their keys are what it takes."""

import pytest
from composing import composed

from fedexp.config.schema import check
from fedexp.errors import ConfigError


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("selection=clusamp selection.distance=cosine", "selection.distance=cosine: must be one of arccos, l1, l2"),
        ("selection=clusamp +selection.distanse=l1", "selection.distanse=l1: no such key; did you mean distance?"),
        ("server_optimizer.lr=0", "server_optimizer.lr=0: must be above 0"),
        ("server_optimizer=momentum server_optimizer.beta=1", "server_optimizer.beta=1: must be in [0, 1)"),
        ("server_optimizer=adam +server_optimizer.beta3=0.9", "server_optimizer.beta3=0.9: no such key; did you mean"),
        ("compression=top_k compression.share=1.5", "compression.share=1.5: must be in (0, 1]"),
        ("compression=top_k compression.error_feedback=3.5", "compression.error_feedback=3.5: "),
        ("+compression.share=0.5", "compression.share=0.5: no such key; "),
        ("+privacy.epsilon=1", "privacy.epsilon=1: no such key"),
        ("algorithm._target_=fedexp.algorithms.mine.Mine", "algorithm._target_=fedexp.algorithms.mine.Mine: cannot be"),
    ],
)
def test_a_group_s_keys_are_what_its_constructor_takes(word, said):
    with pytest.raises(ConfigError) as error:
        check(composed(*word.split()))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_list_is_of_the_type_of_its_argument():
    """What was found of a value is kept, and must be found of that one alone."""
    for _ in range(2):
        check(composed("algorithm=fedavg_ft", "algorithm.tuning_epochs=[1,2]"))
        with pytest.raises(ConfigError, match=r"algorithm\.tuning_epochs=\['?1'?, 'x'\]: .*'x'"):
            check(composed("algorithm=fedavg_ft", "algorithm.tuning_epochs=[1,x]"))
