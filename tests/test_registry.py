"""Parts by name: text that runs nothing, and answers to misspelt names."""

import pytest

from rlvr_jax.registry import Registry, nearest, parse_call


@pytest.fixture
def registry():
    made = Registry("scale")

    @made.register
    def none():
        return "none"

    @made.register
    def group_std(ddof=0, eps=1e-8):
        return ddof, eps

    @made.register
    def max_(k, share=0.5):
        return k, share

    return made


def test_parts_are_made_by_name(registry):
    assert registry.make("none") == registry.make(" none() ") == "none"
    assert registry.make("group_std(ddof=1)") == (1, 1e-8)
    assert registry.make("max(k=[1, -2], share='a')") == ([1, -2], "a")
    assert registry.names() == ["group_std", "max", "none"]
    assert registry.usage("max") == "max(k, share=0.5)"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "group_sdt",
            r"scale='group_sdt': unknown option 'group_sdt'. Did you mean 'group_std'\? Choose from",
        ),
        ("xyz", r"unknown option 'xyz'\. Choose from \['group_std', 'max', 'none'\]"),
        (
            "group_std(dof=1)",
            r"no keyword 'dof'. Did you mean 'ddof'\? It takes group_std\(ddof=0, eps=1e-08\)",
        ),
        ("max", r"max needs k\. It takes max\(k, share=0.5\)"),
        ("", "expected name"),
        ("group_std(1)", "expected name"),
        ("a.b", "expected name"),
        ("group_std(ddof=", "expected name"),
        ("group_std(ddof=open('x'))", "the value of 'ddof' is not a literal"),
        ("group_std(**{'ddof': 1})", "scale="),
    ],
)
def test_what_is_wrong_is_named(registry, text, says):
    with pytest.raises(ValueError, match=says):
        registry.make(text)


def test_calls_are_read_not_run():
    assert parse_call("a(b=-1, c='x', d=[1, 2], e=None)", "x") == (
        "a",
        {"b": -1, "c": "x", "d": [1, 2], "e": None},
    )
    with pytest.raises(ValueError, match=r"x=.*not a literal"):
        parse_call("a(b=__import__('os').getcwd())", "x")


def test_nearest_ends_a_sentence():
    assert nearest("temperatur", ["temperature", "top_p"]) == ". Did you mean 'temperature'?"
    assert nearest("zzz", ["temperature"]) == "."
