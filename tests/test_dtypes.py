"""The rule of number types: what each slot takes, what comes out, and what is refused."""
# ruff: noqa: F403, F405

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from asking import GIVEN, ask, fast, one
from catalogue import CATALOGUE, MODELS
from plain import close

from combinax.combinators import *
from combinax.combinators.core import dtypes

INTEGERS = ["uint8", "uint16", "uint32", "int8", "int16", "int32", "int64"]
SHORT = ["bfloat16", "float16"]
FLOATS = [*SHORT, "float32", "float64"]
REAL = ["bool", *INTEGERS, *FLOATS]
KINDS = [*REAL, "complex64"]

X, ROWS, POINT = (5, 4), (5,), ()
HALF: dict = {kind: kind for kind in FLOATS}
"""Floats as they are, and nothing else."""
COUNTED = {kind: "float64" if kind in ("int64", "float64") else "float32" for kind in REAL}
"""At least float32."""
AS_MEAN = {**COUNTED, **HALF}
"""What `jnp.mean` gives, but for its one rounding of half types, which is to the same type."""


def same_type(kinds, out="float32"):
    return dict.fromkeys(kinds, out)


def head_with(**slots):
    rest = {"query": read("other"), "key": read("other"), "value": read("other")}
    return project(**{**rest, **slots})


QUERY, KEY, VALUE = (head_with(**{slot: read("it")}) for slot in ("query", "key", "value"))
TABLE, MIXED = lift(lambda s: s.score), normalize(softmax) @ score(dot) @ VALUE
MASKED = {
    "valid": valid("it"),
    "same": same("it"),
    "own": predicate(lambda query, key: query["it"] >= key["it"], ("it",)),
    "table": read("it"),
}
STAGES = {
    "bias": bias(read("it")),
    "bias of rows": bias(lambda query, key: key["it"] - query["it"], ("it",)),
    "temperature": temperature(read("it")),
    "multiply": multiply(score(dot), read("it")),
}


def asked(stage, entries=GIVEN, how=softmax):
    whole = stage if stage.name == "multiply" else stage @ score(dot)
    return compose(lift(lambda w: w.weight), normalize(how), whole, entries)


# slot: the term, where the array of the kind goes in, its shape, and what comes out by kind
SLOTS = {
    **{
        f"x of {term!r}": (term, "x", X, HALF)
        for term in (
            linear(3), rms_norm(), layer_norm(), rotary(), sinusoidal(), position_embed(9),
            softmax, sparsemax, entmax15, top_k(2), hardmax, dropout(0.5),
            aggregate() @ normalize(gelu) @ score(dot) @ slots(3),
        )
    },
    "tokens": (embed(3, 4), "x", ROWS, same_type(INTEGERS)),
    **{
        f"positions of {term!r}": (term, "positions", ROWS, same_type(INTEGERS))
        for term in (
            rotary(), sinusoidal(), position_embed(9),
            asked(bias(relative(2)), project(2)), asked(mask(causal & window(2)), project(2)),
        )
    },
    **{
        f"{slot} of {name}": (TABLE @ score(term) @ entries, "it", X, COUNTED)
        for name, term in {
            "dot": dot, "scaled_dot": scaled_dot, "cosine": cosine, "distance": distance,
            "bilinear": bilinear(), "additive": additive(2),
        }.items()
        for slot, entries in (("query", QUERY), ("key", KEY))
    },
    "value": (aggregate() @ MIXED, "it", X, AS_MEAN),
    "value of largest": (aggregate(largest) @ MIXED, "it", X, AS_MEAN),
    "value of a union": (
        aggregate() @ normalize(softmax) @ union(score(dot), sink()) @ VALUE, "it", X, AS_MEAN,
    ),
    "value of a stream": (
        streamed(aggregate() @ MIXED, 2), "it", X, AS_MEAN,
    ),
    "value of sums": (
        streamed(aggregate() @ normalize(row_sum) @ score(features(jnp.exp)) @ VALUE, 2),
        "it", X, AS_MEAN,
    ),
    "lengths": (asked(mask(MASKED["valid"])), "it", POINT, same_type(INTEGERS)),
    "segments": (asked(mask(MASKED["same"])), "it", ROWS, same_type(["bool", *INTEGERS])),
    "rows of an own predicate": (asked(mask(MASKED["own"])), "it", ROWS, same_type(KINDS)),
    "mask table": (asked(mask(MASKED["table"])), "it", (5, 5), {"bool": "float32"}),
    "bias table": (asked(STAGES["bias"]), "it", (5, 5), same_type(REAL)),
    "bias of rows": (asked(STAGES["bias of rows"]), "it", ROWS, same_type([*INTEGERS, *FLOATS])),
    "temperature": (asked(STAGES["temperature"]), "it", POINT, same_type(REAL)),
    "factor": (asked(STAGES["multiply"]), "it", POINT, same_type(REAL)),
}  # fmt: skip


def declared(term, x, context):
    """The parameters of a term in shapes."""
    return jax.eval_shape(lambda: term.init(jax.random.key(0), x, **context))


@pytest.mark.parametrize("slot", SLOTS)
def test_what_each_slot_takes_and_gives(slot):
    """Traced with 64 bits on, so that each type is itself; nothing is compiled."""
    term, place, shape, gives = SLOTS[slot]
    found = {}
    with jax.enable_x64(True):
        for kind in KINDS:
            it = jax.ShapeDtypeStruct(shape, kind)
            floats = jax.ShapeDtypeStruct(X, "float32")
            context = dict.fromkeys(term.reads, floats)
            x = it if place == "x" else floats
            context |= {} if place == "x" else {place: it}
            context |= {"rng": jax.random.key(0)} if "dropout" in slot else {}
            try:
                params = declared(term, x, context)
                params = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, "float32"), params)
                found[kind] = jax.eval_shape(term, params, x, **context).dtype.name
            except TermError:
                continue
    assert found == gives


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_floats(kind):
    term, x = linear(3, bias=True), jnp.ones(X)
    with jax.enable_x64(True):
        params = term.init(jax.random.key(0), x)
        params["kernel"] = jnp.asarray(np.asarray(params["kernel"]).astype(kind))
        if kind in FLOATS:
            assert term(params, x).dtype == jnp.float32
            return
        with pytest.raises(ParameterError, match=f"kernel should hold float64 and holds {kind}"):
            term(params, x)


def test_a_declared_type_is_kept_and_asked_for():
    """Of integers, too, where a primitive declares them."""

    @dataclasses.dataclass(frozen=True)
    class counting(Leaf):
        def parameters(self, x):
            return {"count": Parameter((), jax.nn.initializers.ones, (), jnp.int32)}

        def apply(self, params, x, context):
            return x * params["count"]

    term, x = counting(), jnp.ones(2)
    params = term.init(jax.random.key(0), x)
    assert params["count"].dtype == jnp.int32 and term(params, x).tolist() == [1, 1]
    with pytest.raises(ParameterError, match="count should hold int32 and holds float32"):
        term({"count": jnp.ones(())}, x)


# Numbers of rows


def zero(query, key):
    return jnp.zeros((len(query), len(key)))


PAIRS = compose(
    aggregate(), normalize(softmax), mask(causal & window(2)), score(zero), project(identity)
)


@pytest.mark.parametrize("kind", INTEGERS)
def test_unsigned_positions(kind):
    x, rows = jnp.array([[1], [2], [3], [4]]), np.arange(4).astype(kind)
    expected = [[1], [1.5], [2.5], [3.5]]
    assert PAIRS({}, x, positions=rows).tolist() == expected
    if kind == "uint32":
        for pin in (materialized, lambda term: streamed(term, 2)):
            run = fast(lambda rows, pin=pin: pin(PAIRS)({}, x, positions=rows))
            assert run(rows).tolist() == expected


def far(query, key):
    return -0.1 * jnp.abs(query.position - key.position) + (query["kind"] - key["kind"])


def apart(query, key):
    return query.position - key.position != 2


PLACED = bias(far, ("kind",)) @ bias(relative(2)) @ bias(t5_buckets(4, 8)) @ bias(alibi)
SEEN = causal & (window(3) | dilated(2)) & ~same("kind") & predicate(apart) | window(1)
EVERY = position_embed(12) @ sinusoidal() @ linear(4)
ROTATED = project(query=rotary() @ linear(4), key=rotary() @ linear(4), value=4)
SCORED = union(PLACED @ mask(SEEN & valid("lengths")) @ score(distance), sink())
HEADS = heads(2, compose(aggregate(), normalize(softmax), SCORED, ROTATED)) @ EVERY
FACTS = {
    "positions": np.arange(6),
    "kind": np.array([0, 200, 0, 7, 200, 7]),
    "lengths": np.array(5),
}


@pytest.mark.parametrize("kind", ["uint8", "uint32", "int16"])
def test_every_word_of_positions_in_every_execution(kind):
    """Unsigned numbers give what signed ones give: for pairs as well as tables, and in steps."""
    x = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    params = HEADS.init(jax.random.key(0), x, **FACTS)
    params = jax.tree.map(lambda leaf: leaf + 0.1, params)
    facts = {name: value.astype(kind) for name, value in FACTS.items()}
    expected = fast(materialized(HEADS))(params, x, **FACTS)
    for term in (materialized(HEADS), streamed(HEADS, (2, 3))):
        close(fast(term)(params, x, **facts), expected, atol=2e-6)
    batch = {name: value[None] for name, value in facts.items()}
    close(fast(each(HEADS))(params, x[None], **batch)[0], expected, atol=2e-6)
    start, step = stepwise(HEADS)
    chunk = lambda rows: {name: v if v.ndim == 0 else v[rows] for name, v in facts.items()}  # noqa: E731
    state = start(params, x[:3], 8, **chunk(slice(0, 3)))
    for rows in (slice(0, 3), slice(3, 4), slice(4, 6)):
        state, y = step(params, state, x[rows], **chunk(rows))
        close(y, expected[rows], atol=2e-6)


def test_numbers_of_rows_in_entries_of_ones_own():
    rows = Rows(jnp.arange(4, dtype=jnp.uint8), jnp.arange(4, dtype=jnp.uint8))
    x = jnp.array([[1.0], [2.0], [3.0], [4.0]])
    term = compose(*PAIRS.parts[:0:-1])
    assert term({}, Entries(x, x, x, Marks(rows, rows))).ravel().tolist() == [1, 1.5, 2.5, 3.5]


def test_numbers_that_are_made_inside_a_term():
    """What `given` and `heads` pass on enters a term, too."""
    counts = lambda x: jnp.array([0, 200, 0], jnp.uint8)  # noqa: E731
    near = bias(lambda query, key: query["at"] - key["at"], ("at",))
    inside = lift(lambda scores: scores.score) @ near @ score(one) @ project(identity)
    y = given(inside, at=lift(counts))({}, jnp.ones((3, 1)))
    assert y.tolist() == [[1, -199, 1], [201, 1, 201], [1, -199, 1]]


@pytest.mark.parametrize("kind", ["uint32", "int64"])
def test_what_int32_does_not_hold_is_refused(kind):
    large = np.array([0, 2**31, 1, 2], kind)
    for name, term in {
        "positions": PAIRS,
        "segments": ask(mask(same("segments"))),
        "lengths": ask(mask(valid("lengths"))),
    }.items():
        values = {"key": jnp.ones((4, 1)), "value": jnp.ones((4, 1))} if name != "positions" else {}
        with pytest.raises(ContextError, match=f"{name} holds 2147483648, and numbers of rows are"):
            term({}, jnp.ones((4, 1)), **{name: large}, **values)
    start, step = stepwise(PAIRS)
    with pytest.raises(ContextError, match="positions holds 2147483648, and numbers of rows"):
        step({}, start({}, jnp.ones((4, 1)), 8), jnp.ones((4, 1)), positions=large)
    assert dtypes.row_numbers("positions", large[:1]).dtype == jnp.int32


def test_floats_are_no_numbers_of_rows():
    many = jnp.ones((400, 1))
    context = {"key": many, "value": many}
    with pytest.raises(CompositionError, match="lengths holds integers, not bfloat16: give it in"):
        ask(mask(valid("lengths")))({}, many, lengths=jnp.bfloat16(300), **context)
    start, step = stepwise(PAIRS)
    with pytest.raises(ContextError, match="positions holds integers, not float32"):
        step({}, start({}, many[:2], 8), many[:2], positions=jnp.array([0.0, 1.0]))
    with pytest.raises(ContextError, match=r"positions is an array, not a list: jnp.array\(pos"):
        PAIRS({}, many[:2], positions=[0, 1])


@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16"])
def test_tokens_of_few_bits_find_rows_of_a_large_table(kind):
    table = jnp.arange(600.0)[:, None]
    run = fast(embed(600, 1))
    assert run({"table": table}, jnp.array([0, 100, 127], kind)).ravel().tolist() == [0, 100, 127]


# Values, and what is computed with


def test_values_that_are_integers_count_as_float32():
    x = jnp.array([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0]])
    for values in (jnp.array([[10], [20], [30]]), jnp.array([[True], [False], [True]])):
        for term in (ask(), streamed(ask(), 2)):
            y = term({}, x, key=x, value=values)
            close(y, term({}, x, key=x, value=values.astype(jnp.float32)))
            assert y.dtype == jnp.float32 and (np.asarray(y) % 1 != 0).all()
    start, step = stepwise(
        compose(aggregate(), normalize(softmax), mask(causal), score(one), project(identity))
    )
    counted = jnp.array([[1], [2], [4], [5]])
    state, first = step({}, start({}, counted[:2], 4), counted[:2])
    _, second = step({}, state, counted[2:])
    close(jnp.concatenate([first, second]).ravel(), [1, 1.5, 7 / 3, 3], rtol=1e-6)


@dataclasses.dataclass(frozen=True)
class beside(Leaf):
    """x + table, of a table that is context."""

    rowwise = True

    @property
    def reads(self):
        return frozenset({"table"})

    def apply(self, params, x, context):
        return x + context["table"]


CROSS = compose(
    aggregate(), normalize(softmax), score(scaled_dot),
    project(query=4, key=linear(4) @ read("memory"), value=linear(4) @ read("memory")),
)  # fmt: skip


def test_context_follows_precision():
    x = jnp.ones((3, 4))
    for form in (CROSS, repeat(2, identity + CROSS), heads(2, streamed(CROSS))):
        term = precision(form, compute="bfloat16")
        params = jax.tree.map(jnp.ones_like, declared(term, x, {"memory": x}))
        assert jax.eval_shape(term, params, x, memory=x).dtype == jnp.bfloat16
    assert precision(beside(), compute="bfloat16")({}, x, table=x).dtype == jnp.bfloat16
    level = lift(lambda scores: scores.score) @ bias(read("level")) @ score(one)
    y = precision(level @ project(identity), compute="bfloat16")({}, x, level=jnp.array(0.3))
    assert y.dtype == jnp.float32 and y[0, 0] == 1 + jnp.bfloat16(0.3).astype(jnp.float32)


def test_what_tells_rows_apart_keeps_its_digits():
    """1000.5 and 1001 are one number in bfloat16: a mask must not see it so."""
    earlier = predicate(lambda query, key: key["time"] < query["time"], ("time",))
    term = compose(lift(lambda w: w.weight), normalize(softmax), mask(earlier), score(one))
    times = jnp.array([1000.5, 1001.0])
    run = precision(term @ project(identity), compute="bfloat16")
    assert run({}, jnp.ones((2, 1)), time=times).tolist() == [[0, 0], [1, 0]]


def test_keys_that_are_read_are_kept_in_the_type_that_is_asked_for():
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    term = repeat(2, identity + linear(4) @ heads(2, CROSS))
    params = term.init(jax.random.key(0), x, memory=x)
    start, step = stepwise(term, dtype="bfloat16")
    state = start(params, x[:1], 8, memory=x)
    kept = [leaf.dtype for leaf in jax.tree.leaves(state["memory"]) if leaf.size]
    assert set(kept) == {jnp.dtype(jnp.bfloat16)}
    _, y = step(params, state, x)
    whole = term(params, x, memory=x)
    assert y.dtype == whole.dtype
    close(y, whole, atol=0.05)  # keys and values have 8 bits
    assert (np.asarray(y) != np.asarray(whole)).any()


# One type of floats, and no promotion


OWN = {"bias", "mask: order", "Stage", "Bias"}
"""Entries whose own functions multiply positions with floats."""


def test_nothing_depends_on_promotion():
    """Every word, and every model, in bfloat16, under strict promotion; with gradients."""

    def cast(tree):
        def one(leaf):
            leaf = jnp.asarray(leaf)
            return leaf.astype(jnp.bfloat16) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

        return jax.tree.map(one, tree)

    failed = {}
    for name, (term, x, context) in {**CATALOGUE, **MODELS}.items():
        if name in OWN:
            continue
        x, context = cast((x, dict(context)))
        params = declared(term, x, context)
        params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.bfloat16), params)

        def loss(params, term=term, x=x, context=context):
            leaves = jax.tree.leaves(term(params, x, **context))
            return [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]

        with jax.numpy_dtype_promotion("strict"):
            try:
                jax.eval_shape(lambda p: jax.vjp(loss, p)[1](loss(p)), params)
            except Exception as error:
                failed[name] = str(error)[:300]
    assert failed == {}


@pytest.mark.parametrize("term", [rotary(), sinusoidal(), sparsemax], ids=repr)
def test_precision_under_strict_promotion(term):
    with jax.numpy_dtype_promotion("strict"):
        y = precision(term, compute="bfloat16")({}, jnp.ones((3, 4)))
    assert y.dtype == jnp.bfloat16
