"""A pipeline that retrieves passages and builds a prompt. Requires: pip install 'coil-ir[haystack]'"""

import tempfile
from pathlib import Path

from haystack import Pipeline
from haystack.components.builders import PromptBuilder

import coil
from coil.adapters.haystack import CoilRetriever

NOTES = [
    {"id": "river", "text": "The bank of the river was steep, and kingfishers nested in it.", "year": 2021},
    {"id": "money", "text": "The bank raised its interest rates in March.", "year": 2023},
    {"id": "otter", "text": "Otters live in holes beside a stream and sleep there by day.", "year": 2024},
]
TEMPLATE = """Answer from these notes alone.
{% for document in documents %}[{{ document.id }}] {{ document.content }}
{% endfor %}
Question: {{ question }}"""

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "notes.coil"
    with coil.create(path) as index:
        index.add(NOTES)

    pipeline = Pipeline()
    pipeline.add_component("retriever", CoilRetriever(str(path), k=2))
    pipeline.add_component("prompt", PromptBuilder(TEMPLATE, required_variables=["documents", "question"]))
    pipeline.connect("retriever.documents", "prompt.documents")

    question = "Where do kingfishers nest?"
    asked = {"retriever": {"query": question}, "prompt": {"question": question}}
    print(pipeline.run(asked)["prompt"]["prompt"])

    # A saved pipeline contains the path of the index. Haystack loads only components of allowed modules.
    loaded = Pipeline.loads(pipeline.dumps(), allowed_modules=["coil.adapters.haystack"])
    asked["retriever"]["filter"] = "year > 2022"
    print(loaded.run(asked)["prompt"]["prompt"])
