"""Files that a worker reads besides its job, looked for before anything is started."""

from __future__ import annotations

from taihu.core.base.errors import ConfigError, ModelError
from taihu.core.job import Job
from taihu.core.job.settled import check_without_script
from taihu.core.model.losses import find_loss
from taihu.core.model.model_defaults import MODEL_DEFAULTS, check_model_fits, takes_features
from taihu.core.model.names import MODEL_NAMES, TEXT_DATA, TOKENS, built_in_data, net_file, own_data, own_model
from taihu.worker.data.base.sources import check_batch, check_sources, folder_kind
from taihu.worker.data.counting import count_training_samples


def check_inputs(job: Job) -> None:
    """Check that the files of the job's model and data set are on this machine; none of them is loaded.

    The known facts of the data are checked too. Where headers and listings tell the number of samples, there must be
    enough for a step; the loss and the model must fit data sets of taihu's own.

    Raises:
        ConfigError: the loss does not suit the data set, or nobody would update the model.
        ModelError: the file of the user's own model, or the model to begin with, does not exist, the data are a table
            or text and the model takes something else, or `data.resize` is less than it takes.
        DataError: the data set has fewer samples than a step needs, its files are missing, or scikit-learn, which has
            the digits.
    """
    check_trains(job)
    for file_of in (own_model, net_file):
        file_of(job.model.name)
    begin = job.model.init_from
    if begin is not None and not begin.is_file():
        raise ModelError(f"model.init_from {begin}: not found; give the file that `taihu train --save` wrote")
    check_sources(job.data.name, job.data.path)
    kind = _kind(job.data.name)
    _check_text(job, is_text=kind == "text")
    if kind == "table" and not takes_features(job.model.name):
        raise ModelError(
            f"model {job.model.name}: expected images of (height, width, channels), {job.data.name} holds a table; "
            "use model mlp, or one of your own"
        )
    samples = count_training_samples(job.data)
    if samples is not None:
        check_batch(job.data.name, samples, job.train.batch, job.world.workers, job.exchange.local_steps)
    data = built_in_data(job.data.name)
    if data is None:
        return
    find_loss(job.train.loss, "classes", data.classes, job.train.label_smoothing)
    if job.model.name in MODEL_NAMES and job.data.size is not None:
        check_model_fits(job.model.name, (*job.data.size, data.shape[2]))


def check_trains(job: Job) -> None:
    """Check that somebody updates the parameters of a model that this worker trains.

    Raises:
        ConfigError: gradients come back instead, for the optimizer of a PyTorch script, or would have to.
    """
    check_without_script(job)
    if job.exchange.returns != "parameters":
        raise ConfigError(
            f"exchange.returns {job.exchange.returns!r}: nobody would update a built-in model, which would learn "
            "nothing; leave exchange.returns out, or start a PyTorch script: taihu run SCRIPT.py"
        )


def _kind(name: str) -> str:
    """The kind of the data set, nothing where it is built in, but text."""
    own = own_data(name)
    if own is None:
        return "text" if name == TEXT_DATA else ""
    return folder_kind(own.path) if own.kind == "folder" else own.kind


def _check_text(job: Job, *, is_text: bool) -> None:
    model, data = job.model.name, job.data.name
    known = MODEL_DEFAULTS.get(model)
    if known is not None and known.takes_text is not is_text:
        remedy = "use model small_gpt" if is_text else "use --data python-source, a text of yours, or another model"
        expected, seen = ("images or rows", "text") if is_text else ("text", "none")
        raise ModelError(f"model {model}: expected {expected}, {data} is {seen}; {remedy}")
    if is_text:
        find_loss(job.train.loss, "tokens", TOKENS, job.train.label_smoothing)
