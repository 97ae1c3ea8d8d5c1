"""A chain that retrieves passages and builds a prompt. Requires: pip install 'coil-ir[langchain]'"""

import tempfile
from pathlib import Path

from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

import coil
from coil.adapters.langchain import CoilRetriever

NOTES = [
    {
        "id": "river",
        "text": "The bank of the river was steep, and kingfishers nested in it.",
        "source": "birds.md",
    },
    {"id": "money", "text": "The bank raised its interest rates in March.", "source": "news.md"},
    {
        "id": "otter",
        "text": "Otters live in holes beside a stream and sleep there by day.",
        "source": "otters.md",
    },
]


def show(documents: list[Document]) -> str:
    """Format passages for the prompt, each with its source."""
    return "\n".join(f"[{document.metadata['source']}] {document.page_content}" for document in documents)


with tempfile.TemporaryDirectory() as folder, coil.create(Path(folder) / "notes.coil") as index:
    index.add(NOTES)
    retriever = CoilRetriever(index, k=2)

    prompt = ChatPromptTemplate.from_template(
        "Answer from these notes alone.\n\n{notes}\n\nQuestion: {question}"
    )
    chain = {"notes": retriever | show, "question": RunnablePassthrough()} | prompt  # | your chat model
    print(chain.invoke("Where do kingfishers nest?").to_string())

    print("\nWhy the first note was retrieved:")
    [first] = CoilRetriever(index, k=1, explain=True).invoke("Where do kingfishers nest?")
    for match in first.metadata["explanation"]["matches"]:
        print(f"  {match['query_token']} adds {match['contribution']:.2f}")
