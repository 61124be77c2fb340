"""TensorFlow's parameter server and its workers, which wait for each other by its SyncReplicasOptimizer.

`python -P tensorflow_server.py RANK RANKS HOST PORT SIZES ROUNDS`: rank 0 is the server, and rank 1 prints the
seconds of each round as JSON. SIZES are numbers of values, as JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
import time
from threading import Thread

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf

_WARM_UP = 2


def main(arguments: list[str]) -> None:
    """Be what the command line says."""
    rank, ranks = int(arguments[0]), int(arguments[1])
    host, port, sizes, rounds = arguments[2], arguments[3], json.loads(arguments[4]), int(arguments[5])
    network, _, first = host.rpartition(".")
    hosts = [f"{network}.{int(first) + each}:{port}" for each in range(ranks)]
    cluster = tf.train.ClusterSpec({"ps": hosts[:1], "worker": hosts[1:]})
    role, index = ("worker", rank - 1) if rank else ("ps", 0)
    server = tf.distribute.Server(cluster, job_name=role, task_index=index)
    if not rank:
        Thread(target=_open, args=((host, int(port) + 1), ranks - 1), daemon=True).start()
        server.join()
        return
    seconds = _work(server.target, index, cluster, sizes, rounds, (host, int(port) + 1))
    if rank == 1:
        print(json.dumps(seconds), flush=True)
    # The server and the other workers never end by themselves: whoever started them does that.


def _open(place: tuple[str, int], workers: int) -> None:
    """Let all workers go on as soon as the last one has come."""
    with socket.create_server(place) as listener:
        for connection in [listener.accept()[0] for _ in range(workers)]:
            connection.sendall(b"1")
            connection.close()


def _work(  # noqa: PLR0917 - as the command line has them
    target: str, index: int, cluster: object, sizes: list[int], rounds: int, gate: tuple[str, int]
) -> list[float]:
    """The seconds of each round."""
    v1 = tf.compat.v1
    v1.disable_eager_execution()
    with v1.Graph().as_default():
        place = v1.train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)
        with v1.device(place):
            variables = [
                v1.get_variable(f"v{n}", (size,), initializer=v1.zeros_initializer()) for n, size in enumerate(sizes)
            ]
        with v1.device(f"/job:worker/task:{index}"):
            # The parameters come here for the gradients, which depend on them.
            gradients = [tf.identity(variable) + 1.0 for variable in variables]
        workers = len(cluster.as_dict()["worker"])  # type: ignore[attr-defined]
        rule = v1.train.SyncReplicasOptimizer(
            v1.train.GradientDescentOptimizer(1e-3), replicas_to_aggregate=workers, total_num_replicas=workers
        )
        with v1.device(place):
            step = v1.train.get_or_create_global_step()
        update = rule.apply_gradients(list(zip(gradients, variables, strict=True)), global_step=step)
        hook = rule.make_session_run_hook(index == 0)
        seconds = []
        with v1.train.MonitoredTrainingSession(target, is_chief=index == 0, hooks=[hook]) as session:
            # A worker that comes first would make the steps of all others, too.
            with socket.create_connection(gate) as all_come:
                all_come.recv(1)
            # A worker that is faster may have part in others' steps, and may not end before them.
            for _ in range(_WARM_UP + rounds) if index == 0 else itertools.count():
                begin_s = time.monotonic()
                session.run(update)
                seconds.append(time.monotonic() - begin_s)
    return seconds[_WARM_UP:]


if __name__ == "__main__":
    main(sys.argv[1:])
