"""The fluent handle on a plan: `Dataset` and the datasets of files."""

from __future__ import annotations

from asyncdata.dataset.dataset import Dataset as Dataset
from asyncdata.dataset.directories import image_dataset_from_directory as image_dataset_from_directory
from asyncdata.dataset.directories import text_dataset_from_directory as text_dataset_from_directory
from asyncdata.dataset.files import CsvDataset as CsvDataset
from asyncdata.dataset.files import FileDataset as FileDataset
from asyncdata.dataset.files import FixedLengthRecordDataset as FixedLengthRecordDataset
from asyncdata.dataset.files import JsonLinesDataset as JsonLinesDataset
from asyncdata.dataset.files import ParquetDataset as ParquetDataset
from asyncdata.dataset.files import TarDataset as TarDataset
from asyncdata.dataset.files import TextLineDataset as TextLineDataset
from asyncdata.dataset.files import TFRecordDataset as TFRecordDataset

__all__ = [
    "CsvDataset",
    "Dataset",
    "FileDataset",
    "FixedLengthRecordDataset",
    "JsonLinesDataset",
    "ParquetDataset",
    "TFRecordDataset",
    "TarDataset",
    "TextLineDataset",
    "image_dataset_from_directory",
    "text_dataset_from_directory",
]
