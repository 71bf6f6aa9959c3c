"""Settings that frameworks read when they are imported: the CPU alone, as four devices; JAX as Keras' backend.

PyTorch makes a folder for compiled code when some packages import it; it belongs beside the other caches.
"""

from __future__ import annotations

import os

from tests.architecture.tree import ROOT

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(ROOT / ".cache" / "inductor"))
