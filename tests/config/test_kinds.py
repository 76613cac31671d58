"""A value of the wrong kind: what would be right is told in plain words, without OmegaConf's names for types."""

import pytest

from fedexp.api import compose
from fedexp.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("clients=many", "clients=many: must be a whole number"),
        ("seed=1.5", "seed=1.5: must be a whole number"),
        ("'local={epochs: 2.5}'", "local.epochs=2.5: must be a whole number"),
        ("local.lr=high", "local.lr=high: must be a number"),
        ("pictures=maybe", "pictures=maybe: must be true or false"),
        ("rounds=null", "rounds=null: must not be null"),
        ("local=[1]", "local=[1]: has keys of its own; set these one by one"),
        ("dataset.transform=[1]", "dataset.transform=[1]: has keys of its own; set these one by one"),
        ("local=3", "local=3: has keys of its own; set these one by one"),
        ("measures=3", "measures=3: has keys of its own; set these one by one"),
        ("measures.divergence=[1]", "measures.divergence=[1]: must be a single text"),
        ("targets={a:1}", "targets={a:1}: must be a list, such as [1, 2]"),
        ("targets=[0.8,most]", "targets=[0.8,most]: most, which is in it, must be a number"),
        ("dataset=made dataset.shape=3", "dataset.shape=3: must be a list, such as [1, 2]"),
        ("dataset=made dataset.shape=null", "dataset.shape=null: must not be null"),
        ("dataset.transform=3", "dataset.transform=3: has keys of its own; set these one by one"),
        ("dataset.transform.mean=[a]", "dataset.transform.mean=['a']: a, which is in it, must be a number"),
        ("algorithm=fedprox algorithm.mu=x", "algorithm.mu=x: must be a number"),
        ("algorithm=fedprox algorithm.mu=[1]", "algorithm.mu=[1]: must be a number"),
        ("algorithm=fedprox algorithm.mu=null", "algorithm.mu=null: must not be null"),
    ],
)
def test_what_would_be_right_is_told_in_plain_words(words, said):
    with pytest.raises(ConfigError) as error:
        compose(words)
    assert str(error.value) == said
