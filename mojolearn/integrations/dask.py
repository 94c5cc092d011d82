"""A corpus over a cluster of Dask (the extra ``dask``): bags of texts in, bags of records out.

Every worker process loads the model once, from its place; what travels is texts and records. Records do not depend on
workers, partitions or restarts: `digest` of them is that of one process.
"""

from mojolearn.integrations.corpus import ERRORS, check_generation, generate_texts, score_texts
from mojolearn.integrations.model_at import ModelAt, admit_model
from mojolearn.integrations.records import digest
from mojolearn.scalars import admit_choice, admit_integer, kind

try:
    from dask.bag import Bag
    from distributed import Client, as_completed
except ImportError as error:
    raise ImportError(
        "mojolearn.integrations.dask: the packages dask and distributed are not installed; "
        '`pip install "dask[distributed]"` does it'
    ) from error

__all__ = ["ModelAt", "digest", "gather", "generate_bag", "score_bag"]


def score_bag(bag, model, *, errors="raise"):
    """Score the texts of a bag.

    Parameters
    ----------
    bag : dask.bag.Bag
        Of texts, or of their token ids. Each partition is one task.
    model : path or ModelAt
        A folder or GGUF file that every worker finds under this name. `ModelAt` has threads (one by default) and a
        fingerprint that is compared on every worker.
    errors : {"raise", "keep"}
        As for `mojolearn.integrations.corpus.score_texts`.

    Returns
    -------
    dask.bag.Bag
        Of `Score`, in the order of the texts. Nothing is computed yet: `gather` does, and so do Dask's own ways.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit; what a worker finds is raised where the bag is computed.

    Examples
    --------
    >>> import dask.bag
    >>> from mojolearn.models import BUILT_IN
    >>> bag = dask.bag.from_sequence(["Emma was the first.", "First the was Emma."], npartitions=2)
    >>> [score.count for score in score_bag(bag, BUILT_IN).compute(scheduler="synchronous")]
    [5, 7]
    """
    caller = "score_bag"
    _admit_bag(bag, caller)
    admit_choice(errors, "errors", caller, ERRORS)
    return bag.map_partitions(score_texts, _place(model, caller), errors=errors)


def generate_bag(bag, model, max_new_tokens, *, batch_size=8, errors="raise", **options):
    """Continue the texts of a bag.

    Parameters
    ----------
    bag : dask.bag.Bag
        Of prompts: texts, token ids, or `mojolearn.integrations.corpus.Prompt` with seeds of their own.
    model : path or ModelAt
        As for `score_bag`.
    max_new_tokens : int
        At most so many tokens for each.
    batch_size : int, default 8
        How many of a partition run together; no token depends on it.
    errors, **options
        As for `mojolearn.integrations.corpus.generate_texts`. With ``greedy=False`` a ``seed`` must be given.

    Returns
    -------
    dask.bag.Bag
        Of `Continuation`, in the order of the prompts.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit; what a worker finds is raised where the bag is computed.

    Examples
    --------
    >>> import dask.bag
    >>> from mojolearn.models import BUILT_IN
    >>> bag = dask.bag.from_sequence(["Emma was", "Anne had"], npartitions=2)
    >>> [found.text for found in generate_bag(bag, BUILT_IN, 3).compute(scheduler="synchronous")]
    [' the first time', ' been the first']
    """
    caller = "generate_bag"
    _admit_bag(bag, caller)
    check_generation(max_new_tokens, batch_size, errors, options, caller)
    return bag.map_partitions(
        generate_texts,
        _place(model, caller),
        max_new_tokens,
        batch_size=batch_size,
        errors=errors,
        **options,
    )


def gather(bag, client, *, retries=2, progress=None, workers=None):
    """Compute a bag on a cluster, and fetch each partition as soon as it is there.

    A worker that is lost takes what it was computing with it, and nothing that was fetched before: the scheduler has
    its partitions computed elsewhere, with the same bits.

    Parameters
    ----------
    bag : dask.bag.Bag
        Such as from `score_bag`.
    client : distributed.Client
        Of the cluster.
    retries : int, default 2
        How often a partition is tried again that ended in an error, such as a file that could not be read. (How often
        after a lost worker, the setting ``distributed.scheduler.allowed-failures`` says.)
    progress : callable, optional
        ``progress(done, total)`` is called after each partition, with their numbers.

    workers : list of str, optional
        Names or addresses of the workers that may compute it; None means all.

    Returns
    -------
    list
        What the bag holds, in order.

    Raises
    ------
    Exception
        That of the first partition which failed for good, with the place of the text in it; the others are cancelled.
        ``distributed.KilledWorker`` where one has cost too many workers.

    Examples
    --------
    ``scores = gather(score_bag(bag, "/models/smollm2"), Client("tcp://scheduler:8786"))``
    """
    _admit_bag(bag, "gather")
    if not isinstance(client, Client):
        raise TypeError(f"gather: client must be a distributed.Client, not {kind(client)}")
    if client.asynchronous:
        raise ValueError("gather: client must not be asynchronous")
    admit_integer(retries, "retries", "gather", 0)
    if progress is not None and not callable(progress):
        raise TypeError(f"gather: progress must be callable, not {kind(progress)}")
    futures = client.compute(bag.to_delayed(), retries=retries, workers=workers)
    places, found = {future.key: place for place, future in enumerate(futures)}, {}
    try:
        for future, records in as_completed(futures, with_results=True):
            found[places[future.key]] = list(records)
            future.release()  # fetched: the worker need not keep it
            if progress is not None:
                progress(len(found), len(futures))
    finally:
        left = [future for future in futures if places[future.key] not in found]
        if left:
            client.cancel(left)
    return [record for place in range(len(futures)) for record in found[place]]


def _admit_bag(bag, caller):
    if not isinstance(bag, Bag):
        raise TypeError(f"{caller}: bag must be a dask.bag.Bag, not {kind(bag)}; see dask.bag.from_sequence")


def _place(model, caller):
    model = admit_model(model, caller)
    if not isinstance(model, ModelAt):
        raise TypeError(
            f"{caller}: model must be a path or a ModelAt, which each worker loads for itself, not a CausalLM"
        )
    return model
