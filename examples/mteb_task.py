"""An MTEB retrieval task with local texts. Requires: pip install 'coil-ir[mteb]'

For a built-in task, call `mteb.evaluate(CoilSearch(), mteb.get_task("SciFact"))`; MTEB downloads it.
"""

from typing import Any

import mteb
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata

from coil.adapters.mteb import CoilSearch


class Notes(AbsTaskRetrieval):
    """Three texts and two queries."""

    metadata = TaskMetadata(
        name="Notes",
        description="Three notes.",
        dataset={"path": "local", "revision": "1"},
        type="Retrieval",
        category="t2t",
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
        reference=None,
        date=None,
        domains=None,
        task_subtypes=None,
        license=None,
        annotations_creators=None,
        dialect=None,
        sample_creation=None,
        bibtex_citation=None,
    )

    def load_data(self, **_: Any) -> None:
        """Provide the texts, instead of downloading them."""
        corpus = [
            {"id": "river", "title": "Birds", "text": "Kingfishers nested in the steep bank of the river."},
            {"id": "money", "title": "News", "text": "The bank raised its interest rates in March."},
            {"id": "otter", "title": "Otters", "text": "They live in holes beside a stream."},
        ]
        queries = [{"id": "1", "text": "steep river banks"}, {"id": "2", "text": "cost of a loan"}]
        self.dataset = {
            "default": {
                "test": {
                    "corpus": Dataset.from_list(corpus),
                    "queries": Dataset.from_list(queries),
                    "relevant_docs": {"1": {"river": 1}, "2": {"money": 1}},
                    "top_ranked": None,
                }
            }
        }
        self.data_loaded = True


model = CoilSearch()
results = mteb.evaluate(model, Notes(), cache=None, co2_tracker=False, show_progress_bar=False)
model.close()
[scores] = results.task_results[0].scores["test"]
print(f"{results.model_name}: nDCG@10 {scores['ndcg_at_10']:.3f}, MRR@10 {scores['mrr_at_10']:.3f}")
