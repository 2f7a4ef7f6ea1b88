"""Matchers are read as Alertmanager reads them, and no pattern takes long on any label."""

from __future__ import annotations

import pytest

from whystall.agent_server.integrations.alerts.matchers import BadMatcher, Matcher, all_match, format_matchers, parse
from whystall.agent_server.integrations.alerts.regexes import Pattern


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("{}", []),
        ("{foo=bar}", [("foo", "=", "bar")]),
        ("{foo=bar,}", [("foo", "=", "bar")]),
        (" { foo = bar , baz != qux } ", [("foo", "=", "bar"), ("baz", "!=", "qux")]),
        ("foo=~[a-z]+", [("foo", "=~", "[a-z]+")]),
        ("foo!~[a-z]+,", [("foo", "!~", "[a-z]+")]),
        ('"foo"="bar"', [("foo", "=", "bar")]),
        ('foo="a, b}"', [("foo", "=", "a, b}")]),
        ("节点=训练🙂", [("节点", "=", "训练🙂")]),
        (r'foo="\xf0\x9f\x99\x82\U0001f642"', [("foo", "=", "🙂🙂")]),
        (r'foo="\"bar\\\n\t"', [("foo", "=", '"bar\\\n\t')]),
        (r'"a b"=~"\\d+"', [("a b", "=~", r"\d+")]),
        ('foo=""', [("foo", "=", "")]),
    ],
)
def test_read(text: str, expected: list[tuple[str, str, str]]) -> None:
    assert [(m.name, m.op, m.value) for m in parse(text)] == expected
    assert parse(format_matchers(parse(text))) == parse(text)


@pytest.mark.parametrize(
    "text",
    [
        ",",
        "{,}",
        "{",
        "}",
        "foo=bar}",
        "{foo=bar",
        "foo",
        "foo=",
        "=bar",
        '""=bar',
        "foo==bar",
        "foo=bar baz=qux",
        "foo=bar{",
        "{foo=bar} x",
        'foo="bar',
        r'foo="\w"',
        r'foo="\xf0\x9f"',
        'foo="a\nb"',
        "foo='bar'",
        "foo=a\\b",
        "foo=~(",
        "foo=~(?=a)",
        r'foo=~"(a)\\1"',
        "foo=~a)|(b",
        "foo=~" + "a" * 1001,
        "foo=" + "a" * 1001,
        ",".join(["a=b"] * 51),
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(BadMatcher) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
    assert caught.value.at <= len(text)


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("a=b", {"a": "b"}, True),
        ("a=b", {}, False),
        ('a=""', {}, True),
        ("a!=b", {}, True),
        ('a!=""', {"a": ""}, False),
        ("a=~b", {"a": "bb"}, False),
        ("a=~b.*", {"a": "bb"}, True),
        ("a=~.*", {}, True),
        ("a=~.+", {}, False),
        ("a!~b|c", {"a": "c"}, False),
        ("a!~b|c", {}, True),
        ("a=b,c=d", {"a": "b"}, False),
    ],
)
def test_a_label_that_is_missing_is_empty(text: str, labels: dict[str, str], expected: bool) -> None:
    assert all_match(parse(text), labels) is expected


@pytest.mark.parametrize(
    ("pattern", "value", "expected"),
    [
        (r"\d+", "12", True),
        (r"\d+", "٣", False),  # digits of RE2 are ASCII
        (r"[\d_]+", "1_", True),
        (r"\bfoo\b", "foo", True),
        ("[[:alpha:]]+", "ab", True),
        ("[a[]+", "a[", True),
        ("[]a]+", "]a", True),
        ("[^]a]", "b", True),
        ("[a&&b]+", "a&", True),
        (r"\Qa.b\E", "a.b", True),
        (r"\Qa.b\E", "axb", False),
        ("a{", "a{", True),
        ("a{2}", "aa", True),
        ("(?i)abc", "ABC", True),
        (".*", "a\nb", False),
        ("(?s).*", "a\nb", True),
        ("a$", "a\n", False),
        (r"\<a\>", "<a>", True),
        ("a|", "", True),
        ("a|b", "a|b", False),
        ("(?P<x>a)", "a", True),
    ],
)
def test_the_syntax_is_that_of_re2(pattern: str, value: str, expected: bool) -> None:
    assert Pattern(pattern).matches(value) is expected


@pytest.mark.parametrize("pattern", ["(?x)a", "(?<=a)b", r"\C", "a{1001}", "(a{1000}){1000}", "[a", "\\", "a{2,1}"])
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(ValueError, match="no regular expression"):
        Pattern(pattern)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)+b", "(.*a){20}b", "((a?){30}){30}b", "(a|a)*b"])
def test_a_pattern_that_would_backtrack_for_ever_ends(pattern: str) -> None:
    """Python's own engine needs longer than anybody waits for the first of these."""
    assert Pattern(pattern).matches("a" * 1024) is False


def test_many_values_are_matched_at_once_and_like_one_by_one() -> None:
    values = [f"node-{n % 300}" for n in range(9000)]
    many, single = Pattern("node-[0-9]*7"), Pattern("node-[0-9]*7")
    many.learn(values)
    assert [many.matches(v) for v in values] == [single.matches(v) for v in values]
    assert sum(many.matches(v) for v in set(values)) == 30


def test_a_matcher_shows_itself_as_it_is_written() -> None:
    assert str(Matcher("a b", "=", 'x"\n')) == '"a b"="x\\"\\n"'
