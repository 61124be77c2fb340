"""A Lightning module trained over Gloo; `losses` are this rank's."""

from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset

import taihu.torch  # noqa: F401 - registers the backend


class Classifier(LightningModule):  # type: ignore[misc]
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
        self.losses: list[float] = []

    def training_step(self, batch: Any, index: int) -> Any:
        """The loss of a batch."""
        inputs, labels = batch
        loss = torch.nn.functional.cross_entropy(self.net(inputs), labels)
        self.log("mean", loss, sync_dist=True)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=0.01)


torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 10), torch.randint(0, 3, (64,)))
model = Classifier()
trainer = Trainer(
    accelerator="cpu",
    devices=2,
    strategy=DDPStrategy(process_group_backend="gloo"),
    max_epochs=2,
    gradient_clip_val=0.5,
    accumulate_grad_batches=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, DataLoader(data, batch_size=4))
losses = [*model.losses, float(trainer.callback_metrics["mean"])]
