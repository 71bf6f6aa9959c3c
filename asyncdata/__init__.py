"""asyncdata: training data from GCS, HDFS and local disks, as fast as the wire allows.

This module exports the public names. It imports each one when it is first used, so that a worker process that needs one
parser does not load the storage clients.
"""

from __future__ import annotations

# After the main thread has ended, Python refuses this import, and therefore every event loop. A program may start its
# first pipeline later than that, in a thread that continues.
import concurrent.futures.thread  # noqa: F401 -- see above
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncdata import feed as feed
    from asyncdata import state as state
    from asyncdata.dataset.adapting import adapt as adapt
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
    from asyncdata.dataset.fused import map_and_batch as map_and_batch
    from asyncdata.dataset.fused import parallel_interleave as parallel_interleave
    from asyncdata.dataset.fused import shuffle_and_repeat as shuffle_and_repeat
    from asyncdata.errors import AccessDeniedError as AccessDeniedError
    from asyncdata.errors import AsyncdataError as AsyncdataError
    from asyncdata.errors import BrokenFrameError as BrokenFrameError
    from asyncdata.errors import CloseTimeoutError as CloseTimeoutError
    from asyncdata.errors import CompressionError as CompressionError
    from asyncdata.errors import CorruptObjectError as CorruptObjectError
    from asyncdata.errors import CorruptRecordError as CorruptRecordError
    from asyncdata.errors import DataError as DataError
    from asyncdata.errors import ForkedProcessError as ForkedProcessError
    from asyncdata.errors import FunctionTransferError as FunctionTransferError
    from asyncdata.errors import MemoryLimitError as MemoryLimitError
    from asyncdata.errors import MissingPackageError as MissingPackageError
    from asyncdata.errors import ObjectChangedError as ObjectChangedError
    from asyncdata.errors import ObjectNotFoundError as ObjectNotFoundError
    from asyncdata.errors import PipelineClosedError as PipelineClosedError
    from asyncdata.errors import PipelineError as PipelineError
    from asyncdata.errors import QuarantineError as QuarantineError
    from asyncdata.errors import StaleDataError as StaleDataError
    from asyncdata.errors import StateError as StateError
    from asyncdata.errors import StorageError as StorageError
    from asyncdata.errors import SystemResourceError as SystemResourceError
    from asyncdata.errors import TaskTimeoutError as TaskTimeoutError
    from asyncdata.errors import TooManyErrorsError as TooManyErrorsError
    from asyncdata.errors import TransientStorageError as TransientStorageError
    from asyncdata.errors import UnbatchableError as UnbatchableError
    from asyncdata.errors import UnsupportedURLError as UnsupportedURLError
    from asyncdata.errors import WorkerDiedError as WorkerDiedError
    from asyncdata.formats.example.features import FixedLenFeature as FixedLenFeature
    from asyncdata.formats.example.features import FixedLenSequenceFeature as FixedLenSequenceFeature
    from asyncdata.formats.example.features import RaggedFeature as RaggedFeature
    from asyncdata.formats.example.features import VarLenFeature as VarLenFeature
    from asyncdata.formats.example.parser import parse_example as parse_example
    from asyncdata.formats.example.sequences import parse_sequence_example as parse_sequence_example
    from asyncdata.formats.example.serialize import serialize_example as serialize_example
    from asyncdata.formats.example.serialize import serialize_sequence_example as serialize_sequence_example
    from asyncdata.formats.image import decode_image as decode_image
    from asyncdata.memory.bytesarray import BytesArray as BytesArray
    from asyncdata.memory.ragged import RaggedArray as RaggedArray
    from asyncdata.memory.structure import register_dataclass as register_dataclass
    from asyncdata.observe.openmetrics import PipelineMetrics as PipelineMetrics
    from asyncdata.observe.profile import Profile as Profile
    from asyncdata.observe.profile import profile as profile
    from asyncdata.observe.profile_report import ProfileReport as ProfileReport
    from asyncdata.observe.progress import progress as progress
    from asyncdata.observe.snapshot import PipelineStats as PipelineStats
    from asyncdata.options import AUTOTUNE as AUTOTUNE
    from asyncdata.options import ErrorPolicy as ErrorPolicy
    from asyncdata.options import HedgeOptions as HedgeOptions
    from asyncdata.options import Options as Options
    from asyncdata.options import RetryOptions as RetryOptions
    from asyncdata.options import TimeoutOptions as TimeoutOptions
    from asyncdata.plan.node import INFINITE_CARDINALITY as INFINITE_CARDINALITY
    from asyncdata.plan.node import UNKNOWN_CARDINALITY as UNKNOWN_CARDINALITY
    from asyncdata.preprocessing.bucketize import Bucketize as Bucketize
    from asyncdata.preprocessing.hash_to_bins import HashToBins as HashToBins
    from asyncdata.preprocessing.loading import load_preprocessing as load_preprocessing
    from asyncdata.preprocessing.lookup import Lookup as Lookup
    from asyncdata.preprocessing.moments import Normalization as Normalization
    from asyncdata.preprocessing.nest import ByLeaf as ByLeaf
    from asyncdata.preprocessing.normalize import Normalize as Normalize
    from asyncdata.preprocessing.quantiles import Quantiles as Quantiles
    from asyncdata.preprocessing.text_vectorize import TextVectorize as TextVectorize
    from asyncdata.preprocessing.text_vocabulary import TextVocabulary as TextVocabulary
    from asyncdata.preprocessing.vocabulary import Vocabulary as Vocabulary
    from asyncdata.record.manifest_writer import write_manifest as write_manifest
    from asyncdata.record.tfrecord_writer import TFRecordWriter as TFRecordWriter
    from asyncdata.runtime.consumer.iterate import PipelineIterator as PipelineIterator
    from asyncdata.runtime.life.runtime import Runtime as Runtime
    from asyncdata.spec import ArraySpec as ArraySpec
    from asyncdata.spec import BytesSpec as BytesSpec
    from asyncdata.spec import DatasetSpec as DatasetSpec
    from asyncdata.spec import RaggedSpec as RaggedSpec
    from asyncdata.spec import StrSpec as StrSpec
    from asyncdata.storage.backends import BackendSpec as BackendSpec
    from asyncdata.storage.backends import register_backend as register_backend
    from asyncdata.workers.failure import UserFunctionError as UserFunctionError

__version__ = "0.2.20"

_HOMES = {
    "asyncdata.dataset.dataset": ("Dataset",),
    "asyncdata.dataset.directories": ("image_dataset_from_directory", "text_dataset_from_directory"),
    "asyncdata.dataset.files": (
        "CsvDataset",
        "FileDataset",
        "FixedLengthRecordDataset",
        "JsonLinesDataset",
        "ParquetDataset",
        "TFRecordDataset",
        "TarDataset",
        "TextLineDataset",
    ),
    "asyncdata.errors": (
        "AccessDeniedError",
        "AsyncdataError",
        "BrokenFrameError",
        "CloseTimeoutError",
        "CompressionError",
        "CorruptObjectError",
        "CorruptRecordError",
        "DataError",
        "ForkedProcessError",
        "FunctionTransferError",
        "MemoryLimitError",
        "MissingPackageError",
        "ObjectChangedError",
        "ObjectNotFoundError",
        "PipelineClosedError",
        "PipelineError",
        "QuarantineError",
        "StaleDataError",
        "StateError",
        "StorageError",
        "SystemResourceError",
        "TaskTimeoutError",
        "TooManyErrorsError",
        "TransientStorageError",
        "UnbatchableError",
        "UnsupportedURLError",
        "WorkerDiedError",
    ),
    "asyncdata.formats.example.parser": ("parse_example",),
    "asyncdata.formats.example.features": (
        "FixedLenFeature",
        "FixedLenSequenceFeature",
        "RaggedFeature",
        "VarLenFeature",
    ),
    "asyncdata.formats.image": ("decode_image",),
    "asyncdata.formats.example.sequences": ("parse_sequence_example",),
    "asyncdata.formats.example.serialize": ("serialize_example", "serialize_sequence_example"),
    "asyncdata.dataset.adapting": ("adapt",),
    "asyncdata.preprocessing.bucketize": ("Bucketize",),
    "asyncdata.preprocessing.hash_to_bins": ("HashToBins",),
    "asyncdata.preprocessing.loading": ("load_preprocessing",),
    "asyncdata.preprocessing.lookup": ("Lookup",),
    "asyncdata.preprocessing.moments": ("Normalization",),
    "asyncdata.preprocessing.nest": ("ByLeaf",),
    "asyncdata.preprocessing.normalize": ("Normalize",),
    "asyncdata.preprocessing.quantiles": ("Quantiles",),
    "asyncdata.preprocessing.text_vectorize": ("TextVectorize",),
    "asyncdata.preprocessing.text_vocabulary": ("TextVocabulary",),
    "asyncdata.preprocessing.vocabulary": ("Vocabulary",),
    "asyncdata.record.manifest_writer": ("write_manifest",),
    "asyncdata.record.tfrecord_writer": ("TFRecordWriter",),
    "asyncdata.memory.bytesarray": ("BytesArray",),
    "asyncdata.dataset.fused": ("map_and_batch", "parallel_interleave", "shuffle_and_repeat"),
    "asyncdata.memory.ragged": ("RaggedArray",),
    "asyncdata.memory.structure": ("register_dataclass",),
    "asyncdata.spec": ("ArraySpec", "BytesSpec", "DatasetSpec", "RaggedSpec", "StrSpec"),
    "asyncdata.plan.node": ("INFINITE_CARDINALITY", "UNKNOWN_CARDINALITY"),
    "asyncdata.observe.openmetrics": ("PipelineMetrics",),
    "asyncdata.observe.profile": ("Profile", "profile"),
    "asyncdata.observe.profile_report": ("ProfileReport",),
    "asyncdata.observe.progress": ("progress",),
    "asyncdata.observe.snapshot": ("PipelineStats",),
    "asyncdata.options": ("AUTOTUNE", "ErrorPolicy", "HedgeOptions", "Options", "RetryOptions", "TimeoutOptions"),
    "asyncdata.runtime.consumer.iterate": ("PipelineIterator",),
    "asyncdata.runtime.life.runtime": ("Runtime",),
    "asyncdata.storage.backends": ("BackendSpec", "register_backend"),
    "asyncdata.workers.failure": ("UserFunctionError",),
}
_MODULES = ("feed", "state")
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME_OF, *_MODULES])  # noqa: PLE0605 -- a list of the names above


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"asyncdata.{name}")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'asyncdata' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
