"""What expressions are worth: fractions where they can be, else complex numbers of a hundred digits.

Two expressions with names in them are equal when they agree at several fixed points of large primes.
"""

from __future__ import annotations

import threading
import zlib
from fractions import Fraction

from rlvr_jax.tasks.expressions import BITS, TooLarge, Unreadable

_DIGITS = 100  # of the numbers computed
_AGREE = 80  # of them that equal values have in common
_PRIMES = (1009, 2003, 3001, 4001, 5003, 6007, 7001, 8009, 9001, 10007)


class _Contexts(threading.local):
    """A context of mpmath for each thread: its functions raise the precision of theirs while they work."""

    context = None


_CONTEXTS = _Contexts()


def _mpmath():
    if _CONTEXTS.context is None:
        import mpmath  # a tenth of a second, and most answers are plain numbers

        _CONTEXTS.context = mpmath.MPContext()
        _CONTEXTS.context.dps = _DIGITS
    return _CONTEXTS.context


def _bits(value) -> float:
    """Binary digits before or after the point, whichever are more."""
    if isinstance(value, Fraction):
        return max(value.numerator.bit_length(), value.denominator.bit_length())
    return abs(float(_mpmath().mag(value))) if value != 0 else 0.0


def _wide(value):
    return _mpmath().mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _checked(value):
    if not isinstance(value, Fraction) and not _mpmath().isfinite(value):
        raise Unreadable("no finite value")
    if _bits(value) > BITS:
        raise TooLarge("too large")
    return value


def _power(base, exponent):
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        if abs(base) == 1:
            return base ** (exponent.numerator % 2)
        if base and abs(exponent) * _bits(base) > 2 * BITS:
            raise TooLarge("too large a power")
        return base**exponent.numerator
    base, exponent = _wide(base), _wide(exponent)
    if base == 0:
        if _mpmath().re(exponent) <= 0:
            raise ZeroDivisionError
        return Fraction(0)
    if abs(exponent) > BITS or abs(exponent) * (_bits(base) + 1) > 2 * BITS:
        raise TooLarge("too large a power")
    return _mpmath().power(base, exponent)


def _root(value, index):
    if not isinstance(index, Fraction) or index.denominator != 1 or not 1 < index <= 100:
        raise Unreadable("an index of a root that is no small whole number")
    if isinstance(value, Fraction) and value < 0 and index % 2:
        return -_root(-value, index)  # the real root, as at school
    return _mpmath().root(_wide(value), int(index))


def _whole(value, limit: int) -> int:
    if not isinstance(value, Fraction) or value.denominator != 1 or not 0 <= value <= limit:
        raise Unreadable(f"not a whole number in 0 … {limit}")
    return int(value)


def _product_of(start: int, stop: int) -> Fraction:
    value = 1
    for factor in range(start, stop + 1):
        value *= factor
    return Fraction(value)


def _call(name: str, value):
    context, value = _mpmath(), _wide(value)
    if abs(value) > (3000 if name in ("exp", "sinh", "cosh", "tanh") else 10**40):
        raise TooLarge("too large an argument")
    functions = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "log": "log10"}
    return getattr(context, functions.get(name, name))(value)


def evaluate(node: tuple, point: dict[str, Fraction], sign: int = 1):
    """The value of a tree with the names of `point`; `sign` is that of every ±.

    Raises:
      Unreadable, TooLarge, ZeroDivisionError
    """
    kind = node[0]
    if kind == "num":
        return _checked(node[1])
    if kind == "name":
        return point[node[1]]
    if kind == "const":
        return _constant(node[1])
    values = [evaluate(child, point, sign) for child in node[1:] if isinstance(child, tuple)]
    return _checked(_operate(kind, node, values, sign))


def _constant(name: str):
    context = _mpmath()
    if name == "infty":
        raise Unreadable("infinity")
    return {"pi": +context.pi, "e": +context.e, "i": context.mpc(0, 1)}[name]


def _operate(kind: str, node: tuple, values: list, sign: int):
    first, second = values[0], values[-1]
    if kind in ("+", "-", "*", "/", "pm"):
        if isinstance(first, Fraction) != isinstance(second, Fraction):
            first, second = _wide(first), _wide(second)
        if kind == "pm":
            kind = "+" if (sign > 0) == (node[3] == "pm") else "-"
        if kind == "/":
            return first / second
        return first + second if kind == "+" else first - second if kind == "-" else first * second
    if kind == "neg":
        return -first
    if kind == "abs":
        return abs(first)
    if kind == "^":
        return _power(first, second)
    if kind == "root":
        return _root(first, second)
    if kind == "call":
        return _call(node[1], first)
    if kind == "log":
        return _mpmath().log(_wide(first)) / _mpmath().log(_wide(second))
    if kind == "factorial":
        return _product_of(2, _whole(first, 300))
    if kind == "binom":
        n, k = _whole(first, 500), _whole(second, 500)
        return _product_of(n - k + 1, n) / _product_of(2, k) if k <= n else Fraction(0)
    raise Unreadable(kind)


def names(node: tuple) -> set[str]:
    """The unknowns of a tree."""
    if node[0] == "name":
        return {node[1]}
    return set().union(*(names(child) for child in node[1:] if isinstance(child, tuple)))


def has(node: tuple, kind: str | tuple) -> bool:
    """True when an operation of this kind, or this very node, occurs in a tree."""
    return kind in (node, node[0]) or any(has(child, kind) for child in node[1:] if isinstance(child, tuple))


def points(unknowns: set[str], negative: bool) -> list[dict[str, Fraction]]:
    """Where trees with these unknowns are compared: positive numbers, so that √(x²) is x; negative ones as well
    where an absolute value tells the two apart."""
    if not unknowns:
        return [{}]
    found = []
    for number in range(4):
        point = {}
        for name in sorted(unknowns):
            spot = zlib.crc32(f"{number} {name}".encode())
            value = Fraction(_PRIMES[spot % 10] + spot % 997, _PRIMES[(spot >> 8) % 10] // 2)
            point[name] = -value if negative and number % 2 else value
        found.append(point)
    return found


def close(first, second) -> bool:
    """Fractions: equal. Others: equal in eighty digits, relative to the larger; a zero may be off by 1e-90."""
    if isinstance(first, Fraction) and isinstance(second, Fraction):
        return first == second
    first, second = _wide(first), _wide(second)
    size = max(abs(first), abs(second))
    if min(abs(first), abs(second)) == 0:
        return size < _mpmath().mpf(10) ** (10 - _DIGITS)
    return abs(first - second) <= size * _mpmath().mpf(10) ** -_AGREE


def samples(trees: list[tuple], negative: bool = False) -> list[list]:
    """The values of several trees at common points; points where one has none are left out.

    Raises:
      Unreadable: fewer than half of the points are left.
    """
    unknowns = set().union(*map(names, trees))
    found, places = [], points(unknowns, negative)
    for point in places:
        try:
            found.append([evaluate(tree, point) for tree in trees])
        except ZeroDivisionError:
            continue
    if 2 * len(found) < len(places) or not found:
        raise Unreadable("no finite value")
    return found


def same_value(first: tuple, second: tuple) -> bool:
    """True when two trees are equal everywhere.

    Raises:
      Unreadable, TooLarge: one of them has no value that can be computed.
    """
    if names(first) != names(second) and not (names(first) and names(second)):
        # a name that cancels out (x - x + 3) is still no number
        return False
    negative = has(first, "abs") or has(second, "abs")
    return all(close(*pair) for pair in samples([first, second], negative))


def same_equation(first: tuple, second: tuple, directed: bool = False) -> bool:
    """True when two equations, each (left, right), are multiples of one another by a number that is not 0, and
    above 0 where they are `directed`, as inequalities are.

    Raises:
      Unreadable, TooLarge
    """
    trees = [("-", *first), ("-", *second)]
    if names(trees[0]) != names(trees[1]) or not names(trees[0]):
        return False
    ratios = []
    for one, other in samples(trees):
        if one == 0 or other == 0:
            return False
        exact = isinstance(one, Fraction) and isinstance(other, Fraction)
        ratios.append(one / other if exact else _wide(one) / _wide(other))
    if directed and not (_mpmath().im(_wide(ratios[0])) == 0 and _mpmath().re(_wide(ratios[0])) > 0):
        return False
    return all(close(ratios[0], ratio) for ratio in ratios[1:])
