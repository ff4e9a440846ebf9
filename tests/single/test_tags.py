"""Tags tell messages apart: no two are alike, and all stand in one table."""

import ast

from test_house import CODE, module_of

from hybridmpi.tags import Tag

POINT_TO_POINT = {"send", "isend", "recv", "irecv", "Send", "Isend", "Recv", "Irecv", "Improbe", "Mprobe", "mprobe"}


def test_no_two_are_alike():
    assert len({int(tag) for tag in Tag.__members__.values()}) == len(Tag.__members__)
    assert max(Tag) < 32_768  # what every MPI has at least


def test_all_messages_take_theirs_from_the_table():
    """Constants of one's own are what two protocols can share."""
    for path in CODE:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id.startswith("TAG_")}
        assert not named, f"{module_of(path)} has tags of its own: {named}"
        for call in ast.walk(tree):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            given = [k.value for k in call.keywords if k.arg in ("tag", "sendtag", "recvtag")]
            if call.func.attr in POINT_TO_POINT and len(call.args) == 3:
                given.append(call.args[2])
            for tag in given:
                assert not (isinstance(tag, ast.Constant) and isinstance(tag.value, int)), (
                    f"{module_of(path)}: {tag.value}"
                )
