"""The fluent handle on a plan: `Dataset` and the datasets of files."""

from __future__ import annotations

from asyncdata.dataset.dataset import Dataset as Dataset
from asyncdata.dataset.files import TFRecordDataset as TFRecordDataset
from asyncdata.dataset.formats import FileDataset as FileDataset
from asyncdata.dataset.formats import FixedLengthRecordDataset as FixedLengthRecordDataset
from asyncdata.dataset.formats import TextLineDataset as TextLineDataset

__all__ = ["Dataset", "FileDataset", "FixedLengthRecordDataset", "TFRecordDataset", "TextLineDataset"]
