"""Building a sharded index on a Ray cluster: Ray Data reads and encodes, an actor for each shard writes.

A commit has three steps: the manifest of the whole says how far the corpus was read, then every shard commits
what it received, then the next windows may be sent. Whatever dies in between, the shards know what they have.
So every failure has the same remedy: start again from what is committed.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any

from coil.cluster.build_state import BEAT_SECONDS, BuildState
from coil.cluster.encoding import EncoderRecipe, OneCoreActor, WindowActor, encoder_on
from coil.cluster.writing import ShardWriter, Taken, writer_options
from coil.errors import ChangedCorpus, InputError, OutputError, RemoteProblem, UnfinishedBuild, how_many
from coil.indexes.model import load_encoder
from coil.lists.precision import Precision
from coil.lists.rows import Long
from coil.shards.exchange import Refusal
from coil.shards.opening import create_shards
from coil.shards.places import Place, read_whole, write_whole
from coil.shards.whole import WHOLE_FILE, ShardEntry, WholeManifest
from coil.shards.windows import CorpusFiles, Reached
from coil.storage.intake import OnDuplicate
from coil.texts.columns import USUAL, Columns
from coil.vectors.encoder import Encoder

_AHEAD = 4  # blocks that a writer may lag behind
_FIRST_COMMIT_SECONDS = 1.0  # of encoding; later commits are further apart
_FAILURES = 10  # consecutive, without a commit in between
_PAUSE_SECONDS = 1.0  # after a failure: Ray notices what has died


@dataclass(frozen=True)
class Workers:
    """The actors that encode: from `least` to `most`; None means one per core of the cluster."""

    least: int = 1
    most: int | None = None
    gpus: float = 0.0  # of each actor
    window: int | None = None  # documents that travel together


@dataclass
class BuildReport:
    """What a build reports to whoever shows its progress."""

    added: Callable[[int, int], object]  # documents, and bytes of the corpus read so far
    say: Callable[[str], object]
    empty: list[str]


def start_build(
    place: Place,
    count: int | None,
    model: str | None = None,
    precision: Precision | None = None,
    long: Long | None = None,
    on_duplicate: OnDuplicate | None = None,
    resume: bool = False,
    columns: Columns = USUAL,
    encoder: Encoder | None = None,
    gpus: float = 0.0,
) -> tuple[WholeManifest, BuildState]:
    """A new sharded index, or with `resume` the one whose build was interrupted. The place must be held."""
    if WHOLE_FILE not in place.names():
        state = BuildState(on_duplicate or "error", columns)
        if encoder is None:
            encoder = encoder_on("cpu", model) if gpus else load_encoder(model)
        build = state.to_json()
        manifest = create_shards(
            place, count or 1, model, precision or "int8", long or "chunk", encoder, build
        )
        return manifest, state
    manifest = read_whole(place)
    if manifest.build is None:
        remedy = "choose another name" if not resume else "there is nothing to resume"
        raise OutputError(f"{place.where} already exists and is finished", remedy)
    state = BuildState.from_json(manifest.build, place.where)
    if not place.has_locks:
        state.check_free(place.where)
    if not resume:
        raise UnfinishedBuild(
            f"{place.where} contains an unfinished build "
            f"({how_many(state.reached.documents, 'document')} read so far)",
            "continue it with --resume, or remove it to start over",
        )
    given = {"precision": precision, "long": long, "model": model, "shards": count}
    begun = {**manifest.settings, "shards": len(manifest.shards)}
    return manifest, state.resumed(begun, given, on_duplicate, columns, place.where)


class ClusterBuild:
    """A running build. The process must have joined a cluster."""

    def __init__(
        self,
        ray: Any,
        place: Place,
        manifest: WholeManifest,
        state: BuildState,
        corpus: CorpusFiles,
        workers: Workers,
        report: BuildReport,
        encoder: Callable[[], Encoder] | None = None,
    ) -> None:
        self._ray, self._place, self._manifest, self._state = ray, place, manifest, state
        self._corpus, self._workers, self._report = corpus, workers, report
        self._recipe = EncoderRecipe(manifest, encoder, "cuda" if workers.gpus else None)
        self._owner = uuid.uuid4().hex
        self._writers: list[Any] = []
        self._lives: list[str] = []
        self._reached = state.reached  # including everything that the writers received
        self._committed_at = 0.0
        self._interval = _FIRST_COMMIT_SECONDS  # until the next one

    def run(self) -> WholeManifest:
        """Build until every document is in its shard; returns the manifest of the finished index.

        What dies is replaced, and the build continues from what is committed. Ten failures without a commit
        in between are a RemoteProblem; what was committed is kept then, as it is after any other error.
        """
        self._save(self._reached)
        make = self._ray.remote(**writer_options())(ShardWriter).remote
        numbers = range(len(self._manifest.shards))
        mode = self._state.on_duplicate
        self._writers = [make(self._place, self._manifest, number, mode) for number in numbers]
        try:
            return self._finish(self._persist())
        except BaseException:
            with suppress(Exception):
                self._let_go()
            raise
        finally:
            for writer in self._writers:
                self._ray.kill(writer)

    def _persist(self) -> list[ShardEntry]:
        from ray.exceptions import RayError

        failures = 0
        while True:
            before = self._state.reached
            try:
                return self._attempt()
            except (_Interrupted, RayError) as error:
                failures = failures + 1 if self._state.reached == before else 1
                reason = str(error).strip().partition("\n")[0] or type(error).__name__
                if failures == _FAILURES:
                    raise RemoteProblem(
                        f"the build failed {failures} times without progress, the last time with: {reason}",
                        "check the nodes of the cluster, then continue with --resume",
                    ) from error
                self._report.say(f"a worker was lost ({reason:.200}); continuing with what is committed")
                time.sleep(_PAUSE_SECONDS)

    def _attempt(self) -> list[ShardEntry]:
        """Build everything that is not committed yet."""
        started = self._each("start")
        self._lives = [one.life for one in started]
        next_ordinals = [one.next_ordinal for one in started]
        self._committed_at = time.monotonic()
        waiting: deque[tuple[Any, list[Any]]] = deque()
        with closing(self._encoded(next_ordinals)) as blocks:
            for block in blocks:
                takes = [
                    writer.take.remote(life, block)
                    for writer, life in zip(self._writers, self._lives, strict=True)
                ]
                waiting.append((block, takes))  # a block is kept until every writer has it
                if len(waiting) > _AHEAD:
                    self._settle(waiting.popleft()[1])
            while waiting:
                self._settle(waiting.popleft()[1])
        self._save(self._reached)
        return self._each("finish")

    def _settle(self, takes: list[Any]) -> None:
        """Wait until every writer has received a block, and commit from time to time."""
        found: list[Taken] = self._answers(takes)
        one = found[0]
        refused = one.refusal.error() if one.refusal is not None else None
        if isinstance(refused, ChangedCorpus):  # nothing of it may be committed
            raise refused
        self._reached = one.reached
        self._report.added(sum(taken.documents for taken in found), one.reached.position)
        for taken in found:
            self._report.empty += taken.empty
        late = time.monotonic() - self._committed_at > self._interval
        # Until it is as far as an interrupted run had read, the corpus may turn out to have changed.
        known = self._reached.documents >= self._state.reached.documents
        if known and (late or refused is not None or any(taken.is_full for taken in found)):
            self._save(self._reached)
            self._each("commit")
            self._committed_at = time.monotonic()
            self._interval = min(2 * self._interval, BEAT_SECONDS)
        if refused is not None:
            raise refused

    def _each(self, method: str) -> list[Any]:
        """Ask all writers at once."""
        if method == "start":
            return self._answers([writer.start.remote() for writer in self._writers])
        lives = zip(self._writers, self._lives, strict=True)
        return self._answers([getattr(writer, method).remote(life) for writer, life in lives])

    def _answers(self, references: list[Any]) -> list[Any]:
        """The answers of all writers; an error of one is raised after the others have answered."""
        self._ray.wait(references, num_returns=len(references), fetch_local=False)
        found: list[Any] = self._ray.get(references)
        for number, one in enumerate(found):
            if isinstance(one, Refusal):
                error = one.error()
                error.reason = f"shard {number} of {len(found)}: {error.reason}"
                raise error
            if one is None or one is False:
                raise _Interrupted(f"the writer of shard {number} was restarted")
        return found

    def _encoded(self, next_ordinals: Sequence[int]) -> Generator[Any]:
        """Blocks of encoded windows, in the order of the corpus; if closed early, Ray stops encoding."""
        import ray.data

        from coil.cluster.reading import Unread, WindowSource

        logging.getLogger("ray.data").setLevel(logging.ERROR)  # which importing it has changed
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        context.target_max_block_size = 1  # a window is a block of its own, whatever its size
        context.max_errored_blocks = 0
        most = self._workers.most or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        least = min(self._workers.least, most)
        unread = Unread(self._corpus, next_ordinals, self._state.reached, self._workers.window)
        # Where the build was started the corpus can be read, as was checked. Reading must not wait for a free
        # core: the actors may have them all.
        here = {"ray.io/node-id": self._ray.get_runtime_context().get_node_id()}
        windows = ray.data.read_datasource(
            WindowSource(unread), override_num_blocks=1, num_cpus=0, label_selector=here
        )
        encoded = windows.map_batches(
            WindowActor if self._workers.gpus else OneCoreActor,
            fn_constructor_args=(self._recipe,),
            batch_size=None,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(min_size=least, max_size=most),
            num_cpus=1,
            num_gpus=self._workers.gpus or None,
        )
        for bundle in encoded.iter_internal_ref_bundles():
            yield from bundle.block_refs

    def _save(self, reached: Reached) -> None:
        """Record how far the corpus was read, before any of it is committed; also a sign of life."""
        self._state = self._state.beating(self._owner, reached)
        self._write(self._state)

    def _let_go(self) -> None:
        """Record that nobody is building any more; the build can be resumed at once."""
        self._write(self._state.let_go())

    def _write(self, state: BuildState) -> None:
        write_whole(self._place, replace(self._manifest, build=state.to_json()))

    def _finish(self, shards: Sequence[ShardEntry]) -> WholeManifest:
        if not any(entry.documents for entry in shards):
            what = f"only {how_many(self._reached.documents, 'document')} without text"
            what = what if self._reached.documents else "no documents"
            raise InputError(
                f"{' '.join(self._corpus.paths)} contains {what}", "check the path and the format"
            )
        manifest = self._manifest.with_shards(shards, build=None)
        write_whole(self._place, manifest)
        return manifest


class _Interrupted(Exception):
    """Something died, and its work must be redone."""
