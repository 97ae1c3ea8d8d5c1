"""Comparisons: plans, configs, what is kept, resumed and refused, and the figures that come out."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coil.comparison.config import read_config
from coil.comparison.outcome import judge
from coil.comparison.plan import DEFAULT_SYSTEMS, make_plan, parse_system
from coil.comparison.running import Laboratory
from coil.comparison.tables import as_markdown, show, show_bytes, show_change, show_ms, show_p, show_seconds
from coil.comparison.work_folder import WorkFolder, digest_of, digest_of_folder
from coil.comparison.writing import file_names
from coil.errors import CoilError, InputError, OptionMismatch, OutputError
from coil.metrics.significance import holm
from coil.systems.registry import SYSTEMS
from coil.texts.collections import find_collection
from tests.comparison_data import CALLS, QRELS, write_beir

pytest.importorskip("bm25s")


class Quiet:
    """Hears everything and keeps it."""

    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)

    @contextmanager
    def stage(self, what, total, unit):
        self.said.append(what)
        yield lambda done: None


@pytest.fixture
def counting(monkeypatch):
    monkeypatch.setitem(SYSTEMS, "counting", "tests.comparison_data:Counting")
    CALLS.clear()


def plan_of(*systems, **options):
    return make_plan([parse_system(text) for text in systems], **options)


def run(plan, work, folder):
    laboratory = Laboratory(plan, WorkFolder(work), Quiet())
    ready = laboratory.read(find_collection(str(folder)))
    return ready, laboratory.run(ready)


# ---- plans


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("bm25s", {"system": "bm25s"}),
        ("bm25s:k1=1.2:b=0.75", {"system": "bm25s", "k1": "1.2", "b": "0.75"}),
        ("coil=models/a", {"system": "coil", "model": "models/a"}),
        (r"coil=C:\models\a:by=tokens", {"system": "coil", "model": r"C:\models\a", "by": "tokens"}),
        ("coil=a:b/c:by=dense", {"system": "coil", "model": "a:b/c", "by": "dense"}),
        ("coil:name=x=y", {"system": "coil", "name": "x=y"}),
    ],
)
def test_systems_on_the_command_line(text, parts):
    assert parse_system(text) == parts


def test_default_systems_need_no_training():
    plan = make_plan([parse_system(text) for text in DEFAULT_SYSTEMS])
    assert [entry.label for entry in plan.shown] == [
        "BM25 (bm25s)",
        "BM25 (coil)",
        "dense",
        "COIL (by=tokens)",
        "COIL",
        "hybrid",
        "hybrid (fusion=rrf)",
        "BM25 (bm25s) + COIL",
    ]
    assert len(plan.entries) == len(plan.shown)  # the hybrids use the systems that are there
    assert plan.against == "BM25 (bm25s)"


def test_systems_that_others_work_on_are_added():
    plan = plan_of("hybrid=m", "coil:candidates=bm25s")
    assert plan.labels == ("hybrid [m]", "BM25 (bm25s) + COIL")
    assert [entry.label for entry in plan.entries] == [
        "BM25 (bm25s)",
        "dense [m]",
        "hybrid [m]",
        "BM25 (bm25s) + COIL",
    ]
    assert plan.entry("hybrid [m]").inputs == ("BM25 (bm25s)", "dense [m]")
    assert plan.entry("dense [m]").model == "m"


def test_labels_as_inputs_come_before_kinds():
    plan = plan_of("coil:candidates=mine:depth=7", "bm25s:name=mine:k1=2.0", "hybrid:of=mine+coil")
    assert plan.entry("mine + COIL").inputs == ("mine",)
    assert plan.entry("mine + COIL").depth == 7
    assert plan.entry("hybrid").inputs == ("mine", "COIL")  # a COIL that retrieves, not the one that reranks
    order = [entry.label for entry in plan.entries]
    assert order.index("mine") < order.index("mine + COIL")


@pytest.mark.parametrize(
    ("systems", "reason"),
    [
        (["bm25s", "bm25s"], "two systems have the label"),
        (["bm26"], "there is no system 'bm26'"),
        (["coil-full"], "requires a trained model"),
        (["coil-tok:training=x"], "no training is named 'x'"),
        (["bm25s:candidates=bm25"], "cannot rerank"),
        (["hybrid:candidates=bm25s"], "merges lists"),
        (["bm25s:of=a+b"], "does not merge"),
        (["coil:candidates=nothing"], "neither a label nor a system"),
        (["coil:name=a:candidates=b", "coil:name=b:candidates=a"], "depends on itself: a → b → a"),
        (["coil:candidates=a+b"], "'a\\+b', which is neither"),
        (["coil:candidates=bm25s:depth=0"], "depth is '0'"),
        (["coil:depth=10"], "depth applies only to rerankers"),
        (["coil:k1=2.0:k1=3.0"], "repeated in"),
        (["coil:by=none"], "must be one of"),
        ([], "no systems were given"),
    ],
)
def test_wrong_plans(systems, reason):
    with pytest.raises(CoilError, match=reason):
        plan_of(*systems)


def test_wrong_measures_and_references():
    with pytest.raises(OptionMismatch, match="label 'x'"):
        plan_of("bm25s", against="x")
    with pytest.raises(InputError, match="nDGC"):
        plan_of("bm25s", measures=["nDGC@10"])
    with pytest.raises(OptionMismatch, match="k is 0"):
        plan_of("bm25s", k=0)


# ---- configs

TOML = """
title = "Small"
measures = ["RR@10", "nDCG@10"]
against = "B"
k = 50

[[collection]]
source = "{data}/tiny"

[training.shared]
pairs = ["{data}/pairs.jsonl"]
base = "default"
preset = "paper"
mine = true
recipe = { steps = 7, queries = 4 }

[[system]]
name = "B"
system = "bm25s"
k1 = 1.2

[[system]]
name = "Full"
system = "coil-full"
training = "shared"
n_c = 6
"""


def test_configs_in_toml_and_json(tmp_path):
    write_beir(tmp_path / "tiny")
    (tmp_path / "a.toml").write_text(TOML)
    found = read_config(tmp_path / "a.toml", {"data": str(tmp_path)})
    assert [collection.name for collection in found.find_collections()] == ["tiny"]
    plan = found.plan()
    assert (plan.measures, plan.k, plan.against) == (("RR@10", "nDCG@10"), 50, "B")
    assert plan.entry("B").options == {"k1": 1.2}
    training = plan.trainings["shared"]
    assert (training.recipe.steps, training.recipe.queries, training.mine) == (7, 4, True)
    assert training.pairs == (f"{tmp_path}/pairs.jsonl",)
    as_json = {
        "title": "Small", "measures": ["RR@10", "nDCG@10"], "against": "B", "k": 50,
        "collection": [{"source": "{data}/tiny"}],
        "training": {"shared": {"pairs": ["{data}/pairs.jsonl"], "base": "default", "preset": "paper",
                                "mine": True, "recipe": {"steps": 7, "queries": 4}}},
        "system": [{"name": "B", "system": "bm25s", "k1": 1.2},
                   {"name": "Full", "system": "coil-full", "training": "shared", "n_c": 6}],
    }  # fmt: skip
    (tmp_path / "a.json").write_text("\ufeff" + json.dumps(as_json), encoding="utf-8")
    assert read_config(tmp_path / "a.json", {"data": str(tmp_path)}) == found


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("k = 50", "kk = 50"), "unknown keys: kk"),
        (("k = 50", "k = 0"), "k is 0"),
        (("{data}/tiny", "{other}/tiny"), r"\{other\}.*has no value"),
        (('source = "{data}/tiny"', 'split = "dev"'), "no source"),
        (('source = "{data}/tiny"', 'source = "x"\nkind = 1'), "unknown keys: kind"),
        (("steps = 7", "stepps = 7"), "unknown to this version: stepps"),
        (("steps = 7", 'steps = "7"'), "steps is '7'"),
        (('preset = "paper"', 'preset = "best"'), "the unknown preset 'best'"),
        (('base = "default"', ""), "requires pairs and a base"),
        (("mine = true", "mine = 1"), "mine is 1"),
        (("[[collection]]", "[[collection"), "is not valid"),
        (("[[system]]", "[system]"), "is not valid|expected tables"),
    ],
)
def test_broken_configs(tmp_path, change, reason):
    (tmp_path / "a.toml").write_text(TOML.replace(*change))
    with pytest.raises(CoilError, match=reason):
        read_config(tmp_path / "a.toml", {"data": str(tmp_path)})


def test_configs_that_are_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_config(tmp_path / "none.toml", {})
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(InputError, match="one object"):
        read_config(tmp_path / "list.json", {})


EXPERIMENTS = Path(__file__).parent.parent / "experiments"


@pytest.mark.parametrize("name", sorted(path.name for path in EXPERIMENTS.glob("*.toml")))
def test_the_configs_of_experiments_can_be_planned(name):
    given = dict.fromkeys(("base", "data", "doct5query", "lab"), "x") | {"device": "cpu", "weights": "int8"}
    plan = read_config(EXPERIMENTS / name, given).plan()
    assert plan.against in plan.labels
    for entry in plan.entries:
        if entry.training is not None:
            recipe = entry.make().recipe(plan.trainings[entry.training].recipe)
            assert recipe.steps or recipe.epochs or entry.training == "untrained"


def test_table_3_has_every_width():
    plan = read_config(EXPERIMENTS / "table3_dimensions.toml", {"base": "b"}).plan()
    shapes = {
        (recipe.n_c, recipe.n_t)
        for entry in plan.entries
        if entry.training is not None
        for recipe in [entry.make().recipe(plan.trainings[entry.training].recipe)]
    }
    assert shapes == {(768, 0), *((n_c, n_t) for n_c in (768, 128, 0) for n_t in (32, 8))}


# ---- the work folder


def stop_in(kept, error, goes_on=False):
    def attempt():
        with kept.making(goes_on) as (folder, _):
            (folder / "x").write_text("1")
            raise error

    with pytest.raises(error):
        attempt()


def test_what_is_made_is_there_when_it_is_complete(tmp_path):
    kept = WorkFolder(tmp_path).kept("indexes", {"a": 1})
    stop_in(kept, ValueError)
    assert not kept.is_complete
    with kept.making() as (folder, facts):
        assert list(folder.iterdir()) == []  # begun anew
        (folder / "y").write_text("123")
        facts["found"] = 7
    assert kept.is_complete
    assert kept.facts()["found"] == 7
    assert kept.bytes() == 3
    assert WorkFolder(tmp_path).kept("indexes", {"a": 1}).is_complete
    assert not WorkFolder(tmp_path).kept("indexes", {"a": 2}).is_complete


def test_what_goes_on_keeps_its_content_and_its_time(tmp_path):
    kept = WorkFolder(tmp_path).kept("models", {})
    stop_in(kept, KeyboardInterrupt, goes_on=True)
    (kept.unfinished / "seconds.json").write_text("100.0")
    with kept.making(goes_on=True) as (folder, _):
        assert (folder / "x").read_text() == "1"
    assert kept.facts()["seconds"] >= 100
    (kept.folder / "kept.json").write_text("{")
    with pytest.raises(OutputError, match="damaged"):
        kept.facts()


def test_one_comparison_at_a_time(tmp_path):
    work = WorkFolder(tmp_path / "work")
    with work.locked(), pytest.raises(OutputError, match="another comparison"), work.locked():
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be created"), WorkFolder(tmp_path / "file" / "x").locked():
        pass


def test_digests_see_every_byte_and_name(tmp_path):
    (tmp_path / "a").write_text("1")
    first = digest_of_folder(tmp_path)
    assert first == digest_of_folder(tmp_path)
    (tmp_path / "a").write_text("2")
    second = digest_of_folder(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    assert len({first, second, digest_of_folder(tmp_path)}) == 3
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})


# ---- running


def test_nothing_is_done_twice(tmp_path, counting):
    folder = write_beir(tmp_path / "tiny")
    _, [first] = run(plan_of("counting"), tmp_path / "work", folder)
    assert CALLS[0] == "index"
    assert CALLS[1:] == ["q1", *QRELS]  # one query more, to load models
    CALLS.clear()
    _, [second] = run(plan_of("counting"), tmp_path / "work", folder)
    assert CALLS == []
    assert second.answers == first.answers
    run(plan_of("counting:finds=2"), tmp_path / "work", folder)
    assert ["q1", *QRELS] == CALLS  # the options are not those of the index
    CALLS.clear()
    run(plan_of("counting", k=1), tmp_path / "work", folder)
    assert ["q1", *QRELS] == CALLS


def test_a_changed_collection_is_run_again(tmp_path, counting):
    folder = write_beir(tmp_path / "tiny")
    run(plan_of("counting"), tmp_path / "work", folder)
    with (folder / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "new", "text": "one more"}\n')
    CALLS.clear()
    ready, _ = run(plan_of("counting"), tmp_path / "work", folder)
    assert ready.documents == 9
    assert CALLS[0] == "index"
    lines = (folder / "queries.jsonl").read_text().replace("river bank", "river banks")
    (folder / "queries.jsonl").write_text(lines)
    CALLS.clear()
    run(plan_of("counting"), tmp_path / "work", folder)
    assert ["q1", *QRELS] == CALLS  # other queries, the same index


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path, counting):
    folder, plan = write_beir(tmp_path / "tiny"), plan_of("counting:stop_at=q3")
    with pytest.raises(KeyboardInterrupt):
        run(plan, tmp_path / "work", folder)
    assert CALLS == ["index", "q1", "q1", "q2"]
    [answers] = (tmp_path / "work" / "runs").glob("*.unfinished/content/answers.jsonl")
    with answers.open("a") as file:
        file.write('{"query_id": "q3", "doc_')  # as a kill leaves it
    CALLS[:] = ["go on"]
    _, [found] = run(plan, tmp_path / "work", folder)
    assert CALLS == ["go on", "q3", "q3", "q4", "q5"]
    assert [answer.query_id for answer in found.answers] == list(QRELS)


@pytest.mark.parametrize("lie", ["query", "lengths", "twice", "nan", "rising", "timeless"])
def test_a_system_that_breaks_the_rules_gets_no_figure(tmp_path, counting, lie):
    folder = write_beir(tmp_path / "tiny")
    with pytest.raises(CoilError, match="the system 'liar'"):
        run(plan_of(f"counting:name=liar:lie={lie}"), tmp_path / "work", folder)
    assert not list((tmp_path / "work" / "runs").glob("*/kept.json"))


def test_rerankers_get_the_candidates_of_another_system(tmp_path, counting):
    folder = write_beir(tmp_path / "tiny")
    plan = plan_of("counting", "counting:name=again:candidates=counting:depth=2")
    _, [first, again] = run(plan, tmp_path / "work", folder)
    assert CALLS.count("index") == 1
    for before, after in zip(first.answers, again.answers, strict=True):
        assert sorted(after.doc_ids) == sorted(before.doc_ids[:2])
        assert after.parts_ms == {"search": 1.0, "rerank": 2.0}
    assert again.index_bytes == first.index_bytes  # it needs that of the candidates


def test_judgements_that_cannot_be_used_are_told(tmp_path, counting):
    folder = write_beir(tmp_path / "a", {**QRELS, "q1": {"d1": 1, "gone": 1}, "q5": {"d6": 0}})
    ready, _ = run(plan_of("counting"), tmp_path / "work", folder)
    assert ready.notes == (
        "1 judged document not in the collection: no system can find it",
        "1 judged query without a relevant document: 0 for every system",
    )
    other = write_beir(tmp_path / "b", {"q1": {"D1": 1}})
    with pytest.raises(InputError, match="none of the 1 judged document is in the collection"):
        run(plan_of("counting"), tmp_path / "work", other)
    unknown = write_beir(tmp_path / "c", {"q1": {"d1": 1}, "q99": {"d1": 1}})
    with pytest.raises(InputError, match=r"1 query judged in .* is not in"):
        run(plan_of("counting"), tmp_path / "work", unknown)


def test_two_documents_with_one_id(tmp_path, counting):
    folder = write_beir(tmp_path / "tiny")
    with (folder / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "d1", "text": "again"}\n')
    with pytest.raises(InputError, match="duplicate id 'd1'"):
        run(plan_of("counting"), tmp_path / "work", folder)


def test_trained_systems_share_a_model_and_are_trained_once(tmp_path, base, pairs, monkeypatch):
    folder = write_beir(tmp_path / "tiny")
    (tmp_path / "c.toml").write_text(
        f"""
[training.t]
pairs = {json.dumps([str(path) for path in pairs])}
base = "{base}"
mine = true
device = "cpu"
[training.t.recipe]
queries = 4
hard_negatives = 2
steps = 3
lr = 1e-3
query_length = 16
document_length = 48
validation_queries = 4
validation_passages = 16
checkpoint_every = 1
[[system]]
system = "coil-full"
name = "full"
training = "t"
n_t = 4
n_c = 6
[[system]]
system = "coil-full"
name = "tokens of full"
training = "t"
n_t = 4
n_c = 6
by = "tokens"
""".replace("steps = 3, lr", "steps = 3,lr").replace(",\n           ", ", ")
    )
    plan = read_config(tmp_path / "c.toml", {}).plan()
    laboratory = Laboratory(plan, WorkFolder(tmp_path / "work"), progress := Quiet())
    laboratory.train()
    assert progress.said.count("training full (3 steps)") == 1
    assert not any("tokens of full" in line for line in progress.said)
    assert len(list((tmp_path / "work" / "models").iterdir())) == 1
    _, runs = run(plan, tmp_path / "work", folder)
    assert all(found.training["steps"] == 3 and found.training["seconds"] > 0 for found in runs)
    assert len(list((tmp_path / "work" / "indexes").iterdir())) == 1
    assert len(list((tmp_path / "work" / "models").iterdir())) == 1


def test_pairs_are_made_from_the_judgements_of_a_collection(tmp_path):
    from coil.comparison.plan import Training
    from coil.comparison.training import Trainer

    folder = write_beir(tmp_path / "tiny")
    (folder / "qrels" / "test.tsv").rename(folder / "qrels" / "train.tsv")
    trainer = Trainer(WorkFolder(tmp_path / "work"), Quiet())
    data = trainer._data(Training("t", (str(folder),), "default"))
    [path] = data.pairs
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert {"query": "river bank", "positive": "Deep water flows slowly in this river."} in found
    assert len(found) == 7  # d2 is judged 0 for q1
    with pytest.raises(InputError, match="pairs file not found"):
        trainer._data(Training("t", (str(tmp_path / "none.jsonl"),), "default"))


# ---- figures


def test_outcomes(tmp_path, counting):
    folder = write_beir(tmp_path / "tiny")
    plan = plan_of("counting", "counting:finds=8:name=deep", measures=["RR@10", "R@5"])
    ready, runs = run(plan, tmp_path / "work", folder)
    outcome = judge(ready, runs, plan)
    first, deep = outcome.systems
    # d1 d2 d3 for every query: q1 at 1, q2 at 2, q3 at 3
    assert first.evaluation.means["RR@10"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 5)
    assert first.differences == {}
    found = deep.differences["RR@10"]
    assert (found.wins, found.ties, found.losses) == (2, 3, 0)
    assert found.difference == pytest.approx((1 / 5 + 1 / 6) / 5)
    assert found.t_test_holm == found.t_test_p  # one test alone
    assert deep.latency.median == deep.latency.p95 == 1.0
    values = outcome.to_json()
    assert values["systems"][1]["against"]["RR@10"]["wins"] == 2
    assert values["collection"]["queries"] == 5
    json.dumps(values)
    assert outcome.per_query()[1]["measures"]["RR@10"] == {"counting": 0.5, "deep": 0.5}
    assert "| deep | retrieval | **.440** |" in as_markdown(outcome)


def test_holm():
    assert holm([]) == []
    assert holm([0.04]) == [0.04]
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])  # the textbook's steps
    assert holm([0.5, 0.9, 0.01]) == pytest.approx([1.0, 1.0, 0.03])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_keeps_the_order_and_is_between_no_correction_and_bonferroni(values):
    found = holm(values)
    for before, after in zip(values, found, strict=True):
        assert before <= after <= min(1.0, before * len(values)) or after == pytest.approx(before)
        assert all(after <= other for p, other in zip(values, found, strict=True) if p > before)


def test_figures_for_people():
    assert [show(v) for v in (0.4153, 1.0, 0.0)] == [".415", "1.000", ".000"]
    assert [show_change(v) for v in (0.0123, -0.5, 0.0, 1e-9)] == ["+.0123", "−.5000", ".0000", ".0000"]
    assert [show_p(v) for v in (0.0001, 0.04, 1.0)] == ["<.001", ".040", "1.000"]
    assert [show_ms(v) for v in (0.123, 12.34, 1234.5)] == ["0.12", "12.3", "1,234"]
    assert [show_bytes(v) for v in (10, 2e3, 3.14e6, 5e9)] == ["10 B", "2.0 kB", "3.1 MB", "5.0 GB"]
    assert [show_seconds(v) for v in (1.0, 130.0, 7300.0)] == ["1.0 s", "2.2 min", "2.0 h"]


def test_names_of_files():
    assert file_names(["BM25 (bm25s)", "bm25-bm25s", "/", "ü"]) == [
        "bm25-bm25s",
        "bm25-bm25s-2",
        "system",
        "system-2",
    ]
