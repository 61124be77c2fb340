"""Data in every form that docs/data.md knows, and models of a user's own, with the arguments that train on them."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

__all__ = ["FORMS", "make_forms"]

_OWN_MODEL: Final = ("--model", "models/own.py:build")

FORMS: Final[dict[str, Sequence[str]]] = {
    "npz": ("--data", "pictures.npz"),
    "npy": ("--data", "./pictures"),
    "photos": ("--data", "./photos", "--set", "data.resize=12x12", "--set", "data.augment=flip"),
    "csv": ("--data", "table.csv"),
    "tsv": ("--data", "table.tsv", "--set", "data.target=town"),
    "csv.gz": ("--data", "table.csv.gz"),
    "parquet": ("--data", "table.parquet"),
    "two tables": ("--data", "./tables", "--model", "mlp"),
    "txt": ("--data", "text.txt", "--set", "data.sequence=32"),
    "txt.gz": ("--data", "text.txt.gz", "--set", "data.sequence=32"),
    "texts": ("--data", "./texts", "--model", "small_gpt", "--set", "data.sequence=32"),
    "function": ("--data", "functions.py:arrays", *_OWN_MODEL),
    "items": ("--data", "functions.py:items", *_OWN_MODEL),
    "function of libraries": ("--data", "libraries.py:load", "--model", "libraries.py:build"),
    "synthetic": ("--data", "synthetic:1x12x12:samples=64", "--model", "small_cnn"),
}
"""Arguments of `taihu train`, in the folder of `make_forms`, by the name of a form."""

_FILES: Final = {
    "functions.py": """
        import numpy as np

        class Squares:
            def __init__(self, count):
                self.count = count

            def __len__(self):
                return self.count

            def __getitem__(self, index):
                x = np.random.default_rng(index).uniform(-1, 1, 3).astype(np.float32)
                return x, np.float32((x**2).sum())

        def items():
            return Squares(64), Squares(16)

        def arrays():
            x = np.random.default_rng(1).uniform(-1, 1, (64, 3)).astype(np.float32)
            return (x, (x**2).sum(axis=1)), None
        """,
    "models/own.py": """
        import threading

        import neighbour
        from taihu.worker.engine import Linear, ReLU, Sequential

        # A file of the user's may begin whatever it likes when it is imported.
        threading.Thread(target=threading.Event().wait, daemon=True).start()

        def build(input_shape, outputs):
            return Sequential([Linear(neighbour.WIDTH), ReLU(), Linear(outputs, gain=1.0)])
        """,
    "models/neighbour.py": "WIDTH = 8",
    # Pools that nobody shuts down end with the process.
    "libraries.py": """
        import atexit
        import multiprocessing
        import threading
        from concurrent.futures import ThreadPoolExecutor
        from pathlib import Path

        import numpy as np
        import pyarrow.csv
        from taihu.worker.engine import Linear, ReLU, Sequential

        POOL = ThreadPoolExecutor(2)
        TABLE = pyarrow.csv.read_csv("table.csv")
        KEPT_OPEN = open("table.csv")
        atexit.register(lambda: Path("ended.txt").write_text("as a program"))

        def load():
            sizes = POOL.submit(lambda: TABLE.column("size").to_numpy()).result()
            ours, theirs = multiprocessing.Pipe()
            child = multiprocessing.get_context("fork").Process(target=theirs.send, args=((2 * sizes).tolist(),))
            child.start()
            targets = np.array(ours.recv())
            child.join()
            return (sizes.reshape(-1, 1).astype(np.float32), targets), None

        def build(input_shape, outputs):
            return Sequential([Linear(4), ReLU(), Linear(outputs, gain=1.0)])
        """,
}


def make_forms(folder: Path) -> None:
    """Make the files of all forms in an empty folder; needs Pillow and PyArrow."""
    rng = np.random.default_rng(0)
    _pictures(folder, rng)
    _tables(folder, rng)
    words = " ".join(rng.choice(["the", "lake", "lies", "still"], 1500)).encode()
    (folder / "text.txt").write_bytes(words)
    (folder / "text.txt.gz").write_bytes(gzip.compress(words))
    (folder / "texts").mkdir()
    for part in ("one", "two"):
        (folder / "texts" / f"{part}.txt").write_bytes(words)
    (folder / "models").mkdir()
    for name, text in _FILES.items():
        (folder / name).write_text(text.replace("\n        ", "\n"))


def _pictures(folder: Path, rng: np.random.Generator) -> None:
    from PIL import Image  # noqa: PLC0415 - needed for this alone

    classes = rng.integers(0, 3, 64)
    pixels = rng.integers(0, 255, (64, 12, 12, 3), dtype=np.uint8)
    np.savez(folder / "pictures.npz", x_train=pixels, y_train=classes, x_test=pixels[:16], y_test=classes[:16])
    (folder / "pictures").mkdir()
    np.save(folder / "pictures" / "x_train.npy", pixels)
    np.save(folder / "pictures" / "y_train.npy", classes)
    for number, (image, label) in enumerate(zip(pixels, classes.tolist(), strict=True)):
        place = folder / "photos" / f"class{label}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number}.{('png', 'jpg')[number % 2]}")


def _tables(folder: Path, rng: np.random.Generator) -> None:
    import pyarrow.csv  # noqa: PLC0415 - needed for this alone
    import pyarrow.parquet  # noqa: PLC0415

    names = ["size", "town", "rooms", "price"]
    rows = [
        [size, town, rooms, size + 0.1 * rooms]
        for size, town, rooms in zip(
            rng.uniform(0.2, 2, 64).tolist(),
            rng.choice(["Wuxi", "Suzhou"], 64),
            rng.integers(1, 7, 64).tolist(),
            strict=True,
        )
    ]
    (folder / "tables").mkdir()
    for name, comma in (("table.csv", ","), ("table.tsv", "\t"), ("tables/train.csv", ","), ("tables/test.csv", ",")):
        with (folder / name).open("w", newline="") as file:
            csv.writer(file, delimiter=comma).writerows([names, *rows])
    (folder / "table.csv.gz").write_bytes(gzip.compress((folder / "table.csv").read_bytes()))
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(folder / "table.csv"), folder / "table.parquet")
