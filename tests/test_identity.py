from memloc.training.provenance import of_the_same, provenance

from memloc.protocol import preset


def facts(**changes):
    given = {"subject": "a run", "seed": 1, "protocol": preset("demo"), "inputs": {"run": "1f"}}
    return provenance(**{**given, **changes})


def test_facts_read_back_from_a_file_as_they_are():
    found = facts(protocol=preset("demo").replace({"probes.seeds": (1, 2)}), layers=(1, 3))
    assert found["changes"] == {"probes.seeds": [1, 2]}
    assert found["layers"] == [1, 3]


def test_a_result_is_of_the_same_whatever_it_is_called():
    assert of_the_same({**facts(subject="another name"), "more": 1}, facts())
    others = ({"seed": 2}, {"inputs": {"run": "2f"}}, {"protocol": preset("paper")})
    assert not any(of_the_same(facts(**other), facts()) for other in others)
    assert not of_the_same(facts(), facts(depth=3))
