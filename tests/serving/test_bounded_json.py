"""JSON within limits: the values of the standard library, and nothing that is made before it is counted."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from capsedge.serving import bounded_json
from capsedge.serving.bounded_json import PIECE, MalformedBody, parse
from capsedge.spec import limits


def plain(value: Any) -> Any:
    """As the standard library has it: lists for arrays, text for the bytes of texts in lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def test_the_values_are_those_of_json() -> None:
    random = np.random.default_rng(0)
    failed = []
    rows = ((3,), (3000,), (4000, 1), (1, 4000), (50, 60))
    for shape in (*rows, (2, 3, 500), (1, 1, 28, 28), (90, 90, 3)):
        for values in (
            random.random(shape), random.integers(-300, 300, shape), random.random(shape) > 0.5,
            random.integers(0, 2**64, shape, np.uint64, endpoint=False),
        ):  # fmt: skip
            for indent in (None, 1):
                document = {"data": values.tolist(), "a": {"b": [None, "é\n\\", {}, 1.5]}}
                text = json.dumps(document, indent=indent, ensure_ascii=bool(indent)).encode()
                found = parse(text)
                if plain(found) != document:
                    failed.append((shape, values.dtype, indent))
                if len(text) > 20_000 and not isinstance(found["data"], np.ndarray):
                    failed.append((shape, values.dtype, "no array"))
    assert not failed


NESTED = json.dumps([[float(k), 2.5] for k in range(20_000)])
REFUSED = {
    "no end": NESTED[:-1],
    "a bracket too few": f"{NESTED[:-2]}]",
    "a shorter row": NESTED.replace("[5.0, 2.5]", "[5.0]"),
    "an empty row": NESTED.replace("[5.0, 2.5]", "[]"),
    "a number among rows": NESTED.replace("[5.0, 2.5]", "5.0"),
    "a deeper row": NESTED.replace("[5.0, 2.5]", "[[5.0, 2.5]]"),
    "no comma between rows": NESTED.replace("], [", "][", 1),
    "no comma between numbers": NESTED.replace("5.0, 2.5", "5.0 2.5", 1),
    "a comma before the end of a row": NESTED.replace("2.5]", "2.5,]", 1),
    "a comma inside a bracket": NESTED.replace("7.0, 2.5", "7.0[, 2.5", 1),
    "a truth value among numbers": NESTED.replace("2.5", "true", 1),
    "short deep lists": "[" * 1000 + "]" * 1000,
    "short deep lists of numbers": "[1," * 40 + "1" + "]" * 40,
    "null among numbers": NESTED.replace("2.5", "null", 1),
    "no number": NESTED.replace("2.5", "NaN", 1),
    "spaces alone": f"[{' ' * 5000}]",
    "a number without end": f"[{'1' * (4 * PIECE)}]",
    "spaces without end": f"[1,{' ' * (4 * PIECE)}1]",
    "deep lists": "[" * 5000 + "]" * 5000,
    "deep objects": '{"a":' * 5000,
    "many objects": json.dumps([{}] * 1_100),
    "many texts": json.dumps(["ab"] * 1_100),
    "many numbers in a short list": json.dumps([1] * 1_100),
    "many short lists": json.dumps([{"a": [1]}] * 500),
    "many names": "{" + ",".join(f'"{k}":0' for k in range(1_100)) + "}",
    "many escapes": '"' + "\\n" * limits.MIB + '"',
    "many quotes": '"' + '\\"' * 1_100 + '"',
    "a name twice": '{"a":1,"a":2}',
    "two documents": "{} {}",
    "half a surrogate pair": '"\\ud800"',
    "no UTF-8": b'"\xff"',
    "UTF-16": "{}".encode("utf-16"),
    "a control code": b'"\x01"',
    "lists beside texts": '["a", [1]]',
    "nothing": "",
}  # fmt: skip


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_ITEMS", 1000)
    accepted = []
    for name, text in REFUSED.items():
        try:
            parse(text if isinstance(text, bytes) else text.encode())
            accepted.append(name)
        except MalformedBody as error:
            accepted += [name] * (len(str(error)) > 200 or "None" in str(error))
    assert not accepted


def test_more_numbers_than_a_request_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_VALUES", 10_000)
    assert parse(b"[%b]" % b",".join([b"0"] * 10_000)).size == 10_000
    with pytest.raises(MalformedBody, match="over 10,000 numbers"):
        parse(b"[%b]" % b",".join([b"0"] * 10_001))


def test_no_step_takes_up_more_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given to the parser of numbers at once: other threads wait as long."""
    sizes: list[int] = []
    loads = bounded_json._loads

    def watched(text: bytes) -> Any:
        sizes.append(len(text))
        return loads(text)

    monkeypatch.setattr(bounded_json, "_loads", watched)
    row = b"[%b]" % b",".join([b"0.25"] * 1000)
    base64 = b"iVBORw0KGgo\\/" * 200_000
    document = b'{"a":[%b],"b":["%b"],"c":"%b"}' % (
        b",".join([row] * 200),
        base64,
        b"x" * 2_000_000,
    )
    found = parse(document)
    assert found["a"].shape == (200, 1000)
    assert found["b"] == [base64.replace(b"\\", b"")]
    assert len(found["c"]) == 2_000_000
    assert max(sizes) <= 2 * PIECE + 2
