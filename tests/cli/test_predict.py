"""`taihu predict`, `export` and `evaluate` on files, against the model's own answers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from numpy.typing import NDArray
from PIL import Image

from taihu.cli.models.evaluate import evaluate_file
from taihu.cli.models.export import export
from taihu.cli.models.predict import predict
from taihu.core.job import Job
from taihu.core.process.entry import run_app
from taihu.worker.data.load import load_dataset
from taihu.worker.engine import Model, StepContext, build_model, make_loss, transformer
from taihu.worker.saved.continuation import Draw
from taihu.worker.saved.prediction import LoadedModel, load_model_file
from taihu.worker.saved.writing import describe_model, save_model

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run one of the commands in this process; returns exit code, stdout, stderr."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command("predict")(predict)
    app.command("export")(export)
    app.command("evaluate")(evaluate_file)

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            run_app(app, [str(argument) for argument in arguments])
        return int(str(ended.value.code)), *capsys.readouterr()

    return run


def saved(path: Path, data: dict[str, Any], model: str = "mlp") -> LoadedModel:
    """A model of random parameters, as if it had been trained on the data."""
    job = Job.model_validate({"model": {"name": model}, "data": data})
    dataset = load_dataset(job.data)
    made: Model = build_model(model, dataset.input_shape, dataset.outputs)
    if dataset.targets == "values":
        made.use_loss(make_loss("mse", "values", dataset.outputs))
    arena = np.zeros(made.layout.elements, np.float32)
    made.bind(arena, np.zeros_like(arena))
    made.initialize(4)
    save_model(path, made, describe_model(job, dataset, made, 1))
    return load_model_file(path)


TABLE = "size,city,price\n1,Rome,1.5\n2,Oslo,2.5\n3,Rome,3.5\n4,Bonn,4.5\n"


def test_a_table_with_and_without_its_target(command: Command, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(TABLE)
    model = saved(tmp_path / "m", {"name": f"{tmp_path}/train.csv"})
    (tmp_path / "new.csv").write_text("city,other,size\nOslo,x,2\nBonn,y,9\n")
    code, out, err = command("predict", tmp_path / "m", tmp_path / "new.csv", "--json", tmp_path / "p.json")
    assert (code, err) == (0, "")
    # Size, then Bonn, Oslo, Rome.
    expected = model.predict(np.array([[2, 0, 1, 0], [9, 1, 0, 0]]))
    rows = json.loads((tmp_path / "p.json").read_text())["predictions"]
    assert [row["values"] for row in rows] == expected.astype(float).tolist()
    assert out.splitlines() == [f"{tmp_path}/new.csv[{row}]  {expected[row, 0]:.6g}" for row in range(2)]
    assert command("predict", tmp_path / "m", tmp_path / "train.csv")[0] == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("size\n1\n", "no column city, which the model was trained on; it takes size, city"),
        ("size,city\nx,Rome\n", "row 1 ('x'), column size: is no number"),
        ("size,city\n1,Paris\n", "row 1 ('Paris'), column city: does not occur"),
        ("size,city\n1,Rome\n,Rome\n", "row 2, column size: the value is missing"),
    ],
)
def test_tables_that_the_model_cannot_take(command: Command, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "train.csv").write_text(TABLE)
    saved(tmp_path / "m", {"name": f"{tmp_path}/train.csv"})
    (tmp_path / "new.csv").write_text(text)
    code, _, err = command("predict", tmp_path / "m", tmp_path / "new.csv")
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Pictures of two classes and two sizes, and a model of them."""
    generator = np.random.default_rng(3)
    for name in ("cat", "dog"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(3):
            pixels = generator.integers(0, 256, (8 + number, 9, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{number}.png")
    return tmp_path / "pictures"


def test_images_are_resized_as_trained(command: Command, pictures: Path, tmp_path: Path) -> None:
    model = saved(tmp_path / "m", {"name": f"{pictures}/", "resize": "6x7"})
    files = [pictures / "cat" / "2.png", pictures / "dog" / "0.png"]
    code, out, _ = command("predict", tmp_path / "m", *files, "--batch", 1, "--top", 1)
    assert code == 0
    sizes = [Image.open(file).resize((7, 6), Image.Resampling.BILINEAR) for file in files]
    chances = model.predict(np.stack([np.asarray(image) for image in sizes]))
    names = np.array(["cat", "dog"])[chances.argmax(axis=1)]
    expected = [f"{f}  {name} {c.max():.4f}" for f, name, c in zip(files, names, chances, strict=True)]
    assert out.splitlines() == expected


def test_arrays_and_images_of_the_models_size(command: Command, pictures: Path, tmp_path: Path) -> None:
    model = saved(tmp_path / "m", {"name": "synthetic:1x4x5:classes=3:samples=8"})
    x = np.random.default_rng(1).integers(0, 256, (2, 4, 5), np.uint8)
    np.save(tmp_path / "two.npy", x)
    np.savez(tmp_path / "some.npz", x_test=x, y_test=np.zeros(2))
    Image.fromarray(x[1]).save(tmp_path / "one.png")
    files = [tmp_path / name for name in ("two.npy", "one.png", "some.npz")]
    code, out, _ = command("predict", tmp_path / "m", *files)
    assert code == 0
    best = model.predict(x[..., None]).max(axis=1)
    shown = [f"{best[row]:.4f}" for row in (0, 1, 1, 0, 1)]
    assert [line.split()[2] for line in out.splitlines()] == shown
    code, _, err = command("predict", tmp_path / "m", pictures / "cat" / "0.png")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "8x9 (height x width), the model takes 4x5" in err
    np.save(tmp_path / "wrong.npy", x[:, 1:])
    assert (
        "of shape (2, 3, 5), the model takes (n, 4, 5, 1)"
        in command("predict", tmp_path / "m", tmp_path / "wrong.npy")[2]
    )
    (tmp_path / "pickled.npy").write_bytes(b"not an array")
    assert "not a readable array" in command("predict", tmp_path / "m", tmp_path / "pickled.npy")[2]
    assert "cannot be read" in command("predict", tmp_path / "m", tmp_path / "none.png")[2]


def test_export_writes_what_onnxruntime_computes(command: Command, tmp_path: Path) -> None:
    import onnxruntime  # noqa: PLC0415 - not in every process that collects this test

    model = saved(tmp_path / "m", {"name": "synthetic:1x4x5:classes=3:samples=8"}, "small_cnn")
    code, out, _ = command("export", tmp_path / "m", "--to", "onnx", "--out", tmp_path / "m.onnx")
    assert (code, out) == (0, f"written: {tmp_path}/m.onnx\n")
    x = np.random.default_rng(1).random((3, 4, 5, 1), np.float32) * 255
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    found = session.run(["probabilities"], {"input": x})[0]
    np.testing.assert_allclose(found, model.predict(x), atol=1e-5)
    code, out, _ = command("export", tmp_path / "m", "--to", "torch", "--out", tmp_path / "t.safetensors")
    assert (code, out) == (0, f"written: {tmp_path}/t.safetensors, {tmp_path}/t.py\n")
    code, _, err = command("export", tmp_path / "m", "--to", "onnx", "--out", tmp_path / "m")
    assert (code, "is the model that is exported" in err) == (2, True)


def test_evaluate_needs_to_be_told_of_own_data(command: Command, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(TABLE)
    saved(tmp_path / "m", {"name": f"{tmp_path}/train.csv"})
    code, _, err = command("evaluate", tmp_path / "m")
    assert (code, f"was trained on {tmp_path}/train.csv; give --data" in err) == (2, True)
    code, out, _ = command("evaluate", tmp_path / "m", "--data", f"{tmp_path}/train.csv")
    assert (code, "test rmse" in out) == (0, True)


@pytest.fixture
def gpt(tmp_path: Path) -> LoadedModel:
    """A model of text with random parameters, large enough that its chances differ."""
    (tmp_path / "text.txt").write_text("a text to learn from, of some length " * 20)
    data = {"name": f"{tmp_path}/text.txt", "sequence": 12}
    job = Job.model_validate({"model": {"name": "small_gpt"}, "data": data})
    dataset = load_dataset(job.data)
    made = Model(transformer(256, blocks=1, width=8, heads=2), dataset.input_shape, dataset.outputs)
    made.use_loss(make_loss("auto", "tokens", 256))
    arena = np.random.default_rng(2).standard_normal(made.layout.elements, np.float32)
    made.bind(arena, np.zeros_like(arena))
    save_model(tmp_path / "gpt", made, describe_model(job, dataset, made, 1))
    return load_model_file(tmp_path / "gpt")


def following(model: LoadedModel, text: bytes) -> NDArray[np.float64]:
    """Chances of the next byte, by the network itself: of as many places as there are, so that none is filled up."""
    seen = text[-12:]
    tokens = np.frombuffer(seen.ljust(12, b"~"), np.uint8).astype(np.float32)[None]
    outputs = model.network.forward(tokens, StepContext(training=False, seed=0, step=0, first_sample=0))
    odds: NDArray[np.float64] = np.exp(outputs[0, len(seen) - 1].astype(np.float64))
    chances: NDArray[np.float64] = odds / odds.sum()
    return chances


@pytest.mark.parametrize("prompt", [b"a", b"a text to l", b"a text to learn from, and on"])
def test_text_goes_on_with_the_likeliest_bytes(
    command: Command, gpt: LoadedModel, tmp_path: Path, prompt: bytes
) -> None:
    (tmp_path / "prompt.txt").write_bytes(prompt)
    code, out, err = command(
        "predict", tmp_path / "gpt", tmp_path / "prompt.txt", "--length", 9, "--json", tmp_path / "p"
    )
    assert (code, err) == (0, "")
    text = prompt
    for _ in range(9):
        text += bytes([int(following(gpt, text).argmax())])
    (row,) = json.loads((tmp_path / "p").read_text())["predictions"]
    decoded = text[len(prompt) :].decode(errors="replace")
    assert row["text"] == "".join(each if each.isprintable() or each in "\n\t" else "\ufffd" for each in decoded)
    assert out == row["text"] + "\n"
    best = np.argsort(-following(gpt, prompt))[:3]
    assert [each["byte"] for each in row["next"]] == best.tolist()
    assert [each["probability"] for each in row["next"]] == pytest.approx(following(gpt, prompt)[best], rel=1e-4)


def test_chances_of_the_next_byte_from_stdin(
    command: Command, gpt: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"learn")))
    code, out, _ = command("predict", tmp_path / "gpt", "-", "--length", 0, "--top", 1)
    chances = following(gpt, b"learn")
    assert code == 0
    assert out.startswith("-  ")
    assert out.split()[-1] == f"{chances.max():.4f}"


def test_what_is_drawn_follows_from_seed_and_temperature(command: Command, gpt: LoadedModel, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_bytes(b"some")

    def drawn(*options: object) -> str:
        code, out, _ = command("predict", tmp_path / "gpt", tmp_path / "prompt.txt", "--length", 40, *options)
        assert code == 0
        return out

    hot = drawn("--temperature", 1, "--seed", 1)
    assert hot == drawn("--temperature", 1, "--seed", 1) != drawn("--temperature", 1, "--seed", 2)
    assert drawn("--temperature", 0) == drawn() == drawn("--temperature", 0.001, "--seed", 3)


def test_draws_have_the_chances_of_the_model() -> None:
    chances = np.array([0.5, 0.0, 0.3, 0.2], np.float32)
    for temperature, weights in ((1.0, chances), (0.5, chances**2)):
        draw = Draw(temperature, np.random.default_rng(4))
        seen = np.bincount([draw.choose(chances) for _ in range(4000)], minlength=4) / 4000
        assert np.abs(seen - weights / weights.sum()).max() < 0.03
        assert seen[1] == 0


@pytest.mark.parametrize(
    ("prompt", "words"), [(None, "cannot be read (No such file or directory)"), (b"", "is empty; give it the text")]
)
def test_a_prompt_that_is_none(
    command: Command, gpt: LoadedModel, tmp_path: Path, prompt: bytes | None, words: str
) -> None:
    if prompt is not None:
        (tmp_path / "prompt.txt").write_bytes(prompt)
    code, _, err = command("predict", tmp_path / "gpt", tmp_path / "prompt.txt")
    assert (code, len(err.splitlines())) == (2, 1)
    assert words in err


def test_options_of_text_are_refused_for_other_models(command: Command, tmp_path: Path) -> None:
    saved(tmp_path / "m", {"name": "synthetic:1x4x5:classes=3:samples=8"})
    code, _, err = command("predict", tmp_path / "m", tmp_path / "x.npy", "--length", 3)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "--length: is for models of text" in err


def test_folders_are_predicted_in_the_order_of_paths(command: Command, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    pixels = {
        f"{name}/{sub}{number}.png": (number, name) for number in range(2) for name in "ab" for sub in ("", "c/")
    }
    rng = np.random.default_rng(0)
    for path in pixels:
        (photos / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(photos / path)
    model = saved(tmp_path / "m", {"name": str(photos)}, "small_cnn")
    for name in ("a/notes.txt", "a/.x.png"):
        (photos / name).write_bytes(b"x")
    code, out, err = command("predict", tmp_path / "m", photos, "--top", 1, "--json", tmp_path / "p.json")
    assert (code, err) == (0, f"{photos}: 2 files left out: 1 hidden, 1 .txt\n")
    files = sorted(str(photos / path) for path in pixels)
    assert [line.split("  ")[0] for line in out.splitlines()] == files
    expected = model.predict(np.stack([np.asarray(Image.open(file))[..., None] for file in files]))
    rows = json.loads((tmp_path / "p.json").read_text())["predictions"]
    np.testing.assert_allclose([row["classes"][0]["probability"] for row in rows], expected.max(axis=1), rtol=1e-6)
    (photos / "a" / "0.png").write_bytes(b"junk")
    (photos / "b" / "0.png").write_bytes(b"")
    code, out, err = command("predict", tmp_path / "m", photos, "--json", tmp_path / "p.json")
    assert (code, len(out.splitlines()), len(json.loads((tmp_path / "p.json").read_text())["predictions"])) == (
        2,
        6,
        6,
    )
    assert "2 of 8 files left out: " in err
    assert f"{photos}/a/0.png" in err
    assert f"{photos}/b/0.png" in err
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "a.csv").touch()
    code, out, err = command("predict", tmp_path / "m", tmp_path / "none")
    assert (code, out) == (2, "")
    assert f"{tmp_path}/none: no files to predict; 1 file left out: 1 .csv; the model takes" in err


def test_images_of_12_bits_are_predicted_and_tested_as_in_training(command: Command, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    rng = np.random.default_rng(0)
    for name in "ab":
        (photos / name).mkdir(parents=True)
        for number in range(4):
            Image.fromarray(rng.integers(0, 4096, (8, 8), np.uint16)).save(photos / name / f"{number}.png")
    model = saved(tmp_path / "m", {"name": str(photos)}, "small_cnn")
    dark = rng.integers(0, 256, (8, 8), np.uint16)
    Image.fromarray(dark).save(tmp_path / "dark.png")
    code, _, _ = command("predict", tmp_path / "m", tmp_path / "dark.png", "--json", tmp_path / "p.json", "--top", 2)
    expected = model.predict((dark >> 4)[None, ..., None])[0]
    row = json.loads((tmp_path / "p.json").read_text())["predictions"][0]
    np.testing.assert_allclose([each["probability"] for each in row["classes"]], np.sort(expected)[::-1], rtol=1e-6)
    assert code == 0
    assert model.info.pixel_range is not None
    assert model.info.pixel_range.white == 4095


def test_texts_as_labels_are_predicted_by_their_names(command: Command, tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((12, 4))
    np.savez(tmp_path / "a.npz", x=x, y=np.array(["owl", "cat", "emu"] * 4))
    model = saved(tmp_path / "m", {"name": f"{tmp_path}/a.npz"})
    assert model.class_names == ("cat", "emu", "owl")
    np.save(tmp_path / "x.npy", x)
    code, out, _ = command("predict", tmp_path / "m", tmp_path / "x.npy", "--top", 1)
    expected = [("cat", "emu", "owl")[number] for number in model.predict(x).argmax(axis=1)]
    assert (code, [line.split("  ")[1].split()[0] for line in out.splitlines()]) == (0, expected)
    assert command("evaluate", tmp_path / "m", "--data", f"{tmp_path}/a.npz")[0] == 0


def test_onnx_takes_the_bytes_of_images(command: Command, tmp_path: Path) -> None:
    import onnxruntime  # noqa: PLC0415 - not in every process that collects this test

    rng = np.random.default_rng(0)
    for name in ("a/1", "a/2", "b/1", "b/2"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(tmp_path / "photos" / f"{name}.png")
    saved(tmp_path / "m", {"name": f"{tmp_path}/photos"}, "small_cnn")
    code, _, err = command(
        "export", tmp_path / "m", "--to", "onnx", "--inputs", "bytes", "--out", tmp_path / "m.onnx"
    )
    assert (code, err) == (0, "")
    command("predict", tmp_path / "m", tmp_path / "photos", "--top", 2, "--json", tmp_path / "p.json")
    rows = json.loads((tmp_path / "p.json").read_text())["predictions"]
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    for row in rows:
        (found,) = session.run(["probabilities"], {"input": np.asarray(Image.open(row["sample"]))[None]})
        told = {each["class"]: each["probability"] for each in row["classes"]}
        np.testing.assert_allclose(found[0], [told[0], told[1]], rtol=1e-5, atol=1e-6)
    code, _, err = command("export", tmp_path / "m", "--to", "torch", "--inputs", "bytes", "--out", tmp_path / "m.pt")
    assert (code, err.count("--inputs bytes: is for --to onnx")) == (2, 1)
