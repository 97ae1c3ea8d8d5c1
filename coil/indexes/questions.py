"""Queries to an index: how they are parsed, which documents they allow, and in which order they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from coil.arrays import is_among
from coil.errors import InputError, SearchTimeout
from coil.hits.answering import Answer
from coil.hits.paging import Paging
from coil.storage.conditions import Ordinals, documents_with
from coil.storage.filters import parse_filter
from coil.storage.snapshot import Snapshot
from coil.texts.asking import Condition, Question, plain_question, read_question
from coil.texts.questions import check_count, check_query
from coil.vectors.encoder import Encoder


def narrow(
    snapshot: Snapshot,
    encoder: Encoder,
    conditions: Sequence[Condition],
    allowed: Ordinals | None,
    deadline: float | None,
) -> Ordinals:
    """The documents that meet the conditions of a query, among those that a filter allows."""
    found = documents_with(snapshot, encoder, conditions, deadline)
    return found if allowed is None else found[is_among(found, allowed)]


def with_filter_time(answer: Answer, ms: float) -> Answer:
    """An answer whose cost includes the time to select the allowed documents."""
    return replace(answer, stats=replace(answer.stats, filter_ms=ms))


def answer_questions(
    questions: Sequence[Question],
    answer: Callable[[Sequence[Question], int | None], list[Answer]],
    most_text: int | None,
) -> list[Answer]:
    """Answer queries without conditions together and each of the others alone; answers are in order.

    `answer` is passed the number of bytes of text that are still allowed.
    """

    def answered(some: Sequence[Question]) -> list[Answer]:
        nonlocal most_text
        found = answer(some, most_text)
        if most_text is not None:
            most_text = max(0, most_text - sum(one.text_bytes for one in found))
        return found

    together = iter(answered([question for question in questions if not question.conditions]))
    return [answered([question])[0] if question.conditions else next(together) for question in questions]


def name_unknown(answers: list[Answer], filter: str | None, is_field: Callable[[str], bool]) -> list[Answer]:
    """In answers without hits, name the fields in the filter that no document has."""
    if filter is None or all(answer.hits for answer in answers):
        return answers
    try:
        unknown = tuple(name for name in parse_filter(filter).names if not is_field(name))
    except SearchTimeout:
        return answers  # that there are no hits is known in time
    return [answer if answer.hits else replace(answer, unknown_fields=unknown) for answer in answers]


def check_paging(offset: object = 0, sort: object = None, fold_duplicates: object = False) -> Paging:
    """Validate the arguments for paging."""
    if sort is not None and not isinstance(sort, str):
        raise InputError("the field to sort by is not a string", 'write it as sort="year" or sort="-year"')
    return Paging(check_count("offset", offset, "write it as offset=10"), sort, bool(fold_duplicates))


def read_query(
    snapshot: Snapshot, query: str, plain: bool = False, deadline: float | None = None
) -> Question:
    """Parse a query for this state: which names are fields depends on its documents."""
    if plain:
        return plain_question(check_query(query))
    return read_question(check_query(query), partial(snapshot.has_field, deadline=deadline))
