"""Import and search a checkpoint of the authors' COIL. Requires: pip install 'coil-ir[train]'

python authors_checkpoint.py CHECKPOINT [TOKENIZER] [DOCUMENT_LENGTH]

CHECKPOINT is a folder such as the authors' hn-checkpoint, with config.json, pytorch_model.bin and model.pt;
TOKENIZER is the folder of its base model (bert-base-uncased), if the checkpoint has no tokenizer.
"""

import sys
import tempfile
from pathlib import Path

import coil
from coil.adapters.authors_checkpoint import DOCUMENT_LENGTH, import_checkpoint
from coil.vectors.export import export_model

checkpoint, tokenizer, length, *_ = [*sys.argv[1:], "", "", ""]
with tempfile.TemporaryDirectory() as folder:
    model = Path(folder) / "model"
    config = import_checkpoint(
        checkpoint,
        model,
        tokenizer=Path(tokenizer) if tokenizer else None,
        document_length=int(length or DOCUMENT_LENGTH),
    )
    print(f"{config.kind}: token vectors {config.n_t} wide, sentence vector {config.n_c} wide")
    export_model(model)  # creates the ONNX files required for searching

    with coil.create(Path(folder) / "notes.coil", model=model) as index:
        index.add(
            [
                {"id": "1", "text": "the bank of the river was steep"},
                {"id": "2", "text": "the bank raised its interest rates"},
            ]
        )
        for hit in index.search("river bank"):
            print(hit.rank, hit.doc_id, f"{hit.score:.2f}", hit.text)
