"""Export an index with n_t = 1 to Anserini's JSON vectors, and compute scores from the file.

python anserini_vectors.py MODEL

MODEL is a COIL-tok model with token vectors of width 1 and the paper's profile, trained with
`coil train --preset paper --n-t 1 --n-c 0`.
"""

import sys
import tempfile
from pathlib import Path

import coil
from coil.adapters.anserini import SCALE, quantise, query_weights, read_vectors, write_vectors

with (
    tempfile.TemporaryDirectory() as folder,
    coil.create(Path(folder) / "a.coil", model=sys.argv[1]) as index,
):
    index.add(
        [
            {"id": "1", "text": "the bank of the river was steep"},
            {"id": "2", "text": "the bank raised its interest rates"},
        ]
    )
    path = Path(folder) / "vectors.jsonl"
    print(f"{write_vectors(index, path)} texts")

    [encoded] = index.encoder.encode_queries(["river bank"])
    asked = quantise(query_weights(encoded), SCALE)
    for text in read_vectors(path):
        product = sum(weight * text.weights.get(term, 0) for term, weight in asked.items())
        print(text.text_id, text.weights, f"score {product / SCALE**2:.2f}")
    for hit in index.search("river bank", by="tokens"):
        print(f"coil search says {hit.doc_id} {hit.score:.2f}")
