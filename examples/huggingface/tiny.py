"""Stand-ins for `from_pretrained` and `load_dataset`: a small Llama of random weights, a tokenizer of bytes, texts.

Nothing is downloaded: the texts are sources of Python's standard library.
"""

import sysconfig
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SOURCES = ("abc.py", "base64.py", "bisect.py", "colorsys.py", "fnmatch.py", "heapq.py", "shlex.py", "textwrap.py")


def tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte, and two more."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: number for number, word in enumerate(["<pad>", "<eos>", *alphabet])}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>")


def model() -> LlamaForCausalLM:
    """Two layers of width 64, the same on every process."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=258, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        pad_token_id=0, bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def texts(length: int = 96, count: int = 512) -> Dataset:
    """A column `text` of pieces of so many characters."""
    library = Path(sysconfig.get_paths()["stdlib"])
    source = "".join((library / name).read_text("ascii", "ignore") for name in SOURCES)
    pieces = [source[begin : begin + length] for begin in range(0, len(source) - length, length)]
    return Dataset.from_dict({"text": pieces[:count]})


def tokens(of: PreTrainedTokenizerFast) -> Dataset:
    """The texts as a causal language model takes them: `input_ids` and `attention_mask`."""
    return texts().map(lambda rows: of(rows["text"]), batched=True, remove_columns="text")
