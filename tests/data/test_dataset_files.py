"""Data sets that are read from files: what is read is what was written, and every damage is named."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.reading import inputs_of, targets_of

from taihu.core.base.errors import DataError
from taihu.core.settings import DataSettings
from taihu.worker.data.built_in.cifar10 import load_cifar10
from taihu.worker.data.load import load_dataset

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    header = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape)
    return header + array.tobytes()


@pytest.fixture
def arrays() -> dict[str, NDArray[np.uint8]]:
    rng = np.random.default_rng(3)
    return {
        IMAGES: rng.integers(0, 256, (11, 28, 28), np.uint8),
        LABELS: rng.integers(0, 10, 11, np.uint8),
        "t10k-images-idx3-ubyte": rng.integers(0, 256, (4, 28, 28), np.uint8),
        "t10k-labels-idx1-ubyte": rng.integers(0, 10, 4, np.uint8),
    }


@pytest.fixture
def fashion(tmp_path: Path, arrays: dict[str, NDArray[np.uint8]]) -> Path:
    for name, array in arrays.items():
        (tmp_path / name).write_bytes(idx_bytes(array))
    return tmp_path


def failure(path: Path, *fragments: str) -> None:
    """Loading must fail with one line that holds the fragments and the remedy."""
    with pytest.raises(DataError) as caught:
        load_dataset(DataSettings(name="fashion-mnist", path=path))
    message = str(caught.value)
    assert "\n" not in message
    for fragment in (*fragments, "apt install dataset-fashion-mnist", "--data-path"):
        assert fragment in message


@pytest.mark.parametrize("compressed", [False, True])
def test_idx_files_are_read_back(tmp_path: Path, arrays: dict[str, NDArray[np.uint8]], compressed: bool) -> None:
    for name, array in arrays.items():
        content = idx_bytes(array)
        target = tmp_path / (f"{name}.gz" if compressed else name)
        target.write_bytes(gzip.compress(content) if compressed else content)
    dataset = load_dataset(DataSettings(name="fashion-mnist", path=tmp_path))
    assert (dataset.name, dataset.outputs, dataset.input_shape) == ("fashion-mnist", 10, (28, 28, 1))
    assert targets_of(dataset.train).dtype == targets_of(dataset.test).dtype == np.int64
    np.testing.assert_array_equal(inputs_of(dataset, dataset.train)[..., 0], arrays[IMAGES])
    np.testing.assert_array_equal(targets_of(dataset.train), arrays[LABELS])
    np.testing.assert_array_equal(inputs_of(dataset, dataset.test)[..., 0], arrays["t10k-images-idx3-ubyte"])
    np.testing.assert_array_equal(targets_of(dataset.test), arrays["t10k-labels-idx1-ubyte"])


def test_a_missing_file_is_named(fashion: Path) -> None:
    (fashion / LABELS).unlink()
    failure(fashion, f"{LABELS}.gz: not found")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    failure(tmp_path / "nowhere", "nowhere", "not found")


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    failure(tmp_path / "file", "cannot be read (Not a directory)")


def test_a_wrong_magic_number(fashion: Path, arrays: dict[str, NDArray[np.uint8]]) -> None:
    (fashion / IMAGES).write_bytes(idx_bytes(arrays[LABELS].repeat(4)))
    failure(fashion, IMAGES, "magic number 2049, expected 2051")


@pytest.mark.parametrize("size", [0, 3, 15])
def test_a_truncated_header(fashion: Path, size: int) -> None:
    content = (fashion / IMAGES).read_bytes()
    (fashion / IMAGES).write_bytes(content[:size])
    failure(fashion, IMAGES, "truncated: expected 16 bytes", f"found {size}")


def test_truncated_pixels(fashion: Path) -> None:
    content = (fashion / IMAGES).read_bytes()
    (fashion / IMAGES).write_bytes(content[:-1])
    expected = 16 + 11 * 28 * 28
    failure(fashion, IMAGES, f"truncated: expected {expected} bytes", "11x28x28", f"found {expected - 1}")


def test_too_many_bytes(fashion: Path) -> None:
    content = (fashion / LABELS).read_bytes()
    (fashion / LABELS).write_bytes(content + b"\0")
    failure(fashion, LABELS, "too long: expected 19 bytes", "found 20")


def test_images_of_another_size(fashion: Path) -> None:
    (fashion / IMAGES).write_bytes(idx_bytes(np.zeros((11, 28, 27), np.uint8)))
    failure(fashion, IMAGES, "images of 28x27, expected 28x28")


def test_another_number_of_labels(fashion: Path) -> None:
    (fashion / LABELS).write_bytes(idx_bytes(np.zeros(10, np.uint8)))
    failure(fashion, LABELS, "10 labels for 11 images")


def test_a_label_out_of_range(fashion: Path, arrays: dict[str, NDArray[np.uint8]]) -> None:
    labels = arrays[LABELS].copy()
    labels[6] = 10
    (fashion / LABELS).write_bytes(idx_bytes(labels))
    failure(fashion, LABELS, "label 10 of image 6 is not in 0..9")


def test_an_empty_set(fashion: Path) -> None:
    (fashion / IMAGES).write_bytes(idx_bytes(np.zeros((0, 28, 28), np.uint8)))
    (fashion / LABELS).write_bytes(idx_bytes(np.zeros(0, np.uint8)))
    failure(fashion, LABELS, "holds no images")


@pytest.mark.parametrize("damage", ["no gzip", "cut off", "deflate", "checksum"])
def test_a_corrupt_gzip_file(fashion: Path, damage: str) -> None:
    content = gzip.compress((fashion / IMAGES).read_bytes())
    broken = {
        "no gzip": b"<html>" + content,
        "cut off": content[: len(content) // 2],
        "deflate": content[:10] + b"\xff" * 40 + content[50:],
        "checksum": content[:-8] + bytes(4) + content[-4:],
    }[damage]
    (fashion / IMAGES).unlink()
    (fashion / f"{IMAGES}.gz").write_bytes(broken)
    failure(fashion, f"{IMAGES}.gz: corrupt gzip")


def cifar_records(seed: int, records: int = 3) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 256, (records, 3073), np.uint8)
    table[:, 0] %= 10
    return table


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    for number in range(1, 6):
        (tmp_path / f"data_batch_{number}.bin").write_bytes(cifar_records(number).tobytes())
    (tmp_path / "test_batch.bin").write_bytes(cifar_records(6).tobytes())
    return tmp_path


def test_cifar_planes_become_channels(cifar: Path) -> None:
    dataset = load_cifar10(cifar)
    assert (dataset.input_shape, dataset.outputs) == ((32, 32, 3), 10)
    assert (inputs_of(dataset, dataset.train).shape[0], inputs_of(dataset, dataset.test).shape[0]) == (15, 3)
    for image in range(15):
        record = cifar_records(1 + image // 3)[image % 3]
        assert targets_of(dataset.train)[image] == record[0]
        for y, x, channel in ((0, 0, 0), (0, 31, 1), (31, 0, 2), (17, 5, 1)):
            assert inputs_of(dataset, dataset.train)[image, y, x, channel] == record[1 + 1024 * channel + 32 * y + x]
    np.testing.assert_array_equal(targets_of(dataset.test), cifar_records(6)[:, 0])


def test_cifar_in_its_unpacked_folder(cifar: Path) -> None:
    inner = cifar / "cifar-10-batches-bin"
    inner.mkdir()
    for file in cifar.glob("*.bin"):
        file.rename(inner / file.name)
    assert len(load_cifar10(cifar).train) == 15


def test_cifar_needs_a_folder() -> None:
    with pytest.raises(DataError, match=r"no folder given; unpack cifar-10-binary.*--data-path"):
        load_dataset(DataSettings(name="cifar10"))


def test_a_missing_cifar_file(cifar: Path) -> None:
    (cifar / "test_batch.bin").unlink()
    with pytest.raises(DataError, match=r"test_batch\.bin: not found; unpack"):
        load_cifar10(cifar)


@pytest.mark.parametrize("lengths", [(1, 2, 3, 4, 5), (7, 1, 1, 1, 1)])
def test_cifar_files_of_any_length(cifar: Path, lengths: tuple[int, ...]) -> None:
    for number, length in enumerate(lengths, 1):
        (cifar / f"data_batch_{number}.bin").write_bytes(cifar_records(number, length).tobytes())
    dataset = load_cifar10(cifar)
    expected = [cifar_records(number, length)[:, 0] for number, length in enumerate(lengths, 1)]
    np.testing.assert_array_equal(targets_of(dataset.train), np.concatenate(expected))


@pytest.mark.parametrize("bytes_left", [3072, 3074, 9218])
def test_a_cifar_file_cut_within_an_image(cifar: Path, bytes_left: int) -> None:
    (cifar / "data_batch_4.bin").write_bytes(cifar_records(4).tobytes()[:bytes_left])
    whole = -(-bytes_left // 3073) * 3073
    with pytest.raises(
        DataError, match=rf"data_batch_4\.bin: truncated: expected {whole} bytes .* found {bytes_left};"
    ):
        load_cifar10(cifar)


def test_an_empty_cifar_file(cifar: Path) -> None:
    (cifar / "data_batch_3.bin").write_bytes(b"")
    with pytest.raises(DataError, match=r"data_batch_3\.bin: holds no images"):
        load_cifar10(cifar)


def test_a_cifar_label_out_of_range(cifar: Path) -> None:
    table = cifar_records(2)
    table[1, 0] = 99
    (cifar / "data_batch_2.bin").write_bytes(table.tobytes())
    with pytest.raises(DataError, match=r"data_batch_2\.bin: label 99 of image 1 is not in 0\.\.9"):
        load_cifar10(cifar)
