"""COIL, BM25 and a reranked BM25 in one experiment. Requires: pip install 'coil-ir[pyterrier]', no Java"""

import tempfile
from pathlib import Path

import pandas as pd
import pyterrier as pt

import coil
from coil.adapters.pyterrier import CoilReranker, CoilRetriever

NOTES = [
    {"docno": "river", "text": "The bank of the river was steep, and kingfishers nested in it."},
    {"docno": "money", "text": "The bank raised its interest rates, and savers were glad of the rise."},
    {"docno": "flood", "text": "After the storm the river left its bed and the bridge was closed."},
    {"docno": "otter", "text": "Otters live in holes beside a stream and sleep there by day."},
]
TOPICS = pd.DataFrame({"qid": ["1", "2"], "query": ["steep bank of a river", "how much do banks pay savers"]})
QRELS = pd.DataFrame({"qid": ["1", "2"], "docno": ["river", "money"], "label": [1, 1]})

with tempfile.TemporaryDirectory() as folder, coil.create(Path(folder) / "notes.coil") as index:
    index.add(NOTES)  # or dataset.get_corpus_iter()
    bm25 = CoilRetriever(index, by="bm25")
    table = pt.Experiment(
        [bm25, bm25 % 100 >> CoilReranker(index), CoilRetriever(index)],
        TOPICS,
        QRELS,
        eval_metrics=["ndcg_cut_10", "recip_rank"],
        names=["BM25", "BM25 >> COIL", "COIL"],
    )
    print(table.to_string(index=False))
