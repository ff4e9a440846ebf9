"""What programs hold models in: every part is found, under the name that leads to it."""

import hybridmpi as hm


class Nested(hm.nn.Module):
    def __init__(self):
        self.heads = {"left": hm.nn.Linear(2, 1), "right": [hm.nn.Linear(2, 1), {"deep": hm.nn.Embedding(3, 2)}]}
        self.tied = self.heads["right"][1]["deep"]
        self.words = {"not": 1, "parts": [2, 3], 4: "of a model"}


def test_parts_in_dicts_are_found_by_their_keys():
    model = Nested()
    names = [name for name, _ in model.named_parameters()]
    assert names == ["heads.left.bias", "heads.left.weight", "heads.right.0.bias", "heads.right.0.weight"]
    assert [name for name, _ in model.named_tables()] == ["heads.right.1.deep"]
    assert list(model.names_of_tables()) == ["heads.right.1.deep", "tied"]
    model.initialise(1)
    assert all(parameter.data is not None for parameter in model.parameters())
    assert not model.eval().heads["right"][0].training
