"""The fluent handle on a plan: `Dataset` and the datasets of files."""

from __future__ import annotations

from asyncdata.dataset.dataset import Dataset as Dataset
from asyncdata.dataset.files import TFRecordDataset as TFRecordDataset

__all__ = ["Dataset", "TFRecordDataset"]
