"""A query engine over an index. Requires: pip install 'coil-ir[llama-index]'"""

import tempfile
from pathlib import Path

from llama_index.core import get_response_synthesizer
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine

import coil
from coil.adapters.llama_index import CoilRetriever

NOTES = [
    {"id": "river", "text": "The bank of the river was steep, and kingfishers nested in it.", "year": 2021},
    {"id": "money", "text": "The bank raised its interest rates in March.", "year": 2023},
    {"id": "otter", "text": "Otters live in holes beside a stream and sleep there by day.", "year": 2024},
]

with tempfile.TemporaryDirectory() as folder, coil.create(Path(folder) / "notes.coil") as index:
    index.add(NOTES)
    retriever = CoilRetriever(index, k=2, filter="year < 2024")
    for found in retriever.retrieve("Where do kingfishers nest?"):
        print(f"{found.score:.2f} {found.node.node_id}: {found.node.get_content()}")

    # MockLLM echoes its prompt; replace it with a real language model.
    engine = RetrieverQueryEngine(retriever, get_response_synthesizer(llm=MockLLM()))
    answer = engine.query("Where do kingfishers nest?")
    print("sources:", [source.node.node_id for source in answer.source_nodes])
